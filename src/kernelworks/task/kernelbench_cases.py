"""Further sizes for a KernelBench file, which publishes one set: found by changing its module-level integers.

A constant is *free* if changing it alone changes the shapes of the inputs and nothing else: not what the model is made
with, not the weights (those belong to the compile-time constants of every kernel). Two sets are made of all free
constants together, both small:

- ``shape`` (check): finds shapes written into a kernel. Sizes keep the published ones' divisibility by powers of two
  up to 64 as far as they can, since a kernel may cover multiples only and a check case must lie inside.
- ``odd`` (edge): odd sizes, for tails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from kernelworks.errors import TaskError
from kernelworks.task.model import CaseRole
from kernelworks.task.modulefile import Constant, is_int

_ELEMENTS = 1 << 23
"""What the free sizes of a derived case multiply to at most, roughly."""
_LARGEST = 192
_ODD = (37, 23, 19, 13, 11, 7, 5, 3)
_MOST_FREE = 16
"""Files with more constants than this are searched no further: each costs a run."""

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
    output_ranks: tuple[int, ...]

    def same_model(self, other: Variant, *, whole: bool) -> bool:
        """Whether one kernel can serve both: all but sizes of inputs agrees (of the inputs alone unless ``whole``)."""
        ranks = [len(shape) for shape in self.input_shapes] == [len(shape) for shape in other.input_shapes]
        if not (ranks and self.init == other.init and self.arguments == other.arguments):
            return False
        return not whole or (self.weight_shapes, self.output_ranks) == (other.weight_shapes, other.output_ranks)


Look = Callable[[Mapping[str, Constant], bool], Variant]
"""Runs the file with overrides: the whole of it, or for its inputs alone. TaskError where that fails."""


def choose_variants(
    constants: Mapping[str, Constant],
    base: Variant,
    look: Look,
) -> list[tuple[str, CaseRole, dict[str, Constant]]]:
    """Name, role and overrides of each derived case; empty where no size is free.

    Args:
        constants: module-level constants with their values in the timed case.
        base: what the timed case showed.
        look: runs the file.
    """
    sizes = {name: size for name, value in constants.items() if (size := _as_size(value)) is not None}
    free = [name for name in list(sizes)[:_MOST_FREE] if _is_free(name, sizes[name], base, look)]
    tied = {name: sizes[name] for name in free or sizes}  # only changeable together, where no size is free
    cap = max(3, round(_ELEMENTS ** (1 / max(1, sum(map(_count, tied.values()))))))
    found: list[tuple[str, CaseRole, dict[str, Constant]]] = []
    for case, role, proposals in (("shape", CaseRole.CHECK, _divisible), ("odd", CaseRole.EDGE, _odd)):
        chosen: dict[str, Constant] = {}
        for place, name in enumerate(free):
            for size in _proposed(sizes[name], proposals, cap, place):
                if size != sizes[name] and _fits({**chosen, name: size}, base, look):
                    chosen[name] = size
                    break
        chosen = chosen or _together(tied, proposals, cap, base, look)
        if chosen and all(chosen != other for _, _, other in found):
            found.append((case, role, chosen))
    return found


def _together(
    sizes: Mapping[str, Size], proposals: Proposals, cap: int, base: Variant, look: Look
) -> dict[str, Constant]:
    """Overrides that change all sizes of one value at once, where they only work together; {} if none do."""
    for value in dict.fromkeys(n for size in sizes.values() for n in (size if isinstance(size, tuple) else (size,))):
        names = [name for name, size in sizes.items() if size == value or size == (value,)]
        for new in proposals(value, cap, 0):
            changed: dict[str, Constant] = {name: (new,) if sizes[name] == (value,) else new for name in names}
            if new != value and changed and _fits(changed, base, look):
                return changed
    return {}


def _count(size: Size) -> int:
    return len(size) if isinstance(size, tuple) else 1


def _as_size(value: Constant) -> Size | None:
    """A constant that may be a size: a positive integer, or a tuple of them."""
    if is_int(value):
        return value if value > 0 else None
    if isinstance(value, tuple):
        items = tuple(item for item in value if is_int(item) and item > 0)
        return items if len(items) == len(value) else None
    return None


def _is_free(name: str, size: Size, base: Variant, look: Look) -> bool:
    larger = tuple(n + 1 for n in size) if isinstance(size, tuple) else size + 1
    try:
        found = look({name: larger}, False)
    except TaskError:
        return False
    return found.same_model(base, whole=False) and found.input_shapes != base.input_shapes


def _fits(overrides: Mapping[str, Constant], base: Variant, look: Look) -> bool:
    try:
        found = look(overrides, True)
    except TaskError:  # a window larger than its input, a broken agreement between two sizes
        return False
    return found.same_model(base, whole=True) and found.input_shapes != base.input_shapes


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
