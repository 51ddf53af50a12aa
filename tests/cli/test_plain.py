from __future__ import annotations

import io

from support.events import finished_event, sample_events
from support.samples import correct_verdict, failed_verdict, sample_task

from kernelworks.app.results import TaskCheck
from kernelworks.cli.plain import PlainListener, task_check_text, time_left_text, verdict_text
from kernelworks.kernel.verdict import Status


def lines_of(*, verbose: bool) -> list[str]:
    stream = io.StringIO()
    listener = PlainListener(stream, verbose=verbose)
    for event in [*sample_events(), finished_event()]:
        listener.on_event(event)
    return stream.getvalue().splitlines()


def test_each_step_has_its_line() -> None:
    lines = lines_of(verbose=False)
    assert len(lines) == 8
    assert lines[1] == "[    0.0 s] run run-1: rms_norm on Example CPU (cpp), folder runs/run-1"
    assert lines[2].endswith("baseline torch eager (kernel): 12.0 ms")
    assert lines[3].endswith("baseline torch.compile (kernel): not measured, no compiler for it")
    assert "1/10" in lines[5]
    assert "correct" in lines[5]
    assert "3.00x [2.96, 3.04] best so far" in lines[5]
    assert lines[6].endswith("2/10  wrong        unroll 2 -> 4  (the tail is wrong)")
    assert lines[7].endswith("stopped by evaluations after 10 evaluations")


def test_verbose_tells_proposals_builds_and_reasons() -> None:
    text = "\n".join(lines_of(verbose=True))
    assert "#2 k2 mutate: unroll 2 -> 4" in text
    assert "#2 built in 2 ms (cached)" in text
    assert "(the tail is wrong)" in text
    assert "#1 new in cell (1, 1, 1); 1 of 48 cells filled" in text


def test_a_verdict_is_a_line_with_its_findings() -> None:
    wrong = failed_verdict("k2", Status.WRONG, "the tail is wrong").model_copy(update={"path": "tail.cpp"})
    assert verdict_text(wrong) == "tail.cpp: wrong\n  wrong: the tail is wrong"


def test_a_correct_verdict_names_every_baseline() -> None:
    lines = verdict_text(correct_verdict("k1", 4.0, final=True), verbose=True).splitlines()
    assert lines[0] == "k1: correct      4.00x [3.94, 4.06] faster, 3.00 ms"
    assert sum(line.startswith("  over ") for line in lines) == 4
    assert lines[-1].startswith("  compile arguments: -O3")


def test_part_coverage_is_said() -> None:
    verdict = correct_verdict("k1", 4.0).model_copy(update={"coverage": 0.5})
    assert verdict_text(verdict).endswith("covers 50% of the edge cases")


def test_a_task_check_prints_prototype_and_problems() -> None:
    good = TaskCheck(ok=True, prototype="int launch()", task=sample_task())
    assert task_check_text(good) == "int launch()\nthe task can be used"
    assert "case odd (edge): rows=3, cols=67" in task_check_text(good, verbose=True)
    bad = TaskCheck(ok=False, problems=(("constant", "the output is constant"),))
    assert task_check_text(bad) == "problem, constant: the output is constant\nthe task is refused"


def test_time_left_is_rounded() -> None:
    assert time_left_text(41.6) == "about 42 s"
    assert time_left_text(None) == ""
