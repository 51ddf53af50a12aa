"""Rows rewritten between timed calls, and checks of exactly what they change, for any operation.

A kernel that is timed on the same inputs again and again could replay an old answer, or compute a part of it. So
between timed calls the judge rewrites a small random share of the inputs, spans spread over all of memory, and then
checks the outputs that the change moves beyond the error bound, and some that it does not move. Which those are is not
reasoned from the operation: the reference computes each variant once in float64, when it is first used. What is kept is
sparse: the spans, and at most 32,768 sampled positions with their golden values, so that a block costs a millisecond or
two.

Before each call random positions of the outputs are poisoned besides, drawn anew every time: neither where poison
stands nor what it is says anything of what will be checked. An element that the change moves and that nobody computes
holds the answer to earlier inputs, or poison.

Once a kernel has won, ``redraw`` gives it inputs that are new throughout: a variant differs from the case in so few
rows that a kernel which keeps answers, row by row, would still gain on it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelworks.errors import TaskError
from kernelworks.evaluate.buffers import SharedBuffer
from kernelworks.evaluate.casestate import CaseState, Golden, position, restore, view
from kernelworks.evaluate.compare import CHUNK_ELEMENTS
from kernelworks.evaluate.families import profile
from kernelworks.evaluate.golden import selection_of
from kernelworks.evaluate.numbers import Raw, decode, encode, plane, poison_word, words_of
from kernelworks.evaluate.records import CaseProblem, ProblemKind
from kernelworks.evaluate.reference import Reference
from kernelworks.task.model import DType, TensorArgument, concrete_shape

VARIANTS = 3
"""Variants of a case. The last also rewrites weights (all inputs, where there are no weights)."""
SHARE = 0.005
"""Share of an input that a variant rewrites."""
SAMPLES = 32_768
"""Positions checked per variant, over all results: half where the answer changes, half anywhere."""
_INDEX_SAMPLES = 2048
"""Of an index output: each costs a look at the values that it could point to."""
_SPAN_ELEMENTS = 1024
_STIRRED, _REDRAWN = -1, -2
"""In place of a variant's number: inputs that stand once, changed in part or throughout."""
DRAW_BYTES = 16 << 20
"""Up to here the task itself draws new inputs and weights; larger ones are rolled, which takes less time."""
_INPUT_SAMPLES, _LEAST_INPUT_SAMPLES, _ALL_INPUT_SAMPLES = 4096, 256, 32_768
"""Positions of an input that are looked at for a change: most, least, and in all (which the least may exceed)."""
_PATCH_BYTES = 2 << 20
_CLEAR = 4.0
"""An element counts as changed if it moves by more than this many limits, so that an old value cannot pass."""


@dataclass(frozen=True)
class Patch:
    """Flat positions of one input, each once, and what stands there in a variant."""

    argument: TensorArgument
    where: NDArray[np.int64]
    new: Raw


@dataclass(frozen=True)
class Poison:
    """Positions of a result's plane, some more than once, and the words that stood there before a call."""

    where: NDArray[np.int64]
    words: NDArray[np.unsignedinteger[Any]]

    def stands(self, raw: Raw, dtype: DType, where: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which of these positions were poisoned, and which of them still hold what they held; ``raw`` stands there."""
        order = np.argsort(self.where)
        at = np.minimum(np.searchsorted(self.where, where, sorter=order), order.size - 1)
        poisoned = self.where[order[at]] == where
        return poisoned, poisoned & (self.words[order[at]] == words_of(raw, dtype))


@dataclass(frozen=True)
class Sample:
    """Positions of one result's plane that are checked, ascending, with the values of the variant and of the base."""

    golden: Golden
    where: NDArray[np.int64]
    values: Raw
    base: Raw
    limits: NDArray[np.float64]
    """Largest error allowed; zeros for exact dtypes."""


@dataclass(frozen=True)
class Variant:
    """One perturbation of a case."""

    patches: tuple[Patch, ...]
    samples: tuple[Sample, ...]


class Perturbation:
    """The variants of one prepared case, and which one stands in the shared buffers."""

    def __init__(self, state: CaseState, reference: Reference) -> None:
        self._state = state
        self._reference = reference
        self._variants: dict[int, Variant] = {}
        self._standing: int | None = None
        self._withdrawn: int | None = None
        """The variant that ``check`` still looks for although it has been put back."""
        self._poisoned: dict[tuple[int, str], Poison] = {}
        """By lane and result."""
        self._new: dict[str, Raw] = {}
        """What ``redraw`` wrote, by tensor, while it stands."""
        self._rollable: tuple[str, ...] | None = None
        self._rng = np.random.default_rng([state.seed, 0x9E37])

    def apply(self, number: int | None) -> None:
        """Write variant ``number`` (modulo ``VARIANTS``) into the shared inputs; None restores them.

        Inputs that kernels change in place live in the lanes; ``poison`` writes them.
        """
        wanted = None if number is None else number % VARIANTS
        self._withdrawn = None
        if wanted == self._standing:
            return
        variant = None if wanted is None else self._variant(wanted)
        if self._standing == _REDRAWN:
            self._copy({name: self._state.pristine()[name][1] for name in self._new}, self._state.shared)
            self._new = {}
        elif self._standing is not None:
            self._write(self._variants[self._standing], self._state.shared, new=False)
        if variant is not None:
            self._write(variant, self._state.shared, new=True)
        self._standing = wanted

    def poison(self, lane: int) -> None:
        """Poison random positions of a lane's outputs, other ones every time: floats with NaN, exact types at random.

        Inputs that kernels change in place are written anew instead. Needs inputs that stand: a variant, or new ones.
        """
        state, variant = self._state, self._current()
        restore(state, lane)
        self._write(variant, state.lanes[lane], new=True)
        self._copy(self._new, state.lanes[lane])
        budget = SAMPLES // max(1, len(state.golden))
        for golden in state.golden:
            argument = golden.argument
            if argument.name in state.task.mutates:
                continue
            words = words_of(state.result(lane, golden), argument.dtype)
            where = self._rng.integers(0, max(1, words.size), min(budget, words.size))
            if argument.dtype.is_floating:
                words[where] = poison_word(argument.dtype, 0, self._rng)
            else:
                words[where] = self._rng.integers(0, np.iinfo(words.dtype).max, where.size, words.dtype, endpoint=True)
            self._poisoned[lane, argument.name] = Poison(where, words[where])

    def stir(self) -> None:
        """Write spans that stood never before into the floating inputs and weights; their answer is not known."""
        state = self._state
        tensors = [(a, raw) for a, raw in state.pristine().values() if a.dtype.is_floating]
        patches = tuple(make_patch(argument, raw, self._rng) for argument, raw in tensors if raw.size > 0)
        self.apply(None)
        self._variants[_STIRRED] = Variant(patches, ())
        self._write(self._variants[_STIRRED], state.shared, new=True)
        self._standing = _STIRRED

    def redraw(self) -> None:
        """Write inputs and weights that are new throughout; their answer is not known. ``apply`` puts them back.

        Where they take at most ``DRAW_BYTES``, or nothing can be rolled, the task draws them with a new seed; where
        they are larger, each floating tensor is rolled by a random number of elements (but for masks, zeros placed on
        purpose and symmetry, on which a kernel may rely).

        Raises:
            TaskError: drawing fails.
        """
        state = self._state
        self.apply(None)
        pristine = state.pristine()
        size_bytes = sum(raw.nbytes for _, raw in pristine.values())
        new = self._drawn_anew() if size_bytes <= DRAW_BYTES or not self._roll_names() else None
        if new is None:
            raws = {name: pristine[name][1].reshape(-1) for name in self._roll_names()}
            new = {name: np.roll(raw, int(self._rng.integers(1, raw.size))) for name, raw in raws.items()}
        self._variants[_REDRAWN], self._new, self._standing = Variant((), ()), new, _REDRAWN
        self._copy(new, state.shared)

    def withdraw(self) -> None:
        """Restore the inputs once a call is over: who computes now, computes from others than it was given.

        ``check`` still expects the answer to the variant.
        """
        standing = self._standing
        self.apply(None)
        self._withdrawn = standing

    def check(self, lane: int) -> CaseProblem | None:
        """What is wrong at the sampled positions of a lane, or with the inputs that all share; None if nothing is.

        Needs a variant that stands, or one that was withdrawn last.
        """
        problem = self._changed_input()
        for sample in self._current().samples:
            if problem is None:
                problem = _check(self._state, lane, sample, self._poisoned.get((lane, sample.golden.argument.name)))
        return problem

    def _changed_input(self) -> CaseProblem | None:
        """The first shared input that holds other bits than it should at some of a few thousand random positions.

        What a kernel leaves in an input makes its opponent compute something else, until the next call puts it back.
        """
        state = self._state
        pristine = state.pristine()
        names = [name for name in state.shared if name not in state.images and pristine[name][1].size > 0]
        budget = min(_INPUT_SAMPLES, max(_LEAST_INPUT_SAMPLES, _ALL_INPUT_SAMPLES // max(1, len(names))))
        standing = self._variants[self._standing].patches if self._standing is not None else ()
        for name in names:
            argument, raw = pristine[name]
            right = words_of(plane(raw, argument.dtype), argument.dtype)
            found = words_of(plane(view(state.shared[name], argument.dtype), argument.dtype), argument.dtype)
            where = self._rng.integers(0, right.size, min(budget, right.size))
            wrong = where[found[where] != right[where]]
            per_element = 2 if argument.dtype is DType.COMPLEX64 else 1
            for patch in standing:
                if patch.argument.name == name and wrong.size:
                    wrong = wrong[~np.isin(wrong // per_element, patch.where)]
            if wrong.size:
                index = position(int(wrong[0]), raw.shape, argument.dtype)
                message = f"{name}: an input was changed in a timed call, at {index} among others"
                evidence = {"first": index, "wrong": int(wrong.size), "looked_at": int(where.size)}
                return CaseProblem(kind="input_changed", tensor=name, message=message, evidence=evidence)
        return None

    def _drawn_anew(self) -> dict[str, Raw] | None:
        """Tensors of another seed; None where scalars, which stay as bound, would be others too."""
        state = self._state
        arguments = (*state.task.inputs, *state.task.weights)
        drawn = self._reference.draw(state.case, int(self._rng.integers(1 << 31)))
        new: dict[str, Raw] = {}
        for argument, value, old in zip(arguments, drawn, state.drawn, strict=True):
            if isinstance(argument, TensorArgument):
                new[argument.name] = value
            elif value != old:
                return None
        return {name: raw for name, raw in new.items() if name not in state.images}

    def _roll_names(self) -> tuple[str, ...]:
        """Tensors that may be rolled."""
        if self._rollable is None:
            found: list[str] = []
            for name, (argument, raw) in self._state.pristine().items():
                values = profile(raw, argument.dtype)
                is_plain = not (values.structural or values.sparse or values.symmetric)
                if is_plain and raw.size > 1 and name not in self._state.images:
                    found.append(name)
            self._rollable = tuple(found)
        return self._rollable

    def _copy(self, raws: dict[str, Raw], buffers: dict[str, SharedBuffer]) -> None:
        """Whole tensors into those buffers that there are."""
        for name in raws.keys() & buffers.keys():
            view(buffers[name], self._state.pristine()[name][0].dtype)[...] = raws[name].reshape(-1)

    def _variant(self, number: int) -> Variant:
        if number not in self._variants:
            self._variants[number] = self._make(number)
        return self._variants[number]

    def _current(self) -> Variant:
        number = self._standing if self._standing is not None else self._withdrawn
        assert number is not None, "no variant stands"
        return self._variants[number]

    def _write(self, variant: Variant, buffers: dict[str, Any], *, new: bool) -> None:
        pristine = self._state.pristine()
        for patch in variant.patches:
            if patch.argument.name in buffers:
                flat = view(buffers[patch.argument.name], patch.argument.dtype)
                flat[patch.where] = patch.new if new else pristine[patch.argument.name][1].reshape(-1)[patch.where]

    def _make(self, number: int) -> Variant:
        state = self._state
        rng = np.random.default_rng([state.seed, number, 0x5EED])
        roles = ("input", "weight") if number == VARIANTS - 1 else ("input",)
        tensors = [(a, raw) for a, raw in state.pristine().values() if a.role in roles and raw.size > 0]
        tensors = tensors or [(a, raw) for a, raw in state.pristine().values() if raw.size > 0]
        patches = tuple(make_patch(argument, raw, rng) for argument, raw in tensors)
        try:
            changed = self._golden_of(patches)
        except TaskError:  # integers that depend on each other (offsets, say) cannot be moved about
            patches = tuple(patch for patch in patches if patch.argument.dtype.is_floating)
            changed = self._golden_of(patches)
        budget = SAMPLES // max(1, len(state.golden))
        with self._patched(patches):
            samples = [self._sample(index, values, budget, rng) for index, values in enumerate(changed)]
        return Variant(patches, tuple(samples))

    def _golden_of(self, patches: Sequence[Patch]) -> list[Raw]:
        """Right answers with these patches."""
        with self._patched(patches):
            return self._reference.double(self._state.drawn, self._state.case)

    def _sample(self, index: int, values: Raw, budget: int, rng: np.random.Generator) -> Sample:
        """Positions of a result; of an index output those where one index alone is right. The patches stand."""
        state = self._state
        golden = state.golden[index]
        if golden.selection is None:
            return _sample(state, golden, values, budget, rng)
        sample = _sample(state, golden, values, min(budget, _INDEX_SAMPLES), rng)
        reference, drawn = self._reference, state.drawn
        selection = selection_of(reference, state.case, drawn, index, golden.length, state.family)
        if selection is None:
            return sample
        kept = selection.determined(sample.where, sample.values)
        return replace(
            sample,
            where=sample.where[kept],
            values=sample.values[kept],
            base=sample.base[kept],
            limits=sample.limits[kept],
        )

    @contextmanager
    def _patched(self, patches: Sequence[Patch]) -> Generator[None]:
        """The pristine arrays, which the reference reads, patched for the moment."""
        pristine = self._state.pristine()
        flats = [pristine[patch.argument.name][1].reshape(-1) for patch in patches]
        kept = [flat[patch.where] for flat, patch in zip(flats, patches, strict=True)]
        try:
            for flat, patch in zip(flats, patches, strict=True):
                flat[patch.where] = patch.new
            yield
        finally:
            for flat, patch, old in zip(flats, patches, kept, strict=True):
                flat[patch.where] = old


def make_patch(argument: TensorArgument, raw: Raw, rng: np.random.Generator) -> Patch:
    """Random spans of a tensor with values from elsewhere in it; floating ones scaled by 0.5 to 1.

    Zeros placed on purpose and symmetry are kept, as in the input families.
    """
    flat = raw.reshape(-1)
    last = raw.shape[-1] if raw.ndim > 1 else (1 if raw.size < 1 << 16 else 16)
    width = max(1, min(last, _SPAN_ELEMENTS))
    offset = int(rng.integers(0, min(width, flat.size - width + 1)))
    slots = (flat.size - offset) // width
    most = max(1, _PATCH_BYTES // (width * raw.dtype.itemsize))
    count = min(slots, most, max(1, round(SHARE * flat.size / width)))
    starts = np.sort(rng.choice(slots, count, replace=False)) * width + offset
    where = (starts[:, None] + np.arange(width)).reshape(-1)
    new = flat[rng.integers(0, flat.size - width + 1, count)[:, None] + rng.permutation(width)].reshape(-1)
    values = profile(raw, argument.dtype)
    if not values.structural:
        reals = plane(new, argument.dtype)
        scaled = decode(reals, argument.dtype) * rng.uniform(0.5, 1.0, reals.size)
        new = encode(scaled, argument.dtype).view(raw.dtype)
    if values.sparse:
        where, new = where[flat[where] != 0], new[flat[where] != 0]
    if values.symmetric:
        where, new = _mirrored(where, new, raw.shape[-1])
    return Patch(argument, where, new)


def _mirrored(where: NDArray[np.int64], new: Raw, size: int) -> tuple[NDArray[np.int64], Raw]:
    """The positions above the diagonals of square matrices and their mirror images, with equal values."""
    matrix, within = np.divmod(where, size * size)
    row, column = np.divmod(within, size)
    above = matrix * size * size + np.minimum(row, column) * size + np.maximum(row, column)
    above, first = np.unique(above, return_index=True)
    matrix, within = np.divmod(above, size * size)
    row, column = np.divmod(within, size)
    below = matrix * size * size + column * size + row
    off_diagonal = row != column
    return np.concatenate([above, below[off_diagonal]]), np.concatenate([new[first], new[first][off_diagonal]])


def _sample(state: CaseState, golden: Golden, values: Raw, budget: int, rng: np.random.Generator) -> Sample:
    dtype = golden.argument.dtype
    floor, relative = 0.0, 0.0
    if dtype.is_floating:
        bound = golden.bound(state.task, state.family)
        floor, relative = bound.max_floor, bound.max_relative
    moved = _moved(golden.values, values, floor, relative)
    some = moved if moved.size <= budget // 2 else rng.choice(moved, budget // 2, replace=False)
    others = rng.integers(0, max(1, values.size), min(budget - some.size, values.size))
    where = np.unique(np.concatenate([some, others]))
    picked = values[where]
    limits = np.zeros(where.size) if not dtype.is_floating else np.maximum(np.abs(picked) * relative, floor)
    return Sample(golden, where, picked, golden.values[where], limits)


def _moved(base: Raw, values: Raw, floor: float, relative: float) -> NDArray[np.int64]:
    """Positions where the answer changes clearly, in chunks."""
    found: list[NDArray[np.int64]] = []
    for start in range(0, base.size, CHUNK_ELEMENTS):
        a, b = base[start : start + CHUNK_ELEMENTS], values[start : start + CHUNK_ELEMENTS]
        if a.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                clear = np.abs(a - b) > _CLEAR * np.maximum(np.abs(b) * relative, floor)
        else:
            clear = a != b
        found.append(np.flatnonzero(clear).astype(np.int64) + start)
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _check(state: CaseState, lane: int, sample: Sample, poison: Poison | None) -> CaseProblem | None:
    dtype, name = sample.golden.argument.dtype, sample.golden.argument.name
    raw = state.result(lane, sample.golden)[sample.where]
    found = decode(raw, dtype)
    if not dtype.is_floating:
        right = words_of(raw, dtype) == words_of(sample.values, dtype)
    else:
        right = _within(found, sample.values, sample.limits)
    if right.all():
        return None
    wrong = np.flatnonzero(~right)
    at = int(wrong[0])
    index = position(int(sample.where[at]), concrete_shape(sample.golden.argument, state.case), dtype)
    kind, what = _manner(sample, raw[wrong], wrong, dtype, poison)
    message = (
        f"{name}: after rows of the inputs were rewritten between timed calls, {wrong.size} of {right.size} checked"
        f" elements are {what}; at {index} expected {float(sample.values[at]):.9g}, found {float(found[at]):.9g}"
    )
    evidence = {"first": index, "wrong": int(wrong.size)}
    return CaseProblem(kind=kind, tensor=name, message=message, evidence=evidence)


def _within(found: Raw, wanted: Raw, limits: NDArray[np.float64]) -> NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):
        close = np.abs(found - wanted) <= limits
    return close | (found == wanted) | (np.isnan(found) & np.isnan(wanted))


def _manner(
    sample: Sample, raw: Raw, wrong: NDArray[np.int64], dtype: DType, poison: Poison | None
) -> tuple[ProblemKind, str]:
    """In which way the wrong elements are wrong: as those say that were poisoned, or as all do."""
    if poison is not None:
        poisoned, held = poison.stands(raw, dtype, sample.where[wrong])
        if 2 * np.count_nonzero(held) > np.count_nonzero(poisoned):  # a small integer may be equal by chance
            return "unwritten", "wrong, poison or what stood there before: not written"
    if dtype.is_floating:
        found = decode(raw, dtype)
        stale = bool(_within(found, sample.base[wrong], sample.limits[wrong]).all())
    else:
        stale = np.array_equal(words_of(raw, dtype), words_of(sample.base[wrong], dtype))
    return ("stale", "the answer to earlier inputs") if stale else ("values", "wrong")
