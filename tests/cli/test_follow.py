from __future__ import annotations

import json

import pytest
from support.events import sample_events

from kernelworks.cli.follow import follow


def test_events_are_json_lines_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    events = sample_events()
    with follow(events=True, verbose=False) as listener:
        for event in events:
            listener.on_event(event)
    captured = capsys.readouterr()
    kinds = [json.loads(line)["kind"] for line in captured.out.splitlines()]
    assert kinds == [event.kind for event in events]
    assert captured.err == ""


def test_progress_goes_to_stderr_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with follow(events=False, verbose=False) as listener:
        for event in sample_events():
            listener.on_event(event)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "rms_norm on Example CPU" in captured.err
