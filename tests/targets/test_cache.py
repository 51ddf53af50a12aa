from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from kernelworks.errors import EnvironmentLackError
from kernelworks.targets.base import BuildFailure
from kernelworks.targets.cache import Build, BuildCache, content_key
from kernelworks.targets.compile import LIBRARY_NAME


def library_of(size_bytes: int) -> bytes:
    return b"x" * size_bytes


class Builder:
    """Counts how often it builds."""

    def __init__(self, failure: BuildFailure | None = None, *, lasting: bool = True, size_bytes: int = 100) -> None:
        self.count = 0
        self._build = Build(build_ms=1.0, code_digest="d", failure=failure, lasting=lasting)
        self._size_bytes = size_bytes

    def __call__(self, folder: Path) -> Build:
        self.count += 1
        (folder / "leftover.tmp").write_text("")
        if self._build.failure is None:
            (folder / LIBRARY_NAME).write_bytes(library_of(self._size_bytes))
        return self._build


def test_the_second_time_nothing_is_built(tmp_path: Path) -> None:
    builder = Builder()
    key = content_key("text", ("-O3",))
    first = BuildCache(tmp_path).fetch(key, builder)
    second = BuildCache(tmp_path).fetch(key, builder)
    assert builder.count == 1
    assert (first.cached, second.cached) == (False, True)
    assert first.build == second.build
    assert second.library.read_bytes() == library_of(100)
    assert sorted(path.name for path in second.library.parent.iterdir()) == ["entry.json", LIBRARY_NAME]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_keys_differ_with_every_part() -> None:
    keys = {content_key("a", "b"), content_key("ab"), content_key("a", ("b",)), content_key("b", "a"), content_key("a")}
    assert len(keys) == 5


def test_a_candidates_failure_is_remembered_and_the_environments_is_not(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    lasting = Builder(BuildFailure(reason="an error"))
    passing = Builder(BuildFailure(reason="out of memory", environment=True), lasting=False)
    for _ in range(3):
        assert cache.fetch("aa1", lasting).build.failure == BuildFailure(reason="an error")
        assert cache.fetch("aa2", passing).build.failure is not None
    assert (lasting.count, passing.count) == (1, 3)


@pytest.mark.parametrize("damage", ["library", "shorter", "missing", "record"])
def test_a_damaged_entry_is_built_again_once(damage: str, tmp_path: Path) -> None:
    cache, builder = BuildCache(tmp_path), Builder()
    library = cache.fetch("bb1", builder).library
    if damage == "library":
        library.write_bytes(b"y" * 100)
    elif damage == "shorter":
        os.truncate(library, 50)
    elif damage == "missing":
        library.unlink()
    else:
        library.with_name("entry.json").write_text("{")
    again = cache.fetch("bb1", builder)
    assert (again.cached, builder.count) == (False, 2)
    assert again.library.read_bytes() == library_of(100)
    assert cache.fetch("bb1", builder).cached
    assert builder.count == 2


def test_an_exception_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(folder: Path) -> Build:
        (folder / LIBRARY_NAME).write_bytes(b"half")
        raise RuntimeError("in the middle")

    cache, builder = BuildCache(tmp_path), Builder()
    with pytest.raises(RuntimeError):
        cache.fetch("cc1", fail)
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not cache.fetch("cc1", builder).cached


def test_least_recently_used_entries_go_first(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path, grace_s=0.0)
    builder = Builder(size_bytes=100_000)
    for number in range(4):
        library = cache.fetch(f"d{number}x", builder).library
        os.utime(library.with_name("entry.json"), (1000.0 + number, 1000.0 + number))
    cache.fetch("d0x", builder)  # Used again: now the newest.
    remaining_bytes = cache.prune(250_000)
    assert remaining_bytes <= 250_000
    kept = sorted(path.parent.name for path in tmp_path.glob("*/*/entry.json"))
    assert kept == ["d0x", "d3x"]


def test_an_entry_in_use_is_not_evicted(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path, grace_s=900.0)
    library = cache.fetch("ee1", Builder()).library
    cache.prune(0)
    assert library.exists()


def test_a_full_cache_is_pruned_by_the_builds_themselves(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path, limit_bytes=50_000, grace_s=0.0)
    for number in range(70):
        cache.fetch(f"f{number % 10}{number}", Builder(size_bytes=1000))
    assert len(list(tmp_path.glob("*/*/entry.json"))) < 20


def test_leftovers_of_killed_builders_are_removed(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    stale, fresh = tmp_path / "tmp" / "stale", tmp_path / "tmp" / "fresh"
    for folder in (stale, fresh):
        folder.mkdir(parents=True)
        (folder / "half.o").write_text("")
    os.utime(stale, (1000.0, 1000.0))
    cache.prune()
    assert (stale.exists(), fresh.exists()) == (False, True)


def test_a_folder_that_cannot_be_written_is_said_with_the_mend(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentLackError, match="KERNELWORKS_HOME"):
        BuildCache(tmp_path / "file" / "builds").fetch("aa1", Builder())


def slow_build(folder: Path) -> Build:
    (folder.parent.parent / f"built-{os.getpid()}").write_text("")
    time.sleep(0.3)
    (folder / LIBRARY_NAME).write_bytes(library_of(10))
    return Build(build_ms=300.0)


def fetch_slowly(root: str) -> None:
    assert BuildCache(Path(root)).fetch("aa1", slow_build).library.exists()


def hold_for_ever(folder: Path) -> Build:
    (folder.parent.parent / "holding").write_text("")
    time.sleep(600)
    raise AssertionError


def fetch_for_ever(root: str) -> None:
    BuildCache(Path(root)).fetch("aa1", hold_for_ever)


def test_of_two_processes_one_builds_and_the_other_waits(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=fetch_slowly, args=(str(tmp_path),)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(list(tmp_path.glob("built-*"))) == 1


def test_of_two_threads_one_builds_and_the_other_waits(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    count: list[int] = []

    def build(folder: Path) -> Build:
        count.append(1)
        return slow_build(folder)

    threads = [threading.Thread(target=cache.fetch, args=("aa1", build)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(count) == 1


def test_the_lock_dies_with_its_holder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    holder = context.Process(target=fetch_for_ever, args=(str(tmp_path),))
    holder.start()
    while not (tmp_path / "holding").exists():
        assert holder.is_alive()
        time.sleep(0.01)
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    builder = Builder()
    assert not BuildCache(tmp_path).fetch("aa1", builder).cached
    assert builder.count == 1
