from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernelworks.errors import TaskError
from kernelworks.task.model import Case, CaseRole, ScalarArgument, TensorArgument
from kernelworks.task.prototype import prototype
from kernelworks.task.python_source import LoadedPythonTask, PythonSource

HEAD = """
import torch
import numpy as np
from jaxtyping import Bool, Complex64, Float16, Float32, Float64, Int32, UInt8
from torch import Tensor
from kernelworks.task import case, integers, normal, task, uniform
"""


@pytest.fixture
def load(write_task: Any) -> Any:
    """Loads the task of a file with the usual imports before the given text."""

    def loaded(text: str, *, load_only: bool = False, **overrides: str) -> LoadedPythonTask:
        import textwrap

        path: Path = write_task(HEAD + textwrap.dedent(text))
        return PythonSource().load(path, overrides, load_only=load_only)

    return loaded


SCALED = """
FACTOR = 2
COLS = 64

@task(cases=[case("main", "timed", rows=8, cols=COLS, s=0.5), case("odd", "check", rows=3, cols=5, s=2)])
def scaled(x: Float32[Tensor, "rows cols"], s: float, w: Float32[Tensor, "cols"]) -> Float32[Tensor, "rows cols"]:
    return x * w * s * FACTOR
"""


def test_everything_that_a_file_says(load: Any) -> None:
    found = load(SCALED).task
    assert (found.name, found.source, found.framework, found.dims) == ("scaled", "python", "torch", ("rows", "cols"))
    assert [a.name for a in found.arguments] == ["x", "s", "w", "out0"]
    assert found.inputs[1] == ScalarArgument(name="s", type="float")
    assert tuple(c for c in found.cases if not c.derived) == (
        Case(name="main", role=CaseRole.TIMED, sizes={"rows": 8, "cols": 64}, scalars={"s": 0.5}, seed=0),
        Case(name="odd", role=CaseRole.CHECK, sizes={"rows": 3, "cols": 5}, scalars={"s": 2.0}, seed=1),
    )
    assert prototype(found) == (
        'extern "C" int launch(const float* x, double s, const float* w, float* out0, int64_t rows, int64_t cols)'
    )


def test_running_it(load: Any) -> None:
    loaded = load(SCALED)
    case = loaded.task.case("odd")
    arrays = loaded.make_inputs(case, 7)
    (out,) = loaded.run(arrays)
    torch.testing.assert_close(out, arrays[0] * arrays[2] * 4)
    (golden,) = loaded.run(arrays, double=True)
    assert golden.dtype == torch.float64
    assert torch.equal(golden, arrays[0].double() * arrays[2].double() * 4)
    assert torch.equal(arrays[0], loaded.make_inputs(case, 7)[0])
    assert not torch.equal(arrays[0], loaded.make_inputs(case, 8)[0])
    function, arguments = loaded.program(arrays)
    torch.testing.assert_close(function(*arguments), out)


def test_overrides_of_constants_dims_and_scalars(load: Any) -> None:
    loaded = load(SCALED, COLS="16", FACTOR="3", rows="4", s="0.25")
    main, odd = (c for c in loaded.task.cases if not c.derived)
    assert (main.sizes, main.scalars) == ({"rows": 4, "cols": 16}, {"s": 0.25})
    assert (odd.sizes, odd.scalars) == ({"rows": 3, "cols": 5}, {"s": 2.0})
    arrays = [torch.ones(4, 16), 0.25, torch.ones(16)]
    assert loaded.run(arrays)[0][0, 0] == 0.75
    assert loaded.task.digest != load(SCALED).task.digest


def test_unknown_override_lists_what_there_is(load: Any) -> None:
    with pytest.raises(
        TaskError, match=r"--set Q: expected a constant, dim or scalar .*\(COLS, FACTOR, rows, cols, s\)"
    ):
        load(SCALED, Q="1")
    with pytest.raises(TaskError, match="--set rows: expected int"):
        load(SCALED, rows="1.5")
    with pytest.raises(TaskError, match="expected a size of at least 1 for dim 'rows', found -3"):
        load(SCALED, rows="-3")


def test_options_reach_the_task(load: Any) -> None:
    found = load(
        """
        @task(
            name="t", tolerance=1e-3, deterministic=False, aggregate="total", instructions="be quick",
            outputs=["y", "total"], cases=[case("main", rows=4, eps=1.0), case("one", rows=1)],
        )
        def f(x: Float32[Tensor, "rows 3"], eps: float = 0.5) -> tuple[Float32[Tensor, "rows 3"], Float32[Tensor, ""]]:
            return x + eps, x.sum()
        """
    ).task
    assert (found.name, found.tolerance.relative_rms, found.deterministic) == ("t", 1e-3, False)
    assert (found.aggregate, found.instructions) == ("total", "be quick")
    assert [(a.name, a.shape) for a in found.outputs] == [("y", ("rows", 3)), ("total", ())]
    assert [c.scalars for c in found.cases if not c.derived] == [{"eps": 1.0}, {"eps": 0.5}]
    assert {c.scalars["eps"] for c in found.cases if c.derived} == {1.0}, "like the timed case"


def test_in_place(load: Any) -> None:
    loaded = load(
        """
        @task(cases=[case("main", n=4)], mutates=["x"])
        def f(x: Float32[Tensor, "n"], y: Float32[Tensor, "n"]) -> Float32[Tensor, ""]:
            x += y
            return x.sum()
        """
    )
    arrays: list[Any] = [torch.ones(4), torch.ones(4)]
    total, changed = loaded.run(arrays)
    assert (total.item(), changed.tolist(), arrays[0].tolist()) == (8.0, [2.0] * 4, [1.0] * 4)
    assert loaded.run(arrays, double=True)[1].dtype == torch.float64
    graph = loaded.trace(loaded.task.cases[0])
    assert len(graph.outputs) == 2
    assert graph.node(graph.outputs[1].ref).op == "aten.add.Tensor"


def test_double_reaches_casts_inside(load: Any) -> None:
    loaded = load(
        """
        @task(cases=[case("main", n=64)])
        def f(x: Float16[Tensor, "n"]) -> Float16[Tensor, "n"]:
            wide = x.float() + torch.ones(x.shape) / 3 + torch.zeros(x.shape, dtype=torch.float32)
            return wide.to(torch.float32).to(x.dtype)
        """
    )
    arrays = loaded.make_inputs(loaded.task.cases[0], 0)
    assert torch.equal(loaded.run(arrays, double=True)[0], arrays[0].double() + 1 / 3)
    assert torch.get_default_dtype() == torch.float32


def test_an_output_never_shares_memory_with_an_input(load: Any) -> None:
    loaded = load(
        """
        @task(cases=[case("main", n=4)])
        def f(x: Float32[Tensor, "n 2"]) -> tuple[Float32[Tensor, "n 2"], Float32[Tensor, "2 n"]]:
            return x, x.t()
        """
    )
    arrays = loaded.make_inputs(loaded.task.cases[0], 0)
    same, turned = loaded.run(arrays)
    same.zero_()
    assert arrays[0].abs().sum() > 0
    assert turned.is_contiguous()


DTYPES = """
@task(
    cases=[case("main", n=1000)],
    inputs={"d": uniform(2, 3), "u": integers(5, 7), "f": normal(10, 0.1)},
)
def f(
    d: Float64[ARRAY, "n"], i: Int32[ARRAY, "n"], u: UInt8[ARRAY, "n"], b: Bool[ARRAY, "n"], c: Complex64[ARRAY, "n"],
    f: Float32[ARRAY, "n"],
) -> tuple[Float64[ARRAY, "n"], Int32[ARRAY, "n"], Bool[ARRAY, "n"], Complex64[ARRAY, "n"]]:
    return d + 1, i * 2, ~b, c * 2
"""


@pytest.mark.parametrize("array", ["Tensor", "np.ndarray"])
def test_dtypes_and_distributions(load: Any, array: str) -> None:
    loaded = load(DTYPES.replace("ARRAY", array))
    case = loaded.task.cases[0]
    drawn = loaded.make_inputs(case, 0)
    arrays: list[Any] = [np.asarray(a) for a in drawn]
    d, i, u, b, c, f = arrays
    assert [str(a.dtype) for a in arrays] == ["float64", "int32", "uint8", "bool", "complex64", "float32"]
    assert 2 <= d.min() < d.max() < 3
    assert set(u.tolist()) == {5, 6}
    assert set(i.tolist()) == set(range(-8, 8))
    assert 300 < b.sum() < 700
    assert abs(f.mean() - 10) < 0.1 and c.imag.std() > 0.3
    outputs = loaded.run(drawn, double=True)
    assert [str(o.dtype).removeprefix("torch.") for o in outputs] == ["float64", "int32", "bool", "complex128"]


NUMPY = """
@task(cases=[case("main", rows=8, cols=4), case("odd", "check", rows=3, cols=1)])
def f(x: Float32[np.ndarray, "rows cols"]) -> Float32[np.ndarray, "rows"]:
    return np.tanh(x).sum(axis=1)
"""


def test_numpy_reference(load: Any) -> None:
    loaded = load(NUMPY)
    assert loaded.task.framework == "numpy"
    arrays = loaded.make_inputs(loaded.task.case("main"), 0)
    before = arrays[0].copy()
    (out,) = loaded.run(arrays)
    (golden,) = loaded.run(arrays, double=True)
    assert (out.dtype, golden.dtype) == (np.float32, np.float64)
    np.testing.assert_allclose(out, golden, rtol=1e-5)
    np.testing.assert_array_equal(arrays[0], before)
    with pytest.raises(TaskError, match="expected a torch reference to trace, found a NumPy one"):
        loaded.trace(loaded.task.case("main"))


def test_numpy_reference_in_place_and_scalar_result(load: Any) -> None:
    loaded = load(
        """
        @task(cases=[case("main", n=4)], mutates=["x"])
        def f(x: Float32[np.ndarray, "n"]) -> tuple[Float32[np.ndarray, ""], Float32[np.ndarray, "n"]]:
            x *= 2
            return x.sum(), x
        """
    )
    arrays = [np.ones(4, np.float32)]
    total, returned, changed = loaded.run(arrays)
    assert (total.shape, float(total), arrays[0].sum()) == ((), 8.0, 4.0)
    assert changed.tolist() == [2.0] * 4
    assert not np.may_share_memory(returned, changed)


def test_numpy_tasks_need_no_torch(write_task: Any) -> None:
    text = HEAD.replace("import torch\n", "").replace("from torch import Tensor\n", "") + NUMPY
    path = write_task(text)
    code = f"""
import sys
sys.modules["torch"] = None  # importing it fails
from kernelworks.task.resolve import load_task
from kernelworks.task.source import TaskReference
loaded = load_task(TaskReference(target={str(path)!r}))
case = loaded.task.cases[0]
print(loaded.run(loaded.make_inputs(case, 0), double=True)[0].shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "(8,)"), done.stderr


def test_a_torch_task_without_torch_names_the_mend(write_task: Any) -> None:
    path = write_task(HEAD + SCALED)
    code = f"""
import sys
sys.modules["torch"] = None
from kernelworks.errors import TaskError
from kernelworks.task.resolve import load_task
from kernelworks.task.source import TaskReference
try:
    load_task(TaskReference(target={str(path)!r}))
except TaskError as error:
    print(error.mend)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "pip install 'kernelworks[torch]'", done.stderr


def test_inputs_by_a_function(load: Any) -> None:
    loaded = load(
        """
        def draw(generator, sizes):
            return {"i": torch.randint(0, sizes["n"], (sizes["n"],), generator=generator, dtype=torch.int32)}

        @task(cases=[case("main", n=50)], inputs=draw)
        def f(x: Float32[Tensor, "n"], i: Int32[Tensor, "n"]) -> Float32[Tensor, "n"]:
            return x[i.long()]
        """
    )
    case = loaded.task.cases[0]
    x, i = loaded.make_inputs(case, 1)
    assert i.min() >= 0 and i.max() < 50 and x.std() > 0.5
    assert torch.equal(i, loaded.make_inputs(case, 1)[1])


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        ("{'q': 1}", "expected names of tensor arguments, found 'q'"),
        ("{'x': torch.ones(3)}", "expected 'x' as float32 of shape (4,), found torch.float32 of shape (3,)"),
        ("{'x': torch.ones(4, dtype=torch.int32)}", "expected 'x' as float32 of shape (4,), found torch.int32"),
        ("{'x': [1, 2]}", "expected 'x' as float32 of shape (4,), found list of shape ()"),
        ("1 / 0", "drawing inputs failed: ZeroDivisionError"),
    ],
)
def test_refused_inputs(load: Any, draw: str, message: str) -> None:
    loaded = load(
        f"""
        @task(cases=[case("main", n=4)], inputs=lambda generator, sizes: {draw})
        def f(x: Float32[Tensor, "n"]) -> Float32[Tensor, "n"]:
            return x + 1
        """
    )
    with pytest.raises(TaskError) as caught:
        loaded.make_inputs(loaded.task.cases[0], 0)
    assert message in str(caught.value)


def task_text(
    cases: str = 'case("main", n=4)', *, more: str = "", of: str = "x: Float32[Tensor, 'n']", body: str = "return x + 1"
) -> str:
    return f"""
@task(cases=[{cases}]{more})
def f({of}) -> Float32[Tensor, "n"]:
    {body}
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (task_text('case("main", n=4, q=1)'), "case 'main': expected dims and scalars (n), found unknown 'q'"),
        (task_text('case("main")'), "case 'main': expected values for n, found none for n"),
        (task_text(""), "expected at least one case, found none"),
        (task_text('case("a", n=1), case("a", n=2)'), "expected distinct case names, found 'a' twice"),
        (task_text('case("a", "check", n=1)'), "expected at least one case with role 'timed', found none"),
        (task_text('case("a", n=-1)'), "expected a size of at least 1 for dim 'n', found -1"),
        (task_text('case("a", n=0)'), "expected a size of at least 1 for dim 'n', found 0"),
        (task_text('case("a", n=1.5)'), "expected an integer size of dim 'n', found 1.5"),
        (task_text('case("a", n=True)'), "expected an integer size of dim 'n', found True"),
        (task_text('case("a", n=2**63)'), "found an integer overflow (9223372036854775808)"),
        (task_text('case("a", n=2**61)'), "found an integer overflow in 'x' (n=2305843009213693952)"),
        (
            task_text('case("a", n=2**31, m=2**31)', of='x: Float32[Tensor, "n"], y: Float32[Tensor, "n m"]'),
            "found an integer overflow in 'y' (n=2147483648 m=2147483648)",
        ),
        (
            task_text('case("a", n=1, s=float("nan"))', of="x: Float32[Tensor, 'n'], s: float"),
            "expected 's' as a number, found NaN",
        ),
        (
            task_text('case("a", n=1, s="1")', of="x: Float32[Tensor, 'n'], s: float"),
            "expected 's' as float, found '1'",
        ),
        (task_text('case("a", n=1, s=1.5)', of="x: Float32[Tensor, 'n'], s: int"), "expected 's' as int, found 1.5"),
        (task_text('case("a", n=1, s=2**63)', of="x: Float32[Tensor, 'n'], s: int"), "expected 's' to fit int64"),
        (task_text('case("a", n=1, s=1)', of="x: Float32[Tensor, 'n'], s: bool"), "expected 's' as bool, found 1"),
        (
            task_text('case("a", n=1)', of="float: Float32[Tensor, 'n']", body="return float"),
            "expected a name that C allows, found argument 'float'",
        ),
        (
            task_text('case("a", auto=1, n=1)', of="x: Float32[Tensor, 'n auto']"),
            "expected a name that C allows, found dim 'auto'",
        ),
        (
            task_text('case("a", n=1)', of="n: Float32[Tensor, 'n']"),
            "expected distinct names, found 'n' as argument and dim",
        ),
        (task_text('case("a", n=1)', of="out0: Float32[Tensor, 'n']"), "expected distinct names, found 'out0'"),
        (task_text('case("a", n=1)', of="é: Float32[Tensor, 'n']"), "expected a C identifier, found argument 'é'"),
        (task_text(more=', mutates=["q"]'), "expected names of tensor arguments in mutates, found 'q'"),
        (task_text(body="return x.double()"), "output 'out0': expected dtype float32, found float64"),
        (task_text(body="return x[1:]"), "output 'out0': expected shape n=4, found (3,)"),
        (task_text(body="return x, x"), "expected 1 outputs, found 2"),
        (task_text(body="return 1.0"), "output 'out0': expected a tensor, found float"),
        (task_text(body="x += 1; return x"), "found 'x' changed (name it in mutates)"),
        (task_text(body="return x @ x @ x"), "the reference of task 'f' failed"),
        ("x = 1", "expected one function under @task, found none"),
        (task_text() + task_text().replace("def f", "def g"), "expected one function under @task, found f, g"),
        (
            '@task(cases=[case("a", n=1)])\ndef f(x: Float32[Tensor, "n"]) -> None: ...',
            "expected an output or an argument in mutates, found none",
        ),
    ],
)
def test_refused_tasks(load: Any, text: str, message: str) -> None:
    with pytest.raises(TaskError) as caught:
        load(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_failing_reference_has_its_line(load: Any) -> None:
    with pytest.raises(TaskError, match=r"task_file\.py, line 10: the reference of task 'f' failed: RuntimeError"):
        load(task_text(body="return x @ x.reshape(2, 2)"))


def test_numpy_reference_that_writes_to_its_input(load: Any) -> None:
    text = task_text(body="x += 1; return x").replace("Tensor", "np.ndarray")
    with pytest.raises(TaskError, match="the reference of task 'f' failed: ValueError: output array is read-only"):
        load(text)
    assert load(text, load_only=True).task.framework == "numpy"


LOOKS = task_text(body="return x * float(x[0]) if x[0] > 0 else x.double()")


def test_references_that_look_at_values_are_run_for_real(load: Any) -> None:
    with pytest.raises(TaskError, match="expected dtype float32, found float64"):
        load(LOOKS.replace("x[0] > 0", "x[0] > 1e30"))
    assert load(LOOKS.replace("x.double()", "x"))
    assert load(LOOKS.replace("x[0] > 0", "x[0] > 1e30"), load_only=True)


def test_large_cases_cost_nothing_to_load(load: Any) -> None:
    loaded = load(task_text('case("main", n=2**40), case("odd", "check", n=3)'))
    assert loaded.task.cases[0].sizes == {"n": 2**40}
    graph = loaded.trace(loaded.task.cases[0])
    assert graph.node("x").values[0].shape == (2**40,)


def test_recognises(write_task: Any) -> None:
    source = PythonSource()
    for text, known in (
        ("from kernelworks.task import task", True),
        ("import kernelworks.task as kt", True),
        ("from kernelworks import task", True),
        ("def f():\n    from kernelworks.task import task", True),
        ("import torch\nfrom os import path", False),
    ):
        assert source.recognises(write_task(text)) is known
    assert not source.recognises(write_task("from kernelworks.task import task", name="task.txt"))


def test_tensor_arguments_keep_their_order(load: Any) -> None:
    found = load(SCALED).task
    assert [type(a) for a in found.inputs] == [TensorArgument, ScalarArgument, TensorArgument]


ROWS = """
@task(cases=[case("main", rows=256, cols=128)])
def f(x: Float32[Tensor, "rows cols"]) -> Float32[Tensor, "rows"]:
    return x.max(-1).values
"""


def test_check_and_edge_cases_are_derived_where_there_are_none(load: Any) -> None:
    task = load(ROWS).task
    assert [(c.name, c.role.value) for c in task.cases[:4]] == [
        ("main", "timed"),
        ("shape", "check"),
        ("odd", "edge"),
        ("rows_1", "edge"),
    ]
    assert task.case("shape").sizes["cols"] % 64 == 0, "divisible like the author's"
    assert task.case("rows_0").sizes["rows"] == 0
    assert task.large is not None


def test_the_authors_own_cases_are_enough(load: Any) -> None:
    written = ROWS.replace("]\n)", "]\n)").replace(
        "cols=128)]", 'cols=128), case("c", "check", rows=3, cols=5), case("none", "edge", rows=0, cols=5)]'
    )
    task = load(written).task
    assert [c.name for c in task.cases] == ["main", "c", "none"] and not task.skipped
    with pytest.raises(TaskError, match="case 'c': expected a size of at least 1 for dim 'rows', found 0"):
        load(written.replace('"check", rows=3', '"check", rows=0'))


def test_a_numpy_reference_is_tried_on_small_arrays(load: Any) -> None:
    text = ROWS.replace("Tensor", "np.ndarray").replace("x.max(-1).values", "x.max(-1)")
    task = load(text).task
    assert "shape" in {c.name for c in task.cases} and task.skipped[0].startswith("cols = 0: ValueError")
    assert not any(c.derived for c in load(text, load_only=True).task.cases)


@pytest.mark.parametrize("operator", ["nonzero", "unique"])
def test_an_output_of_unknown_size_is_refused_by_name(load: Any, operator: str) -> None:
    text = f"""
    @task(cases=[case("main", n=16, k=16)])
    def f(x: Float32[Tensor, "n"]) -> Float32[Tensor, "k"]:
        return torch.{operator}(x).to(torch.float32).flatten()
    """
    with pytest.raises(TaskError, match=r"task 'f': .* size depends on values \(aten\._?" + operator):
        load(text)


def test_a_strided_task_gives_its_strides_to_kernels(load: Any) -> None:
    text = ROWS.replace("cols=128)]", 'cols=128)], layout="strided"')
    assert prototype(load(text).task) == (
        'extern "C" int launch(const float* x, float* out0, int64_t rows, int64_t cols,'
        " int64_t x_stride_0, int64_t x_stride_1)"
    )
    with pytest.raises(TaskError, match="expected distinct names, found 'x_stride_0' as"):
        load(
            text.replace('"rows cols"]', '"x_stride_0 cols"]')
            .replace('"rows"', '"x_stride_0"')
            .replace("rows=", "x_stride_0=")
        )


def test_the_task_says_its_precision(load: Any) -> None:
    assert load(ROWS.replace("cols=128)]", 'cols=128)], precision="relaxed"')).task.precision == "relaxed"
