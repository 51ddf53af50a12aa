"""One prepared case in the judge: inputs, golden values, buffers, and what is compared with what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelworks.evaluate.bound import EXACT, Bound, Moved, ReferenceError, derive_bound, pooled, results
from kernelworks.evaluate.buffers import SIDES, SharedBuffer
from kernelworks.evaluate.compare import Figures, compare_exact, compare_floats, first_difference
from kernelworks.evaluate.gates import Gates
from kernelworks.evaluate.manners import Known
from kernelworks.evaluate.mismatch import Answer, Explanation, Mismatch
from kernelworks.evaluate.numbers import Raw, decode, plane, poison_word, storage, words_of
from kernelworks.evaluate.precision import precision_class
from kernelworks.evaluate.records import (
    LANES,
    BufferSlot,
    CaseProblem,
    CaseReport,
    DimSlot,
    OutputReport,
    PrecisionRecord,
    PreparedCase,
    ScalarSlot,
    Slot,
)
from kernelworks.evaluate.selection import Selection, compare_selected
from kernelworks.evaluate.strided import Image, dense_strides
from kernelworks.task.model import (
    Case,
    CaseRole,
    DType,
    ScalarArgument,
    Task,
    TensorArgument,
    concrete_shape,
    stride_name,
)


@dataclass
class Golden:
    """The right answer for one result."""

    argument: TensorArgument
    values: Raw
    """Plane: float64, or integers and bools as stored."""
    length: int
    """L of the error bound."""
    own: ReferenceError | None
    """Errors of the native reference; None for exact dtypes."""
    pool: list[ReferenceError] = field(default_factory=list[ReferenceError])
    """Errors on all prepared seeds of this case and family, ``own`` included; shared between them."""
    moved: Moved | None = None
    """How far the answer moves when the inputs do; None where that was not measured."""
    exact: bool = False
    """A floating output of integers, in which no honest order of summation rounds."""
    selection: Selection | None = None
    """What an index output points into; None where integers must be equal."""
    beside_infinity: NDArray[np.uint8] | None = None
    """Bits (``np.packbits``), one an element: those that an infinity among the inputs changes. NaN is let be there."""

    def bound(self, task: Task, family: str) -> Bound:
        """The limits of a floating result."""
        assert self.own is not None
        if self.exact:
            return EXACT
        pool = pooled(self.pool)
        size = self.values.size
        return derive_bound(self.argument, task, self.length, self.own, pool, family, moved=self.moved, elements=size)


@dataclass
class CaseState:
    """A prepared case. ``drawn`` is pristine: nothing writes to it, save a perturbation while golden is computed."""

    key: str
    task: Task
    case: Case
    family: str
    seed: int
    drawn: list[Any]
    """Raw arrays and scalars of inputs and weights."""
    golden: list[Golden]
    shared: dict[str, SharedBuffer]
    """Inputs that no kernel may change."""
    lanes: list[dict[str, SharedBuffer]]
    """Outputs and inputs changed in place, per lane."""
    poison: list[dict[str, int]]
    """Words with which the results were filled, per lane."""
    images: dict[str, Image] = field(default_factory=dict[str, Image])
    """Inputs that are not dense in memory."""

    def close(self) -> None:
        """Give the shared memory back."""
        for buffers in (self.shared, *self.lanes):
            for buffer in buffers.values():
                buffer.close()

    def pristine(self) -> dict[str, tuple[TensorArgument, Raw]]:
        """The tensors among the inputs and weights, by name."""
        arguments = (*self.task.inputs, *self.task.weights)
        pairs = zip(arguments, self.drawn, strict=True)
        return {a.name: (a, raw) for a, raw in pairs if isinstance(a, TensorArgument)}

    def result(self, lane: int, golden: Golden) -> Raw:
        """Plane of a result in a lane's buffer, a view."""
        return plane(view(self.lanes[lane][golden.argument.name], golden.argument.dtype), golden.argument.dtype)

    def prepared(self) -> PreparedCase:
        """The case as the harness sees it."""
        exact = any(not g.argument.dtype.is_floating for g in self.golden)
        return PreparedCase(
            key=self.key,
            case=self.case.name,
            family=self.family,
            seed=self.seed,
            lanes=tuple(self._slots(lane) for lane in self.lanes),
            two_fills=exact,
        )

    def _slots(self, lane: dict[str, SharedBuffer]) -> tuple[Slot, ...]:
        slots: list[Slot] = []
        values: list[Any] = [*self.drawn, *([None] * len(self.task.outputs))]
        for argument, value in zip(self.task.arguments, values, strict=True):
            if isinstance(argument, ScalarArgument):
                slots.append(ScalarSlot(name=argument.name, type=argument.type, value=value))
                continue
            buffer = lane.get(argument.name) or self.shared[argument.name]
            slots.append(
                BufferSlot(
                    name=argument.name,
                    role=argument.role,
                    dtype=argument.dtype,
                    shape=concrete_shape(argument, self.case),
                    writable=argument.name in lane,
                    layout=buffer.layout,
                    strides=self._strides(argument),
                    fd=buffer.fd,
                )
            )
        slots.extend(DimSlot(name=dim, value=self.case.sizes[dim]) for dim in self.task.dims)
        for argument in self.task.strided:
            strides = enumerate(self._strides(argument))
            slots.extend(DimSlot(name=stride_name(argument, axis), value=stride) for axis, stride in strides)
        return tuple(slots)

    def _strides(self, argument: TensorArgument) -> tuple[int, ...]:
        image = self.images.get(argument.name)
        return dense_strides(concrete_shape(argument, self.case)) if image is None else image.strides


def view(buffer: SharedBuffer, dtype: DType) -> Raw:
    """The flat raw array in a shared buffer."""
    return np.frombuffer(buffer.data, storage(dtype))


def memory(raw: Raw) -> NDArray[np.uint8]:
    """The bytes of a contiguous raw array, a view."""
    return raw.reshape(-1).view(np.uint8)


def share(
    task: Task, case: Case, drawn: Sequence[Any], images: Mapping[str, Image] = MappingProxyType({})
) -> tuple[dict[str, SharedBuffer], list[dict[str, SharedBuffer]]]:
    """Buffers for a case: inputs filled and shared by the lanes, results (inputs changed in place filled) per lane."""
    changed = {a.name for a in results(task)}
    shared: dict[str, SharedBuffer] = {}
    lanes: list[dict[str, SharedBuffer]] = [{} for _ in range(LANES)]
    try:
        for argument, raw in zip((*task.inputs, *task.weights), drawn, strict=True):
            if not isinstance(argument, TensorArgument):
                continue
            for buffers in lanes if argument.name in changed else [shared]:
                buffers[argument.name] = _filled(
                    argument, images[argument.name].flat if argument.name in images else raw
                )
        for argument in task.outputs:
            size_bytes = int(np.prod(concrete_shape(argument, case), dtype=np.int64)) * argument.dtype.itemsize_bytes
            for buffers in lanes:
                buffers[argument.name] = SharedBuffer.create(argument.name, size_bytes)
    except BaseException:
        for buffers in (shared, *lanes):
            for buffer in buffers.values():
                buffer.close()
        raise
    return shared, lanes


def share_weights(task: Task, case: Case, drawn: Sequence[Raw]) -> tuple[tuple[BufferSlot, ...], list[SharedBuffer]]:
    """Weights alone in buffers of their own; the descriptor in a slot is its index here."""
    buffers = [_filled(argument, raw) for argument, raw in zip(task.weights, drawn, strict=True)]
    slots = tuple(
        BufferSlot(
            name=argument.name,
            role="weight",
            dtype=argument.dtype,
            shape=concrete_shape(argument, case),
            writable=False,
            layout=buffer.layout,
            strides=dense_strides(concrete_shape(argument, case)),
            fd=k,
        )
        for k, (argument, buffer) in enumerate(zip(task.weights, buffers, strict=True))
    )
    return slots, buffers


def _filled(argument: TensorArgument, raw: Raw) -> SharedBuffer:
    buffer = SharedBuffer.create(argument.name, raw.nbytes)
    view(buffer, argument.dtype)[...] = raw.reshape(-1)
    return buffer


def restore(state: CaseState, lane: int) -> None:
    """Write the inputs that kernels change in place anew."""
    pristine = state.pristine()
    for name in state.task.mutates:
        argument, raw = pristine[name]
        view(state.lanes[lane][name], argument.dtype)[...] = raw.reshape(-1)


def poison(
    state: CaseState, lane: int, pattern: int, rng: np.random.Generator, renew: Sequence[str] | None = None
) -> None:
    """Make a lane ready for a run: outputs poisoned, inputs changed in place restored, new canaries everywhere.

    ``renew`` names the only canaries that change (``x/before``, ``x/after``); outputs then hold their last poison.
    """
    pristine = state.pristine()
    for golden in state.golden:
        argument = golden.argument
        if argument.name in pristine:
            view(state.lanes[lane][argument.name], argument.dtype)[...] = pristine[argument.name][1].reshape(-1)
        else:
            kept = state.poison[lane].get(argument.name) if renew is not None else None
            word = kept if kept is not None else poison_word(argument.dtype, pattern, rng)
            words_of(state.result(lane, golden), argument.dtype).fill(word)
            state.poison[lane][argument.name] = word
    for buffer in (*state.shared.values(), *state.lanes[lane].values()):
        name = buffer.layout.name
        buffer.reset_canaries(SIDES if renew is None else [side for side in SIDES if f"{name}/{side}" in renew])


def compare(state: CaseState, lane: int, *, explain: bool = True, earlier: Sequence[CaseState] = ()) -> CaseReport:
    """Compare a lane's results with golden, the inputs with the pristine ones, and look at the canaries.

    Inputs that were changed are restored afterwards, damaged canaries too.

    Args:
        state: the prepared case.
        lane: what a run has written.
        explain: say where and how a wrong answer is wrong; tens of milliseconds.
        earlier: other inputs of the same sizes, whose answers a kernel may have kept.
    """
    outputs: list[OutputReport] = []
    problems: list[CaseProblem] = []
    for golden in state.golden:
        report, found = _compare_result(state, lane, golden, earlier if explain else None)
        outputs.append(report)
        problems.extend(found)
    problems.extend(restore_inputs(state))
    for buffer in (*state.lanes[lane].values(), *state.shared.values()):
        damage = buffer.damage()
        if damage is None:
            continue
        where = "past its end" if damage.side == "after" else "before its start"
        where = f"{damage.distance_bytes} bytes {where}"
        evidence = {"access": "write", "side": damage.side, "distance_bytes": damage.distance_bytes}
        problems.append(
            CaseProblem(
                kind="out_of_bounds",
                tensor=damage.name,
                message=f"{damage.name}: a write out of bounds, {where} ({damage.changed_bytes} bytes changed)",
                evidence={**evidence, "changed_bytes": damage.changed_bytes},
            )
        )
        buffer.reset_canaries()
    return CaseReport(
        key=state.key, outputs=tuple(outputs), problems=tuple(problems), gates=_published_gates(state, lane)
    )


def _published_gates(state: CaseState, lane: int) -> dict[str, bool]:
    """Other people's gates on the timed case's own draw; empty for other cases."""
    if state.case.role is not CaseRole.TIMED or state.family != "normal":
        return {}
    gates = Gates()
    for golden in state.golden:
        gates.add(state.result(lane, golden), golden.values, golden.argument.dtype)
    return asdict(gates)


def _compare_result(
    state: CaseState, lane: int, golden: Golden, earlier: Sequence[CaseState] | None
) -> tuple[OutputReport, list[CaseProblem]]:
    argument, found = golden.argument, state.result(lane, golden)
    word = state.poison[lane].get(argument.name, -1)
    if argument.dtype.is_floating:
        bound = golden.bound(state.task, state.family)
        special = state.family == "specials"
        figures = compare_floats(
            found,
            golden.values,
            argument.dtype,
            bound,
            word,
            nan_for_infinity=special,
            nan_allowed=golden.beside_infinity,
        )
        limit = bound.rms_limit
    elif golden.selection is not None:
        figures = compare_selected(found, golden.values, argument.dtype, word, golden.selection)
        limit = 0.0
    else:
        figures = compare_exact(found, golden.values, argument.dtype, word)
        limit = 0.0
    shape = concrete_shape(argument, state.case)
    report = OutputReport(
        name=argument.name,
        rms_error=figures.rms_error,
        rms_limit=limit,
        max_error=figures.max_error,
        worst_index=position(figures.worst, shape, argument.dtype),
        worst_found=_value(found, figures.worst, argument.dtype),
        worst_expected=_value(golden.values, figures.worst, DType.FLOAT64),
        worst_limit=figures.worst_limit,
        mismatches=figures.mismatches,
        elements=found.size,
        precision=_precision(golden, figures, state.family),
        let_be=figures.let_be,
        first_let_be=position(figures.first_let_be, shape, argument.dtype),
    )
    mismatch = None if earlier is None else _mismatch(state, lane, golden, report, figures, earlier)
    return report, _problems(report, figures, golden, found, shape, mismatch)


def _precision(golden: Golden, figures: Figures, family: str) -> PrecisionRecord | None:
    """Judged on the task's own draw: other families amplify roundings, or have none."""
    if golden.own is None or family != "normal":
        return None
    dtype, length = golden.argument.dtype, golden.length
    found = precision_class(figures.rms_error, figures.max_error, golden.own, dtype, length)
    return None if found is None else PrecisionRecord(name=found.name, relative_error=found.relative_error)


def _mismatch(
    state: CaseState,
    lane: int,
    golden: Golden,
    report: OutputReport,
    figures: Figures,
    earlier: Sequence[CaseState],
) -> Mismatch:
    argument = golden.argument
    name = argument.name
    places = (figures.worst, figures.first_mask_mismatch, figures.first_unwritten)
    answer = Answer(
        argument=argument,
        shape=concrete_shape(argument, state.case),
        found=state.result(lane, golden),
        golden=golden.values,
        poison=state.poison[lane].get(name, -1),
        worst=next((at for at in places if at >= 0), -1),
        rms_limit=report.rms_limit,
    )
    if argument.dtype.is_floating:
        bound = golden.bound(state.task, state.family)
        answer = replace(answer, floor=bound.max_floor, relative=bound.max_relative, nan_allowed=golden.beside_infinity)
    kept = {
        f"the {other.family} inputs of this case": next(g.values for g in other.golden if g.argument.name == name)
        for other in earlier
    }
    others = {g.argument.name: g.values for g in state.golden if g is not golden}
    return Mismatch(answer, Known(inputs=state.pristine(), others=others, earlier=kept))


def _problems(
    report: OutputReport,
    figures: Figures,
    golden: Golden,
    found: Raw,
    shape: tuple[int, ...],
    mismatch: Mismatch | None,
) -> list[CaseProblem]:
    name, dtype = report.name, golden.argument.dtype
    problems: list[CaseProblem] = []
    if figures.unwritten:
        first = position(figures.first_unwritten, shape, dtype)
        more = mismatch.unwritten() if mismatch is not None else Explanation()
        message = f"{name}: {figures.unwritten} of {found.size} elements were not written, the first at {first}"
        evidence = {"first": first, "share": figures.unwritten / found.size, **more.evidence}
        problems.append(CaseProblem(kind="unwritten", tensor=name, message=message + more.text, evidence=evidence))
    if figures.mask_mismatches:
        first = position(figures.first_mask_mismatch, shape, dtype)
        expected = _value(golden.values, figures.first_mask_mismatch, DType.FLOAT64)
        value = _value(found, figures.first_mask_mismatch, dtype)
        message = (
            f"{name}: {figures.mask_mismatches} of {found.size} elements are NaN or infinite where they should not be"
            f" (or the other way round); at {first} expected {expected:.9g}, found {value:.9g}"
        )
        more = mismatch.specials() if mismatch is not None else Explanation()
        evidence = {"first": first, "share": figures.mask_mismatches / found.size, **more.evidence}
        problems.append(CaseProblem(kind="nan_mask", tensor=name, message=message + more.text, evidence=evidence))
    wrong = figures.mismatches - (figures.unwritten if not dtype.is_floating else 0)
    if wrong > 0 or report.rms_error > report.rms_limit:
        more = mismatch.values() if mismatch is not None else Explanation()
        message = f"{name}: {wrong} of {found.size} elements are wrong{more.text}"
        if dtype.is_floating:
            message += f"; RMS error {report.rms_error:.3g} (limit {report.rms_limit:.3g})"
        if figures.worst >= 0:
            message += (
                f"; worst at {report.worst_index}: expected {report.worst_expected:.9g}, found {report.worst_found:.9g}"
            )
        evidence = {
            "rms_error": report.rms_error,
            "rms_limit": report.rms_limit,
            "max_error": report.max_error,
            "share": wrong / found.size,
            "worst_index": report.worst_index,
            "worst_found": report.worst_found,
            "worst_expected": report.worst_expected,
            **more.evidence,
        }
        problems.append(CaseProblem(kind="values", tensor=name, message=message, evidence=evidence))
    return problems


def restore_inputs(state: CaseState) -> list[CaseProblem]:
    """Write inputs that a candidate has changed as they were, and say which they are."""
    problems: list[CaseProblem] = []
    pristine = state.pristine()
    for name, buffer in state.shared.items():
        argument, raw = pristine[name]
        image = state.images.get(name)
        shape, raw = raw.shape, raw if image is None else image.flat
        at = first_difference(buffer.data, memory(raw))
        if at < 0:
            continue
        element = at // argument.dtype.itemsize_bytes
        index = position(element, shape, DType.FLOAT64) if image is None else image.owner(shape, element)
        message = f"{name}: an input was changed, first at {index}"
        if index is None:
            message = f"{name}: memory between the elements of a strided input was changed, first {element} elements in"
        problems.append(CaseProblem(kind="input_changed", tensor=name, message=message, evidence={"first": index}))
        view(buffer, argument.dtype)[...] = raw.reshape(-1)
    return problems


def position(flat: int, shape: tuple[int, ...], dtype: DType) -> tuple[int, ...]:
    """Index of an element from its position in the plane; () where there is none."""
    if flat < 0:
        return ()
    return tuple(int(i) for i in np.unravel_index(flat // 2 if dtype is DType.COMPLEX64 else flat, shape))


def _value(flat: Raw, at: int, dtype: DType) -> float:
    if at < 0:
        return 0.0
    one = flat[at : at + 1]
    return float(decode(one, dtype)[0]) if flat.dtype.kind in "fu" and dtype.is_floating else float(one[0])
