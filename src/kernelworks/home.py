"""Where Kernelworks keeps what outlives a run: caches and the registry of runs."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """The user's folder: ``KERNELWORKS_HOME`` if set, else ``~/.cache/kernelworks``; not created here."""
    chosen = os.environ.get("KERNELWORKS_HOME")
    return Path(chosen).expanduser().absolute() if chosen else Path.home() / ".cache" / "kernelworks"
