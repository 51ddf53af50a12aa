"""Symbolic axes of a trace: which axes of which tensors are the same loop, however they were reshaped.

A trace carries concrete sizes; a kernel must be right for all sizes of the task. Each axis of an argument is an
*atom* with the text of its size (a dim of the prototype, a number, or a quotient). Broadcasting unifies atoms,
reshapes regroup or split them. What had to be assumed for that (two dims are equal, one is divisible by a group
count) is kept as ``guards``, expressions of the front matter's ``covers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Dims = tuple[tuple[int, ...], ...]
"""For each dimension of a value the atoms that it is the product of; () where it does not vary (size 1 or expanded)."""


class ShapeError(Exception):
    """The shapes cannot be expressed as one loop nest; the message says which construct is at fault."""


class Axes:
    """The atoms of one trace, with unification and splitting."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._texts: list[str] = []
        self._next: list[tuple[int, ...] | None] = []
        self._guards: dict[str, None] = {}

    @property
    def guards(self) -> tuple[str, ...]:
        """Conditions on dims that the loop nest relies on, in order of discovery."""
        return tuple(self._guards)

    def new(self, size: int, text: str) -> int:
        """A fresh atom: its size in the trace, and the text of its size in a kernel."""
        self._sizes.append(size)
        self._texts.append(text)
        self._next.append(None)
        return len(self._sizes) - 1

    def size(self, atom: int) -> int:
        """Size in the trace."""
        return self._sizes[atom]

    def text(self, atom: int) -> str:
        """Size as an expression over dims."""
        return self._texts[atom]

    def resolve(self, atoms: Iterable[int]) -> tuple[int, ...]:
        """The atoms that these have become: representatives, split ones replaced by their parts."""
        found: list[int] = []
        for atom in atoms:
            following = self._next[atom]
            found.extend((atom,) if following is None else self.resolve(following))
        return tuple(found)

    def unify(self, left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
        """Make two groups of atoms the same loop, and return it; a group of size 1 broadcasts.

        Raises:
            ShapeError: the sizes do not match.
        """
        a, b = self.resolve(left), self.resolve(right)
        if not a or not b or a == b:
            return a or b
        size_a, size_b = self._product(a), self._product(b)
        if size_a != size_b and 1 in (size_a, size_b):
            small, large = (a, b) if size_a == 1 else (b, a)
            self.collapse(small)
            return large
        while a and b:
            self._unify_heads(a[0], b[0])
            a, b = self.resolve(a), self.resolve(b)
            while a and b and a[0] == b[0]:
                a, b = a[1:], b[1:]
        if a or b:
            raise ShapeError(f"axes of sizes {size_a} and {size_b} do not match")
        return self.resolve(left)

    def collapse(self, atoms: Sequence[int]) -> None:
        """Axes of size 1 in the trace that broadcast: they must have that size always."""
        for atom in self.resolve(atoms):
            self._guard(f"{self._texts[atom]} == 1")
            self._next[atom] = ()

    def regroup(self, dims: Dims, shape: Sequence[int], target: Sequence[int]) -> Dims:
        """The dims of a reshape from ``shape`` to ``target``.

        Raises:
            ShapeError: an expanded axis is reshaped, or a size is not a product of whole factors.
        """
        atoms = [atom for dim in dims for atom in self.resolve(dim)]
        if not atoms:
            return tuple(() for _ in target)
        if self._product(atoms) != _product(shape):
            raise ShapeError("a reshape of an expanded tensor")
        found: list[tuple[int, ...]] = []
        for size in target:
            group: list[int] = []
            have = 1
            while have < size:
                if not atoms:
                    raise ShapeError(f"a reshape from {tuple(shape)} to {tuple(target)}")
                wanted, rest = size // have, self._sizes[atoms[0]]
                if rest > wanted:
                    atoms[:1] = self.split(atoms[0], wanted)
                group.append(atoms.pop(0))
                have *= self._sizes[group[-1]]
            found.append(tuple(group))
        if self._product(atoms) != 1:
            raise ShapeError(f"a reshape from {tuple(shape)} to {tuple(target)}")
        if atoms and found:
            found[-1] = (*found[-1], *atoms)
        return tuple(found)

    def split(self, atom: int, leading: int) -> tuple[int, int]:
        """Split an atom into ``leading`` times the rest.

        Raises:
            ShapeError: the size is not a multiple of ``leading``.
        """
        size, text = self._sizes[atom], self._texts[atom]
        if leading < 1 or size % leading:
            raise ShapeError(f"an axis of size {size} split by {leading}")
        if text.isdigit():
            rest = str(size // leading)
        else:
            rest = f"({text} // {leading})"
            self._guard(f"{text} % {leading} == 0")
        parts = (self.new(leading, str(leading)), self.new(size // leading, rest))
        self._next[atom] = parts
        return parts

    def _unify_heads(self, a: int, b: int) -> None:
        if a == b:
            return
        size_a, size_b = self._sizes[a], self._sizes[b]
        if size_a > size_b:
            self.split(a, size_b)
        elif size_b > size_a:
            self.split(b, size_a)
        else:
            # A dim's own name rather than a number or quotient.
            keep, drop = sorted((a, b), key=lambda atom: (not self._texts[atom].isidentifier(), atom))
            if self._texts[keep] != self._texts[drop]:
                self._guard(f"{self._texts[keep]} == {self._texts[drop]}")
            self._next[drop] = (keep,)

    def _guard(self, text: str) -> None:
        self._guards[text] = None

    def _product(self, atoms: Sequence[int]) -> int:
        return _product([self._sizes[atom] for atom in atoms])


def _product(sizes: Sequence[int]) -> int:
    result = 1
    for size in sizes:
        result *= size
    return result
