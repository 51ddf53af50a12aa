from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

import pytest
from support.samples import correct_verdict, failed_verdict, sample_report

from kernelworks.kernel.verdict import Status
from kernelworks.report.figures import archive_figure, best_so_far, progress_figure
from kernelworks.report.model import Elite, EvaluationRow, ReportData


def rows_of(*speedups: float | None) -> tuple[EvaluationRow, ...]:
    return tuple(
        EvaluationRow(
            number=number,
            kernel=f"k{number}",
            verdict=failed_verdict(f"k{number}", Status.WRONG, "a < b & c")
            if speedup is None
            else correct_verdict(f"k{number}", speedup),
        )
        for number, speedup in enumerate(speedups, start=1)
    )


def parsed(figure: object) -> ElementTree.Element:
    return ElementTree.fromstring(str(figure))


def test_best_so_far_rises_by_lower_bounds() -> None:
    steps = best_so_far(rows_of(1.0, None, 0.9, 2.0, 1.5, 2.5))
    assert [step.number for step in steps] == [1, 4, 6]
    assert all(a.low < b.low for a, b in itertools.pairwise(steps))


def test_each_evaluation_has_one_point_with_its_status() -> None:
    data = sample_report()
    circles = list(parsed(progress_figure(data)).iter("circle"))
    assert len(circles) == len(data.evaluations)
    shown = [(e.get("class") or "").removeprefix("point ") for e in circles]
    assert shown == [row.verdict.status.value for row in data.evaluations]


def test_points_stay_inside_and_better_is_higher() -> None:
    data = sample_report().model_copy(update={"evaluations": rows_of(0.5, 4.0, None), "winner": None})
    low, high, failed = (float(e.get("cy") or "nan") for e in parsed(progress_figure(data)).iter("circle"))
    assert 0 < high < low < failed < 380


def test_the_other_baselines_are_lines() -> None:
    text = str(progress_figure(sample_report()))
    assert text.count('class="rival"') == 2
    assert "torch.compile" in text


@pytest.mark.parametrize("rows", [(), rows_of(None), rows_of(1.0), rows_of(*[1.0] * 400)])
def test_sparse_and_long_runs_draw(rows: tuple[EvaluationRow, ...]) -> None:
    data: ReportData = sample_report().model_copy(update={"evaluations": rows, "winner": None})
    assert parsed(progress_figure(data)).tag == "svg"


def test_labels_at_the_right_do_not_overlap() -> None:
    data = sample_report()
    tree = parsed(progress_figure(data))
    heights = sorted(
        float(e.get("y") or "nan")
        for e in tree.iter("text")
        if re.match(r"rival|best|tick", e.get("class") or "") and float(e.get("x") or 0) > 830
    )
    assert len(heights) == 3 + len(data.failures)
    assert all(b - a >= 14 for a, b in itertools.pairwise(heights))


def test_archive_shows_64_cells_and_marks_the_best() -> None:
    elites = (
        Elite(cell=(0, 0, 0), kernel="aaaaaaaabbbb", speedup=0.5, speedup_low=0.4, speedup_high=0.6),
        Elite(cell=(3, 2, 1), kernel="ccccccccdddd", speedup=3.5, speedup_low=3.4, speedup_high=3.6),
    )
    tree = parsed(archive_figure(elites))
    kinds = [e.get("class") for e in tree.iter("rect")]
    assert kinds.count("empty") == 62
    assert kinds.count("cell") == 1
    assert kinds.count("cell top") == 1
    assert {"aaaaaaaa", "cccccccc", "0.50x", "3.50x"} <= {e.text for e in tree.iter("text")}


def test_an_empty_archive_draws() -> None:
    assert [e.get("class") for e in parsed(archive_figure(())).iter("rect")] == ["empty"] * 64


@pytest.mark.parametrize("speedups", [(1.0, 1.02), (0.9, 1.2), (0.5, 4.0), (0.01, 300.0)])
def test_any_range_has_some_ticks_and_not_too_many(speedups: tuple[float, ...]) -> None:
    data = sample_report().model_copy(update={"evaluations": rows_of(*speedups), "winner": None})
    lines = [e for e in parsed(progress_figure(data)).iter("line") if e.get("class") == "grid"]
    assert 3 <= len(lines) <= 36
