"""Finding engines by name among the plug-ins of the installed packages."""

from __future__ import annotations

from kernelworks.engine.base import Engine
from kernelworks.evaluate.session import Session
from kernelworks.plugins import load_plugin

GROUP = "kernelworks.engines"


def open_engine(name: str, session: Session, *, build_workers: int) -> Engine:
    """An engine for the jobs of a session.

    Raises:
        UsageError: no engine, or more than one, has this name.
        EnvironmentLackError: the package behind it cannot be imported.
    """
    made: Engine = load_plugin(GROUP, "engine", name)(session, build_workers=build_workers)
    return made
