from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kernelworks.errors import TaskError
from kernelworks.task.kernelbench import KernelBenchSource, LoadedKernelBenchTask
from kernelworks.task.model import CaseRole, DType, ScalarArgument
from kernelworks.task.prototype import prototype

MIXER = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, features: int, shape, gain: float = 0.5, bias: bool = True, mode: str = "plain"):
        super().__init__()
        self.linear = nn.Linear(features, features, bias=bias)
        self.norm = nn.BatchNorm1d(features)
        self.shift = torch.arange(float(features))
        self.gain = gain

    def forward(self, x, parts, scale: float, mask=None):
        y = self.norm(self.linear(x)) * self.gain + self.shift
        return torch.relu(y) * scale + parts[0] + parts[1][0], y.sum(dim=1, keepdim=True)

rows = 96 * 2
features = 24
width = features

def get_inputs():
    return [torch.rand(rows, width), [torch.rand(rows, width), (torch.randn(width),)], 1.5, None]

def get_init_inputs():
    return [features, (3, 5)]
"""


@pytest.fixture
def load(write_task: Any) -> Any:
    """Loads a KernelBench file with this text."""

    def loaded(text: str, *, load_only: bool = False, **overrides: str) -> LoadedKernelBenchTask:
        path: Path = write_task(text)
        return KernelBenchSource().load(path, overrides, load_only=load_only)

    return loaded


def simple(forward: str = "return x * 2", inputs: str = "[torch.rand(n, m)]", more: str = "") -> str:
    """A file without weights."""
    return f"""
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        {forward}

n = 64
m = 128
{more}

def get_inputs():
    return {inputs}

def get_init_inputs():
    return []
"""


def test_names_constants_and_prototype(load: Any) -> None:
    task = load(MIXER).task
    assert (task.name, task.source, task.framework) == ("task_file", "kernelbench", "torch")
    assert [a.name for a in task.inputs] == ["x", "parts_item0", "parts_item1_item0", "scale"]
    assert task.inputs[3] == ScalarArgument(name="scale", type="float")
    assert [(w.name, w.dtype) for w in task.weights] == [
        ("w_linear_weight", DType.FLOAT32),
        ("w_linear_bias", DType.FLOAT32),
        ("w_norm_weight", DType.FLOAT32),
        ("w_norm_bias", DType.FLOAT32),
        ("w_shift", DType.FLOAT32),
        ("w_norm_running_mean", DType.FLOAT32),
        ("w_norm_running_var", DType.FLOAT32),
        ("w_norm_num_batches_tracked", DType.INT64),
    ]
    assert task.constants == {"H_FEATURES": 24, "H_SHAPE_0": 3, "H_SHAPE_1": 5, "H_GAIN": 0.5, "H_BIAS": True}
    assert [(a.name, a.shape) for a in task.outputs] == [("out0", ("x_0", "x_1")), ("out1", ("x_0", "out1_1"))]
    assert task.dims[:4] == ("x_0", "x_1", "parts_item0_0", "parts_item0_1")
    assert task.dims[-1] == "out1_1"
    text = prototype(task)
    assert text.startswith(
        'extern "C" int launch(const float* x, const float* parts_item0, const float* parts_item1_item0, double scale,'
        " const float* w_linear_weight,"
    )
    assert "const int64_t* w_norm_num_batches_tracked, float* out0, float* out1, int64_t x_0, int64_t x_1," in text


def test_cases(load: Any) -> None:
    task = load(MIXER).task
    assert [(c.name, c.role, c.seed) for c in task.cases] == [
        ("main", CaseRole.TIMED, 0),
        ("seed", CaseRole.CHECK, 1),
        ("shape", CaseRole.CHECK, 2),
        ("odd", CaseRole.EDGE, 3),
        ("rows_0", CaseRole.EDGE, 4),
        ("rows_65", CaseRole.EDGE, 5),
        ("rows_63", CaseRole.EDGE, 6),
        ("rows_97", CaseRole.EDGE, 7),
    ]
    assert [c.derived for c in task.cases] == [False, False, *[True] * 6]
    assert len(task.skipped) == 1 and task.skipped[0].startswith("rows = 1: ValueError: Expected more than 1 value per")
    main, seed, shape, odd, *edges = task.cases
    assert [c.sizes["x_0"] for c in edges] == [0, 65, 63, 97]
    assert main.sizes == seed.sizes
    assert (main.sizes["x_0"], main.sizes["x_1"], main.sizes["out1_1"]) == (192, 24, 1)
    assert main.scalars == {"scale": 1.5}
    assert shape.overrides == {"rows": shape.sizes["x_0"]}
    assert shape.sizes["x_0"] != 192 and shape.sizes["x_0"] % 64 == 0
    assert odd.sizes["x_0"] % 2 == 1
    assert {c.sizes["x_1"] for c in task.cases} == {24}


def test_running_it_is_running_the_model(load: Any) -> None:
    loaded = load(MIXER)
    for case in loaded.task.cases:
        arrays = loaded.make_inputs(case, 5)
        x, first, second, scale, weight, bias, norm_weight, norm_bias, *_ = arrays
        if case.sizes["x_0"] == 0:
            continue  # a mean over nothing
        out, total = loaded.run(arrays)
        hidden = torch.nn.functional.linear(x, weight, bias)
        normal = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
        y = (normal * norm_weight + norm_bias) * 0.5 + torch.arange(24.0)
        torch.testing.assert_close(out, torch.relu(y) * scale + first + second, rtol=1e-4, atol=1e-4)
        assert total.shape == (case.sizes["x_0"], 1)


def test_seeds_give_other_inputs_and_weights_and_leave_the_generator_alone(load: Any) -> None:
    loaded = load(MIXER)
    case = loaded.task.case("odd")
    state = torch.get_rng_state()
    expected = torch.rand(3)
    torch.set_rng_state(state)
    first, again, other = (loaded.make_inputs(case, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first[0], again[0]) and torch.equal(first[4], again[4])
    assert not torch.equal(first[0], other[0]) and not torch.equal(first[4], other[4])


def test_double_and_untouched_arrays(load: Any) -> None:
    loaded = load(MIXER)
    arrays = loaded.make_inputs(loaded.task.case("main"), 0)
    before = [a.clone() if isinstance(a, torch.Tensor) else a for a in arrays]
    golden = loaded.run(arrays, double=True)
    single = loaded.run(arrays)
    assert [g.dtype for g in golden] == [torch.float64, torch.float64]
    for exact, rounded in zip(golden, single, strict=True):
        torch.testing.assert_close(rounded.double(), exact, rtol=1e-4, atol=1e-4)
    for array, copy in zip(arrays, before, strict=True):  # running statistics would have changed
        assert array is copy or array == copy if isinstance(array, float) else torch.equal(array, copy)
    assert torch.equal(loaded.run(arrays)[0], single[0])


def test_program_is_a_model_on_these_arrays(load: Any) -> None:
    loaded = load(MIXER)
    arrays = loaded.make_inputs(loaded.task.case("main"), 0)
    model, arguments = loaded.program(arrays)
    assert arguments[0] is arrays[0] and arguments[1][1][0] is arrays[2] and arguments[3] is None
    with torch.no_grad():
        torch.testing.assert_close(model(*arguments)[0], loaded.run(arrays)[0])


def test_override_of_a_size(load: Any) -> None:
    loaded = load(MIXER, features="8", rows="10")
    task = loaded.task
    assert task.constants["H_FEATURES"] == 8
    assert (task.cases[0].sizes["x_0"], task.cases[0].sizes["x_1"], task.cases[0].sizes["w_linear_weight_0"]) == (
        10,
        8,
        8,
    )
    assert loaded.run(loaded.make_inputs(task.cases[0], 0))[0].shape == (10, 8)
    assert task.digest != load(MIXER).task.digest
    shape = task.case("shape")
    assert loaded.run(loaded.make_inputs(shape, 0))[0].shape == (shape.sizes["x_0"], 8)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"width": "3"}, "--set width: expected the name of a module-level numeric constant (features, rows)"),
        ({"rows": "many"}, "--set rows: expected a finite numeric literal, found 'many'"),
        ({"rows": "nan"}, "--set rows: expected a finite numeric literal, found 'nan'"),
        ({"rows": str(2**62)}, "overflow"),
        ({"rows": "-1"}, "get_inputs() failed: RuntimeError"),
    ],
)
def test_refused_overrides(load: Any, overrides: dict[str, str], message: str) -> None:
    with pytest.raises(TaskError) as caught:
        load(MIXER, **overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_trace_has_every_argument(load: Any) -> None:
    loaded = load(MIXER)
    for case in loaded.task.cases[::2]:
        graph = loaded.trace(case)
        placeholders = [n.argument for n in graph.nodes if n.kind == "placeholder"]
        assert placeholders == [a.name for a in (*loaded.task.inputs, *loaded.task.weights)]
        assert graph.sizes == case.sizes
        assert graph.node("x").values[0].shape == (case.sizes["x_0"], 24)
        assert len(graph.outputs) == 2
        assert graph.specialised == ()


def test_published_sizes_cost_no_memory_to_load_and_trace(load: Any) -> None:
    loaded = load(simple(more="n = 1 << 20"), load_only=True, n=str(2**30), m=str(2**20))
    assert loaded.task.cases[0].sizes == {"x_0": 2**30, "x_1": 2**20}
    assert loaded.trace(loaded.task.cases[0]).outputs


def test_sizes_that_must_agree_change_together(load: Any) -> None:
    text = simple("return x", "[torch.rand(n, k) * torch.rand(k, n)]", more="k = 64")
    task = load(text).task
    assert task.case("shape").overrides == {"n": 32, "k": 32}
    assert task.case("odd").sizes == {"x_0": 37, "x_1": 37}


def test_sizes_in_a_tuple(load: Any) -> None:
    text = simple("return torch.cumsum(x, 1)", "[torch.rand(n, *shape)]", more="shape = (4096,)")
    task = load(text, shape="(512,)").task
    assert task.cases[0].sizes == {"x_0": 64, "x_1": 512}
    assert isinstance(task.case("shape").overrides["shape"], tuple)


def test_nothing_to_change_leaves_two_cases(load: Any) -> None:
    task = load(simple(inputs="[torch.rand(4, 4)]")).task
    assert [c.name for c in task.cases] == ["main", "seed"]


def test_model_that_reads_a_module_level_size(load: Any) -> None:
    loaded = load(simple("return x.reshape(n * m).sum() / n"))
    for case in loaded.task.cases:
        arrays = loaded.make_inputs(case, 0)
        expected = arrays[0].sum() / case.sizes["x_0"]
        torch.testing.assert_close(loaded.run(arrays)[0], expected, equal_nan=case.sizes["x_0"] == 0)


def test_model_that_changes_its_input(load: Any) -> None:
    loaded = load(simple("return torch.relu_(x.sub_(0.5))"))
    arrays = loaded.make_inputs(loaded.task.case("odd"), 0)
    before = arrays[0].clone()
    (out,) = loaded.run(arrays)
    assert torch.equal(arrays[0], before)
    torch.testing.assert_close(out, torch.relu(before - 0.5))


def test_file_that_looks_at_values_is_run_for_real(load: Any) -> None:
    text = simple("return x * 2", "[torch.rand(n, m) * torch.rand(()).item()]")
    task = load(text).task
    assert [c.name for c in task.cases][:5] == ["main", "seed", "shape", "odd", "n_1"]
    assert task.large is None, "its sizes could only be tried with memory"
    with pytest.raises(TaskError, match="DataDependentOutputException"):
        load(text, load_only=True)


def test_model_that_looks_at_values_while_it_is_made(load: Any) -> None:
    making = ["def __init__(self):", "    super().__init__()", "    self.steps = torch.linspace(0, 3, 2)[1].item()", ""]
    text = simple("return x * self.steps").replace("def forward", "\n    ".join([*making, "def forward"]))
    loaded = load(text, load_only=True)
    arrays = loaded.make_inputs(loaded.task.cases[0], 0)
    assert torch.equal(loaded.run(arrays)[0], arrays[0] * 3)
    assert loaded.trace(loaded.task.cases[0]).outputs


def test_widening_by_hand_stays_wide(load: Any) -> None:
    loaded = load(simple("return (x.float() / 3).to(x.dtype)", "[torch.rand(n, m).bfloat16()]"))
    assert loaded.task.tensors[0].dtype is DType.BFLOAT16
    arrays = loaded.make_inputs(loaded.task.cases[0], 0)
    assert torch.equal(loaded.run(arrays, double=True)[0], arrays[0].double() / 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (simple().replace("def get_init_inputs", "def other"), "found no get_init_inputs"),
        (simple().replace("class Model(", "class ModelNew("), "get_init_inputs, found no Model"),
        (simple().replace("torch.nn.Module", "object"), "expected Model to be a torch.nn.Module, found Model"),
        (simple("return x").replace("(self, x)", "(self, x, y)"), "missing 1 required positional argument: 'y'"),
        (simple("return torch.nonzero(x)"), "found one whose size depends on values (aten.nonzero)"),
        (simple("return torch.masked_select(x, x > 0)"), "size depends on values (aten.masked_select)"),
        (simple("return x * 2, torch.unique(x)"), "size depends on values (aten._unique2)"),
        (simple(inputs="torch.rand(n)"), "expected get_inputs() to return a list, found"),
        (simple(inputs="[torch.rand(n), 'text']"), "expected at most 1 inputs for forward(), found 2"),
        (simple(inputs="['text']"), "expected tensors, numbers and lists of them from get_inputs(), found str"),
        (simple(inputs="[torch.rand(n).to(torch.complex128)]"), "input 'x': expected one of float32, "),
        (simple("return None"), "expected forward() to return tensors, found NoneType"),
        (simple("return x, 3"), "expected forward() to return tensors, found int"),
        (simple("return x @ x"), "line 6: forward() failed: RuntimeError"),
        (simple("return x").replace("(self, x)", "(self, auto)").replace("return x", "return auto"), "argument 'auto'"),
        (
            simple("return x_0 + x")
            .replace("(self, x)", "(self, x, x_0)")
            .replace("[torch", "[torch.rand(n, m), torch"),
            "expected distinct names, found 'x_0' as argument and dim",
        ),
        (simple(inputs="[float('nan')]").replace("return x * 2", "return torch.ones(3) * x"), "found NaN"),
        (simple().replace("return []", "return [1]"), "making the model failed: TypeError: Model.__init__() takes 1"),
        (simple().replace("return []", "return 1"), "expected get_init_inputs() to return a list, found int"),
        (MIXER.replace("gain: float = 0.5", "gain: float = float('nan')"), "expected a finite constant 'H_GAIN'"),
        (MIXER.replace("gain: float = 0.5", "GAIN=1, gain: float = 0.5"), "expected distinct constants, found H_GAIN"),
    ],
)
def test_refused_files(load: Any, text: str, message: str) -> None:
    with pytest.raises(TaskError) as caught:
        load(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_recognises(write_task: Any) -> None:
    source = KernelBenchSource()
    assert source.recognises(write_task(MIXER))
    assert not source.recognises(write_task("def get_inputs(): return []"))
    assert not source.recognises(write_task(MIXER, name="file.txt"))


def test_an_operator_of_unknown_size_on_the_way_to_a_fixed_one_is_no_obstacle(load: Any) -> None:
    loaded = load(simple("return x[x > 0.5].sum() + x"))
    arrays = loaded.make_inputs(loaded.task.case("main"), 0)
    x = arrays[0]
    torch.testing.assert_close(loaded.run(arrays)[0], x[x > 0.5].sum() + x)


def test_a_fresh_model_has_other_weights_outside_the_timed_case(load: Any) -> None:
    loaded = load(MIXER)
    names = [w.name for w in loaded.task.weights]

    def weights(case: str, seed: int) -> dict[str, torch.Tensor]:
        return dict(zip(names, loaded.make_inputs(loaded.task.case(case), seed)[4:], strict=True))

    timed, seed, other = weights("main", 1), weights("seed", 1), weights("seed", 2)
    assert (timed["w_norm_weight"] == 1).all() and (timed["w_norm_bias"] == 0).all()
    for name in ("w_norm_weight", "w_norm_bias", "w_norm_running_mean", "w_norm_running_var"):
        assert not (seed[name] == seed[name][0]).all() and not torch.equal(seed[name], other[name]), name
    assert (seed["w_norm_weight"] > 0.4).all() and (seed["w_norm_running_var"] > 0.4).all()
    assert torch.equal(seed["w_linear_weight"], timed["w_linear_weight"]), "the same seed, the model's own draw"
    assert torch.equal(seed["w_shift"], timed["w_shift"]) and seed["w_norm_num_batches_tracked"] == 0


def test_the_large_case_stands_apart(load: Any) -> None:
    task = load(simple()).task
    assert task.large is not None and task.large.overrides == {"n": 64 * 262145}
    assert task.large not in task.cases and task.case("large") is task.large


def test_how_the_model_is_made_and_called(load: Any) -> None:
    calling = load(MIXER).calling()
    assert calling.init == (24, {"tuple": [3, 5]})
    assert calling.forward == ({"slot": 0}, [{"slot": 1}, {"tuple": [{"slot": 2}]}], {"slot": 3}, None)
    assert calling.init_signature == "Model(features, shape, gain=0.5, bias=True, mode='plain')"
    assert calling.forward_signature == "Model.forward(x, parts, scale, mask=None)"
    assert calling.weights[:3] == ("linear.weight", "linear.bias", "norm.weight")
    assert "shift" in calling.weights


def test_a_constructor_that_takes_a_tensor_cannot_be_written_down(load: Any) -> None:
    text = MIXER.replace("return [features, (3, 5)]", "return [features, torch.ones(2)]")
    with pytest.raises(TaskError, match="found Tensor"):
        load(text).calling()
