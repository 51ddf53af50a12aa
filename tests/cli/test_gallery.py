"""``kernelworks evaluate --json`` on hand-written kernels: each gets its status, one line each."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GALLERY = Path(__file__).parent.parent / "gallery"
EXPECTED = {
    "right": "correct",
    "wants_more_threads": "correct",
    "wrong_at_the_tail": "wrong",
    "nan": "wrong",
    "past_the_end": "wrong",
    "writes_before_the_start": "wrong",
    "changes_its_input": "wrong",
    "hangs": "timed_out",
    "crashes": "crashed",
    "forks_a_daemon": "dishonest",
    "keeps_a_thread": "dishonest",
    "kills_its_parent": "dishonest",
    "does_not_compile": "build_error",
    "floods": "correct",
    "returns_non_zero": "crashed",
    "no_front_matter": "invalid",
    "wrong_prototype": "build_error",
    "reads_before_the_start": "correct",
    "answers_from_memory": "wrong",
    "computes_every_other_call": "wrong",
    "computes_a_part": "wrong",
}
MODULES = {
    "module_right": "correct",
    "module_torch_alone": "dishonest",
    "module_wrong_shape": "wrong",
    "module_missing": "invalid",
}
"""PyTorch submissions among them: each goes to the target of its language."""


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    config = tmp_path_factory.mktemp("gallery") / "config.toml"
    config.write_text("[evaluation]\ncall_timeout_s = 3.0\n")
    files = [*(f"{name}.cpp" for name in EXPECTED), *(f"{name}.py" for name in MODULES)]
    command = [sys.executable, "-m", "kernelworks", "evaluate", "task.py", "--allow-unsandboxed", *files]
    done = subprocess.run(
        [*command, "--config", str(config), "--json"], cwd=GALLERY, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 1, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["path"] for line in found] == files
    return {Path(line["path"]).stem: line for line in found}


@pytest.mark.timeout(420)
@pytest.mark.parametrize("name", [*EXPECTED, *MODULES])
def test_status(lines: dict[str, dict[str, Any]], name: str) -> None:
    line = lines[name]
    assert line["status"] == {**EXPECTED, **MODULES}[name], line["findings"]
    if line["status"] == "correct":
        assert line["decision"] in ("faster", "slower", "undecided")
        assert 0 < line["speedup_low"] <= line["speedup"] <= line["speedup_high"]
    else:
        assert line["findings"] and line["findings"][0]["message"]
        assert line["speedup"] is None


@pytest.mark.timeout(420)
def test_findings_say_what_happened(lines: dict[str, dict[str, Any]]) -> None:
    busy = ("foreign_load", "steal", "waited", "drift")  # the machine's doing
    kinds = {name: [f["kind"] for f in line["findings"] if f["kind"] not in busy] for name, line in lines.items()}
    assert "out_of_bounds" in kinds["past_the_end"] and "out_of_bounds" in kinds["writes_before_the_start"]
    assert "nan_mask" in kinds["nan"]
    assert "input_changed" in kinds["changes_its_input"]
    assert kinds["forks_a_daemon"] == kinds["kills_its_parent"] == ["forbidden_call"]
    assert "leftover_thread" in kinds["keeps_a_thread"]
    for name in ("answers_from_memory", "computes_every_other_call", "computes_a_part"):
        assert kinds[name] == ["unwritten"], name
    assert kinds["floods"] == ["output"]
    assert "undeclared_name" in json.dumps(lines["does_not_compile"]["findings"])
