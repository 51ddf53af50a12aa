from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernelworks
from kernelworks.errors import StoreError
from kernelworks.home import home
from kernelworks.store.registry import default_folder, find, list_runs, new_run_id, register

WHEN = "2026-12-01T12:00:00+00:00"


def run_folder(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "run.sqlite").touch()
    return path


def enter(run: str, folder: Path) -> None:
    register(run, folder, task="norm.py", target="cpp", created_at=WHEN)


@given(st.datetimes(datetime(2026, 1, 1), datetime(2030, 1, 1)), st.integers(2, 10**6))
def test_ids_are_short_and_sort_by_time(moment: datetime, later_s: int) -> None:
    first, second = (
        new_run_id(moment.replace(tzinfo=UTC)),
        new_run_id(moment.replace(tzinfo=UTC) + timedelta(seconds=later_s)),
    )
    assert re.fullmatch(r"20\d{6}-[0-9a-f]{8}", first)
    assert first[:13] < second[:13]


def test_ids_are_those_of_the_utc_day_and_differ() -> None:
    moment = datetime(2026, 12, 1, 1, 0, tzinfo=timezone(timedelta(hours=3)))
    ids = {new_run_id(moment) for _ in range(50)}
    assert all(run.startswith("20261130-") for run in ids)
    assert len(ids) > 45


def test_a_run_is_found_by_folder_id_and_unique_beginning(tmp_path: Path) -> None:
    first, second = run_folder(tmp_path / "a"), run_folder(tmp_path / "b")
    enter("20261201-00001111", first)
    enter("20261201-00002222", second)
    assert find(str(first)) == first
    assert find("20261201-00001111") == first
    assert find("20261201-00002") == second
    assert [(entry.run, entry.folder, entry.exists) for entry in list_runs()] == [
        ("20261201-00001111", str(first), True),
        ("20261201-00002222", str(second), True),
    ]


def test_a_whole_id_wins_over_ids_that_it_begins(tmp_path: Path) -> None:
    enter("one", run_folder(tmp_path / "a"))
    enter("one-more", run_folder(tmp_path / "b"))
    assert find("one") == tmp_path / "a"


def test_a_relative_folder_is_found_later_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_folder(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    enter("one", Path("a"))
    monkeypatch.chdir("/")
    assert find("one") == tmp_path / "a"


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("nothing", r"found 'nothing': there is no such run \(kernelworks runs list"),
        ("", "found '': there is no such run"),
        ("2026", r"found '2026': 7 runs begin so: 20260, 20261, 20262, 20263, 20264, \.\.\. \("),
        ("gone", "run gone: expected it in .*, found it gone"),
        ("./nowhere", "expected the folder of a run, found no such folder"),
        ("{tmp}", "expected the folder of a run, found no run.sqlite in it"),
    ],
)
def test_what_names_no_run_is_refused_in_one_sentence(tmp_path: Path, asked: str, found: str) -> None:
    for n in range(7):
        enter(f"2026{n}", run_folder(tmp_path / str(n)))
    enter("gone", tmp_path / "gone")
    with pytest.raises(StoreError, match=found) as caught:
        find(asked.format(tmp=tmp_path))
    assert caught.value.exit_code == 2


def test_a_run_that_moved_is_entered_anew(tmp_path: Path) -> None:
    old = run_folder(tmp_path / "old")
    enter("one", old)
    old.rename(tmp_path / "new")
    assert [entry.exists for entry in list_runs()] == [False]
    enter("one", tmp_path / "new")
    assert find("one") == tmp_path / "new"


def test_a_registry_that_is_not_there_holds_no_run() -> None:
    assert list_runs() == ()
    assert default_folder("one") == home() / "runs" / "one"


def test_an_id_that_is_no_file_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected digits, small letters and hyphens"):
        enter("../one", tmp_path)


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KERNELWORKS_HOME", str(tmp_path / "file"))
    with pytest.raises(
        StoreError, match=r"expected a writable registry of runs, found: Not a directory \(set KERNELWORKS"
    ):
        enter("one", tmp_path)


def test_an_unreadable_entry_is_named(tmp_path: Path) -> None:
    enter("one", tmp_path)
    (entry,) = (home() / "registry").iterdir()
    entry.write_text("{")
    with pytest.raises(StoreError, match=r"one\.json: expected an entry of the registry of runs, .*delete it"):
        list_runs()


def test_the_registry_loads_without_the_database(tmp_path: Path) -> None:
    program = (
        "import sys, kernelworks.store.registry; sys.exit('sqlalchemy' in sys.modules or 'alembic' in sys.modules)"
    )
    source = str(Path(kernelworks.__file__).parents[1])
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": source}, check=True)
