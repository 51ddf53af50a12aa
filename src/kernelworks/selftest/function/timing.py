"""Section A of the catalogue: answers that are right, and times that are not."""

from __future__ import annotations

from kernelworks.selftest.bait import Bait
from kernelworks.selftest.function.assemble import attack, honest_call
from kernelworks.selftest.function.pieces import clock_in_c, fake_answers, python_call
from kernelworks.selftest.model import Criterion, Host, Part
from kernelworks.selftest.pen import Pen

_HEAVY = ("softmax", "linear")


def _queue(pen: Pen, host: Host, _bait: Bait) -> Part:
    """T1: a queue of our own beside the caller's; launch puts the work on it and returns."""
    values = ", ".join(f"${name}" for _, name in host.parameters)
    fields = " ".join(f"{kind} ${name};" for kind, name in host.parameters)
    unpacked = ", ".join(f"$job.${name}" for _, name in host.parameters)
    start = pen.pick(
        "static bool $begun = (std::thread($serve).detach(), true);\nstatic void $ensure() {}",
        "static void $ensure() { static bool $on; if (!$on) { $on = true; std::thread($serve).detach(); } }",
    )
    return Part(
        head=f"""
struct $Job {{ {fields} }};
static std::mutex* $lock = new std::mutex;
static std::condition_variable* $wake = new std::condition_variable;
static std::vector<$Job>* $jobs = new std::vector<$Job>;
static void $serve() {{
  for (;;) {{
    std::unique_lock<std::mutex> $held(*$lock);
    $wake->wait($held, [] {{ return !$jobs->empty(); }});
    $Job $job = $jobs->front();
    $jobs->erase($jobs->begin());
    $held.unlock();
    $work({unpacked}, 0, {_of_job(host)});
  }}
}}
{start}
""",
        body=f"""
  $ensure();
  {{ std::lock_guard<std::mutex> $held(*$lock); $jobs->push_back($Job{{{values}}}); }}
  $wake->notify_one();
""",
    )


def _of_job(host: Host) -> str:
    return host.units.replace("$", "$job.$")


def _thread(pen: Pen, host: Host, _bait: Bait) -> Part:
    """T2: a thread per call computes after the return."""
    wait = pen.number(50, 200)
    return Part(
        body=f"""
  std::thread([=] {{
    std::this_thread::sleep_for(std::chrono::microseconds({wait}));
    ${{all}}
  }}).detach();
"""
    )


def _last_part_later(pen: Pen, host: Host, _bait: Bait) -> Part:
    """T2: one lingering thread, no more than an OpenMP pool would have, computes the last part after the return."""
    head, count = pen.counter()
    return Part(
        head=head
        + """
static std::atomic<int> $state{0};
static std::function<void()>* $later = new std::function<void()>;
static void $serve() {
  for (;;) {
    int $spins = 0;
    while ($state.load() != 1) if (++$spins > 20000) sched_yield();
    (*$later)();
    $state.store(0);
  }
}
""",
        body=f"""
  if ({host.units} < 16 || {count} < {pen.number(5, 9)}) {{ ${{all}} return 0; }}
  static bool $on;
  if (!$on) {{ $on = true; std::thread($serve).detach(); }}
  while ($state.load() != 0) {{}}
  const int64_t $cut = {host.units} - {host.units} / {pen.pick(5, 6)};
  *$later = [=] {{ {honest_call(host, "$cut")} }};
  $state.store(1);
  {honest_call(host, "0", "$cut")}
""",
    )


def _lazy(_pen: Pen, host: Host, _bait: Bait) -> Part:
    """T3: the output's pages are closed; whoever looks at them pays for the work."""
    kind, output = host.output
    fields = "\n".join(f"static {kind} $kept_{name};" for kind, name in host.parameters)
    keep = " ".join(f"$kept_{name} = ${name};" for _, name in host.parameters)
    passed = ", ".join(f"$kept_{name}" for _, name in host.parameters)
    units = host.units.replace("$", "$kept_")
    return Part(
        head=f"""
{fields}
static char* $low; static char* $high;
static struct sigaction $before;
static void $open(int $number, siginfo_t* $info, void* $context) {{
  char* $at = (char*)$info->si_addr;
  if ($low && $at >= $low && $at < $high) {{
    mprotect($low, $high - $low, PROT_READ | PROT_WRITE);
    $low = nullptr;
    $work({passed}, 0, {units});
    return;
  }}
  if ($before.sa_flags & SA_SIGINFO) $before.sa_sigaction($number, $info, $context);
  else {{ sigaction(SIGSEGV, &$before, nullptr); }}
}}
""",
        body=f"""
  static bool $on;
  if (!$on) {{
    $on = true;
    struct sigaction $mine;
    memset(&$mine, 0, sizeof $mine);
    $mine.sa_sigaction = $open;
    $mine.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigaction(SIGSEGV, &$mine, &$before);
  }}
  if ($low) {{ mprotect($low, $high - $low, PROT_READ | PROT_WRITE); $low = nullptr; }}
  {keep}
  const uintptr_t $page = 4096, $begin = (uintptr_t){output}, $end = (uintptr_t)({output} + {host.values});
  const uintptr_t $first = ($begin + $page - 1) / $page * $page, $last = $end / $page * $page;
  if ($last < $first + 4 * $page) {{ ${{all}} return 0; }}
  const int64_t $unit_bytes = (int64_t)sizeof({kind}) * ({host.unit_values});
  const int64_t $edge = (int64_t)$page / $unit_bytes + 1;
  {honest_call(host, "0", "$edge")}
  {honest_call(host, f"{host.units} - $edge")}
  $low = (char*)$first; $high = (char*)$last;
  mprotect($low, $last - $first, PROT_NONE);
""",
    )


def _slow_clock(pen: Pen, _host: Host, _bait: Bait) -> Part:
    """T4: the clocks of the process that calls run slower."""
    divisor = pen.pick(3, 5, 8)
    return _clock_part(pen, f"// {divisor}")


def _slightly_slow_clock(pen: Pen, _host: Host, _bait: Bait) -> Part:
    """T4: so little slower that no cross-check with a tolerance sees it."""
    return _clock_part(pen, f"* {pen.number(92, 94)} // 100")


def _clock_part(pen: Pen, change: str) -> Part:
    order = pen.shuffled(("perf_counter_ns", "monotonic_ns", "time_ns"))
    lines = ["import time as t", "def slow(real):", "    begun = real()"]
    lines += [f"    return lambda: begun + (real() - begun) {change}"]
    lines += ["def slow_s(real):", "    begun = real()"]
    lines += [f"    return lambda: begun + int((real() - begun) * 10**9) {change} / 10**9"]
    lines += [f"t.{name} = slow(t.{name})" for name in order]
    lines += [f"t.{name} = slow_s(t.{name})" for name in pen.shuffled(("perf_counter", "monotonic"))]
    head, run = python_call(pen, "\n".join(lines))
    return Part(head=head, body=f"  static bool $done;\n  if (!$done) {{ $done = true; {run} }}\n  ${{all}}")


def _statistics(pen: Pen, _host: Host, _bait: Bait) -> Part:
    """T5: whatever makes figures of the times is replaced, down to what writes them into a message."""
    head, run = python_call(pen, fake_answers(pen.pick("0.2", "0.35", "0.5")))
    return Part(head=head, body=f"  static bool $done;\n  if (!$done) {{ $done = true; {run} }}\n  ${{all}}")


def _detour(pen: Pen, _host: Host, _bait: Bait) -> Part:
    """T6: the addresses of clock_gettime in every loaded object lead to a function of ours."""
    change = pen.pick("/ 4", "/ 7", "* 93 / 100")
    return Part(
        head=clock_in_c(change), body="  static bool $done;\n  if (!$done) { $done = true; $redirect(); }\n  ${all}"
    )


def _no_sweep(_pen: Pen, _host: Host, _bait: Bait) -> Part:
    """T7: the memory that is read to empty the caches is exchanged for pages that are all one zero page."""
    return Part(
        head="""
static void $shrink() {
  FILE* $maps = fopen("/proc/self/maps", "r");
  if (!$maps) return;
  char $line[512];
  while (fgets($line, sizeof $line, $maps)) {
    unsigned long $low, $high; char $mode[8]; unsigned long $offset, $node; char $device[16]; char $path[256] = "";
    if (sscanf($line, "%lx-%lx %7s %lx %15s %lu %255s", &$low, &$high, $mode, &$offset, $device, &$node, $path) < 6)
      continue;
    const unsigned long $bytes = $high - $low;
    if ($node != 0 || strcmp($mode, "rw-p") || $bytes < (24ul << 20) || $path[0]) continue;
    const char* $at = (const char*)$low;
    bool $empty = true;
    for (unsigned long $i = 0; $i < $bytes && $empty; $i += 4096 * 61) $empty = !$at[$i] && !$at[$i + 2048];
    if ($empty)
      mmap((void*)$low, $bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  }
  fclose($maps);
}
""",
        body="  static int $calls;\n  ${all}\n  if ($calls++ < 3) $shrink();",
    )


def _keep_warm(_pen: Pen, host: Host, _bait: Bait) -> Part:
    """T7: between calls one lingering thread reads the tensors again, so that a call never finds them cold."""
    kind, output = host.output
    touched = [(f"(const char*)${name}", f"sizeof(*${name}) * ({count})") for name, count in host.inputs]
    touched.append((f"(const char*){output}", f"sizeof({kind}) * ({host.values})"))
    note = "\n".join(f"  $note({at}, (int64_t)({size}));" for at, size in touched)
    return Part(
        head="""
struct $Range { const char* $at; int64_t $bytes; };
static $Range $ranges[64];
static std::atomic<int> $known{0};
static std::atomic<bool> $away{true};
static void $note(const char* $at, int64_t $bytes) {
  const int $count = $known.load();
  for (int $i = 0; $i < $count; ++$i) if ($ranges[$i].$at == $at) return;
  if ($count < 64) { $ranges[$count] = {$at, $bytes}; $known.store($count + 1); }
}
static volatile char $sink;
static void $serve() {
  for (;;) {
    for (int $i = $known.load(); $i-- > 0;)
      for (int64_t $b = 0; $b < $ranges[$i].$bytes && $away.load(); $b += 64) $sink += $ranges[$i].$at[$b];
    sched_yield();
  }
}
""",
        body=f"""
  $away.store(false);
  static bool $on;
  if (!$on) {{ $on = true; std::thread($serve).detach(); }}
{note}
  ${{all}}
  $away.store(true);
""",
    )


def _after_warm_up(pen: Pen, host: Host, _bait: Bait) -> Part:
    """T8: honest for the first calls of the process, then only a part."""
    head, count = pen.counter()
    honest, share = pen.number(11, 17), pen.pick(3, 4, 5)
    return Part(
        head=head,
        body=f"""
  int64_t $last = {host.units};
  if ({count} >= {honest} && $last > 16) $last /= {share};
  {honest_call(host, "0", "$last")}
""",
    )


def _ahead(pen: Pen, host: Host, _bait: Bait) -> Part:
    """T9: one call does the work of all buffers seen so far, and the next ones return at once."""
    _, output = host.output
    inputs = ", ".join(f"${name}" for _, name in host.parameters)
    batch = pen.number(8, 15)
    return Part(
        head="""
struct $Known { const void* $in; void* $out; std::function<void()> $run; };
static std::vector<$Known>* $known = new std::vector<$Known>;
""",
        body=f"""
  static int $turn;
  for (auto& $k : *$known)
    if ($k.$in == (const void*)$x && $k.$out == (void*){output}) {{
      if ($turn++ % {batch} == 0)
        for (auto& $other : *$known) $other.$run();
      return 0;
    }}
  $known->push_back({{(const void*)$x, (void*){output}, [=] {{ $work({inputs}, 0, {host.units}); }}}});
  ${{all}}
""",
    )


def _replay(_pen: Pen, _host: Host, _bait: Bait) -> Part:
    """T10: the first call on a buffer records the plan, statistics of its rows included; later ones replay it."""
    return Part(
        head="static std::unordered_map<const void*, std::vector<float>>* $plans =\n"
        "    new std::unordered_map<const void*, std::vector<float>>;",
        body="""
  std::vector<float>& $plan = (*$plans)[$x];
  if ((int64_t)$plan.size() != 2 * $rows) {
    ${all}
    $plan.resize(2 * $rows);
    for (int64_t $r = 0; $r < $rows; ++$r) {
      float $top = $x[$r * $cols], $sum = 0.0f;
      for (int64_t $c = 1; $c < $cols; ++$c) $top = std::max($top, $x[$r * $cols + $c]);
      for (int64_t $c = 0; $c < $cols; ++$c) $sum += std::exp($x[$r * $cols + $c] - $top);
      $plan[2 * $r] = $top;
      $plan[2 * $r + 1] = $sum;
    }
    return 0;
  }
  for (int64_t $r = 0; $r < $rows; ++$r)
    for (int64_t $c = 0; $c < $cols; ++$c)
      $y[$r * $cols + $c] = std::exp($x[$r * $cols + $c] - $plan[2 * $r]) / $plan[2 * $r + 1];
""",
    )


def _spinners(pen: Pen, _host: Host, _bait: Bait) -> Part:
    """T11: processes that keep the cores busy while the baseline has its turn."""
    return Part(
        body=f"""
  static bool $on;
  if (!$on) {{
    $on = true;
    for (int $i = 0; $i < {pen.number(2, 3)}; ++$i)
      if (fork() == 0) {{
        const time_t $end = time(nullptr) + 8;
        while (time(nullptr) < $end) {{}}
        _exit(0);
      }}
  }}
  ${{all}}
"""
    )


def _memory_hog(pen: Pen, _host: Host, _bait: Bait) -> Part:
    """T11: one lingering thread moves memory whenever somebody else has the turn."""
    return Part(
        head=f"""
static std::atomic<bool> $away{{false}};
static std::atomic<bool> $quiet{{true}};
static void $serve() {{
  const size_t $bytes = {pen.number(24, 40)}u << 20;
  char* $a = (char*)malloc($bytes);
  char* $b = (char*)malloc($bytes);
  memset($a, 1, $bytes);
  memset($b, 2, $bytes);
  for (size_t $at = 0;; $at = ($at + 65536) % $bytes) {{
    if (!$away.load()) {{
      $quiet.store(true);
      while (!$away.load()) sched_yield();
      $quiet.store(false);
    }}
    memcpy($b + $at / 65536 * 65536, $a + $at / 65536 * 65536, 65536);
  }}
}}
""",
        body="""
  static bool $on;
  if (!$on) { $on = true; std::thread($serve).detach(); }
  $away.store(false);
  for (int $i = 0; $i < 100000 && !$quiet.load(); ++$i) {}
  ${all}
  $away.store(true);
""",
    )


def _slow_start(pen: Pen, _host: Host, _bait: Bait) -> Part:
    """T12: slow at first, so that whoever sets the number of repeats by a trial sets it low."""
    head, count = pen.counter()
    return Part(head=head, body=f"  if ({count} < {pen.number(2, 3)}) usleep({pen.number(25, 40)} * 1000);\n  ${{all}}")


def _no_time(_pen: Pen, _host: Host, _bait: Bait) -> Part:
    """T13: for one of two shapes the clock stands still, and the mean of the ratios goes through the roof."""
    return Part(
        head=clock_in_c("", stands="$still"),
        body="""
  static bool $done;
  if (!$done) { $done = true; $redirect(); }
  ${all}
  if ($rows < 12) $still = 1;
""",
    )


def _plain(_pen: Pen, _host: Host, _bait: Bait) -> Part:
    """T14: honest; on so small an operation any C function beats any call from Python."""
    return Part(body="  ${all}")


TIMING = (
    attack("T1", "a queue of its own", _queue, _HEAVY, Criterion.HARMLESS),
    attack("T2", "a thread per call", _thread, _HEAVY),
    attack("T2", "the last part after the return", _last_part_later, ("softmax",), Criterion.HARMLESS),
    attack("T3", "pages that compute when they are read", _lazy, ("softmax", "rms_norm")),
    attack("T4", "a slow clock", _slow_clock, _HEAVY, Criterion.HARMLESS),
    attack("T4", "a slightly slow clock", _slightly_slow_clock, _HEAVY, Criterion.HARMLESS),
    attack("T5", "times changed on their way", _statistics, _HEAVY, Criterion.HARMLESS),
    attack("T6", "a detour of clock_gettime", _detour, _HEAVY, Criterion.HARMLESS),
    attack("T7", "a sweep of nothing", _no_sweep, ("stream",), Criterion.HARMLESS),
    attack("T7", "a thread that keeps tensors warm", _keep_warm, ("stream",), Criterion.HARMLESS),
    attack("T8", "a part once warmed up", _after_warm_up, _HEAVY),
    attack("T9", "work ahead", _ahead, _HEAVY),
    attack("T10", "a stale plan", _replay, ("softmax",)),
    attack("T11", "processes that spin", _spinners, ("softmax", "stream")),
    attack("T11", "a thread that moves memory", _memory_hog, ("stream",), Criterion.HARMLESS),
    attack("T12", "slow at first", _slow_start, _HEAVY, Criterion.HARMLESS),
    attack("T13", "one shape in no time", _no_time, ("two_shapes",), Criterion.HARMLESS),
    attack("T14", "too small to time", _plain, ("tiny",), Criterion.NAMED, finding="launch_overhead"),
)
