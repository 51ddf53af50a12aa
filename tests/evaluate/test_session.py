from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from support.evaluations import HORNER, RIGHT, SETTINGS, kernel, write_task

from kernelworks.errors import EnvironmentLackError, EvaluationError, TaskError, UsageError
from kernelworks.evaluate import process
from kernelworks.evaluate.sandbox import Sandbox, find_sandbox
from kernelworks.evaluate.session import Session
from kernelworks.kernel.model import Origin
from kernelworks.kernel.verdict import Decision, Status, Verdict
from kernelworks.targets.base import Artefact, Probe
from kernelworks.targets.cpp import CppTarget
from kernelworks.task.source import TaskReference


@pytest.fixture(scope="module")
def session(module_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with Session.open(write_task(tmp_path_factory.mktemp("session"), HORNER), "cpp", SETTINGS) as found:
        yield found


def test_what_a_session_knows(session: Session) -> None:
    assert (session.task.name, session.anchor) == ("horner", "reference")
    assert session.versions["numpy"] == version("numpy")
    assert "compiler" in session.versions
    assert session.hardware.bandwidths
    assert session.graph is None
    assert "NumPy" in session.untraced
    assert [p for p in session.check_task() if p.refuses] == []
    assert session.check_task() is session.check_task()


def test_baselines_are_timed_alone(session: Session) -> None:
    (found,) = session.time_baselines()
    assert (found.name, found.policy, found.problem) == ("reference", "kernel", "")
    assert found.time_ms is not None and found.time_ms > 0


def test_a_build_gives_an_artefact(session: Session) -> None:
    built = session.build(kernel(RIGHT))
    assert isinstance(built, Artefact)
    assert built.path.is_file()


@pytest.mark.parametrize(
    ("front", "body", "status", "kind"),
    [
        ("", "nonsense", Status.BUILD_ERROR, "build"),
        ("flags: {F: [-shared]}", RIGHT, Status.INVALID, "kernel"),
        ("covers: [n > 2000]", RIGHT, Status.INVALID, "kernel"),
        ("needs: [sm_90a]", "nonsense", Status.UNSUPPORTED, "needs"),
    ],
    ids=["syntax", "flag", "case outside", "unsupported before it is compiled"],
)
def test_builds_that_end_in_a_verdict(session: Session, front: str, body: str, status: Status, kind: str) -> None:
    candidate = kernel(body, front=front)
    verdict = session.build(candidate)
    assert isinstance(verdict, Verdict)
    assert (verdict.status, verdict.findings[0].kind, verdict.kernel) == (status, kind, candidate.id)
    assert verdict.status is session.evaluate(candidate, None).status


def test_a_compiler_that_is_too_slow_is_the_candidates_doing(module_home: Path, tmp_path: Path) -> None:
    hurried = SETTINGS.model_copy(update={"build_timeout_s": 0.01})
    with Session.open(write_task(tmp_path, HORNER), "cpp", hurried) as session:
        verdict = session.build(kernel(RIGHT, front="idea: not built before"))
    assert isinstance(verdict, Verdict)
    assert verdict.status is Status.BUILD_ERROR


def test_both_policies_and_back(session: Session) -> None:
    as_called = session.evaluate_as_called(kernel(RIGHT))
    assert (as_called.status, as_called.decision) == (Status.CORRECT, Decision.FASTER)
    assert {c.policy for c in as_called.comparisons} == {b.policy for b in as_called.baselines} == {"as_called"}
    assert all(c.page_faults >= 0 and c.opponent_page_faults >= 0 for c in as_called.comparisons)
    assert session.evaluate_as_called(kernel("return 1;")).status is Status.CRASHED
    again = session.evaluate(kernel(RIGHT), None)
    assert {c.policy for c in again.comparisons} == {b.policy for b in again.baselines} == {"kernel"}
    wrong = session.evaluate(kernel(RIGHT + "if (n == 1003) y[0] = 1e30f;"), None)
    assert wrong.status is Status.WRONG  # check cases are looked at again


DEADLY = """
import os, pathlib, signal

from kernelworks.task import case, task
import numpy as np
from jaxtyping import Float32

DEATHS = pathlib.Path(__file__).with_name("deaths")

@task(cases=[case("main", "timed", n=65536), case("odd", "check", n=1003)], outputs=["y"])
def horner(x: Float32[np.ndarray, "n"]) -> Float32[np.ndarray, "n"]:
    if x.size == 65536 and len(DEATHS.read_bytes()) < MOST:
        DEATHS.write_bytes(DEATHS.read_bytes() + b"x")
        os.kill(os.getpid(), signal.SIGKILL)
    y = x
    for _ in range(12):
        y = y * x + np.float32(1)
    return y
"""


@pytest.mark.parametrize(("most", "third"), [(1, Status.CORRECT), (9, Status.DOES_NOT_FIT)])
def test_a_judge_that_the_system_ends_for_want_of_memory_is_replaced_once(
    module_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, third: Status
) -> None:
    deaths = tmp_path / "deaths"
    deaths.write_bytes(b"")
    # The system counts the processes that it ends so; here the task does it in its stead.
    monkeypatch.setattr("kernelworks.evaluate.judge.memory_kills", lambda: len(deaths.read_bytes()))
    reference = write_task(tmp_path, DEADLY.replace("MOST", str(most)))
    with Session.open(reference, "cpp", SETTINGS) as session:
        first = session.evaluate(kernel(RIGHT), None)
        assert (first.status, first.findings[0].kind) == (Status.DOES_NOT_FIT, "does_not_fit")
        assert "no memory was left" in first.findings[0].message
        session.evaluate(kernel(RIGHT), None)
        died = len(deaths.read_bytes())
        assert session.evaluate(kernel(RIGHT), None).status is third
        assert len(deaths.read_bytes()) == died == min(most, 2), "what was ended twice is not tried again"


def test_closing_ends_the_judge_and_may_be_repeated(module_home: Path, tmp_path: Path) -> None:
    session = Session.open(write_task(tmp_path, HORNER), "cpp", SETTINGS)
    session.close()
    session.close()
    with pytest.raises(EvaluationError):
        session.evaluate(kernel(RIGHT), None)


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    reference = write_task(tmp_path, HORNER)
    with pytest.raises(UsageError, match="fpga"):
        Session.open(reference, "fpga", SETTINGS)
    with pytest.raises(TaskError):
        Session.open(TaskReference(target=str(tmp_path / "missing.py")), "cpp", SETTINGS)


def test_a_target_that_is_not_usable_says_how_to_mend_it(tmp_path: Path) -> None:
    class Broken(CppTarget):
        def probe(self) -> Probe:
            return Probe(usable=False, problem="no compiler was found", mend="install g++")

    with pytest.raises(EnvironmentLackError, match="target cpp: no compiler was found") as caught:
        Session(write_task(tmp_path, HORNER), Broken(), SETTINGS)
    assert caught.value.mend == "install g++"


def test_foreign_kernels_need_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = Sandbox(lacking=("bubblewrap is not installed",))
    monkeypatch.setattr(process, "find_sandbox", lambda: bare)
    strict = SETTINGS.model_copy(update={"allow_unsandboxed": False})
    foreign = kernel(RIGHT, front="idea: from somewhere").model_copy(update={"path": "mine.cpp"})
    own = foreign.model_copy(update={"origin": Origin(proposer="experts")})
    with Session.open(write_task(tmp_path, HORNER), "cpp", strict) as session:
        for evaluate in (lambda: session.evaluate(foreign, None), lambda: session.evaluate_as_called(foreign)):
            with pytest.raises(EnvironmentLackError, match=r"kernel mine\.cpp needs a sandbox") as caught:
                evaluate()
            assert "make system-deps" in caught.value.mend and "--allow-unsandboxed" in caught.value.mend
        verdict = session.evaluate(own, None)
    assert (verdict.status, verdict.sandbox) == (Status.CORRECT, "none")
    assert verdict.sandbox_lacks == ("bubblewrap is not installed",)


def test_verdicts_name_their_sandbox(session: Session) -> None:
    found = find_sandbox()
    for verdict in (session.evaluate(kernel(RIGHT), None), session.build(kernel("nonsense"))):
        assert isinstance(verdict, Verdict)
        assert (verdict.sandbox, verdict.sandbox_lacks) == (found.kind, found.lacking)
