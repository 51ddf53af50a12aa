"""What the templates of a kernel are given: lines of C++, by where they stand in a nest."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SweepText:
    """One sweep as lines."""

    title: str
    rows: list[str]
    row_stores: list[str]
    has_loop: bool
    inits: list[str] = field(default_factory=list[str])
    body: list[str] = field(default_factory=list[str])
    ends: list[str] = field(default_factory=list[str])
    run_inits: list[str] = field(default_factory=list[str])
    """Plain loops add up in runs, which keeps the rounding of long sums small."""
    run_ends: list[str] = field(default_factory=list[str])
    simd: str = ""
    """The pragma of a plain loop; empty for none."""


@dataclass
class RegionText:
    """One parallel loop as lines."""

    sweeps: list[SweepText]
    pointers: list[str]
    saves: list[str]
    """Row values for later regions."""
    partials: list[str]
    column_values: list[tuple[str, str]]
    """Type and name of row values, one a vector of the tile (columns only)."""


@dataclass
class NestText:
    """One nest: one region, or one for each sweep."""

    before: list[str]
    arrays: list[tuple[str, str]]
    """Type and name of arrays with one element a task."""
    regions: list[RegionText]
    scratch: list[str]
    totals: list[str]
    """After the regions: totals of the partial results."""
