"""``docs/cases.md`` is complete, and every test that it names is one that pytest finds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EVALUATION = {1, 3, 4, 6, 8, 9, 10, 11, 12, 14, 16, 17, 18, 20, 22, 23, 25, 28, 36, 38}
ELSEWHERE = {26, 27, 30, 32, 33, 34}


def rows_of(title: str) -> dict[int, list[str]]:
    """Test ids by the number of the case, of the table under a heading."""
    text = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8")
    (section,) = [part for part in text.split("\n## ")[1:] if part.startswith(f"{title}\n")]
    rows = re.findall(r"^\| (\d+) \|.*\|(.*)\|$", section, re.MULTILINE)
    return {int(number): re.findall(r"`([^`]+)`", ids) for number, ids in rows}


def test_every_case_is_listed_and_those_of_evaluation_have_tests() -> None:
    evaluation, elsewhere = rows_of("Evaluation and builds"), rows_of("Elsewhere")
    assert (set(evaluation), set(elsewhere)) == (EVALUATION, ELSEWHERE)
    assert [number for number, ids in evaluation.items() if not ids] == []


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """Ids of all tests in the files that are named, proofs included, with and without their parameters."""
    named = {id_ for title in ("Evaluation and builds", "Elsewhere") for ids in rows_of(title).values() for id_ in ids}
    files = sorted({id_.partition("::")[0] for id_ in named} | {str(p.relative_to(ROOT)) for p in own_files()})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    ids = {line for line in done.stdout.splitlines() if "::" in line}
    return ids | {id_.partition("[")[0] for id_ in ids} | {id_.partition("::")[0] for id_ in ids}


def own_files() -> list[Path]:
    return [path for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]


@pytest.mark.parametrize("title", ["Evaluation and builds", "Elsewhere"])
def test_tests_that_are_named_exist(collected: set[str], title: str) -> None:
    missing = {number: sorted(set(ids) - collected) for number, ids in rows_of(title).items()}
    assert {number: ids for number, ids in missing.items() if ids} == {}


def test_tests_of_a_case_are_listed_with_it(collected: set[str]) -> None:
    listed = rows_of("Evaluation and builds")
    own = {id_ for id_ in collected if "::test_case_" in id_ and "[" not in id_}
    numbers = {id_: int(re.findall(r"::test_case_(\d+)_", id_)[0]) for id_ in own}
    assert numbers, "the files of this folder have such tests"
    assert {id_ for id_, number in numbers.items() if id_ not in listed[number]} == set()
