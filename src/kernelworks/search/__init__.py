"""The search: archive, fitness, choice of parents, stop rules. Pure; deterministic for a seed and an order of calls."""

from kernelworks.search.archive import CELLS, AddStatus, Archive, ArchiveStats, Elite
from kernelworks.search.core import Ask, Search, SearchConfig, Told
from kernelworks.search.fitness import challenge_against, fitness_of
from kernelworks.search.seen import Seen
from kernelworks.search.stopping import StopReason, StopRules

__all__ = [
    "CELLS",
    "AddStatus",
    "Archive",
    "ArchiveStats",
    "Ask",
    "Elite",
    "Search",
    "SearchConfig",
    "Seen",
    "StopReason",
    "StopRules",
    "Told",
    "challenge_against",
    "fitness_of",
]
