"""Our own task format: a Python file with a function under ``@task`` (``kernelworks.task.declare``).

``--set NAME=VALUE`` replaces a module-level numeric constant of the file, or else the size of a dim, or the value of
a Python scalar, in every timed case.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from kernelworks.errors import TaskError
from kernelworks.task.annotations import Signature, read_signature
from kernelworks.task.checks import check_names, check_scalar, check_size, check_task, describe
from kernelworks.task.declare import CaseDeclaration, Declaration, TaskFunction
from kernelworks.task.derive import Derived, Variant, derive_cases, derive_large
from kernelworks.task.draw import draw_inputs
from kernelworks.task.graph import Graph
from kernelworks.task.lazytorch import (
    data_dependent_errors,
    double_precision,
    fake_mode,
    fake_mode_of,
    is_sequence,
    own_contiguous,
    quiet,
    refuse_dynamic_size,
    to_double,
    to_torch,
    torch_module,
)
from kernelworks.task.model import (
    Case,
    CaseRole,
    ScalarArgument,
    Task,
    TensorArgument,
    Tolerance,
    concrete_shape,
    element_count,
    stride_name,
)
from kernelworks.task.modulefile import (
    Constant,
    constants,
    digest,
    execute,
    foreign_code,
    is_int,
    parse,
    parse_overrides,
    parse_value,
    read_text,
)
from kernelworks.task.source import Arrays, Calling
from kernelworks.task.trace import trace_reference

_TRIAL_ELEMENTS = 1 << 22
"""Largest case, in elements of all tensors, on which a reference is tried for real while it is loaded."""


class PythonSource:
    """Task source ``python``: files that import ``kernelworks.task`` and hold one function under ``@task``."""

    name = "python"

    def recognises(self, path: Path) -> bool:
        """Whether it is a Python file that imports ``kernelworks.task``."""
        return path.suffix == ".py" and any(map(_imports_vocabulary, ast.walk(parse(path))))

    def load(self, path: Path, overrides: Mapping[str, str], *, load_only: bool = False) -> LoadedPythonTask:
        """Execute the file and load the one task that it declares.

        ``load_only`` draws no inputs; a torch reference is still tried once on tensors without memory.

        Raises:
            TaskError: the file fails, declares no task or several, or the task breaks a rule.
        """
        tree = parse(path)
        known = constants(tree)
        of_module = {name: text for name, text in overrides.items() if name in known}
        module = execute(path, tree, parse_overrides(of_module, known))
        declared = _declared(module)
        if len(declared) != 1:
            found = ", ".join(declared) or "none"
            raise TaskError(
                f"{path}: expected one function under @task, found {found}",
                mend="keep one task a file, or address it as module:name" if declared else "",
            )
        (function,) = declared.values()
        rest = {name: text for name, text in overrides.items() if name not in known}
        return _load(function, path, rest, sorted(known), digest(read_text(path), overrides), load_only=load_only)

    def load_function(
        self, module: str, name: str, overrides: Mapping[str, str], *, load_only: bool = False
    ) -> LoadedPythonTask:
        """Load the task ``name`` of an importable module; ``overrides`` concern dims and scalars only.

        Raises:
            TaskError: the module cannot be imported, has no such task, or the task breaks a rule.
        """
        with foreign_code(Path(module), f"importing {module!r}"):
            imported = importlib.import_module(module)
        function: object = vars(imported).get(name)
        if not _is_task(function):
            listed = ", ".join(_declared(imported)) or "none"
            raise TaskError(f"{module}:{name}: expected the name of a function under @task, found none ({listed})")
        path = Path(imported.__file__ or module)
        text = f"{name}\0{inspect.getsource(imported)}"
        return _load(function, path, overrides, [], digest(text, overrides), load_only=load_only)


@dataclass(frozen=True)
class LoadedPythonTask:
    """A task of our own format with the function behind it."""

    task: Task
    function: Callable[..., Any]
    declaration: Declaration
    path: Path

    def make_inputs(self, case: Case, seed: int) -> list[Any]:
        """Inputs as the task draws them; the same seed gives the same values. Scalars are the case's."""
        with foreign_code(self.path, "drawing inputs"):
            return draw_inputs(self.task.inputs, self.declaration, case, seed, self.task.framework)

    def run(self, arrays: Arrays, *, double: bool = False) -> list[Any]:
        """The returned outputs, then the arguments that it mutates, in the order of ``task.mutates``.

        The arrays given are never changed. ``double``: float inputs are widened to float64 (complex128) and, in torch,
        requests for a lower precision inside the reference are too. NumPy code that narrows by itself stays narrow.

        Raises:
            TaskError: the reference raises, changes an input that ``mutates`` does not name, or its outputs have other
                shapes or dtypes than annotated.
        """
        run = self._run_torch if self.task.framework == "torch" else self._run_numpy
        with foreign_code(self.path, f"the reference of task {self.task.name!r}"):
            outputs, mutated = run(arrays, double)
        self._check_outputs(outputs, arrays, double)
        return outputs + mutated

    def program(self, arrays: Arrays) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The function itself and its arguments."""
        return self.function, tuple(arrays)

    def trace(self, case: Case) -> Graph:
        """The reference as ATen operators for the sizes of a case; memory is not touched.

        Raises:
            TaskError: a NumPy reference, or one that ``torch.export`` cannot follow.
        """
        if self.task.framework == "numpy":
            raise TaskError(f"task {self.task.name!r}: expected a torch reference to trace, found a NumPy one")
        named = list(zip([a.name for a in self.task.inputs], self._fake_inputs(case), strict=True))
        return trace_reference(
            lambda values: self.function(*values), named, sizes=case.sizes, mutates=self.task.mutates
        )

    def calling(self) -> Calling:
        """No constructor arguments; ``forward`` takes the function's."""
        arguments = ", ".join(a.name for a in self.task.inputs)
        return Calling(
            init_signature=f"{self.task.name}, which takes none",
            forward=tuple({"slot": k} for k in range(len(self.task.inputs))),
            forward_signature=f"{self.task.name}({arguments})",
        )

    def try_out(self, *, load_only: bool) -> None:
        """Run the reference once: without memory where it can be, else on the smallest case unless ``load_only``.

        Raises:
            TaskError: as ``run``.
        """
        if self.task.framework == "torch":
            try:
                self._run_fake(self.task.cases[0])
            except data_dependent_errors() as error:  # it looks at values; a real run has to do
                where = f"task {self.task.name!r}"
                refuse_dynamic_size(where, error, lambda: self._symbolic_outputs(self.task.cases[0]))
            else:
                return
        smallest = min(self.task.cases, key=self._elements)
        if not load_only and self._elements(smallest) <= _TRIAL_ELEMENTS:
            self.run(self.make_inputs(smallest, smallest.seed))

    def with_derived_cases(self, *, load_only: bool) -> LoadedPythonTask:
        """The same with check and edge cases beside the author's, where there are none, and the large case.

        The reference tells which sizes it allows: without memory where it can, else on small tensors. Where neither is
        possible (``load_only``) nothing is derived.
        """
        task = self.task
        stated = task.cases_of(CaseRole.TIMED)[0]
        wanted = [role for role in (CaseRole.CHECK, CaseRole.EDGE) if not task.cases_of(role)]
        base = self._variant(stated)
        sizes = {dim: stated.sizes[dim] for dim in task.dims}
        derived = Derived()
        if wanted:
            derived = derive_cases(sizes, base, self._looker(stated, really=not load_only), roles=wanted)
        names = {case.name for case in task.cases}
        more = tuple(
            self._sized(stated, changed).model_copy(
                update={"name": f"derived_{name}" if name in names else name, "role": role, "seed": 1000 + k}
            )
            for k, (name, role, changed) in enumerate(derived.cases)
        )
        large = task.large
        if large is None:
            trust = task.framework == "numpy"
            changed = derive_large(sizes, base, self._looker(stated, really=False, trust=trust))
            if changed is not None:
                update = {"name": "derived_large" if "large" in names else "large", "role": CaseRole.LARGE}
                large = self._sized(stated, changed).model_copy(update=update)
        update = {"cases": (*task.cases, *more), "large": large, "skipped": tuple(derived.skipped)}
        return replace(self, task=check_task(task.model_copy(update=update)))

    def _looker(
        self, stated: Case, *, really: bool, trust: bool = False
    ) -> Callable[[Mapping[str, Constant], bool], Variant]:
        """Tries the reference on other sizes: without memory, or else (``really``) on small tensors, or (``trust``)
        not at all."""

        def look(changed: Mapping[str, Constant], whole: bool) -> Variant:
            case = self._sized(stated, changed)
            if whole and not trust:
                self._try_case(case, really=really)
            return self._variant(case)

        return look

    def _try_case(self, case: Case, *, really: bool) -> None:
        """Run the reference once on a case.

        Raises:
            TaskError: it raises, or cannot be run without memory and must not be run with it.
        """
        if self.task.framework == "torch":
            try:
                self._run_fake(case)
            except data_dependent_errors() as error:
                reason = TaskError("the reference looks at values, and cannot be tried without memory")
                if not really:
                    raise reason from error
            else:
                return
        if not really or self._elements(case) > _TRIAL_ELEMENTS:
            raise TaskError(f"{self._elements(case)} elements are too many to try the reference on")
        self.run(self.make_inputs(case, case.seed))

    def _sized(self, stated: Case, changed: Mapping[str, Constant]) -> Case:
        """A derived case: the stated one with other sizes."""
        sizes = {dim: size for dim, size in {**stated.sizes, **changed}.items() if is_int(size)}
        return stated.model_copy(update={"sizes": sizes, "derived": True})

    def _variant(self, case: Case) -> Variant:
        tensors = [a for a in self.task.inputs if isinstance(a, TensorArgument)]
        return Variant(
            init="",
            arguments=(),
            input_shapes=tuple(concrete_shape(a, case) for a in tensors),
            weight_shapes=(),
            output_shapes=tuple(concrete_shape(a, case) for a in self.task.outputs),
        )

    def _symbolic_outputs(self, case: Case) -> list[Any]:
        """Outputs of a run without memory, in which sizes that depend on values are symbols."""
        arrays = self._fake_inputs(case, symbols=True)
        border = foreign_code(self.path, f"the reference of task {self.task.name!r}")
        with border, fake_mode_of(arrays):
            return self._run_torch(arrays, False)[0]

    def _elements(self, case: Case) -> int:
        return sum(element_count(tensor, case) for tensor in self.task.tensors)

    def _fake_inputs(self, case: Case, *, symbols: bool = False) -> list[Any]:
        torch = torch_module()
        with quiet(), fake_mode(symbols=symbols):
            return [
                case.scalars[a.name]
                if isinstance(a, ScalarArgument)
                else torch.empty(concrete_shape(a, case), dtype=to_torch(a.dtype))
                for a in self.task.inputs
            ]

    def _run_fake(self, case: Case) -> None:
        arrays = self._fake_inputs(case)
        border = foreign_code(self.path, f"the reference of task {self.task.name!r}")
        with _let_pass(data_dependent_errors()), border, quiet(), fake_mode_of(arrays):
            outputs, _ = self._run_torch(arrays, False)
        self._check_outputs(outputs, arrays, False)

    def _run_torch(self, arrays: Arrays, double: bool) -> tuple[list[Any], list[Any]]:
        torch = torch_module()
        values = [to_double(a) for a in arrays] if double else list(arrays)
        names = [a.name for a in self.task.inputs]
        for k, name in enumerate(names):
            if name in self.task.mutates:
                values[k] = values[k].clone()
        before = [v._version if isinstance(v, torch.Tensor) else 0 for v in values]
        with torch.no_grad():
            if double:
                with double_precision():
                    returned = self.function(*values)
            else:
                returned = self.function(*values)
        for name, value, version in zip(names, values, before, strict=True):
            if isinstance(value, torch.Tensor) and value._version != version and name not in self.task.mutates:
                raise TaskError(_changed(self.task.name, name))
        outputs = [own_contiguous(o, values) for o in _listed(returned)]
        return outputs, [values[names.index(name)] for name in self.task.mutates]

    def _run_numpy(self, arrays: Arrays, double: bool) -> tuple[list[Any], list[Any]]:
        import numpy as np

        names = [a.name for a in self.task.inputs]
        values: list[Any] = []
        for name, array in zip(names, arrays, strict=True):
            value = array
            if _is_array(array):
                wide: Any = {"f": np.float64, "c": np.complex128}.get(array.dtype.kind) if double else None
                value = array.astype(wide or array.dtype, copy=name in self.task.mutates)
                if name not in self.task.mutates:
                    value = value.view()
                    value.flags.writeable = False
            values.append(value)
        returned = self.function(*values)
        outputs = [np.array(o, order="C") if _aliases(o, values) else _as_array(o) for o in _listed(returned)]
        return outputs, [values[names.index(name)] for name in self.task.mutates]

    def _check_outputs(self, outputs: Sequence[Any], arrays: Arrays, double: bool) -> None:
        """Count, dtypes and shapes against the annotations, with dims bound by the inputs' shapes."""
        task = self.task
        if len(outputs) != len(task.outputs):
            raise TaskError(f"task {task.name!r}: expected {len(task.outputs)} outputs, found {len(outputs)}")
        sizes: dict[str, int] = {}
        for argument, array in zip(task.inputs, arrays, strict=True):
            if isinstance(argument, TensorArgument):
                sizes.update((a, n) for a, n in zip(argument.shape, array.shape, strict=True) if isinstance(a, str))
        for argument, output in zip(task.outputs, outputs, strict=True):
            where = f"task {task.name!r}, output {argument.name!r}"
            shape = getattr(output, "shape", None)
            if shape is None:
                raise TaskError(f"{where}: expected a tensor, found {type(output).__name__}")
            dtype = str(output.dtype).removeprefix("torch.")
            if not double and dtype != argument.dtype:
                raise TaskError(f"{where}: expected dtype {argument.dtype}, found {dtype}")
            fits = len(shape) == len(argument.shape) and all(
                sizes.setdefault(axis, size) == size if isinstance(axis, str) else axis == size
                for axis, size in zip(argument.shape, shape, strict=True)
            )
            if not fits:
                known = {a: sizes.get(a, 0) for a in argument.shape if isinstance(a, str)}
                raise TaskError(f"{where}: expected shape {describe(argument.shape, known)}, found {tuple(shape)}")


def _load(
    declared: TaskFunction[..., Any],
    path: Path,
    overrides: Mapping[str, str],
    also_known: Sequence[str],
    fingerprint: str,
    *,
    load_only: bool,
) -> LoadedPythonTask:
    declaration = declared.declaration
    name = declaration.name or declared.function.__name__
    signature = read_signature(declared.function, name, declaration.outputs)
    strided = [a for a in signature.inputs if declaration.layout == "strided" and isinstance(a, TensorArgument)]
    strides = [stride_name(a, axis) for a in strided for axis in range(len(a.shape))]
    check_names(name, (*signature.inputs, *signature.outputs), [*signature.dims, *strides], {})
    inputs = {a.name for a in signature.inputs if a.kind == "tensor"}
    for mutated in declaration.mutates:
        if mutated not in inputs:
            raise TaskError(f"task {name!r}: expected names of tensor arguments in mutates, found {mutated!r}")
    if not signature.outputs and not declaration.mutates:
        raise TaskError(f"task {name!r}: expected an output or an argument in mutates, found none")
    replaced = _parse_case_overrides(name, signature, overrides, also_known)
    cases = [_case(name, signature, c, k, replaced) for k, c in enumerate(declaration.cases)]
    task = Task(
        name=name,
        source="python",
        digest=fingerprint,
        framework=signature.framework,
        inputs=signature.inputs,
        outputs=signature.outputs,
        dims=signature.dims,
        cases=tuple(c for c in cases if c.role is not CaseRole.LARGE),
        large=next((c for c in cases if c.role is CaseRole.LARGE), None),
        tolerance=Tolerance(relative_rms=declaration.tolerance),
        mutates=declaration.mutates,
        deterministic=declaration.deterministic,
        layout=declaration.layout,
        aggregate=declaration.aggregate,
        precision=declaration.precision,
        instructions=declaration.instructions,
    )
    loaded = LoadedPythonTask(check_task(task), declared.function, declaration, path)
    loaded.try_out(load_only=load_only)
    return loaded.with_derived_cases(load_only=load_only)


def _case(
    task: str, signature: Signature, declared: CaseDeclaration, seed: int, replaced: Mapping[str, object]
) -> Case:
    """One case with every dim and scalar; overrides replace those of timed cases."""
    values = dict(declared.values)
    if declared.role is CaseRole.TIMED:
        values.update(replaced)
    scalars = [a for a in signature.inputs if isinstance(a, ScalarArgument)]
    expected = [*signature.dims, *(a.name for a in scalars)]
    where = f"task {task!r}, case {declared.name!r}"
    for name in values:
        if name not in expected:
            raise TaskError(f"{where}: expected dims and scalars ({', '.join(expected)}), found unknown {name!r}")
    values = {**signature.defaults, **values}
    missing = [name for name in expected if name not in values]
    if missing:
        raise TaskError(f"{where}: expected values for {', '.join(expected)}, found none for {', '.join(missing)}")
    least = 0 if declared.role is CaseRole.EDGE else 1
    return Case(
        name=declared.name,
        role=declared.role,
        sizes={dim: check_size(task, declared.name, dim, values[dim], least=least) for dim in signature.dims},
        scalars={a.name: check_scalar(where, a, values[a.name]) for a in scalars},
        seed=seed,
    )


def _parse_case_overrides(
    task: str, signature: Signature, overrides: Mapping[str, str], also_known: Sequence[str]
) -> dict[str, object]:
    """``--set`` options that name a dim or a scalar."""
    samples: dict[str, bool | int | float] = dict.fromkeys(signature.dims, 1)
    types: dict[str, bool | int | float] = {"bool": False, "int": 0, "float": 0.0}
    samples |= {a.name: types[a.type] for a in signature.inputs if isinstance(a, ScalarArgument)}
    for name in overrides:
        if name not in samples:
            known = ", ".join([*also_known, *samples])
            raise TaskError(f"--set {name}: expected a constant, dim or scalar of task {task!r} ({known})")
    return {name: parse_value(name, text, samples[name]) for name, text in overrides.items()}


def _is_task(value: object) -> TypeGuard[TaskFunction[..., Any]]:
    return isinstance(value, TaskFunction)


def _declared(module: ModuleType) -> dict[str, TaskFunction[..., Any]]:
    """The tasks that a module itself declares, by name; imported ones are not its own."""
    return {
        name: value
        for name, value in vars(module).items()
        if _is_task(value) and value.function.__module__ == module.__name__
    }


def _imports_vocabulary(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        names = [alias.name for alias in node.names]
        return node.module == "kernelworks.task" or (node.module == "kernelworks" and "task" in names)
    return isinstance(node, ast.Import) and any(alias.name == "kernelworks.task" for alias in node.names)


@contextmanager
def _let_pass(errors: tuple[type[Exception], ...]) -> Generator[None]:
    """Raise the cause instead of our translation of it, where the cause is one of these."""
    try:
        yield
    except TaskError as error:
        if isinstance(error.__cause__, errors):
            raise error.__cause__ from None
        raise


def _listed(returned: Any) -> list[Any]:
    if returned is None:
        return []
    if is_sequence(returned):
        return list(returned)
    return [returned]


def _is_array(value: Any) -> bool:
    import numpy as np

    return isinstance(value, np.ndarray)


def _aliases(output: Any, values: Sequence[Any]) -> bool:
    import numpy as np

    return _is_array(output) and any(np.may_share_memory(output, v) for v in values if _is_array(v))


def _as_array(output: Any) -> Any:
    import numpy as np

    return np.asarray(output, order="C") if _is_array(output) or issubclass(type(output), np.generic) else output


def _changed(task: str, argument: str) -> str:
    return f"task {task!r}: expected inputs to stay as they are, found {argument!r} changed (name it in mutates)"
