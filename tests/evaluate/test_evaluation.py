"""One kernel through all stages, by real compilers and processes: every status that a candidate can earn."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

import pytest
from support.candidates import on_x86
from support.evaluations import RIGHT, SLOW, kernel

from kernelworks.evaluate import trial
from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.evaluation import Evaluation
from kernelworks.evaluate.opponent import Opponent
from kernelworks.evaluate.settings import OnLoad
from kernelworks.evaluate.sides import BoundCase, Overhead
from kernelworks.kernel.hardware import Bandwidth, Hardware
from kernelworks.kernel.model import Kernel, Params
from kernelworks.kernel.verdict import Decision, Finding, Status, Verdict
from kernelworks.targets.cpp import CppTarget

STAGES = ["static", "build", "check", "time"]
SPIN = """
#include <time.h>
static long long now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}
static void spin_ms(double ms) {
  const long long end = now_ns() + (long long)(ms * 1e6);
  while (now_ns() < end) {}
}
"""
FAKE_CLOCK = (
    SPIN
    + """
#include <dlfcn.h>
typedef void* (*Named)(const char*);
typedef void* (*Attribute)(void*, const char*);
typedef int (*Ensure)();
typedef void (*Release)(int);
typedef void* (*FromLong)(long long);
static void* symbol(const char* name) { return dlsym(RTLD_DEFAULT, name); }
static void* standing_ns(void*, void*) { return ((FromLong)symbol("PyLong_FromLongLong"))(1); }
static void patch_clock() {
  static bool done = false;
  if (done) return;
  done = true;
  const int state = ((Ensure)symbol("PyGILState_Ensure"))();
  void* module = ((Named)symbol("PyImport_ImportModule"))("time");
  const char* names[] = {"perf_counter_ns", "monotonic_ns", "time_ns"};
  for (const char* name : names) {
    void** function = (void**)((Attribute)symbol("PyObject_GetAttrString"))(module, name);
    void** method = (void**)function[2];  // the definition: its second field is the code
    method[1] = (void*)standing_ns;
  }
  ((Release)symbol("PyGILState_Release"))(state);
}
"""
)
"""Replaces the clocks of the process that calls ``launch``, as any code there can."""
EARLY = (
    SPIN
    + """
#include <string.h>
#include <sys/syscall.h>
static volatile unsigned* bell() {
  static volatile unsigned* found = nullptr;
  static bool looked = false;
  if (!looked) {
    looked = true;
    char line[4096];
    FILE* maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
      if (strstr(line, "kernelworks-doorbell")) found = (volatile unsigned*)strtoul(line, nullptr, 16);
    if (maps) fclose(maps);
  }
  return found;
}
static void answer() {
  volatile unsigned* page = bell();
  if (!page) return;
  page[17] = 0;
  page[16] = page[0];
  syscall(SYS_futex, page + 16, 1, 1, nullptr, nullptr, 0);
}
"""
)
"""Answers the doorbell on its own."""

TRAP_AT_LOAD = "__attribute__((constructor)) static void trap() { __builtin_trap(); }"
FLUSH_TO_ZERO = "__attribute__((constructor)) static void mode() { __builtin_ia32_ldmxcsr(0x9fc0); }"
THREAD = """
#include <pthread.h>
static void* idle(void*) { for (;;) sleep(1000); }
static void start() { pthread_t id; pthread_create(&id, nullptr, idle, nullptr); pthread_detach(id); }
"""


@dataclass(frozen=True)
class Deed:
    """A kernel that does one thing, and what its verdict must say."""

    body: str
    status: Status
    kind: str
    said: tuple[str, ...] = ()
    head: str = ""
    front: str = ""
    params: Params = field(default_factory=dict[str, "bool | int | float | str"])


def wrong(body: str, kind: str, *said: str) -> Deed:
    return Deed(RIGHT + body, Status.WRONG, kind, said)


def invalid(kind: str, *said: str, front: str) -> Deed:
    return Deed(RIGHT, Status.INVALID, kind, said, front=front)


def dishonest(body: str, kind: str, *said: str, head: str = "") -> Deed:
    return Deed(body, Status.DISHONEST, kind, said, head)


TABLE = (
    SPIN
    + """
#include <cstring>
#include <map>
#include <vector>
static std::map<uint64_t, std::vector<float>> table;
"""
)
KEPT = (
    """
  uint64_t hash = 1469598103934665603ull;
  const uint64_t* words = (const uint64_t*)x;
  for (int64_t i = 0; i < n / 2; i++) hash = (hash ^ words[i]) * 1099511628211ull;
  auto kept = table.find(hash);
  if (kept != table.end()) { memcpy(y, kept->second.data(), n * 4); return 0; }
"""
    + RIGHT
    + "spin_ms(3); table[hash] = std::vector<float>(y, y + n);"
)
"""The work takes 3 ms, unless these very inputs were seen before."""

ROWS_KEPT = """
  auto& kept = table[(uint64_t)x];
  if (kept.empty()) kept.assign(2 * n, 0.0f / 0.0f);
  for (int64_t i = 0; i < n; i += 64) {
    int64_t end = i + 64 < n ? i + 64 : n;
    if (memcmp(&kept[i], x + i, (end - i) * 4) != 0) {
      for (int64_t j = i; j < end; j++) {
        volatile float v = x[j];
        for (int k = 0; k < 12; k++) v = v * x[j] + 1.0f;
        kept[n + j] = v;
      }
      memcpy(&kept[i], x + i, (end - i) * 4);
    }
    memcpy(y + i, &kept[n + i], (end - i) * 4);
  }
"""
"""Computes only the rows that changed since the last call on this address."""
SPOILT = (
    """
  float* m = (float*)x;
  auto& kept = table[(uint64_t)x];
  bool timed = false;
  for (int64_t i = 0; n == 65536 && i < 256; i++) timed |= y[i] == y[i];
  if (!kept.empty()) for (int64_t i = 0; i < n; i += 8) if (m[i] == 1e30f) m[i] = kept[i];
"""
    + RIGHT
    + "if (timed) { kept.assign(m, m + n); for (int64_t i = 0; i < n; i += 8) m[i] = 1e30f; }"
)
"""Leaves values in the inputs for its opponent, and puts them back at its next call."""

DEEDS = {
    "values": wrong("if (n == 1003) y[5] += 1e6f;", "values", "y: 1 of 1003 elements are wrong", "odd, normal inputs"),
    "values of one family": wrong(
        "if (x[0] == x[1] && x[0] != 0) y[n - 1] *= 2;", "values", "(case odd, constant inputs)"
    ),
    "values of the timed case": wrong("if (n == 65536) y[n - 1] = 1e30f;", "values", "(case main, wide inputs)"),
    "edge": wrong("if (n == 7) y[6] *= 2;", "values", "(case seven, normal inputs)"),
    "nan": wrong("y[17 % n] = 0.0f / 0.0f;", "nan_mask", "at (17,)", "found nan"),
    "unwritten": Deed("n -= 3;" + RIGHT, Status.WRONG, "unwritten", ("3 of 1003 elements were not written", "(1000,)")),
    "input": wrong("((float*)x)[2] = 1;", "input_changed", "x: an input was changed, first at (2,)"),
    "after": wrong("y[n] = 1;", "out_of_bounds", "y: a write out of bounds, 0 bytes past its end", "odd"),
    "before": wrong("y[-1] = 1;", "out_of_bounds", "before its start"),
    "guard page after": wrong("y[n + 4000] = 1;", "out_of_bounds", "case odd, normal inputs, during call"),
    "guard page before": wrong("y[-8000] = 1;", "out_of_bounds", "case odd, normal inputs, during call"),
    "trap": Deed("__builtin_trap();", Status.CRASHED, "signalled", ("case odd, normal inputs",)),
    "exit": Deed("exit(0);", Status.CRASHED, "exited", ("left with exit code 0",)),
    "non-zero": Deed("return 3;", Status.CRASHED, "returned", ("launch returned 3, expected 0 (case odd",)),
    "non-zero later": Deed("static int c; if (n > 9999 && c++ > 20) return 4;" + RIGHT, Status.CRASHED, "returned"),
    "undefined symbol": Deed("missing();", Status.BUILD_ERROR, "build", ("missing",), "extern void missing();"),
    "trap at load": Deed(RIGHT, Status.CRASHED, "signalled", ("during load",), TRAP_AT_LOAD),
    "hang": Deed("for (volatile int i = 0;; i = i) {}", Status.TIMED_OUT, "timed_out", ("still running at its time",)),
    "syntax": Deed("y[0] = nowhere;", Status.BUILD_ERROR, "build", ("nowhere",)),
    "covers": invalid(
        "kernel", "expected n % 4 == 0 in every timed", "case odd with n 1003", front="covers: [n % 4 == 0]"
    ),
    "constraints": invalid(
        "kernel",
        "expected n >= B in every",
        "case odd with n 1003",
        front="{params: {B: [2048]}, constraints: [n >= B]}"[1:-1].replace("}, ", "}\n"),
    ),
    "unknown name": invalid("expression", "unknown name 'rows'", front="covers: [rows > 1]"),
    "unknown flag": invalid("kernel", "-fplugin=x", front="flags: {F: [-fplugin=x]}"),
    "unlisted param": Deed(
        RIGHT,
        Status.INVALID,
        "kernel",
        ("param B: expected one of [1, 2]",),
        front="params: {B: [1, 2]}",
        params={"B": 3},
    ),
    "needs": Deed(RIGHT, Status.UNSUPPORTED, "needs", ("needs sm_90a, which",), front="needs: [sm_90a]"),
    "daemon": dishonest(RIGHT + "if (fork() == 0) { setsid(); sleep(1000); }", "forbidden_call", "system call clone"),
    "thread": dishonest(RIGHT + "start();", "leftover_thread", "after the calls, expected at most 2", head=THREAD),
    "thread at load": dishonest(
        RIGHT,
        "leftover_thread",
        "2 threads before any call, expected at most 1",
        head=THREAD + "__attribute__((constructor)) static void early() { start(); }",
    ),
    "kills its parent": dishonest("kill(getppid(), SIGKILL); sleep(1);", "forbidden_call", head="#include <signal.h>"),
    "forged answer": dishonest('for (int i = 0; i < 64; i++) if (write(i, "{}", 2) < 0) continue;' + RIGHT, "forged"),
    "file": dishonest(RIGHT + 'fclose(fopen("left.txt", "w"));', "forbidden_call", "system call openat"),
    "stale": dishonest(
        "static int c; if (n > 9999 && c++ > 20) return 0;" + RIGHT,
        "stale|values|unwritten",
        "rewritten between timed",
        "main",
    ),
    "old answer": dishonest(
        "if (n == 65536 && table.count(x[0])) { memcpy(y, table[x[0]].data(), n * 4); return 0; }"
        + RIGHT
        + "if (n == 65536) table[x[0]] = std::vector<float>(y, y + n);",
        "stale|values",
        "rewritten between timed calls",
        head=TABLE.replace("uint64_t", "float"),
    ),
    "every other call": dishonest(
        "static int c; if (n == 65536 && c++ > 20 && c % 2) return 0;" + RIGHT, "stale|values|unwritten"
    ),
    "a part": dishonest("static int c; if (n == 65536 && c++ > 20) n /= 2;" + RIGHT, "stale|values|unwritten"),
    "threads once timed": dishonest(
        RIGHT + "static int calls; if (n == 65536 && ++calls == 40) { start(); start(); }",
        "leftover_thread",
        "3 threads after the timed calls, expected at most 2",
        head=THREAD,
    ),
    "a library": dishonest(
        'static void* opened = dlopen("libresolv.so.2", RTLD_NOW);' + RIGHT,
        "library",
        "opened libresolv",
        "while it was checked",
        head="#include <dlfcn.h>",
    ),
    "a library once timed": dishonest(
        'static int calls; if (n == 65536 && ++calls == 30) dlopen("libresolv.so.2", RTLD_NOW);' + RIGHT,
        "library",
        "while it was timed",
        head="#include <dlfcn.h>",
    ),
    "answers kept by content": dishonest(KEPT, "memory", "it keeps answers (case main", head=TABLE),
    "differential memory": dishonest(ROWS_KEPT, "memory", "new throughout", "it keeps answers (case main", head=TABLE),
    "compute only where the poison is": dishonest(
        RIGHT.replace("float v =", "if (n == 65536 && y[i] == y[i]) continue;\nfloat v ="),
        "stale|values|unwritten",
        "rewritten between timed calls",
    ),
    "slows its opponent": Deed(
        SPOILT, Status.WRONG, "input_changed", ("an input was changed in a timed call", "(case main"), TABLE
    ),
    "on after its answer": dishonest(
        RIGHT + "spin_ms(5); answer(); spin_ms(1);", "clock", "after it had answered (case main", head=EARLY
    ),
}
if os.uname().machine == "x86_64":
    DEEDS["flush to zero"] = Deed(RIGHT, Status.INVALID, "float_mode", ("flush-to-zero",), FLUSH_TO_ZERO)


def evaluate(bench: Bench, candidate: Kernel, opponent: Opponent | None = None) -> Verdict:
    return Evaluation(bench, candidate).run(opponent)


def finding(verdict: Verdict, kind: str) -> Finding:
    found = [f for f in verdict.findings if f.kind in kind.split("|")]
    assert found, (verdict.status, verdict.findings)
    return found[0]


ABOUT_THE_CLOCK = ("foreign_load", "steal", "drift", "waited", "confirmed", "launch_overhead")
"""Findings that the machine's load, or how short the calls are, decides."""


def kinds_of(verdict: Verdict) -> list[str]:
    """Kinds of findings, without those about the clock."""
    return [f.kind for f in verdict.findings if f.kind not in ABOUT_THE_CLOCK]


@pytest.mark.parametrize("name", DEEDS)
def test_what_a_candidate_does_gives_its_status(horner_bench: Bench, name: str) -> None:
    deed = DEEDS[name]
    verdict = evaluate(horner_bench, kernel(deed.body, head=deed.head, front=deed.front, params=deed.params))
    assert verdict.status is deed.status, verdict.findings
    message = finding(verdict, deed.kind).message
    assert all(text in message for text in deed.said), message
    assert verdict.speedup is verdict.decision is verdict.time_ms is None
    assert not verdict.comparisons
    assert list(verdict.stages_ms) == STAGES[: len(verdict.stages_ms)]


def test_a_right_kernel_is_measured(horner_bench: Bench) -> None:
    verdict = evaluate(horner_bench, kernel(RIGHT, front="idea: one pass"))
    assert verdict.status is Status.CORRECT
    assert kinds_of(verdict) == []
    assert list(verdict.stages_ms) == STAGES
    assert all(ms > 0 for ms in verdict.stages_ms.values())
    assert verdict.speedup is not None and verdict.speedup_low is not None and verdict.speedup_high is not None
    assert 0 < verdict.speedup_low <= verdict.speedup <= verdict.speedup_high
    assert verdict.time_ms is not None and verdict.time_ms > 0
    assert verdict.foreign_load_cores is not None and verdict.foreign_load_cores >= 0
    assert verdict.steal_cores is not None and verdict.steal_cores >= 0
    assert verdict.roofline is not None and 0 < verdict.roofline < 4 / 3
    assert verdict.host_ms is not None and verdict.host_ms > 0
    assert verdict.coverage == 1.0
    assert verdict.descriptor is not None and verdict.code_digest and "-O3" in verdict.flags
    (baseline,) = verdict.baselines
    assert (baseline.name, baseline.policy, baseline.speedup) == ("reference", "kernel", verdict.speedup)
    (comparison,) = verdict.comparisons
    assert (comparison.opponent, comparison.case, comparison.policy) == ("reference", "main", "kernel")
    assert comparison.blocks == len(comparison.samples_ms) == len(comparison.orders)
    assert set(comparison.orders) <= {"a", "b"}
    assert comparison.cache == verdict.cache == horner_bench.cache_state(horner_bench.timed[0])


def test_a_patched_clock_changes_nothing(horner_bench: Bench) -> None:
    verdict = evaluate(horner_bench, kernel("patch_clock(); spin_ms(1);" + RIGHT, head=FAKE_CLOCK))
    assert verdict.status is Status.CORRECT, verdict.findings
    assert verdict.time_ms is not None and verdict.time_ms >= 1


def test_who_works_where_it_is_watched_works_always(horner_bench: Bench) -> None:
    body = "for (int64_t i = 0; i < n; i++) if (y[i] != y[i]) goto work;\nreturn 0;\nwork:" + RIGHT + "spin_ms(1);"
    verdict = evaluate(horner_bench, kernel(body, head=SPIN))
    assert verdict.status is Status.CORRECT, verdict.findings
    assert verdict.time_ms is not None and verdict.time_ms > 1.0, "poison stands before every timed call"


def test_a_slow_kernel_is_slower(horner_bench: Bench) -> None:
    verdict = evaluate(horner_bench, kernel(SLOW))
    assert (verdict.status, verdict.decision) == (Status.CORRECT, Decision.SLOWER)
    assert verdict.speedup_high is not None and verdict.speedup_high < 1


def test_edge_cases_outside_are_skipped_and_counted(horner_bench: Bench) -> None:
    verdict = evaluate(horner_bench, kernel(RIGHT + "if (n == 7) abort();", front="covers: [n != 7]"))
    assert (verdict.status, verdict.coverage) == (Status.CORRECT, 0.5)


def test_the_point_and_the_flags_are_told(horner_bench: Bench) -> None:
    front = "params: {B: [4096, 1000, 8]}\nconstraints: [HALF <= 500]\nlet: {HALF: B // 2}\nflags: {MATH: [-O3, -O2]}"
    check = 'static_assert(B == 1000 && HALF == 500, "");'
    verdict = evaluate(horner_bench, kernel(RIGHT, front=front, head=check, flags={"MATH": "-O2"}))
    assert verdict.status is Status.CORRECT, verdict.findings
    assert verdict.params == {"B": 1000}
    assert {"-O2", "-DB=1000", "-DHALF=500"} <= set(verdict.flags)


def test_loud_kernels_are_told_so_whatever_their_status(horner_bench: Bench) -> None:
    shout = "static char text[1 << 12]; for (int i = 0; i < 512; i++) fwrite(text, 1, sizeof text, stderr);"
    loud = f"static int calls; if (calls++ == 0) {{ {shout} }}"
    right = evaluate(horner_bench, kernel(loud + RIGHT))
    assert right.status is Status.CORRECT
    message = finding(right, "output").message
    assert message == "printed 2.1 MB; kept are the first and last 16 KiB of a stream"
    assert kinds_of(right) == ["output"]
    bad = evaluate(horner_bench, kernel(loud + "y[0] = 0;"))
    assert kinds_of(bad)[-1] == "output"
    assert bad.status is Status.WRONG


def test_what_the_machine_has_can_be_needed(horner_bench: Bench) -> None:
    features = horner_bench.hardware.features
    assert features
    verdict = evaluate(horner_bench, kernel(RIGHT, front=f"needs: [{features[0]}]"))
    assert verdict.status is Status.CORRECT


def crawling(hardware: Hardware) -> Hardware:
    """The device, as if its memory were hardly faster than a disk."""
    rates = {name: 1e-3 for name in Bandwidth.model_fields if name.endswith("_gbs")}
    return hardware.model_copy(update={"bandwidths": tuple(b.model_copy(update=rates) for b in hardware.bandwidths)})


def test_below_the_floor_is_dishonest_after_a_second_process(horner_bench: Bench) -> None:
    crawl = crawling(horner_bench.hardware)

    class Crawling(CppTarget):
        def measure_again(self) -> Hardware:
            return crawl

    verdict = evaluate(replace(horner_bench, hardware=crawl, target=Crawling()), kernel(RIGHT))
    assert verdict.status is Status.DISHONEST
    found = finding(verdict, "below_floor")
    assert "main, in two processes" in found.message
    assert found.evidence["time_ms"] < found.evidence["floor_ms"]
    assert verdict.speedup is None


def test_a_rate_measured_too_low_accuses_nobody(horner_bench: Bench) -> None:
    crawl = crawling(horner_bench.hardware)
    verdict = evaluate(replace(horner_bench, hardware=crawl), kernel(RIGHT))
    assert verdict.status is Status.CORRECT, verdict.findings


def never_quiet(bench: Bench, on_load: OnLoad) -> Bench:
    changes = {"on_load": on_load, "load_limit_cores": -1.0, "load_wait_s": 0.2}
    return replace(bench, settings=bench.settings.model_copy(update=changes))


def test_a_busy_machine_may_be_refused(horner_bench: Bench) -> None:
    verdict = evaluate(never_quiet(horner_bench, "refuse"), kernel(RIGHT))
    assert verdict.status is Status.SETUP_ERROR
    assert "not timed: other programs use" in finding(verdict, "busy").message
    assert verdict.speedup is None


def test_a_busy_machine_is_waited_for_and_then_marked(horner_bench: Bench) -> None:
    verdict = evaluate(never_quiet(horner_bench, "wait"), kernel(RIGHT))
    assert verdict.status is Status.CORRECT, verdict.findings
    assert verdict.waited_ms >= 200
    assert "for other work to end" in finding(verdict, "waited").message
    assert finding(verdict, "foreign_load")


def test_a_case_that_cannot_be_told_from_nothing_is_void(horner_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    coarse = Overhead(calls=1, round_trip_ns=1e12, step_ns=1e9, idle_cpu_ns=0)

    def overhead(_bench: Bench, _case: BoundCase, _calls: int) -> Overhead:
        return coarse

    monkeypatch.setattr(Bench, "overhead", overhead)
    verdict = evaluate(horner_bench, kernel(RIGHT))
    assert verdict.status is Status.CORRECT
    assert "case main is void" in finding(verdict, "below_clock").message
    assert verdict.speedup is verdict.decision is verdict.time_ms is None
    assert [c.case for c in verdict.comparisons] == ["main"]


def test_a_big_win_is_confirmed(horner_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trial.BIG_WIN == 10
    monkeypatch.setattr(trial, "BIG_WIN", 0.0)
    seeds = {case.prepared.seed for case in horner_bench.timed}
    verdict = evaluate(horner_bench, kernel(RIGHT, front="flags: {V: [-O3]}"))
    confirmed = finding(verdict, "confirmed")
    assert "in a new process on new inputs" in confirmed.message and "over reference" in confirmed.message
    assert confirmed.evidence == {"trials": 2, "doubts": 0}
    assert {case.prepared.seed for case in horner_bench.timed} == seeds


def opponent(candidate: Kernel, speedup: float = 2.0) -> Opponent:
    return Opponent(kernel=candidate, speedup=speedup, speedup_low=0.9 * speedup, speedup_high=1.1 * speedup)


def test_who_loses_to_the_incumbent_is_tied_to_the_anchor_through_it(horner_bench: Bench) -> None:
    incumbent = kernel(RIGHT, front="idea: not built yet when the timing begins")
    verdict = evaluate(horner_bench, kernel(SLOW), opponent(incumbent))
    assert verdict.status is Status.CORRECT
    (comparison,) = verdict.comparisons
    assert (comparison.opponent, comparison.decision) == (incumbent.id, Decision.SLOWER)
    assert verdict.baselines == ()
    assert verdict.speedup == pytest.approx(2.0 * comparison.ratio)
    assert verdict.speedup_low == pytest.approx(1.8 * comparison.ratio_low)
    assert verdict.speedup_high == pytest.approx(2.2 * comparison.ratio_high)
    assert verdict.decision is Decision.SLOWER


def test_who_beats_the_incumbent_is_tied_to_every_baseline(horner_bench: Bench) -> None:
    incumbent = kernel(SLOW)
    verdict = evaluate(horner_bench, kernel(RIGHT), opponent(incumbent, speedup=1e6))
    assert [c.opponent for c in verdict.comparisons] == [incumbent.id, "reference"]
    assert [b.name for b in verdict.baselines] == ["reference"]
    assert verdict.speedup == pytest.approx(verdict.comparisons[1].ratio)


@pytest.mark.parametrize(
    ("incumbent", "why"),
    [
        (kernel("__builtin_trap();"), "SIGILL"),
        (kernel("return 9;"), "launch returned 9"),
        (kernel("nonsense"), "nonsense"),
        (kernel(RIGHT, head=TRAP_AT_LOAD), "during load"),
    ],
    ids=["crashes", "non-zero", "does not build", "does not load"],
)
def test_an_incumbent_that_fails_is_not_the_candidates_fault(horner_bench: Bench, incumbent: Kernel, why: str) -> None:
    verdict = evaluate(horner_bench, kernel(RIGHT), opponent(incumbent))
    assert verdict.status is Status.CORRECT, verdict.findings
    message = finding(verdict, "opponent_failed").message
    assert incumbent.id in message
    assert why in message
    assert [c.opponent for c in verdict.comparisons] == ["reference"]


@on_x86
def test_flushing_operands_later_is_seen_too(horner_bench: Bench) -> None:
    verdict = evaluate(horner_bench, kernel(RIGHT + "__builtin_ia32_ldmxcsr(0x9fc0);"))
    assert verdict.status is Status.INVALID
    assert finding(verdict, "float_mode")
