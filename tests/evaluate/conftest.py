"""Fixtures for tests that run a candidate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.candidates import SOURCE, Bench, bench, build
from support.deeds import need_bubblewrap
from support.evaluations import HORNER, MIXED, bench_on, write_task

from kernelworks.evaluate.bench import Bench as EvaluationBench
from kernelworks.evaluate.sandbox import UNCONFINED, Sandbox


@pytest.fixture
def library(shared_caches: Path) -> Path:
    folder = shared_caches / "misbehaviour"
    if not folder.exists():
        folder.mkdir()
        build(SOURCE.read_text(), folder)
    return folder / "library.so"


@pytest.fixture(params=["none", "bubblewrap"])
def loose(request: pytest.FixtureRequest) -> Sandbox:
    """Without filters of system calls, so that a candidate gets as far as the supervisor."""
    if request.param == "none":
        return UNCONFINED
    return replace(need_bubblewrap(), filters=False)


@pytest.fixture
def running(library: Path) -> Iterator[Bench]:
    with bench(library) as found:
        yield found


@pytest.fixture(scope="module")
def module_home(shared_caches: Path) -> Iterator[Path]:
    """A home for what the tests of a module share; its caches are those of all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELWORKS_HOME", str(shared_caches))
        yield shared_caches


@pytest.fixture(scope="module")
def horner_bench(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvaluationBench]:
    with bench_on(write_task(tmp_path_factory.mktemp("horner"), HORNER)) as found:
        yield found


@pytest.fixture(scope="module")
def mixed_bench(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EvaluationBench]:
    with bench_on(write_task(tmp_path_factory.mktemp("mixed"), MIXED)) as found:
        yield found
