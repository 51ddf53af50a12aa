"""Further sizes for a task that states one set: found by changing its sizes, for files of both formats.

A size (a module-level integer of a KernelBench file, a dim of our own format) is *free* if changing it alone changes
the shapes of the inputs and nothing else: not what the model is made with, not the weights (those belong to the
compile-time constants of every kernel). All derived cases are small:

- ``shape`` (check): all free sizes at once; finds shapes written into a kernel. Sizes keep the stated ones'
  divisibility by powers of two up to 64 as far as they can, since a kernel may cover multiples only and a check case
  must lie inside.
- ``odd`` (edge): all free sizes at once, odd and prime, for tails.
- ``NAME_SIZE`` (edge): one free size at a time, the others as in ``shape``: 1, 0 (an empty tensor), a power of two
  plus and minus 1, a prime.

What the reference refuses (a maximum over nothing, a window larger than its input) is listed with the reason.
``large`` is one more set, with a tensor of more than 2^31 elements, which is used on request only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from kernelworks.errors import TaskError
from kernelworks.task.model import CaseRole
from kernelworks.task.modulefile import Constant, is_int

LARGE_ELEMENTS = 1 << 31
"""A tensor with more elements than this has offsets that 32 bits cannot hold."""
_ELEMENTS = 1 << 23
"""What the free sizes of a derived case multiply to at most, roughly."""
_MOST_ELEMENTS = 1 << 22
"""Elements of all inputs and weights of an edge case, at most ..."""
_MOST_ELEMENTS_OF_ONE = 1 << 24
"""... and where the size that changes is 1: other sizes may be fixed, and no case is smaller."""
_LARGEST = 192
_POWER = 64
_PRIME = 97
_ODD = (37, 23, 19, 13, 11, 7, 5, 3)
_MOST_FREE = 16
"""Files with more constants than this are searched no further: each costs a run."""
_MOST_EDGES = 12
"""Cases with one size changed: each costs every evaluation a few milliseconds ..."""
_MOST_TRIES_OF_NETWORKS = 4
_NETWORK_WEIGHTS = 32
"""... and a network with so many weights, or a recurrent one, takes long to run even without memory."""

Size = int | tuple[int, ...]
Proposals = Callable[[int, int, int], Iterator[int]]
"""(size, cap, place of the constant) -> other sizes, best first."""


@dataclass(frozen=True)
class Variant:
    """What must stay equal, and what may differ, between two sets of sizes."""

    init: str
    arguments: tuple[tuple[str, str], ...]
    """Name and dtype of each input (of a scalar: its value)."""
    input_shapes: tuple[tuple[int, ...], ...]
    weight_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    recurrent: bool = False
    """Whether it runs step by step along an axis."""

    @property
    def is_network(self) -> bool:
        """Whether every further look takes long."""
        return self.recurrent or len(self.weight_shapes) > _NETWORK_WEIGHTS

    def same_model(self, other: Variant, *, whole: bool) -> bool:
        """Whether one kernel can serve both: all but sizes of inputs agrees (of the inputs alone unless ``whole``)."""
        if not (self.init == other.init and self.arguments == other.arguments):
            return False
        if _ranks(self.input_shapes) != _ranks(other.input_shapes):
            return False
        same_outputs = _ranks(self.output_shapes) == _ranks(other.output_shapes)
        return not whole or (self.weight_shapes == other.weight_shapes and same_outputs)

    @property
    def largest(self) -> int:
        """Elements of the largest input or output."""
        return max((math.prod(shape) for shape in (*self.input_shapes, *self.output_shapes)), default=0)

    @property
    def elements(self) -> int:
        """Elements of all inputs and weights."""
        return sum(math.prod(shape) for shape in (*self.input_shapes, *self.weight_shapes))


Look = Callable[[Mapping[str, Constant], bool], Variant]
"""Runs the file with overrides: the whole of it, or for its inputs alone. TaskError where that fails."""


@dataclass
class Derived:
    """Cases that were found, and sizes that the reference refuses."""

    cases: list[tuple[str, CaseRole, dict[str, Constant]]] = field(
        default_factory=list[tuple[str, CaseRole, dict[str, Constant]]]
    )
    """Name, role and overrides of each."""
    skipped: list[str] = field(default_factory=list[str])
    """``rows = 0: <what the reference raised>``."""


def derive_cases(
    constants: Mapping[str, Constant],
    base: Variant,
    look: Look,
    *,
    roles: Collection[CaseRole] = (CaseRole.CHECK, CaseRole.EDGE),
) -> Derived:
    """Cases beside the stated one; none where no size is free.

    Args:
        constants: what may be a size, with the values of the timed case.
        base: what the timed case showed.
        look: runs the reference, on tensors without memory where that is possible.
        roles: which cases are wanted.
    """
    return _Deriver(constants, base, look).derive(roles)


def derive_large(constants: Mapping[str, Constant], base: Variant, look: Look) -> dict[str, Constant] | None:
    """Overrides under which an input or output has more than 2^31 elements; None if no single size does that.

    ``look`` must not touch memory.
    """
    if base.largest == 0 or base.largest > LARGE_ELEMENTS:
        return None
    factor = LARGE_ELEMENTS // base.largest + 1
    for name, size in list(_sizes(constants).items())[:_MOST_FREE]:
        for axes in (
            (1,) if base.is_network else (3, 2, 1)
        ):  # of the largest tensor that have this size: fewest elements first
            times = math.ceil(factor ** (1 / axes))
            larger: Constant = size * times if isinstance(size, int) else (size[0] * times, *size[1:])
            try:
                inputs = look({name: larger}, False)
                if not inputs.same_model(base, whole=False) or inputs.input_shapes == base.input_shapes:
                    continue  # the depth of a network, say: no model is made to find that out
                found = look({name: larger}, True)
            except TaskError:
                continue
            if found.same_model(base, whole=True) and found.largest > LARGE_ELEMENTS:
                return {name: larger}
    return None


class _Deriver:
    """The search of ``derive_cases``."""

    def __init__(self, constants: Mapping[str, Constant], base: Variant, look: Look) -> None:
        self._base = base
        self._look = look
        self._sizes = _sizes(constants)
        self._free = [name for name in list(self._sizes)[:_MOST_FREE] if self._is_free(name)]
        tied = {name: self._sizes[name] for name in self._free or self._sizes}
        """Only changeable together, where no size is free."""
        self._tied = tied
        self._cap = max(3, round(_ELEMENTS ** (1 / max(1, sum(map(_count, tied.values()))))))
        self._found = Derived()

    def derive(self, roles: Collection[CaseRole]) -> Derived:
        """All cases with these roles."""
        shape = self._all_at_once(_divisible)
        odd = self._all_at_once(_odd)
        if CaseRole.CHECK in roles:
            self._keep("shape", CaseRole.CHECK, shape)
        if CaseRole.EDGE in roles:
            self._keep("odd", CaseRole.EDGE, odd)
            self._edges(shape)
        return self._found

    def _keep(self, case: str, role: CaseRole, overrides: dict[str, Constant]) -> None:
        if overrides and all(overrides != other for _, _, other in self._found.cases):
            self._found.cases.append((case, role, overrides))

    def _all_at_once(self, proposals: Proposals) -> dict[str, Constant]:
        """Other values for every free size."""
        chosen: dict[str, Constant] = {}
        for place, name in enumerate(self._free):
            for size in _proposed(self._sizes[name], proposals, self._cap, place):
                if size != self._sizes[name] and self._fits({**chosen, name: size}):
                    chosen[name] = size
                    break
        return chosen or self._together(proposals)

    def _together(self, proposals: Proposals) -> dict[str, Constant]:
        """Overrides that change all sizes of one value at once, where they only work together; {} if none do."""
        sizes = self._tied
        for value in dict.fromkeys(
            n for size in sizes.values() for n in (size if isinstance(size, tuple) else (size,))
        ):
            names = [name for name, size in sizes.items() if size == value or size == (value,)]
            for new in proposals(value, self._cap, 0):
                changed: dict[str, Constant] = {name: (new,) if sizes[name] == (value,) else new for name in names}
                if new != value and changed and self._fits(changed):
                    return changed
        return {}

    def _edges(self, shape: Mapping[str, Constant]) -> None:
        """One size at a time; kinds take turns, so that the limit cuts the least telling."""
        network = self._base.is_network
        left: int = _MOST_TRIES_OF_NETWORKS if network else _MOST_EDGES
        power = _POWER
        while power > 4 and power >= self._cap:
            power //= 2
        for size in (1, 0, power + 1, power - 1, _PRIME):
            for name in self._free:
                stated = self._sizes[name]
                new: Constant = size if isinstance(stated, int) else (size,) * len(stated)
                if left < 1 or new in (stated, shape.get(name)):
                    continue
                left -= self._edge(f"{name}_{size}", f"{name} = {new}", size, {**shape, name: new}) or network
            if not (self._free or network):
                changed = self._together(lambda value, cap, place, size=size: iter((size,)))
                self._keep(f"all_{size}", CaseRole.EDGE, changed)

    def _edge(self, case: str, what: str, size: int, overrides: dict[str, Constant]) -> bool:
        """Whether a case was found for these sizes."""
        try:
            found = self._look(overrides, True)
        except TaskError as error:
            self._found.skipped.append(f"{what}: {error.message.rpartition(' failed: ')[2]}")
            return False
        if not found.same_model(self._base, whole=True):
            return False
        if found.elements > (_MOST_ELEMENTS if size > 1 else _MOST_ELEMENTS_OF_ONE):
            self._found.skipped.append(f"{what}: {found.elements} elements are too many for an edge case")
            return False
        before = len(self._found.cases)
        self._keep(case, CaseRole.EDGE, overrides)
        return len(self._found.cases) > before

    def _is_free(self, name: str) -> bool:
        size = self._sizes[name]
        larger: Constant = tuple(n + 1 for n in size) if isinstance(size, tuple) else size + 1
        try:
            found = self._look({name: larger}, False)
        except TaskError:
            return False
        return found.same_model(self._base, whole=False) and found.input_shapes != self._base.input_shapes

    def _fits(self, overrides: Mapping[str, Constant]) -> bool:
        try:
            inputs = self._look(overrides, False)
            if not inputs.same_model(self._base, whole=False) or inputs.input_shapes == self._base.input_shapes:
                return False  # told without making a model
            return self._look(overrides, True).same_model(self._base, whole=True)
        except TaskError:  # a window larger than its input, a broken agreement between two sizes
            return False


def _ranks(shapes: tuple[tuple[int, ...], ...]) -> list[int]:
    return [len(shape) for shape in shapes]


def _count(size: Size) -> int:
    return len(size) if isinstance(size, tuple) else 1


def _sizes(constants: Mapping[str, Constant]) -> dict[str, Size]:
    """Constants that may be sizes."""
    return {name: size for name, value in constants.items() if (size := _as_size(value)) is not None}


def _as_size(value: Constant) -> Size | None:
    """A constant that may be a size: a positive integer, or a tuple of them."""
    if is_int(value):
        return value if value > 0 else None
    if isinstance(value, tuple):
        items = tuple(item for item in value if is_int(item) and item > 0)
        return items if len(items) == len(value) else None
    return None


def _proposed(size: Size, proposals: Proposals, cap: int, place: int) -> Iterator[Size]:
    """Other sizes for a constant; the items of a tuple change together."""
    if isinstance(size, tuple):
        yield from zip(*(proposals(n, cap, place + k) for k, n in enumerate(size)), strict=False)
    else:
        yield from proposals(size, cap, place)


def _divisible(size: int, cap: int, place: int) -> Iterator[int]:
    """Sizes with the powers of two of the given one, as far as two such fit below ``cap``; others for windows."""
    limit = min(cap, _LARGEST)
    power = min(size & -size, 64)
    while power > 1 and 3 * power > limit:
        power //= 2
    multiples = [power * k for k in range(1, limit // power + 1, 2) if power * k < size]
    preferred = multiples[-2:]
    yield from (n for n in (*preferred[place % 2 :], *preferred, size // 2, size * 2) if n >= 1)


def _odd(size: int, cap: int, place: int) -> Iterator[int]:
    """Odd sizes, different from constant to constant."""
    small = [n for n in _ODD if n <= cap and n < size]
    start = place % len(small) if small else 0
    yield from (n for n in (*small[start : start + 1], *small[:1], size // 2 | 1, size + 1 | 1) if n >= 1)
