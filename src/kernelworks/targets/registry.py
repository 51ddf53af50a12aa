"""Finding targets by name among the plug-ins of the installed packages."""

from __future__ import annotations

from kernelworks.plugins import load_plugin, plugin_names
from kernelworks.targets.base import Target

GROUP = "kernelworks.targets"


def available_targets() -> tuple[str, ...]:
    """Names of all registered targets, sorted; nothing is imported."""
    return plugin_names(GROUP)


def get_target(name: str) -> Target:
    """A new instance of the target of this name.

    Raises:
        UsageError: no target, or more than one, has this name.
        EnvironmentLackError: the package behind it cannot be imported.
    """
    made: Target = load_plugin(GROUP, "target", name)()
    return made
