"""Refuses tasks on which no verdict would mean anything.

A task is refused if its reference gives anything but finite numbers, differs between two runs on the same inputs,
leaves other module-level values behind than it found, gives an answer that never changes or does not depend on one of
its inputs, or if a built-in wrong answer passes its own bound on all ordinary input families: zeros, ones, a copy of an
input, the first half computed, the mean everywhere. A task with a tolerance of its own must refuse these, and the right
answer scaled by a hundredth, on its own draw alone.

Derived cases that turn out to be of no use are listed; the task is not to blame for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np

from kernelworks.errors import TaskError
from kernelworks.evaluate.bound import results
from kernelworks.evaluate.casestate import Golden
from kernelworks.evaluate.compare import compare_exact, compare_floats
from kernelworks.evaluate.families import draw, profile
from kernelworks.evaluate.numbers import Raw, decode, encode, plane
from kernelworks.evaluate.prepare import DroppedFamilyError, golden_case
from kernelworks.evaluate.records import TaskProblem
from kernelworks.evaluate.reference import Reference
from kernelworks.task.model import Case, CaseRole, DType, Task, TensorArgument, element_count

CHEAP_ELEMENTS = 1 << 22
"""The full check runs on the largest case up to this size (inputs and outputs), check cases first."""
ORDINARY_FAMILIES = ("normal", "wide", "constant")
"""Where a built-in wrong answer has to be told from the right one: the other families look for single faults."""
LAUNCH_OVERHEAD_S = 20e-6
"""A timed case whose reference takes less measures calls, not work."""

Lengths = Callable[[Case], tuple[int, ...]]
Operators = Callable[[Case], Sequence[str]]
"""Names of a case's operators, such as ``aten.dropout.default``; empty where it cannot be traced."""


def check_task(reference: Reference, lengths: Lengths, operators: Operators) -> list[TaskProblem]:
    """Everything that is wrong with the task; empty if nothing is.

    One case is checked in full; in every other case the reference runs once, so that a size at which it fails is found.

    Raises:
        TaskError: the reference raises in a case that the task's author wrote, or what it returns does not fit the
            prototype.
    """
    task = reference.task
    chosen = _chosen(task)
    problems = [TaskProblem(kind="case_left_out", message=text, refuses=False) for text in task.skipped]
    problems.extend(CaseCheck(reference, chosen, lengths(chosen), operators).problems())
    for case in task.cases:
        if case.name != chosen.name or case.role is CaseRole.TIMED:
            problems.extend(_run_once(reference, case, again=case.name != chosen.name))
    return list({(p.kind, p.message): p for p in problems}.values())


def _chosen(task: Task) -> Case:
    """The largest cheap case that is no edge case (a check case if there is one), else the smallest case of all."""

    def size(case: Case) -> int:
        return sum(element_count(tensor, case) for tensor in task.tensors)

    for roles in ((CaseRole.CHECK,), (CaseRole.TIMED,)):
        cheap = [case for case in task.cases_of(*roles) if size(case) <= CHEAP_ELEMENTS]
        if cheap:
            return max(cheap, key=size)
    return min(task.cases_of(CaseRole.CHECK, CaseRole.TIMED) or task.cases, key=size)


def _run_once(reference: Reference, case: Case, *, again: bool) -> Iterator[TaskProblem]:
    try:
        drawn = reference.draw(case, case.seed)
        start = time.perf_counter()
        found = reference.native(drawn, case)
        elapsed_s = time.perf_counter() - start
    except TaskError as error:
        if not case.derived:
            raise
        message = f"case {case.name}: the reference does not allow it: {error.message}"
        yield TaskProblem(kind="case_left_out", message=message, refuses=False)
        return
    if again:
        for problem in _non_finite(reference.task, case, found):
            update = {"kind": "case_left_out", "refuses": False} if case.derived else {}
            yield problem.model_copy(update=update)
    if case.role is CaseRole.TIMED and elapsed_s < 1e-3:
        run, arguments = reference.program(drawn)
        for _ in range(10):
            start = time.perf_counter()
            run(*arguments)
            elapsed_s = min(elapsed_s, time.perf_counter() - start)
        if elapsed_s < LAUNCH_OVERHEAD_S:
            message = (
                f"case {case.name}: the reference takes {elapsed_s * 1e6:.0f} microseconds, so a timing would measure"
                f" calls rather than work: expected sizes that take at least {LAUNCH_OVERHEAD_S * 1e6:.0f}"
            )
            yield TaskProblem(kind="launch_overhead", message=message, refuses=False)


def _non_finite(task: Task, case: Case, found: Sequence[Raw]) -> Iterator[TaskProblem]:
    for argument, values in zip(results(task), found, strict=True):
        if not argument.dtype.is_floating:
            continue
        step = CHEAP_ELEMENTS
        parts = (decode(values[at : at + step], argument.dtype) for at in range(0, values.size, step))
        bad = sum(int(np.count_nonzero(~np.isfinite(part))) for part in parts)
        if bad:
            message = f"case {case.name}: {bad} of {values.size} elements of output {argument.name} are NaN or infinite"
            yield TaskProblem(kind="non_finite", message=message)


class CaseCheck:
    """The full check on one case."""

    def __init__(self, reference: Reference, case: Case, lengths: tuple[int, ...], operators: Operators) -> None:
        self._reference = reference
        self._task = reference.task
        self._case = case
        self._lengths = lengths
        self._answers = results(self._task)
        self._drawn = reference.draw(case, case.seed)
        self._other = reference.draw(case, case.seed + 1)
        self._operators = operators
        self._found = reference.native(self._drawn, case)
        self._namespace = _namespace(reference.program(self._drawn)[0])
        self._left = _state(self._namespace)
        self._families: dict[str, tuple[list[Any], list[Golden]] | None] = {}

    def problems(self) -> list[TaskProblem]:
        """What is wrong. Where the answer is not finite or not the same twice, nothing else is asked."""
        found = list(_non_finite(self._task, self._case, self._found)) or list(self._unsteady())
        if found:
            return [*found, *self._changed_state()]
        try:
            self._families["normal"] = golden_case(
                self._reference, self._case, self._case.seed, "normal", self._lengths
            )
        except DroppedFamilyError as error:
            message = f"case {self._case.name}: no right answer is known: {error}"
            return [TaskProblem(kind="no_golden", message=message)]
        found = [*self._constant(), *self._independent(), *self._wrong_answers()]
        return [*self._changed_state(), *found]  # asked last: by now the reference has run on all kinds of inputs

    def _family(self, family: str) -> tuple[list[Any], list[Golden]] | None:
        """Inputs and right answers of a family; None if it cannot judge."""
        if family not in self._families:
            try:
                found = golden_case(self._reference, self._case, self._case.seed, family, self._lengths)
            except DroppedFamilyError:
                found = None
            self._families[family] = found
        return self._families[family]

    def _normal(self) -> list[Golden]:
        found = self._family("normal")
        assert found is not None
        return found[1]

    def _accepted(self, golden: Golden, answer: Raw, family: str) -> bool:
        """Whether a plane passes as the right answer."""
        dtype = golden.argument.dtype
        if not dtype.is_floating:
            return compare_exact(answer, golden.values, dtype, poison=-1).mismatches == 0
        bound = golden.bound(self._task, family)
        figures = compare_floats(answer, golden.values, dtype, bound, poison=-1)
        return not (figures.mismatches or figures.mask_mismatches or figures.rms_error > bound.rms_limit)

    def _unsteady(self) -> Iterator[TaskProblem]:
        """Two runs on the same inputs; freed memory in between is not what it was (uninitialised results)."""
        litter = [np.full(values.shape, 0x5A, np.uint8).repeat(values.itemsize) for values in self._found]
        del litter
        second = self._reference.native(self._drawn, self._case)
        for index, argument in enumerate(self._answers):
            same = np.array_equal(self._found[index].view(np.uint8), second[index].view(np.uint8))
            if same or (self._task.deterministic is False and self._close(index, second[index])):
                continue
            named = [name for name in self._operators(self._case) if _is_random(name)]
            why = ", ".join(dict.fromkeys(named)) or "random numbers, kept state, or memory that was never written"
            message = (
                f"case {self._case.name}: output {argument.name} differs between two runs on the same inputs ({why})"
            )
            yield TaskProblem(kind="not_deterministic", message=message)

    def _changed_state(self) -> Iterator[TaskProblem]:
        """Module-level names whose values are others than after the first run (which may fill a cache for good)."""
        now = _state(self._namespace)
        changed = sorted(name for name in now.keys() | self._left.keys() if now.get(name) != self._left.get(name))
        if changed:
            message = f"the reference changes module-level state whenever it runs: {', '.join(changed)}"
            yield TaskProblem(kind="changes_state", message=message)

    def _close(self, index: int, answer: Raw) -> bool:
        """Whether a second answer passes, for tasks that say that they are not deterministic."""
        try:
            golden = golden_case(self._reference, self._case, self._case.seed, "normal", self._lengths)[1]
        except DroppedFamilyError:
            return False
        return self._accepted(golden[index], answer, "normal")

    def _constant(self) -> Iterator[TaskProblem]:
        """Results that are the same for other inputs: another draw, and (where it can judge) the wide family."""
        if not any(isinstance(a, TensorArgument) for a in self._task.inputs):
            return
        moved = [self._reference.double(self._moved_all(), self._case)]
        wide = self._family("wide")
        if wide is not None:
            moved.append([golden.values for golden in wide[1]])
        for index, argument in enumerate(self._answers):
            if argument.name not in self._task.mutates and all(self._same(index, answers[index]) for answers in moved):
                message = f"output {argument.name} is constant: the same for other inputs (case {self._case.name})"
                yield TaskProblem(kind="constant_output", message=message)

    def _moved_all(self) -> list[Any]:
        """Every input other than drawn."""
        arguments = (*self._task.inputs, *self._task.weights)
        moved: list[Any] = list(self._drawn)
        for index, argument in enumerate(arguments):
            if isinstance(argument, TensorArgument):
                moved[index] = next(self._others(index, argument))
        return moved

    def _same(self, index: int, golden: Raw) -> bool:
        """Whether a golden result of other inputs would pass as this one's."""
        dtype = self._answers[index].dtype
        return self._accepted(self._normal()[index], encode(golden, dtype) if dtype.is_floating else golden, "normal")

    def _independent(self) -> Iterator[TaskProblem]:
        for index, argument in enumerate((*self._task.inputs, *self._task.weights)):
            if not isinstance(argument, TensorArgument) or self._matters(index, argument):
                continue
            message = f"no output depends on {argument.role} {argument.name} (case {self._case.name})"
            kind = f"independent_of_{argument.role}"
            yield TaskProblem(kind=kind, message=message, refuses=argument.role == "input")

    def _matters(self, index: int, argument: TensorArgument) -> bool:
        for other in self._others(index, argument):
            moved = list(self._drawn)
            moved[index] = other
            try:
                golden = self._reference.double(moved, self._case)
            except TaskError:
                return True  # values that the reference refuses are values that it looks at
            if not all(self._same(i, values) for i, values in enumerate(golden)):
                return True
        return False

    def _others(self, index: int, argument: TensorArgument) -> Iterator[Raw]:
        """Other values for an input, ever less like its draw."""
        raw: Raw = self._drawn[index]
        rng = np.random.default_rng([self._case.seed, index])
        if not np.array_equal(raw.reshape(-1).view(np.uint8), self._other[index].reshape(-1).view(np.uint8)):
            yield self._other[index]
        yield draw("wide", raw, profile(raw, argument.dtype), rng)
        yield draw("wide", raw, profile(raw, argument.dtype).signed, rng)
        yield rng.permutation(raw.reshape(-1)).reshape(raw.shape)
        if not argument.dtype.is_floating:
            flipped = raw ^ raw.dtype.type(1) if raw.dtype.kind in "iu" else ~raw
            yield np.ascontiguousarray(flipped).reshape(raw.shape)

    def _wrong_answers(self) -> Iterator[TaskProblem]:
        tolerance = self._task.tolerance.relative_rms
        families = ORDINARY_FAMILIES if tolerance is None else ORDINARY_FAMILIES[:1]
        under = "" if tolerance is None else f" under the task's own tolerance of {tolerance:g}"
        for index, argument in enumerate(self._answers):
            for name, answer in (*_BUILT_IN, *([] if tolerance is None else [_SCALED])):
                for source in self._sources(index) if answer is _copy else (-1,):
                    if all(self._passes(family, index, answer, source) for family in families):
                        what = name.format((*self._task.inputs, *self._task.weights)[source].name)
                        message = f"output {argument.name}: {what} would pass as right{under} (case {self._case.name})"
                        yield TaskProblem(kind="accepts_wrong_answer", message=message)

    def _passes(self, family: str, index: int, answer: Answer, source: int) -> bool:
        """Whether a wrong answer passes in a family; a family that cannot judge lets everything pass."""
        found = self._family(family)
        if found is None:
            return True
        drawn, golden = found
        dtype = golden[index].argument.dtype
        right = encode(golden[index].values, dtype) if dtype.is_floating else golden[index].values
        wrong = answer(right, plane(drawn[source], dtype) if source >= 0 else right, dtype)
        return wrong is not None and self._accepted(golden[index], wrong, family)

    def _sources(self, index: int) -> Iterator[int]:
        """Inputs of which this result could be a copy."""
        answer = self._answers[index]
        for source, argument in enumerate((*self._task.inputs, *self._task.weights)):
            if not isinstance(argument, TensorArgument) or argument.dtype is not answer.dtype:
                continue
            if element_count(argument, self._case) == element_count(answer, self._case):
                yield source


Answer = Callable[[Raw, Raw, DType], Raw | None]
"""Makes a wrong answer from the right one, a plane of an input and the dtype; None where it would be right."""


def _zeros(right: Raw, _: Raw, _dtype: DType) -> Raw:
    return np.zeros_like(right)


def _ones(right: Raw, _: Raw, dtype: DType) -> Raw:
    return encode(np.ones(right.size), dtype) if dtype is DType.BFLOAT16 else np.ones_like(right)


def _copy(_: Raw, source: Raw, _dtype: DType) -> Raw:
    return source


def _half(right: Raw, _: Raw, _dtype: DType) -> Raw | None:
    if right.size < 2:
        return None
    half = right.copy()
    half[math.ceil(right.size / 2) :] = 0
    return half


def _mean(right: Raw, _: Raw, dtype: DType) -> Raw | None:
    """The mean of the right answer everywhere: what a kernel can learn from the task's distribution alone."""
    if not dtype.is_floating or right.size < 2:
        return None
    values = decode(right, dtype)
    if float(values.min()) == float(values.max()):
        return None
    return encode(np.full(right.size, values.mean()), dtype)


def _scaled(right: Raw, _: Raw, dtype: DType) -> Raw | None:
    """A hundredth too large; in types too coarse for that, by eight roundoffs."""
    if not dtype.is_floating:
        return None
    return encode(decode(right, dtype) * (1 + max(0.01, 8 * dtype.unit_roundoff)), dtype)


_BUILT_IN: tuple[tuple[str, Answer], ...] = (
    ("an output of zeros", _zeros),
    ("an output of ones", _ones),
    ("a copy of {}", _copy),
    ("an output whose second half is zeros", _half),
    ("the mean of the output in place of each element", _mean),
)
_SCALED: tuple[str, Answer] = ("the output, too large by a hundredth or more,", _scaled)
"""Asked of a task's own tolerance alone: the derived bound of a long sum in 16 bits may be wider than that."""

_RANDOM = frozenset(
    "dropout native_dropout alpha_dropout feature_dropout feature_alpha_dropout bernoulli rand randn rand_like"
    " randn_like randint randint_like randperm normal uniform exponential geometric cauchy log_normal multinomial"
    " poisson random rrelu rrelu_with_noise empty empty_like new_empty empty_strided".split()
)
"""Operators that draw random numbers, or give memory that nobody wrote."""


def _is_random(operator: str) -> bool:
    return operator.removeprefix("aten.").partition(".")[0].rstrip("_") in _RANDOM


def _namespace(function: Callable[..., Any]) -> dict[str, Any]:
    """The module-level names of the code behind a reference: a function, or a model with ``forward``."""
    code = getattr(type(function), "forward", function)
    return getattr(code, "__globals__", {})


def _state(namespace: dict[str, Any]) -> dict[str, object]:
    """What can be compared of module-level values: numbers and texts themselves, lengths, arrays by their bytes."""
    return {name: _mark(value) for name, value in list(namespace.items()) if not name.startswith("__")}


def _mark(value: Any) -> object:
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, np.ndarray):
        array = cast("Raw", value)
        return id(array) if array.dtype.hasobject else hash(array.tobytes())
    if isinstance(value, list | tuple | dict | set):
        sized = cast("list[Any]", value)
        return (id(sized), len(sized))
    version = getattr(value, "_version", None)  # of a tensor: counts writes
    return (id(value), version)
