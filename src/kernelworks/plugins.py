"""Plug-ins by name, through the entry points of the installed packages. Built-ins register in the same way."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from kernelworks.errors import EnvironmentLackError, UsageError


def plugin_names(group: str) -> tuple[str, ...]:
    """Names that are registered in a group, sorted; nothing is imported."""
    return tuple(sorted(_registered(group)))


def load_plugin(group: str, kind: str, name: str) -> Any:
    """The object behind a name.

    Args:
        group: of entry points, such as ``kernelworks.targets``.
        kind: what it is called in errors, such as ``target``.
        name: of the plug-in.

    Raises:
        UsageError: nothing, or more than one thing, has this name.
        EnvironmentLackError: the package behind it cannot be imported.
    """
    found = _registered(group).get(name, [])
    if not found:
        names = ", ".join(plugin_names(group)) or "none"
        raise UsageError(f"{kind} {name!r}: expected one of the registered {kind}s ({names})")
    if len(found) > 1:
        values = " and ".join(point.value for point in found)
        raise UsageError(f"{kind} {name!r}: expected one package that offers it, found {values}")
    try:
        return found[0].load()
    except (ImportError, AttributeError) as error:
        raise EnvironmentLackError(
            f"{kind} {name!r} cannot be loaded from {found[0].value}: {error}",
            mend="reinstall the package that offers it",
        ) from error


def _registered(group: str) -> dict[str, list[EntryPoint]]:
    """Distinct entry points by name (a package that is seen twice on ``sys.path`` counts once)."""
    found: dict[str, list[EntryPoint]] = {}
    for point in entry_points(group=group):
        same_name = found.setdefault(point.name, [])
        if all(point.value != other.value for other in same_name):
            same_name.append(point)
    return found
