from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kernelworks import __version__
from kernelworks.cli import main as cli
from kernelworks.errors import EnvironmentLackError


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kernelworks", *arguments], capture_output=True, text=True, check=False, cwd=cwd
    )


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"kernelworks {__version__}\n")


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_lists_the_commands(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 0
    for command in ("optimize", "evaluate", "task", "doctor", "runs"):
        assert command in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("optimise",), "No such command 'optimise'"),
        (("optimize",), "Missing argument 'TASK'"),
        (("optimize", "t.py", "--bogus"), "No such option: --bogus"),
        (("optimize", "t.py", "--set", "M"), "--set: expected NAME=VALUE, found 'M'"),
        (("optimize", "t.py", "--minutes", "nan"), "expected a positive number of minutes, found nan"),
        (("optimize", "t.py", "--evaluations", "0"), "Invalid value for '--evaluations'"),
        (("optimize", "t.py", "--seed", "-1"), "search.seed"),
        (("optimize", "t.py", "--config", "absent.toml"), "absent.toml: expected a readable TOML file"),
        (("evaluate", "t.py"), "Missing argument 'KERNEL...'"),
        (("runs",), "Missing command"),
        (("runs", "show", "no-such-run"), "no-such-run"),
        (("task", "check", "absent.py"), "absent.py"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_2(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("kernelworks: error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr


def test_with_json_an_error_is_json_on_stdout(tmp_path: Path) -> None:
    done = run("optimize", "t.py", "--bogus", "--json", cwd=tmp_path)
    assert done.returncode == 2
    error = json.loads(done.stdout)["error"]
    assert set(error) == {"kind", "message", "mend"}
    assert error["kind"] == "usage"


def fail_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every command end in this error: the endings are what is tested here."""

    def broken(*_: object, **__: object) -> int:
        raise error

    monkeypatch.setattr(cli, "app", broken)


def test_an_error_has_its_exit_code_and_mend(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(EnvironmentLackError("no C++ compiler was found", mend="install g++"), monkeypatch)
    assert cli.main(["doctor", "--json"]) == 3
    captured = capsys.readouterr()
    assert captured.err == "kernelworks: error: no C++ compiler was found (install g++)\n"
    assert json.loads(captured.out) == {
        "error": {"kind": "environment", "message": "no C++ compiler was found", "mend": "install g++"}
    }


def test_a_defect_is_exit_5_and_its_traceback_waits_for_v(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_with(ZeroDivisionError("division by zero"), monkeypatch)
    assert cli.main(["doctor"]) == 5
    short = capsys.readouterr().err
    assert short.startswith("kernelworks: error: internal error: ZeroDivisionError: division by zero")
    assert "Traceback" not in short
    assert cli.main(["-v", "doctor"]) == 5
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_goes_away_is_no_error() -> None:
    script = f"{sys.executable} -m kernelworks --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.strip() in {"0", "141"}
