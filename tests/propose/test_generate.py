"""Every knob and every value of every param gives a kernel that builds and is right, for sizes it was not made for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from kernelworks.kernel.frontmatter import parse_kernel
from kernelworks.kernel.model import Kernel, Language, Origin
from kernelworks.propose.experts.generate import write_kernel
from kernelworks.propose.experts.moves import Moves, Point
from kernelworks.propose.experts.naming import with_free_names
from kernelworks.propose.experts.recipe import KNOBS, Recipe, choices_for
from kernelworks.propose.experts.recognise import recognise

from .conftest import ErrorPool, Job, Lambda, Workshop, golden, make_job

# torch has partial types only.
torch: Any = importlib.import_module("torch")
functional: Any = torch.nn.functional

SHAPES = ((37, 1000), (5, 33), (64, 64), (1, 7), (3, 1), (1, 1))
Make = Callable[[int, int], list[Any]]


@dataclass(frozen=True)
class Sample:
    """A reference, and its inputs for a number of rows and columns."""

    reference: Lambda
    names: tuple[str, ...]
    make: Make


def gated_rms_norm(x: Any, z: Any, w: Any) -> Any:
    gated = x * functional.silu(z)
    return gated * torch.rsqrt(gated.pow(2).mean(-1, keepdim=True) + 1e-5) * w


def softmax_and_sum(x: Any) -> Any:
    result = torch.softmax(x, -1)
    return result, (result * result).sum(-1)


def randn(*shape: int) -> Any:
    return torch.randn(*shape)


SAMPLES = {
    "rows": Sample(gated_rms_norm, ("x", "z", "w"), lambda r, c: [randn(r, c), randn(r, c), randn(c)]),
    "online": Sample(softmax_and_sum, ("x",), lambda r, c: [randn(r, c)]),
    "columns": Sample(lambda x: torch.softmax(x, 1), ("x",), lambda r, c: [randn(3, r, c)]),
    "flat": Sample(
        lambda x, b, y: functional.gelu(x + b) + y, ("x", "b", "y"), lambda r, c: [randn(r, c), randn(c), randn(r, c)]
    ),
}
"""One for each layout and each kind of choice: all of their neighbours are built."""

OTHERS = {
    "log_softmax": Sample(lambda x: functional.log_softmax(x, -1), ("x",), lambda r, c: [randn(r, c)]),
    "logsumexp": Sample(lambda x: torch.logsumexp(x, -1), ("x",), lambda r, c: [randn(r, c)]),
    "layer_norm_gelu": Sample(
        lambda x, w, b: functional.gelu(functional.layer_norm(x, (x.shape[-1],), w, b)),
        ("x", "w", "b"),
        lambda r, c: [randn(r, c) + 3, randn(c), randn(c)],
    ),
    "group_norm": Sample(
        lambda x, w, b: functional.group_norm(x, 4, w, b),
        ("x", "w", "b"),
        lambda r, c: [randn(2, 8, r, c), randn(8), randn(8)],
    ),
    "batch_norm": Sample(
        lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True),
        ("x", "w", "b"),
        lambda r, c: [randn(5, r, c), randn(r), randn(r)],
    ),
    "columns_norm": Sample(
        lambda x, w: x / x.norm(dim=1, keepdim=True) * w, ("x", "w"), lambda r, c: [randn(3, r, c), randn(c)]
    ),
    "columns_extremes": Sample(
        lambda x: (x.amax(1), x.min(dim=1)[0], x.mean(1)), ("x",), lambda r, c: [randn(3, r, c)]
    ),
    "deviation": Sample(
        lambda x: (x.std(-1, correction=0), x.var(-1, keepdim=True, correction=0)),
        ("x",),
        lambda r, c: [randn(r, c) + 5],
    ),
    "loss": Sample(functional.smooth_l1_loss, ("x", "y"), lambda r, c: [randn(r, c), randn(r, c)]),
    "norm_of_all": Sample(lambda x: x / torch.norm(x), ("x",), lambda r, c: [randn(r, c)]),
    "softmax_of_all": Sample(lambda x: torch.softmax(x.flatten(), 0), ("x",), lambda r, c: [randn(r, c)]),
    "triplet": Sample(
        functional.triplet_margin_loss, ("a", "p", "n"), lambda r, c: [randn(r, c), randn(r, c), randn(r, c)]
    ),
    "largest_of_all": Sample(lambda x: (x.max(), (x * 2).amin()), ("x",), lambda r, c: [randn(r, c)]),
    "cross_entropy": Sample(
        functional.cross_entropy, ("x", "t"), lambda r, c: [randn(r, c), torch.randint(0, c, (r,))]
    ),
    "masked": Sample(
        lambda x, m: torch.softmax(x.masked_fill(m, -torch.inf), -1),
        ("x", "m"),
        lambda r, c: [randn(r, c), (torch.rand(r, c) > 0.5) & (torch.arange(c) > 0)],
    ),
    "masks": Sample(
        lambda x, y: (functional.relu(x - y), x > y, torch.where(x > 0, x, y)),
        ("x", "y"),
        lambda r, c: [randn(r, c), randn(r, c)],
    ),
    "row_factor": Sample(
        lambda x, b: (torch.tanh(x * b) + torch.log1p(x.abs()), b + 1),
        ("x", "b"),
        lambda r, c: [randn(r, c), randn(r, 1)],
    ),
    "float64": Sample(lambda x: torch.softmax(x, -1) * torch.erf(x), ("x",), lambda r, c: [randn(r, c).double()]),
    "bfloat16": Sample(
        lambda x, w: functional.rms_norm(x, (x.shape[-1],), w),
        ("x", "w"),
        lambda r, c: [randn(r, c).bfloat16(), randn(c).bfloat16()],
    ),
    "float16": Sample(functional.silu, ("x",), lambda r, c: [randn(r, c).half()]),
    "integers": Sample(
        lambda x, y: (x * y - 3, torch.maximum(x, y), x.sum(-1), (x > 5).any(-1)),
        ("x", "y"),
        lambda r, c: [torch.randint(-(2**30), 2**30, (r, c), dtype=torch.int32) for _ in "xy"],
    ),
    "products": Sample(lambda x: x.prod(-1), ("x",), lambda r, c: [(torch.rand(r, c) + 0.5).pow(1 / 64)]),
    "weight_norm": Sample(lambda x, w: x * (w / w.norm()), ("x", "w"), lambda r, c: [randn(r, c), randn(c)]),
    "outer": Sample(lambda x, y: (x.unsqueeze(-1) * y).abs().sum(-1), ("x", "y"), lambda r, c: [randn(r), randn(c)]),
    "taken_names": Sample(
        lambda size, start, load: (size - start) * load,
        ("size", "start", "load"),
        lambda r, c: [randn(r, c), randn(r, c), randn(c)],
    ),
    "constant_rows": Sample(
        lambda x, w: (functional.layer_norm(x, (x.shape[-1],), w) + w, x.var(-1, correction=0)),
        ("x", "w"),
        lambda r, c: [torch.full((r, c), 12.345), randn(c)],
    ),
    "columns_variance": Sample(lambda x: x.var(1, correction=0), ("x",), lambda r, c: [randn(3, r, c) + 5]),
    "variance_of_all": Sample(
        lambda x: (x.var(correction=0), x.std(1, correction=0)), ("x",), lambda r, c: [randn(r, c) + 7]
    ),
    "batch_mean": Sample(
        lambda x, y: functional.kl_div(x, y, reduction="batchmean") + (x.sum(1) / x.shape[1]).sum(),
        ("x", "y"),
        lambda r, c: [randn(r, c), torch.rand(r, c) + 0.1],
    ),
    "scalar": Sample(lambda x, s: x * s + 1, ("x", "s"), lambda r, c: [randn(r, c), 0.1 * r]),
}


class Writer:
    """Kernels of one job at any point."""

    def __init__(self, job: Job) -> None:
        self.programs = recognise(job.task, job.graph)
        self.choices = choices_for(self.programs, 512)
        self.moves = Moves(self.choices)
        self._names = with_free_names(job.task, self.programs)

    def kernel(self, point: Point) -> Kernel:
        """Through the parser, as a proposer's kernels go."""
        text = write_kernel(*self._names, point.recipe, self.choices)
        return parse_kernel(text, Language.CPP, Origin(proposer="experts"), params=dict(point.params))


def job_of(sample: Sample) -> Job:
    torch.manual_seed(0)
    return make_job(sample.reference, dict(zip(sample.names, sample.make(48, 96), strict=True)))


def check(workshop: Workshop, job: Job, kernel: Kernel, make: Make) -> None:
    torch.manual_seed(1)
    pools = [ErrorPool() for _ in job.task.outputs]
    for rows, columns in SHAPES:
        inputs = make(rows, columns)
        found = workshop.run(kernel, job, inputs)
        native, wanted = golden(job.reference, inputs, double=False), golden(job.reference, inputs, double=True)
        for pool, ours, theirs, exact in zip(pools, found, native, wanted, strict=True):
            if theirs.is_floating_point():
                pool.add(ours, theirs, exact.double(), max(int(v.numel()) for v in inputs[:1]))
            else:
                assert torch.equal(ours, theirs), (rows, columns)
    for pool in pools:
        pool.check()


def points_around(writer: Writer) -> Iterator[Point]:
    """The default and everything that differs from it by one knob or param; what loops write differently as well."""
    centre = writer.moves.point(Recipe())
    yield centre
    yield from (move.point for move in writer.moves.neighbours(centre))
    loops = writer.moves.point(Recipe(style="simd"))
    own = {"math", "softmax", "RUN", "TILE"}
    yield from (move.point for move in writer.moves.neighbours(loops) if move.turned in own)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_value_of_every_knob_and_param_is_right(workshop: Workshop, name: str) -> None:
    sample = SAMPLES[name]
    job = job_of(sample)
    writer = Writer(job)
    points = dict.fromkeys(points_around(writer))
    for knob, values in writer.choices.knobs.items():
        assert {getattr(p.recipe, knob) for p in points} == set(values)
    for point in points:
        check(workshop, job, writer.kernel(point), sample.make)


def test_samples_cover_every_knob() -> None:
    offered: dict[str, set[str]] = {name: set() for name in KNOBS}
    for sample in SAMPLES.values():
        for name, values in Writer(job_of(sample)).choices.knobs.items():
            offered[name] |= set(values)
    assert offered == {name: set(values) for name, values in KNOBS.items()}


@pytest.mark.parametrize("name", OTHERS)
def test_families_are_right_in_each_style(workshop: Workshop, name: str) -> None:
    sample = OTHERS[name]
    job = job_of(sample)
    writer = Writer(job)
    recipes = [Recipe(stores="stream"), Recipe(style="plain", math="libm"), Recipe(buffer="output", fusion="phases")]
    for point in dict.fromkeys(writer.moves.point(recipe) for recipe in recipes):
        check(workshop, job, writer.kernel(point), sample.make)


def test_fast_math_is_never_offered_where_infinities_or_choices_matter() -> None:
    for name in ("online", "columns"):
        assert "libmvec" not in Writer(job_of(SAMPLES[name])).choices.knobs["math"]
    for name in ("masks", "masked", "largest_of_all"):
        assert "libmvec" not in Writer(job_of(OTHERS[name])).choices.knobs["math"]


def test_means_in_float64_and_scalar_arguments_leave_vectors_possible() -> None:
    for name in ("layer_norm_gelu", "columns_variance", "scalar"):
        assert Writer(job_of(OTHERS[name])).choices.knobs["style"][0] == "vector"


def test_rows_of_equal_values_have_no_variance(workshop: Workshop) -> None:
    sample = OTHERS["constant_rows"]
    job = job_of(sample)
    writer = Writer(job)
    for style in ("vector", "simd", "plain"):
        kernel = writer.kernel(writer.moves.point(Recipe(style=style)))
        assert not workshop.run(kernel, job, sample.make(5, 1000))[1].any()


def test_narrower_machines_get_narrower_vectors() -> None:
    programs = Writer(job_of(SAMPLES["rows"])).programs
    for bits, lanes in ((512, (16, 8, 4)), (256, (8, 4)), (128, (4,))):
        assert choices_for(programs, bits).params(Recipe())["LANES"] == lanes


def test_assumptions_on_sizes_are_declared() -> None:
    text = (
        Writer(job_of(OTHERS["group_norm"])).kernel(Point(Recipe(style="plain", buffer="none", math="libm"), ())).text
    )
    front = parse_kernel(text, Language.CPP, Origin(proposer="experts")).front
    assert "x_1 % 4 == 0" in front.covers
