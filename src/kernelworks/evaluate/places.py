"""Where an answer is wrong: the tail of a dim, a tile boundary, one thread's share, a diagonal, or anywhere.

The wrong elements are looked at through a *mesh*: a few indices of every axis (all of them where the tensor is small),
ends and the worst element's surroundings among them, crossed with each other. A mesh keeps what matters here: which
indices of one axis hold wrong elements, whatever the others are.

A place is said only if chance would not explain it: were ``n`` wrong elements scattered at random, all of them would
lie in a place that covers the share ``s`` of the tensor with probability ``s ** n``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]
Mask = NDArray[np.bool_]

MESH_ELEMENTS = 1 << 19
"""Elements that are looked at: some ten passes over them cost about 20 ms."""
_CHANCE = math.log(1e-4)
_BLOCK_CHANCE = math.log(0.05)
"""For a run of indices all of which hold wrong elements, among all choices of as many indices ..."""
_FULL_CHANCE = math.log(1e-3)
"""... and for one that is wrong throughout, among all choices of as many elements."""
_PERIODS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 3, 6, 12, 24, 48)
_FEW = 4
_MOST_HELD = 0.6
"""A line on which more indices are wrong has no period of which at most a half is."""
_MOST_THREADS = 64
_FLAT_PENALTY = 1.5
"""By which a place in the flat tensor must be smaller than one on its axes to be said."""
_ALL = 0.9
"""From this share on a tensor is wrong everywhere: single elements of a wrong answer are right by chance."""


@dataclass(frozen=True)
class Place:
    """Where wrong elements lie."""

    pattern: str
    """``everywhere``, ``all_but``, ``one``, ``few``, ``tail``, ``head``, ``index``, ``range``, ``share``, ``tile``,
    ``border``, ``diagonal``, ``triangle``, ``indices``, ``sign``, ``magnitude`` or ``scattered``."""
    text: str
    """To be read after "elements are wrong, "."""
    covers: float = 1.0
    """Share of the tensor."""
    evidence: dict[str, Any] = field(default_factory=dict[str, Any])

    def record(self) -> dict[str, Any]:
        """JSON-able."""
        return {"pattern": self.pattern, **self.evidence}


@dataclass(frozen=True)
class Mesh:
    """Some indices of every axis, ascending."""

    shape: tuple[int, ...]
    picked: tuple[Indices, ...]

    @property
    def whole(self) -> bool:
        """Whether it holds every element."""
        return all(p.size == size for p, size in zip(self.picked, self.shape, strict=True))

    def flat(self) -> Indices:
        """Flat positions of its elements, of the mesh's own shape."""
        strides = _strides(self.shape)
        parts = np.ix_(*(p * stride for p, stride in zip(self.picked, strides, strict=True)))
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return np.broadcast_to(total, tuple(p.size for p in self.picked))


def _strides(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


@dataclass(frozen=True)
class _Line:
    """One axis, or the whole tensor as one long row."""

    name: str
    size: int
    picked: Indices
    depth: int
    """Elements of the mesh at every index."""
    outer: bool
    """Whether threads are likely to share it out."""


def mesh_of(shape: tuple[int, ...], around: int, budget: int = MESH_ELEMENTS) -> Mesh:
    """A mesh of at most about ``budget`` elements.

    Args:
        shape: of the tensor, at least one axis, no axis empty.
        around: flat position of an element whose surroundings belong to it; negative: none.
        budget: elements; small axes are taken whole.
    """
    centre = np.unravel_index(max(0, around), shape)
    left, counts = float(budget), [0] * len(shape)
    for done, axis in enumerate(sorted(range(len(shape)), key=lambda a: shape[a])):
        counts[axis] = min(shape[axis], max(16, int(left ** (1 / (len(shape) - done)))))
        left = max(1.0, left / counts[axis])
    rng = np.random.default_rng(around if around > 0 else 0)
    return Mesh(shape, tuple(_some(shape[a], counts[a], int(centre[a]), rng) for a in range(len(shape))))


def _some(size: int, count: int, centre: int, rng: np.random.Generator) -> Indices:
    """Runs of indices: both ends, around the centre, and two anywhere."""
    if count >= size:
        return np.arange(size, dtype=np.int64)
    run = max(1, count // 5)
    starts = sorted({0, size - run, max(0, centre - run // 2), *rng.integers(0, size - run, 2).tolist()})
    ends = [min(size, start + run) for start in starts]
    free = [max(start, end) for start, end in zip(starts[1:], ends[:-1], strict=True)]  # where runs overlap
    runs = zip((starts[0], *free), ends, strict=True)
    return np.concatenate([np.arange(start, end, dtype=np.int64) for start, end in runs])


def place_of(mask: Mask, mesh: Mesh, axes: Sequence[str], golden: NDArray[Any] | None = None) -> Place:
    """Where the wrong elements lie.

    Args:
        mask: of the mesh's shape, true where an element is wrong; not all false.
        mesh: of the tensor.
        axes: name of every axis.
        golden: right values, of the mesh's shape; None where values say nothing.
    """
    count = int(np.count_nonzero(mask))
    at = np.nonzero(mask)
    if count == 1:
        index = tuple(int(mesh.picked[a][at[a][0]]) for a in range(len(axes)))
        return Place("one", f"at one element, {_tuple(index)}", 1 / mask.size, {"index": index})
    confined = _confined(mask, mesh, axes, count)
    flat = _flat_place(mask, mesh, axes, count) if len(axes) > 1 and mesh.whole else None
    found = [p for p in (_joined(confined, mask, axes), flat) if p is not None]
    found += [p for p in (_borders(mask, mesh, axes, count), _diagonal(mask, mesh, axes, count)) if p is not None]
    if found:
        return min(found, key=lambda p: p.covers)
    if count >= _ALL * mask.size:
        return Place("everywhere", "everywhere")
    if golden is not None:
        by_value = _by_value(mask, golden, count)
        if by_value is not None:
            return by_value
    share = count / mask.size
    if count <= _FEW:
        shown = [tuple(int(mesh.picked[a][at[a][k]]) for a in range(len(axes))) for k in range(count)]
        return Place("few", f"at {', '.join(map(_tuple, shown))}", share, {"indices": shown})
    return Place("scattered", f"scattered over {share:.2g} of all" if share < 0.5 else "nearly everywhere", share)


def _tuple(index: tuple[int, ...]) -> str:
    return f"({index[0]},)" if len(index) == 1 else str(index)


def _unlikely(share: float, count: int) -> bool:
    """Whether chance would not put so many elements into this share of the tensor."""
    return share < 1 and count * math.log(max(share, 1e-300)) < _CHANCE


def _confined(mask: Mask, mesh: Mesh, axes: Sequence[str], count: int) -> dict[int, Place]:
    """Axes of which some indices alone hold wrong elements."""
    found: dict[int, Place] = {}
    for axis, name in enumerate(axes):
        if mesh.shape[axis] == 1:
            continue
        others = tuple(a for a in range(len(axes)) if a != axis)
        held = np.flatnonzero(mask.any(axis=others))
        picked = mesh.picked[axis]
        line = _Line(name, mesh.shape[axis], picked, mask.size // picked.size, outer=axis == 0)
        place = _along(picked[held], line, count)
        if place is not None:
            found[axis] = place
    return found


def _joined(confined: dict[int, Place], mask: Mask, axes: Sequence[str]) -> Place | None:
    """The places on single axes as one."""
    if not confined:
        return None
    ordered = sorted(confined.items(), key=lambda item: item[1].covers)
    first = ordered[0][1]
    if first.pattern == "all_but":
        return first
    text = " and ".join(place.text for _, place in ordered[:2] if place.pattern != "all_but")
    whole = [
        name
        for axis, name in enumerate(axes)
        if axis not in confined
        and mask.shape[axis] > 1
        and bool(mask.any(axis=tuple(a for a in range(mask.ndim) if a != axis)).all())
    ]
    if whole and first.pattern not in ("tile",):
        text += f", all along {' and '.join(whole)}"
    if first.pattern in ("tail", "head"):
        text += f": the {'tail' if first.pattern == 'tail' else 'start'} of dim {first.evidence['dim']}"
    covers = math.prod(place.covers for _, place in ordered)
    more = [place.record() for _, place in ordered[1:]]
    return Place(first.pattern, f"only {text}", covers, {**first.evidence, **({"and": more} if more else {})})


def _along(held: Indices, line: _Line, count: int) -> Place | None:
    """What is special about the indices of a line that hold wrong elements; None if nothing is."""
    found = [*_runs(held, line, count), *_periodic(held, line, count), *_a_few(held, line, count)]
    return min((p for p in found if p.covers < 1), key=lambda p: p.covers, default=None)


def _runs(held: Indices, line: _Line, count: int) -> Iterator[Place]:
    first, last, size, name = int(held[0]), int(held[-1]), line.size, line.name
    span = last - first + 1
    between = int(np.count_nonzero((line.picked >= first) & (line.picked <= last)))
    share = max(span / size, between / line.picked.size)
    if held.size < 0.5 * between:
        return
    full = held.size == between and (
        _log_combinations(size, span) < _BLOCK_CHANCE
        or (count == between * line.depth and _log_combinations(line.picked.size * line.depth, count) < _FULL_CHANCE)
    )
    at_the_end = last == size - 1 and first > 0
    at_the_start = first == 0 and last < size - 1
    evidence: dict[str, Any] = {"dim": name, "first": first, "last": last, "size": size}
    if line.outer and _unlikely(share, count):
        fewest = 8 if at_the_end or at_the_start else 2
        for part, threads in _thread_shares(first, last, size, fewest):
            text = f"where {name} is in {first}..{last} (of {size}), the share of thread {part} of {threads}"
            yield Place("share", text, share * 0.999, {**evidence, "threads": threads, "thread": part})
    if (at_the_end or at_the_start) and share > 0.5:
        if count >= _ALL * between * line.depth and _unlikely(share, count):
            rest = f"first {first}" if at_the_end else f"last {size - 1 - last}"
            text = f"everywhere but in the {rest.removesuffix(' 1')} of {name}"
            yield Place("all_but", text, share, {**evidence, "first": first, "last": last})
    elif (at_the_end or at_the_start) and (full or _unlikely(share, count)):
        side = "last" if at_the_end else "first"
        many = f"{side} {span}" if span > 1 else side
        text = f"in the {many} of {name} ({_interval(first, last)} of {size})"
        yield Place("tail" if at_the_end else "head", text, share, evidence)
    elif first > 0 and last < size - 1 and _unlikely(share, count - 2):
        if span == 1:
            yield Place("index", f"where {name} is {first} (of {size})", share, evidence)
        else:
            yield Place("range", f"where {name} is in {first}..{last} (of {size})", share, evidence)


def _a_few(held: Indices, line: _Line, count: int) -> Iterator[Place]:
    share = held.size / line.picked.size
    if held.size <= _FEW * 4 and count >= 4 * held.size and _unlikely(share, count - held.size):
        shown = ", ".join(map(str, held[:8].tolist())) + (", ..." if held.size > 8 else "")
        evidence = {"dim": line.name, "indices": held[:8].tolist(), "size": line.size}
        yield Place("indices", f"where {line.name} is one of {shown} (of {line.size})", share, evidence)


def _log_combinations(size: int, chosen: int) -> float:
    """Logarithm of the chance of one choice of so many among ``size``."""
    return math.lgamma(chosen + 1) + math.lgamma(size - chosen + 1) - math.lgamma(size + 1)


def _interval(first: int, last: int) -> str:
    return f"{first}..{last}" if last > first else str(first)


def _thread_shares(first: int, last: int, size: int, fewest: int) -> Iterator[tuple[int, int]]:
    """(part, threads) where the range is what OpenMP's static schedule gives to one thread of so many.

    ``fewest`` indices a thread; below, a tail is no share.
    """
    threads = round(size / (last - first + 1))
    if not 2 <= threads <= min(_MOST_THREADS, size // fewest):
        return
    chunk, rest = divmod(size, threads)
    begins = [part * chunk + min(part, rest) for part in range(threads + 1)]
    if first in begins[:-1]:
        part = begins.index(first)
        if abs(begins[part + 1] - 1 - last) <= chunk // 8:
            yield part, threads


def _periodic(held: Indices, line: _Line, count: int) -> Iterator[Place]:
    """Places that repeat: what a loop over tiles or vectors does at the start or the end of each."""
    name, size, picked = line.name, line.size, line.picked
    if held.size < 3 or held.size > _MOST_HELD * picked.size:
        return
    common = int(np.gcd.reduce(np.diff(held)))
    for period in (common, *_PERIODS) if common > 1 and common not in _PERIODS else _PERIODS:
        if period > size // 2:
            continue
        residues = np.flatnonzero(np.bincount(held % period, minlength=period))
        low, high = int(residues[0]), int(residues[-1])
        if residues.size > period // 2 or residues.size != high - low + 1:
            continue
        there = picked % period
        candidates = int(np.count_nonzero((there >= low) & (there <= high)))
        share = max(residues.size / period, candidates / picked.size)
        if held.size < 0.5 * candidates or not _unlikely(share, min(count, 4 * held.size)):
            continue
        what = f"{name} % {period} is {low if low == high else f'in {low}..{high}'}"
        if low == 0:
            what += f" (the start of every {period})"
        elif high == period - 1:
            what += f" (the end of every {period})"
        evidence = {"dim": name, "period": period, "residues": [low, high], "size": size}
        yield Place("tile", f"where {what}", share, evidence)


def _flat_place(mask: Mask, mesh: Mesh, axes: Sequence[str], count: int) -> Place | None:
    """The same for the tensor as one long row, where that says more than its axes do."""
    held = np.flatnonzero(mask)
    size = mask.size
    line = _Line("the flat index", size, np.arange(size, dtype=np.int64), 1, outer=True)
    place = _along(held, line, count)
    if place is None or place.pattern not in ("tail", "share", "tile"):
        return None
    evidence = {**place.evidence, "dim": "", "flat": True}
    if place.pattern == "tail":
        width = mesh.shape[-1]
        if not size - width < place.evidence["first"]:
            return None  # whole rows: their axis says more
        first, last = place.evidence["first"], place.evidence["last"]
        text = f"only in the last {last - first + 1} elements ({first}..{last} of {size}): the tail of a flat loop"
        return Place("tail", text, place.covers * 0.99, evidence)
    return Place(place.pattern, f"only {place.text}", _FLAT_PENALTY * place.covers, evidence)


def _borders(mask: Mask, mesh: Mesh, axes: Sequence[str], count: int) -> Place | None:
    """First and last indices of the last axes, as a stencil or a convolution meets them."""
    tail = [a for a in range(max(0, len(axes) - 3), len(axes)) if mesh.shape[a] > 4]
    if not tail:
        return None
    for width in (1, 2, 3):
        near = np.zeros(mask.shape, np.bool_)
        used: list[str] = []
        for axis in tail:
            held = mesh.picked[axis]
            edge = (held < width) | (held >= mesh.shape[axis] - width)
            wide = [1] * mask.ndim
            wide[axis] = -1
            here = mask & edge.reshape(wide)
            if here[_at(mask.ndim, axis, held < width)].any() and here[_at(mask.ndim, axis, held >= width)].any():
                near |= edge.reshape(wide)
                used.append(axes[axis])
        if not used or bool((mask & ~near).any()):
            continue
        share = 1 - math.prod(1 - 2 * width / mesh.shape[axis] for axis in tail if axes[axis] in used)
        if share < 0.5 and _unlikely(share, count):
            ends = "first and last" if width == 1 else f"first and last {width}"
            text = f"only at the {ends} of {' and '.join(used)}: the borders"
            return Place("border", text, share, {"dims": used, "width": width})
    return None


def _at(ndim: int, axis: int, which: Mask) -> tuple[Any, ...]:
    return tuple(which if a == axis else slice(None) for a in range(ndim))


def _diagonal(mask: Mask, mesh: Mesh, axes: Sequence[str], count: int) -> Place | None:
    """On, above or below the diagonal of the last two axes."""
    if len(axes) < 2 or min(mesh.shape[-2:]) < 3:
        return None
    distance = mesh.picked[-1][None, :] - mesh.picked[-2][:, None]
    for pattern, said, inside in (
        ("diagonal", "on the diagonal", distance == 0),
        ("triangle", "above the diagonal", distance > 0),
        ("triangle", "below the diagonal", distance < 0),
        ("triangle", "on and above the diagonal", distance >= 0),
        ("triangle", "on and below the diagonal", distance <= 0),
    ):
        share = float(np.count_nonzero(inside)) / inside.size
        if 0 < share < 0.8 and _unlikely(share, count) and not bool((mask & ~inside).any()):
            if np.count_nonzero(mask) < 0.5 * share * mask.size:
                continue
            text = f"only {said} of {axes[-2]} and {axes[-1]}"
            return Place(pattern, text, share, {"dims": [axes[-2], axes[-1]], "side": said})
    return None


def _by_value(mask: Mask, golden: NDArray[Any], count: int) -> Place | None:
    """Places that are told by the right value itself: one sign alone, or large magnitudes alone."""
    wrong, right = golden[mask], golden[~mask]
    for said, test in (("negative", np.less), ("positive", np.greater), ("zero", np.equal)):
        share = float(np.count_nonzero(test(golden, 0))) / golden.size
        if bool(test(wrong, 0).all()) and share < 0.9 and _unlikely(share, count) and count >= 0.5 * share * mask.size:
            return Place("sign", f"only where the right value is {said}", share, {"expected": said})
    if golden.dtype.kind != "f" or right.size == 0:
        return None
    with np.errstate(invalid="ignore"):
        wrong, right = np.abs(wrong), np.abs(right)
    edge = float(wrong.min())
    share = count / mask.size
    if np.isfinite(edge) and edge > 0 and edge >= float(np.nanmax(right)) and _unlikely(share, count):
        text = f"only where the right value is beyond {edge:.4g} in magnitude"
        return Place("magnitude", text, share, {"from": edge})
    return None
