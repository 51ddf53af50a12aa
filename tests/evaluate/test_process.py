from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.candidates import DEEDS, LIMITS, LONG_S, Bench, bench, build, on_x86

from kernelworks.errors import EvaluationError
from kernelworks.evaluate import supervisor
from kernelworks.evaluate.buffers import SharedBuffer
from kernelworks.evaluate.doorbell import doorbell_shim
from kernelworks.evaluate.faults import fault_shim
from kernelworks.evaluate.process import (
    BufferArg,
    Candidate,
    CandidateEndedError,
    CandidateLoadError,
    CandidatePool,
    WorkspaceArg,
)
from kernelworks.evaluate.sandbox import UNCONFINED, Sandbox
from kernelworks.evaluate.supervision import Cause, Limits, marked_processes

# What honest kernels do


def test_a_right_kernel_writes_its_output(running: Bench) -> None:
    running.bind("plain", "right", 3.0)
    running.bind("negated", "right", 0.5, negate=True)
    assert running.candidate.call("plain", LONG_S).returned == 0
    assert np.array_equal(running.output(), np.arange(running.count, dtype=np.float32) * 3)
    result = running.candidate.call("negated", LONG_S)
    assert result.returned == 0
    assert result.elapsed_ms > 0
    assert np.array_equal(running.output(), np.arange(running.count, dtype=np.float32) * -0.5)
    assert running.x.damage() is None
    assert running.y.damage() is None
    ending = running.candidate.end()
    assert ending.cause is Cause.FINISHED
    assert ending.leftover_count == ending.orphan_count == ending.file_count == 0
    assert ending.fault is None


def test_empty_tensors_can_be_bound_and_fault_when_touched(library: Path) -> None:
    with bench(library, count=0) as running:
        assert running.do("right") == 0
        ending = running.ended("past_end")
        assert ending.fault is not None
        assert (ending.fault.buffer, ending.fault.side, ending.fault.distance_bytes) == ("y", "after", 0)


def test_keys_give_the_same_tensor_different_addresses(running: Bench) -> None:
    addresses: set[int] = set()
    for key in "abc":
        running.bind(key, "address")
        assert running.candidate.call(key, LONG_S).returned == 0
        addresses.add(int.from_bytes(running.y.data[:8], sys.byteorder))
    assert len(addresses) == 3
    assert all(address % 64 == 0 for address in addresses)


def test_workspaces_are_poisoned_before_each_call(running: Bench) -> None:
    for _ in range(2):
        assert running.do("scratch_kept") == 0
        assert running.y.data[:4] == b"\xff" * 4


def test_more_tensors_than_one_packet_can_carry(tmp_path: Path) -> None:
    count = 150
    text = f"""extern "C" int launch({", ".join(f"double *p{i}" for i in range(count))})
    {{ double *all[] = {{ {", ".join(f"p{i}" for i in range(count))} }};
      for (int i = 0; i < {count}; i++) *all[i] = i;
      return 0; }}"""
    buffers = [SharedBuffer.create(f"t{i}", 8) for i in range(count)]
    with Candidate.start(build(text, tmp_path), threads=1, limits=LIMITS) as candidate:
        candidate.bind("k", [BufferArg(b) for b in buffers])
        assert candidate.call("k", LONG_S).returned == 0
    assert [np.frombuffer(bytes(b.data), np.float64)[0] for b in buffers] == list(range(count))
    for buffer in buffers:
        buffer.close()


def test_timed_calls_are_made_in_turn_behind_one_ring(running: Bench) -> None:
    running.bind("a", "right")
    running.bind("b", "right", 3.0)
    for keys, scale in ((["a", "b"], 3), (["b", "a"], 2), (["a"], 2), (["a", "b"] * 8, 3)):
        timed = running.candidate.time(keys, allocate=False, timeout_s=LONG_S)
        assert timed.returned == 0
        assert timed.elapsed_ns > 0 and timed.cpu_ns > 0 and timed.idle_cpu_ns >= 0 and timed.page_faults >= 0
        assert np.array_equal(running.output(), np.arange(running.count, dtype=np.float32) * scale)


def test_other_commands_come_between_timed_calls(running: Bench) -> None:
    running.bind("a", "right")
    for scale in (2.0, 5.0):
        assert running.candidate.time(["a"], allocate=False, timeout_s=LONG_S).returned == 0
        running.bind(f"b{scale}", "right", scale)
        assert running.candidate.call(f"b{scale}", LONG_S).returned == 0
        assert np.array_equal(running.output(), np.arange(running.count, dtype=np.float32) * scale)
        assert running.candidate.thread_count() == 1


def test_the_time_is_that_of_the_harness(running: Bench) -> None:
    running.bind("a", "sleep_50_ms")
    timed = running.candidate.time(["a"], allocate=False, timeout_s=LONG_S)
    assert timed.elapsed_ns >= 50_000_000  # more than two slices
    assert timed.cpu_ns < timed.elapsed_ns


def test_what_is_computed_after_the_answer_is_seen(running: Bench) -> None:
    running.bind("quiet", "right")
    running.bind("busy", "busy_thread")
    for key, busy in (("quiet", False), ("busy", True)):
        running.candidate.time([key], allocate=False, timeout_s=LONG_S)
        running.candidate.time(["quiet"], allocate=False, timeout_s=LONG_S)
        time.sleep(0.2)
        timed = running.candidate.time(["quiet"], allocate=False, timeout_s=LONG_S)
        assert (timed.idle_cpu_ns > 20_000_000) == busy


@pytest.mark.parametrize(("deed", "cause"), [("abort", Cause.SIGNALLED), ("exit", Cause.EXITED), ("garbage", None)])
def test_ends_during_timed_calls_are_told(running: Bench, deed: str, cause: Cause | None) -> None:
    running.bind("k", deed)
    with pytest.raises(CandidateEndedError) as caught:
        for _ in range(2):  # what stands unasked on the channel is seen before the next call
            running.candidate.time(["k"], allocate=False, timeout_s=LONG_S)
    assert caught.value.during == "time"
    assert caught.value.exit.cause is (cause or Cause.FORGED)


def test_timed_calls_have_a_limit(running: Bench) -> None:
    running.bind("k", "spin")
    with pytest.raises(CandidateEndedError) as caught:
        running.candidate.time(["k"], allocate=False, timeout_s=0.3)
    assert caught.value.exit.timed_out


def test_without_a_shim_the_doorbell_still_rings(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/compiler")
    doorbell_shim.cache_clear()
    try:
        with bench(library) as running:
            running.bind("a", "sleep_50_ms")
            running.bind("b", "right")
            timed = running.candidate.time(["a", "b"], allocate=False, timeout_s=LONG_S)
            assert timed.elapsed_ns >= 50_000_000 > timed.cpu_ns > 0
            running.bind("c", "seven")
            assert running.candidate.time(["c"], allocate=False, timeout_s=LONG_S).returned == 7
            assert np.array_equal(running.output(), np.arange(running.count, dtype=np.float32) * 2)
    finally:
        doorbell_shim.cache_clear()


def test_allocating_calls_leave_the_shared_output_alone_and_fault_pages_in(library: Path) -> None:
    with bench(library, count=10 << 20) as running:  # 40 MiB: above the largest threshold of malloc's heap
        running.bind("a", "right")
        faults = [running.candidate.time(["a"], allocate=True, timeout_s=LONG_S).page_faults for _ in range(3)]
        assert min(faults) * mmap.PAGESIZE >= 40 << 20
        assert np.isnan(running.output()).all()


def test_timing_stops_at_the_first_failing_call(running: Bench) -> None:
    running.bind("good", "right")
    running.bind("bad", "seven")
    running.bind("never", "abort")
    assert running.candidate.time(["good", "bad", "never"], allocate=False, timeout_s=LONG_S).returned == 7


def test_a_library_may_be_nothing() -> None:
    with Candidate.start(None, threads=1, limits=LIMITS) as candidate:
        candidate.bind("k", [1, 2.0, True])
        assert candidate.call("k", LONG_S).returned == 0
        assert candidate.time(["k", "k"], allocate=False, timeout_s=LONG_S).returned == 0


def test_integers_must_fit(running: Bench) -> None:
    with pytest.raises(EvaluationError, match="64 bits"):
        running.candidate.bind("k", [1 << 63])


# What goes wrong while loading


def test_undefined_symbols_are_told_apart(tmp_path: Path) -> None:
    library = build('int missing_thing(); extern "C" int launch() { return missing_thing(); }', tmp_path)
    with pytest.raises(CandidateLoadError, match=r"undefined symbol: .*missing_thing"):
        Candidate.start(library, threads=1, limits=LIMITS)


def test_a_library_without_launch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CandidateLoadError, match="launch"):
        Candidate.start(build("int other() { return 0; }", tmp_path), threads=1, limits=LIMITS)


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k.so"
    path.write_text("not a library")
    with pytest.raises(CandidateLoadError):
        Candidate.start(path, threads=1, limits=LIMITS)


@pytest.mark.parametrize(
    ("body", "cause"), [("__builtin_trap();", Cause.SIGNALLED), ("for (volatile int i = 0;; i++) {}", Cause.TIMED_OUT)]
)
def test_constructors_are_the_candidates_doing(tmp_path: Path, body: str, cause: Cause) -> None:
    text = f'__attribute__((constructor)) static void f() {{ {body} }} extern "C" int launch() {{ return 0; }}'
    library = build(text, tmp_path)
    with pytest.raises(CandidateEndedError) as caught:
        Candidate.start(library, threads=1, limits=replace(LIMITS, start_s=3.0))
    assert caught.value.during == "load"
    assert caught.value.exit.cause is cause


@on_x86
def test_a_link_that_flushes_subnormals_is_seen(tmp_path: Path, running: Bench) -> None:
    text = """__attribute__((constructor)) static void f() { __builtin_ia32_ldmxcsr(0x9fc0); }
    extern "C" int launch() { return 0; }"""
    with Candidate.start(build(text, tmp_path), threads=1, limits=LIMITS) as candidate:
        mode = candidate.float_mode()
        assert mode.flushes_results
        assert mode.flushes_operands
    mode = running.candidate.float_mode()
    assert not mode.flushes_results
    assert not mode.flushes_operands


# Crashes and exits


@pytest.mark.parametrize(
    ("deed", "number"),
    [
        ("abort", signal.SIGABRT),
        ("stack_overflow", signal.SIGSEGV),
        pytest.param("divide", signal.SIGFPE, marks=on_x86),
        ("kill_itself", signal.SIGKILL),
        ("throw", signal.SIGABRT),
    ],
)
def test_signals_are_named(running: Bench, deed: str, number: signal.Signals) -> None:
    ending = running.ended(deed)
    assert (ending.cause, ending.signal) == (Cause.SIGNALLED, number)
    assert number.name in str(ending)
    assert ending.fault is None or ending.fault.buffer is None


def test_exit_inside_launch_is_not_success(running: Bench) -> None:
    ending = running.ended("exit")
    assert (ending.cause, ending.code) == (Cause.EXITED, 0)
    assert str(ending) == "left with exit code 0"


def test_a_return_code_is_handed_on(running: Bench) -> None:
    assert running.do("seven") == 7


def test_an_ended_candidate_stays_ended(running: Bench) -> None:
    ending = running.ended("abort")
    for again in (lambda: running.candidate.call("abort", LONG_S), running.candidate.thread_count):
        with pytest.raises(CandidateEndedError) as caught:
            again()
        assert caught.value.exit is ending


# Limits


@pytest.mark.parametrize(("deed", "leftovers"), [("spin", 0), ("ignore_sigterm", 0), ("processes", 127)])
def test_whatever_hangs_is_ended_at_its_limit(library: Path, loose: Sandbox, deed: str, leftovers: int) -> None:
    with bench(library, limits=Limits(memory_bytes=8 << 30), sandbox=loose) as running:
        ending = running.ended(deed, timeout_s=1.0)
    assert ending.timed_out
    assert str(ending) == "still running at its time limit"
    assert ending.leftover_count == ending.orphan_count == leftovers
    assert len(ending.leftovers) == min(leftovers, 32)
    assert not ending.unkilled


def test_a_chain_of_short_lived_processes_is_caught(library: Path, loose: Sandbox) -> None:
    with bench(library, sandbox=loose) as running:
        assert running.do("chain") == 0
        ending = running.candidate.end()
    assert ending.orphan_count > 0
    assert not ending.unkilled


@pytest.mark.parametrize("deed", ["allocate", "allocate_in_child"])
def test_memory_is_limited(library: Path, loose: Sandbox, deed: str) -> None:
    with bench(library, sandbox=loose) as running:
        ending = running.ended(deed)
    assert ending.cause is Cause.MEMORY
    assert ending.peak_bytes > LIMITS.memory_bytes
    assert "memory limit" in str(ending)


def test_tensors_do_not_count_as_the_candidates_memory(library: Path) -> None:
    with bench(library, count=16 << 20, limits=replace(LIMITS, memory_bytes=32 << 20)) as running:
        assert running.do("right") == 0
        assert running.do("seven") == 7
        time.sleep(0.6)  # several looks of the supervisor
        assert running.candidate.thread_count() >= 1


def test_output_is_drained_and_capped(running: Bench) -> None:
    assert running.do("print_much") == 0
    ending = running.candidate.end()
    assert ending.stdout.size_bytes == (1600 << 16) + len("first words\n")
    assert ending.stderr.size_bytes == (1600 << 16) + len("last words")
    assert len(ending.stdout.head) == len(ending.stdout.tail) == LIMITS.output_bytes
    assert ending.stdout.text.startswith("first words\nbbbb")
    assert ending.stderr.text.endswith("ccclast words")
    assert f"[{ending.stdout.dropped_bytes} bytes dropped]" in ending.stdout.text


# What must not outlive a call, and attacks on the harness


def test_a_daemon_is_seen_and_ended(library: Path, loose: Sandbox) -> None:
    with bench(library, sandbox=loose) as running:
        assert running.do("daemon") == 0
        assert running.candidate.descendants() == ("daemon",)
        ending = running.candidate.end()
    assert (ending.cause, ending.leftovers, ending.leftover_count) == (Cause.FINISHED, ("daemon",), 1)


def test_a_thread_that_outlives_the_call_is_counted(running: Bench) -> None:
    assert running.candidate.thread_count() == 1
    assert running.do("thread") == 0
    assert running.candidate.thread_count() == 2
    assert running.candidate.end().cause is Cause.FINISHED


def test_killing_the_parent_costs_only_the_own_evaluation(library: Path) -> None:
    with bench(library, sandbox=UNCONFINED) as running:
        ending = running.ended("kill_parent")
    assert ending.cause is Cause.SUPERVISOR_LOST
    assert marked_processes(running.candidate.mark) == []


def test_stopping_the_parent_does_not_save_the_candidate(library: Path) -> None:
    with bench(library, sandbox=UNCONFINED) as running:
        ending = running.ended("stop_parent", timeout_s=0.5)
    assert ending.timed_out


def test_garbage_on_every_descriptor_is_a_forgery(running: Bench) -> None:
    ending = running.ended("garbage")
    assert ending.cause is Cause.FORGED
    assert b"garbage" in ending.stdout.head
    assert b"garbage" in ending.stderr.head


def test_closing_every_descriptor_is_told(running: Bench) -> None:
    assert running.ended("close_all").cause is Cause.CHANNEL_CLOSED


def test_nothing_private_reaches_the_candidate(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "secret")
    with bench(library) as running:
        assert running.do("environment") == 0
        text = running.candidate.end().stdout.text
    names = {line.partition("=")[0] for line in text.splitlines()}
    omp = {"OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OMP_WAIT_POLICY", "OMP_PROC_BIND"}
    assert names - {"LC_CTYPE", "PWD"} == {"PATH", "LANG", "HOME", "TMPDIR", "KERNELWORKS_EVALUATION", *omp}
    assert "secret" not in text
    assert "OMP_WAIT_POLICY=passive" in text


def test_places_and_descriptors_are_its_own(library: Path, loose: Sandbox) -> None:
    with bench(library, sandbox=loose) as running:
        assert running.do("private_places") == 0
        directory, *descriptors = running.candidate.end().stdout.text.splitlines()
    assert directory != os.getcwd()
    assert descriptors == [f"fd {n}" for n in range(4)]
    assert loose.kind == "bubblewrap" or not Path(directory).exists()


def test_files_are_reported_and_removed(library: Path, loose: Sandbox) -> None:
    with bench(library, sandbox=loose) as running:
        assert running.do("file") == 0
        ending = running.candidate.end()
    assert ending.file_count == 1
    assert ending.files[0].startswith("left-")


def test_nothing_survives_the_harness(library: Path, tmp_path: Path, loose: Sandbox) -> None:
    script = tmp_path / "harness.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys
        from pathlib import Path
        from kernelworks.evaluate.process import Candidate, WorkspaceArg
        from kernelworks.evaluate.sandbox import Sandbox
        from kernelworks.evaluate.supervision import Limits
        sandbox = {loose!r}
        candidate = Candidate.start(Path({str(library)!r}), threads=1, limits=Limits(), sandbox=sandbox)
        scratch = WorkspaceArg("s", 64)
        candidate.bind("daemon", [scratch, scratch, scratch, 1, 1.0, False, {DEEDS["daemon"]}])
        candidate.bind("spin", [scratch, scratch, scratch, 1, 1.0, False, {DEEDS["ignore_sigterm"]}])
        candidate.call("daemon", 60)
        print(candidate.mark, flush=True)
        candidate.call("spin", 600)
        """)
    )
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as harness:
        assert harness.stdout is not None
        mark = harness.stdout.readline().strip()
        # Supervisor, candidate and daemon; in a sandbox bubblewrap and the first process too.
        assert len(marked_processes(mark)) == (3 if loose.kind == "none" else 5)
        directory = _home(min(marked_processes(mark)))
        harness.kill()
    deadline = time.monotonic() + LONG_S
    while marked_processes(mark) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert marked_processes(mark) == []
    assert loose.kind == "bubblewrap" or not directory.exists()


def _home(pid: int) -> Path:
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return Path(next(entry for entry in entries if entry.startswith(b"HOME=")).decode().removeprefix("HOME="))


def test_a_hundred_evaluations_leave_nothing(library: Path, loose: Sandbox) -> None:
    fds = len(os.listdir("/proc/self/fd"))
    children = supervisor.descendants(os.getpid())
    marks: list[str] = []
    with CandidatePool(threads=1, limits=LIMITS, sandbox=loose) as pool, SharedBuffer.create("y", 4096) as y:
        for index in range(100):
            deed = ("right", "past_end", "exit", "daemon")[index % 20 % 4] if index % 20 < 4 else "right"
            with pool.start(library) as candidate:
                marks.append(candidate.mark)
                scratch = WorkspaceArg("scratch", 64)
                candidate.bind("k", [BufferArg(y), BufferArg(y), scratch, 1024, 1.0, False, DEEDS[deed]])
                try:
                    assert candidate.call("k", LONG_S).returned == 0
                except CandidateEndedError:
                    assert deed in {"past_end", "exit"}
    assert len(os.listdir("/proc/self/fd")) == fds
    assert supervisor.descendants(os.getpid()) == children
    assert [mark for mark in marks[::20] + marks[3::20] if marked_processes(mark)] == []


def test_a_pool_survives_a_bad_library_and_keeps_no_process(library: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.so"
    bad.write_text("")
    with CandidatePool(threads=1, limits=LIMITS) as pool:
        for _ in range(2):
            with pytest.raises(CandidateLoadError):
                pool.start(bad)
        with pool.start(library) as candidate:
            assert candidate.thread_count() == 1


# What the environment lacks


@pytest.mark.parametrize(
    ("interpreter", "message"),
    [("", "expected a Python interpreter"), ("/nonexistent", "does not start"), ("/bin/false", "did not start")],
)
def test_processes_that_do_not_start_are_the_harness_own_error(
    library: Path, monkeypatch: pytest.MonkeyPatch, interpreter: str, message: str
) -> None:
    assert fault_shim() is not None
    fds = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(sys, "executable", interpreter)
    with pytest.raises(EvaluationError, match=message):
        Candidate.start(library, threads=1, limits=LIMITS)
    assert len(os.listdir("/proc/self/fd")) == fds
