"""Finding proposers by name among the plug-ins of the installed packages."""

from __future__ import annotations

from kernelworks.plugins import load_plugin, plugin_names
from kernelworks.propose.base import Proposer

GROUP = "kernelworks.proposers"


def available_proposers() -> tuple[str, ...]:
    """Names of all registered proposers, sorted; nothing is imported."""
    return plugin_names(GROUP)


def get_proposer(name: str) -> Proposer:
    """A new instance of the proposer of this name.

    Raises:
        UsageError: no proposer, or more than one, has this name.
        EnvironmentLackError: the package behind it cannot be imported.
    """
    made: Proposer = load_plugin(GROUP, "proposer", name)()
    return made
