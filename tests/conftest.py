"""What every test gets: a home of its own, with caches that the tests of one worker share."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED_CACHES = ("cache", "inductor")


@pytest.fixture(scope="session")
def shared_caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds and probes by content: sharing them changes no result and saves minutes."""
    return tmp_path_factory.mktemp("caches")


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
    return home
