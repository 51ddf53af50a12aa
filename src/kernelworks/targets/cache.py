"""The build cache: what was built once from the same text, flags, compiler and processor is not built again.

One folder an entry, named by the key. An entry appears by one rename, so it is whole or not there; a library that does
not match its recorded digest is thrown away and built again. Builders of one key exclude each other by ``flock``, which
the kernel releases when its holder dies. Failures of candidates are remembered too; what the environment or a
limit caused is not.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from kernelworks.data import Frozen
from kernelworks.errors import EnvironmentLackError
from kernelworks.home import home
from kernelworks.kernel.descriptor import Descriptor
from kernelworks.targets.base import BuildFailure
from kernelworks.targets.compile import LIBRARY_NAME

DEFAULT_LIMIT_BYTES = 2 << 30
_RECORD_NAME = "entry.json"
_KEY_DIGITS = 40
_STALE_TEMPORARY_S = 3600.0
_INSERTS_BETWEEN_PRUNES = 64
_SIZE_OF_FOLDER_BYTES = 8192
"""What an entry takes beside its library: folder, record and rounding."""


class Build(Frozen):
    """The outcome of one build, as it is remembered."""

    build_ms: float
    descriptor: Descriptor | None = None
    code_digest: str = ""
    failure: BuildFailure | None = None
    lasting: bool = True
    """False for a failure that another try may not show; it is not kept."""


class _Record(Frozen):
    build: Build
    library_sha256: str


@dataclass(frozen=True)
class Entry:
    """A build as the cache hands it out. ``library`` exists unless the build failed."""

    build: Build
    library: Path
    cached: bool


def content_key(*parts: object) -> str:
    """Key over the representations of all parts."""
    return hashlib.sha256(repr(parts).encode("utf-8", errors="surrogatepass")).hexdigest()[:_KEY_DIGITS]


class BuildCache:
    """Builds by content under ``KERNELWORKS_HOME/cache/builds``. Safe for threads and processes."""

    def __init__(
        self, folder: Path | None = None, *, limit_bytes: int = DEFAULT_LIMIT_BYTES, grace_s: float = 900.0
    ) -> None:
        """``grace_s``: an entry used within this time is never evicted, because an evaluation may hold its path."""
        self._folder = folder if folder is not None else home() / "cache" / "builds"
        self._limit_bytes = limit_bytes
        self._grace_s = grace_s
        self._inserts = 0
        self._count_lock = threading.Lock()

    def fetch(self, key: str, make: Callable[[Path], Build]) -> Entry:
        """The entry of a key; ``make`` builds it in an empty folder if there is none, leaving ``LIBRARY_NAME`` there.

        Raises:
            EnvironmentLackError: the cache's folder cannot be written, or the system starts no process there.
        """
        entry = self._find(key)
        if entry is not None:
            return entry
        try:
            with self._locked(key):
                entry = self._find(key)
                return entry if entry is not None else self._make(key, make)
        except OSError as error:
            raise EnvironmentLackError(
                f"build cache {self._folder}: expected a folder where builds can run, found: {error}",
                mend="free some space, or set KERNELWORKS_HOME to a folder that can be written",
            ) from error

    def prune(self, limit_bytes: int | None = None) -> int:
        """Evict least recently used entries until the cache fits; returns the bytes that remain."""
        limit_bytes = self._limit_bytes if limit_bytes is None else limit_bytes
        now_s = time.time()
        self._remove_stale_temporaries(now_s)
        entries = sorted(self._usage())
        total_bytes = sum(size for _, size, _ in entries)
        for used_s, size_bytes, path in entries:
            if total_bytes <= limit_bytes or now_s - used_s < self._grace_s:
                break
            self._evict(path)
            total_bytes -= size_bytes
        return total_bytes

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / key

    def _find(self, key: str) -> Entry | None:
        """A whole entry, marked as used; None if there is none or it is damaged."""
        path = self._path(key)
        library = path / LIBRARY_NAME
        try:
            record = _Record.model_validate_json((path / _RECORD_NAME).read_bytes())
            if record.build.failure is None and _sha256(library) != record.library_sha256:
                return None
            os.utime(path / _RECORD_NAME)
        except (OSError, ValidationError):
            return None
        return Entry(record.build, library, cached=True)

    def _make(self, key: str, make: Callable[[Path], Build]) -> Entry:
        temporary = Path(tempfile.mkdtemp(dir=self._made("tmp")))
        try:
            build = make(temporary)
            path = self._path(key)
            library = path / LIBRARY_NAME
            if build.failure is not None and not build.lasting:
                return Entry(build, library, cached=False)
            digest = "" if build.failure is not None else _sha256(temporary / LIBRARY_NAME)
            for leftover in temporary.iterdir():
                if leftover.name != LIBRARY_NAME:
                    shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            record = _Record(build=build, library_sha256=digest)
            (temporary / _RECORD_NAME).write_text(record.model_dump_json(), encoding="utf-8")
            temporary.chmod(0o755)  # A sandboxed child of another user loads the library.
            self._made(key[:2])
            if path.exists():  # Damaged, or it would have been found.
                self._evict(path)
            temporary.rename(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._count_insert()
        return Entry(build, library, cached=False)

    def _count_insert(self) -> None:
        with self._count_lock:
            due = self._inserts % _INSERTS_BETWEEN_PRUNES == 0
            self._inserts += 1
        if due:
            self.prune()

    def _made(self, name: str) -> Path:
        path = self._folder / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    @contextmanager
    def _locked(self, key: str) -> Generator[None]:
        """Exclude other builders; keys share 256 lock files, which are never removed."""
        descriptor = os.open(self._made("locks") / key[:2], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _usage(self) -> Iterator[tuple[float, int, Path]]:
        """Time of last use, bytes and folder of every entry."""
        for record in self._folder.glob(f"??/*/{_RECORD_NAME}"):
            with suppress(OSError):  # Evicted meanwhile.
                status = record.stat()
                library = record.with_name(LIBRARY_NAME)
                library_bytes = library.stat().st_size if library.exists() else 0
                yield status.st_mtime, _SIZE_OF_FOLDER_BYTES + status.st_size + library_bytes, record.parent

    def _evict(self, path: Path) -> None:
        """Take an entry away by one rename, then delete it."""
        grave = Path(tempfile.mkdtemp(dir=self._made("tmp")))
        with suppress(FileNotFoundError):
            path.rename(grave / path.name)
        shutil.rmtree(grave, ignore_errors=True)

    def _remove_stale_temporaries(self, now_s: float) -> None:
        """What builders that were killed left behind."""
        for path in self._made("tmp").iterdir():
            with suppress(OSError):
                if now_s - path.stat().st_mtime > _STALE_TEMPORARY_S:
                    shutil.rmtree(path, ignore_errors=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
