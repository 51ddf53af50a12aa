"""Finding proposers by name through the entry points of the installed packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from kernelworks.errors import EnvironmentLackError, UsageError
from kernelworks.propose.base import Proposer

GROUP = "kernelworks.proposers"


def available_proposers() -> tuple[str, ...]:
    """Names of all registered proposers, sorted; nothing is imported."""
    return tuple(sorted(_registered()))


def get_proposer(name: str) -> Proposer:
    """A new instance of the proposer of this name.

    Raises:
        UsageError: no proposer, or more than one, has this name.
        EnvironmentLackError: the package behind the proposer cannot be imported.
    """
    found = _registered().get(name, [])
    if not found:
        names = ", ".join(available_proposers()) or "none"
        raise UsageError(f"proposer {name!r}: expected one of the registered proposers ({names})")
    if len(found) > 1:
        values = " and ".join(point.value for point in found)
        raise UsageError(f"proposer {name!r}: expected one package that offers it, found {values}")
    try:
        factory = found[0].load()
    except (ImportError, AttributeError) as error:
        raise EnvironmentLackError(
            f"proposer {name!r} cannot be loaded from {found[0].value}: {error}",
            mend="reinstall the package that offers it",
        ) from error
    proposer: Proposer = factory()
    return proposer


def _registered() -> dict[str, list[EntryPoint]]:
    """Distinct entry points by name (a package that is seen twice on ``sys.path`` counts once)."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=GROUP):
        same_name = found.setdefault(point.name, [])
        if all(point.value != other.value for other in same_name):
            same_name.append(point)
    return found
