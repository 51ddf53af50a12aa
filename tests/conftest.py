"""What every test gets: a home of its own, with caches that the tests of one worker share."""

from __future__ import annotations

import signal
from collections.abc import Generator
from pathlib import Path

import pytest

SHARED_CACHES = ("cache", "inductor")


@pytest.fixture(scope="session")
def shared_caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds and probes by content: sharing them changes no result and saves minutes."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(scope="session", autouse=True)
def hears_interrupts() -> Generator[None]:
    """A shell starts what it runs in the background deaf to Ctrl-C, and every process below inherits that."""
    found = signal.getsignal(signal.SIGINT)
    if found is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, found)


@pytest.fixture(autouse=True)
def kernelworks_home(
    tmp_path_factory: pytest.TempPathFactory, shared_caches: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Runs and their registry live in a folder of this test alone, in child processes too."""
    home = tmp_path_factory.mktemp("home")
    for name in SHARED_CACHES:
        (shared_caches / name).mkdir(exist_ok=True)
        (home / name).symlink_to(shared_caches / name, target_is_directory=True)
    monkeypatch.setenv("KERNELWORKS_HOME", str(home))
    monkeypatch.setenv("KERNELWORKS_ON_LOAD", "mark")  # tests share the machine with each other
    return home
