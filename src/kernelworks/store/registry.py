"""The user's registry of runs: one small JSON file a run under ``KERNELWORKS_HOME``.

One file each, replaced atomically: any number of processes can register at once without a lock.
"""

from __future__ import annotations

import os
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from kernelworks.data import Frozen
from kernelworks.errors import StoreError
from kernelworks.home import home

DATABASE = "run.sqlite"
"""The file by which a folder is known as a run's."""
_RUN_ID = re.compile(r"[0-9a-z][0-9a-z-]*")
_NAMED = 5
"""How many candidates an error lists."""


class RunEntry(Frozen):
    """What the registry knows of a run; the rest is in its folder."""

    run: str
    folder: str
    """Absolute."""
    task: str
    target: str
    created_at: str
    """ISO 8601, UTC."""

    @property
    def exists(self) -> bool:
        """Whether the folder still holds the run."""
        return (Path(self.folder) / DATABASE).is_file()


def new_run_id(now: datetime | None = None) -> str:
    """A fresh id that sorts by time: UTC date, then two seconds in four hex digits, then chance in four more."""
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    slot = (moment.hour * 3600 + moment.minute * 60 + moment.second) // 2
    while True:
        run = f"{moment:%Y%m%d}-{slot:04x}{secrets.token_hex(2)}"
        if not _file(run).exists():
            return run


def default_folder(run: str) -> Path:
    """Where a run lives for which the user named no folder."""
    return home() / "runs" / run


def register(run: str, folder: Path, *, task: str, target: str, created_at: str) -> RunEntry:
    """Enter a run, or its new place if it was moved.

    Raises:
        StoreError: the registry cannot be written.
        ValueError: the id holds other characters than digits, small letters and hyphens.
    """
    if not _RUN_ID.fullmatch(run):
        raise ValueError(f"run id: expected digits, small letters and hyphens, found {run!r}")
    entry = RunEntry(run=run, folder=str(folder.absolute()), task=task, target=target, created_at=created_at)
    path = _file(run)
    unfinished = path.with_suffix(f".{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(entry.model_dump_json(), encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise StoreError(
            f"{path.parent}: expected a writable registry of runs, found: {error.strerror}",
            mend="set KERNELWORKS_HOME to a folder that you can write",
        ) from error
    return entry


def list_runs() -> tuple[RunEntry, ...]:
    """All registered runs, oldest first.

    Raises:
        StoreError: an entry cannot be read.
    """
    return tuple(_read(path) for path in sorted(_directory().glob("*.json")))


def find(run: str) -> Path:
    """The folder of a run, given as a folder, an id, or the unique beginning of an id.

    Raises:
        StoreError: no such run, several, or its folder is gone.
    """
    folder = Path(run)
    if run and (folder / DATABASE).is_file():
        return folder
    if run and (folder.is_dir() or os.sep in run):
        found = f"no {DATABASE} in it" if folder.is_dir() else "no such folder"
        raise StoreError(f"{run}: expected the folder of a run, found {found}")
    names = sorted(path.stem for path in _directory().glob("*.json"))
    matches = [run] if run in names else [name for name in names if run and name.startswith(run)]
    if len(matches) != 1:
        listed = ", ".join(matches[:_NAMED]) + (", ..." if len(matches) > _NAMED else "")
        found = f"{len(matches)} runs begin so: {listed}" if matches else "there is no such run"
        raise StoreError(
            f"expected a folder or the id of a run, found {run!r}: {found}", mend="kernelworks runs list shows them"
        )
    entry = _read(_file(matches[0]))
    if not entry.exists:
        raise StoreError(
            f"run {entry.run}: expected it in {entry.folder}, found it gone",
            mend="if you moved it, give its new folder",
        )
    return Path(entry.folder)


def _directory() -> Path:
    return home() / "registry"


def _file(run: str) -> Path:
    return _directory() / f"{run}.json"


def _read(path: Path) -> RunEntry:
    try:
        return RunEntry.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise StoreError(
            f"{path}: expected an entry of the registry of runs, found an unreadable file", mend="delete it"
        ) from error
