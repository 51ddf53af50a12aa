"""Refuses tasks on which no verdict would mean anything.

A task is refused if its reference gives anything but finite numbers, differs between two runs on the same inputs, gives
an answer that never changes or does not depend on one of its inputs, or if a built-in wrong answer passes its own
bound in every input family: zeros, ones, a copy of an input, the first half computed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kernelworks.errors import TaskError
from kernelworks.evaluate.bound import results
from kernelworks.evaluate.casestate import Golden
from kernelworks.evaluate.compare import compare_exact, compare_floats
from kernelworks.evaluate.families import FAMILIES, draw, profile
from kernelworks.evaluate.numbers import Raw, decode, encode, plane
from kernelworks.evaluate.prepare import DroppedFamilyError, golden_case
from kernelworks.evaluate.records import TaskProblem
from kernelworks.evaluate.reference import Reference
from kernelworks.task.model import Case, CaseRole, DType, Task, TensorArgument, element_count

CHEAP_ELEMENTS = 1 << 22
"""The full check runs on the largest case up to this size (inputs and outputs), check cases first."""
LAUNCH_OVERHEAD_S = 20e-6
"""A timed case whose reference takes less measures calls, not work."""

Lengths = Callable[[Case], tuple[int, ...]]


def check_task(reference: Reference, lengths: Lengths) -> list[TaskProblem]:
    """Everything that is wrong with the task; empty if nothing is.

    One case is checked in full; in every other case the reference runs once, so that a size at which it fails is found.

    Raises:
        TaskError: the reference raises, or what it returns does not fit the prototype.
    """
    task = reference.task
    chosen = _chosen(task)
    problems = CaseCheck(reference, chosen, lengths(chosen)).problems()
    for case in task.cases:
        if case.name == chosen.name and case.role is not CaseRole.TIMED:
            continue
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
    drawn = reference.draw(case, case.seed)
    start = time.perf_counter()
    found = reference.native(drawn, case)
    elapsed_s = time.perf_counter() - start
    if again:
        yield from _non_finite(reference.task, case, found)
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

    def __init__(self, reference: Reference, case: Case, lengths: tuple[int, ...]) -> None:
        self._reference = reference
        self._task = reference.task
        self._case = case
        self._lengths = lengths
        self._answers = results(self._task)
        self._drawn = reference.draw(case, case.seed)
        self._other = reference.draw(case, case.seed + 1)
        self._found = reference.native(self._drawn, case)
        self._families: dict[str, tuple[list[Any], list[Golden]] | None] = {}

    def problems(self) -> list[TaskProblem]:
        """What is wrong. Where the answer is not finite or not the same twice, nothing else is asked."""
        found = list(_non_finite(self._task, self._case, self._found)) or list(self._unsteady())
        if found:
            return found
        try:
            self._families["normal"] = golden_case(
                self._reference, self._case, self._case.seed, "normal", self._lengths
            )
        except DroppedFamilyError as error:
            message = f"case {self._case.name}: no right answer is known: {error}"
            return [TaskProblem(kind="no_golden", message=message)]
        return [*self._constant(), *self._independent(), *self._wrong_answers()]

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
            if same or (not self._task.deterministic and self._close(index, second[index])):
                continue
            message = (
                f"case {self._case.name}: output {argument.name} differs between two runs on the same inputs"
                " (random numbers, or memory that was never written)"
            )
            yield TaskProblem(kind="not_deterministic", message=message)

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
        for index, argument in enumerate(self._answers):
            for name, answer in _BUILT_IN:
                for source in self._sources(index) if answer is _copy else (-1,):
                    if all(self._passes(family, index, answer, source) for family in FAMILIES):
                        what = name.format((*self._task.inputs, *self._task.weights)[source].name)
                        message = f"output {argument.name}: {what} would pass as right (case {self._case.name})"
                        yield TaskProblem(kind="accepts_wrong_answer", message=message)

    def _passes(self, family: str, index: int, answer: Answer, source: int) -> bool:
        """Whether a wrong answer passes in a family; a family that cannot judge lets everything pass."""
        found = self._family(family)
        if found is None:
            return True
        drawn, golden = found
        dtype = golden[index].argument.dtype
        right = encode(golden[index].values, dtype) if dtype.is_floating else golden[index].values
        wrong = answer(right, plane(drawn[source], dtype) if source >= 0 else right)
        if answer is _half and right.size < 2:
            return False
        return self._accepted(golden[index], wrong, family)

    def _sources(self, index: int) -> Iterator[int]:
        """Inputs of which this result could be a copy."""
        answer = self._answers[index]
        for source, argument in enumerate((*self._task.inputs, *self._task.weights)):
            if not isinstance(argument, TensorArgument) or argument.dtype is not answer.dtype:
                continue
            if element_count(argument, self._case) == element_count(answer, self._case):
                yield source


Answer = Callable[[Raw, Raw], Raw]
"""Makes a wrong answer from the right one and a plane of an input."""


def _zeros(right: Raw, _: Raw) -> Raw:
    return np.zeros_like(right)


def _ones(right: Raw, _: Raw) -> Raw:
    return encode(np.ones(right.size), DType.BFLOAT16) if right.dtype == np.uint16 else np.ones_like(right)


def _copy(_: Raw, source: Raw) -> Raw:
    return source


def _half(right: Raw, _: Raw) -> Raw:
    half = right.copy()
    half[math.ceil(right.size / 2) :] = 0
    return half


_BUILT_IN: tuple[tuple[str, Answer], ...] = (
    ("an output of zeros", _zeros),
    ("an output of ones", _ones),
    ("a copy of {}", _copy),
    ("an output whose second half is zeros", _half),
)
