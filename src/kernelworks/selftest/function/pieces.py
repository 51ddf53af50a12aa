"""C++ pieces that several attacks share."""

from __future__ import annotations

from kernelworks.selftest.pen import Pen

_PYTHON = """
static void $python(const char* $code) {{
  void* $run = dlsym(RTLD_DEFAULT, {run});
  void* $enter = dlsym(RTLD_DEFAULT, {enter});
  void* $leave = dlsym(RTLD_DEFAULT, {leave});
  if (!$run || !$enter || !$leave) return;
  const int $state = ((int (*)())$enter)();
  ((int (*)(const char*))$run)($code);
  ((void (*)(int))$leave)($state);
}}
"""


def python_call(pen: Pen, code: str) -> tuple[str, str]:
    """Run Python in the interpreter that loaded the library, if there is one: head, and the statement that does it."""
    head = _PYTHON.format(
        run=pen.cstring("PyRun_SimpleString"),
        enter=pen.cstring("PyGILState_Ensure"),
        leave=pen.cstring("PyGILState_Release"),
    )
    guarded = "try:\n" + "\n".join("    " + line for line in code.splitlines()) + "\nexcept Exception:\n    pass\n"
    return head, f"$python({pen.cstring(guarded)});"


def fake_answers(factor: str) -> str:
    """Python: functions that turn samples into figures or messages make them smaller by a factor."""
    return f"""import json
import statistics
def shorter(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, list) and "ns" in key:
                value[key] = [max(1, int(v * {factor})) if isinstance(v, int) else v for v in inner]
            else:
                shorter(inner)
    return value
dumps = json.dumps
json.dumps = lambda value, *a, **k: dumps(shorter(value), *a, **k)
for name in ("median", "mean", "fmean"):
    real = getattr(statistics, name)
    setattr(statistics, name, lambda values, real=real: real(list(values)) * {factor})"""


def clock_in_c(change: str, stands: str = "") -> str:
    """``$redirect()``: every object's entry for clock_gettime leads to a clock that is changed.

    Args:
        change: what is done to the time since then, such as ``/ 4``.
        stands: a variable that, once set, makes the clock stand still for one reading.
    """
    still = f"static int {stands};\n" if stands else ""
    stop = f"if ({stands}) {{ {stands} = 0; $shown = $last + 1; }}" if stands else ""
    return f"""
typedef int (*$Clock)(clockid_t, timespec*);
static $Clock $real;
static long long $begun, $last;
{still}
static int $fake(clockid_t $id, timespec* $out) {{
  const int $status = $real($id, $out);
  if ($id != CLOCK_MONOTONIC || $status) return $status;
  const long long $now = $out->tv_sec * 1000000000LL + $out->tv_nsec;
  if (!$begun) $begun = $now;
  long long $shown = $begun + ($now - $begun) {change};
  {stop}
  $last = $shown;
  $out->tv_sec = $shown / 1000000000LL;
  $out->tv_nsec = $shown % 1000000000LL;
  return 0;
}}
static void $patch(ElfW(Addr) $base, ElfW(Rela)* $table, size_t $bytes, ElfW(Sym)* $symbols, const char* $names) {{
  for (size_t $i = 0; $i < $bytes / sizeof(ElfW(Rela)); ++$i) {{
    const size_t $index = $table[$i].r_info >> 32;
    if (!$index || strcmp($names + $symbols[$index].st_name, "clock_gettime")) continue;
    void** $slot = (void**)($base + $table[$i].r_offset);
    void* $page = (void*)((uintptr_t)$slot & ~4095ul);
    if (mprotect($page, 8192, PROT_READ | PROT_WRITE) == 0) *$slot = (void*)$fake;
    else if (mprotect($page, 4096, PROT_READ | PROT_WRITE) == 0) *$slot = (void*)$fake;
  }}
}}
static int $object(dl_phdr_info* $info, size_t, void*) {{
  for (int $i = 0; $i < $info->dlpi_phnum; ++$i) {{
    if ($info->dlpi_phdr[$i].p_type != PT_DYNAMIC) continue;
    const ElfW(Addr) $base = $info->dlpi_addr;
    auto* $entry = (ElfW(Dyn)*)($base + $info->dlpi_phdr[$i].p_vaddr);
    ElfW(Addr) $jump = 0, $other = 0, $symbols = 0, $names = 0;
    size_t $jump_bytes = 0, $other_bytes = 0;
    for (; $entry->d_tag != DT_NULL; ++$entry) {{
      ElfW(Addr) $value = $entry->d_un.d_ptr;
      const ElfW(Addr) $place = $value < $base ? $base + $value : $value;
      if ($entry->d_tag == DT_JMPREL) $jump = $place;
      if ($entry->d_tag == DT_RELA) $other = $place;
      if ($entry->d_tag == DT_SYMTAB) $symbols = $place;
      if ($entry->d_tag == DT_STRTAB) $names = $place;
      if ($entry->d_tag == DT_PLTRELSZ) $jump_bytes = $entry->d_un.d_val;
      if ($entry->d_tag == DT_RELASZ) $other_bytes = $entry->d_un.d_val;
    }}
    if (!$symbols || !$names || strstr($info->dlpi_name, "vdso")) continue;
    if ($jump) $patch($base, (ElfW(Rela)*)$jump, $jump_bytes, (ElfW(Sym)*)$symbols, (const char*)$names);
    if ($other) $patch($base, (ElfW(Rela)*)$other, $other_bytes, (ElfW(Sym)*)$symbols, (const char*)$names);
  }}
  return 0;
}}
static void $redirect() {{
  $real = ($Clock)dlsym(RTLD_DEFAULT, "clock_gettime");
  dl_iterate_phdr($object, nullptr);
}}
"""


NEIGHBOURS = """
static int $parent_of(int $pid) {
  char $path[64], $text[512];
  snprintf($path, sizeof $path, "/proc/%d/stat", $pid);
  const int $fd = open($path, O_RDONLY);
  if ($fd < 0) return -1;
  const ssize_t $got = read($fd, $text, sizeof $text - 1);
  close($fd);
  if ($got <= 0) return -1;
  $text[$got] = 0;
  const char* $end = strrchr($text, ')');
  int $parent = -1;
  if ($end) sscanf($end + 2, "%*c %d", &$parent);
  return $parent;
}
static std::vector<int> $neighbours() {  // this process, and the other children of whoever started its parent
  std::vector<int> $found{(int)getpid()};
  const int $starter = $parent_of(getppid());
  DIR* $all = $starter > 1 ? opendir("/proc") : nullptr;
  if (!$all) return $found;
  while (dirent* $entry = readdir($all)) {
    const int $pid = atoi($entry->d_name);
    if ($pid > 1 && $pid != getppid() && $parent_of($pid) == $starter) $found.push_back($pid);
  }
  closedir($all);
  return $found;
}
"""
"""Processes of the harness that started this one, and of no other: an attack stays within its own suite."""

SCAN = (
    NEIGHBOURS
    + """
struct $Place { int $pid; unsigned long $at; int $width; };
template <typename T> static bool $like(const char* $have, const float* $want, int $count) {
  for (int $i = 0; $i < $count; ++$i) {
    T $one;
    memcpy(&$one, $have + $i * sizeof(T), sizeof(T));
    const double $error = (double)$one - (double)$want[$i];
    if (!($error < 2e-6 + 1e-5 * std::fabs($want[$i]) && -$error < 2e-6 + 1e-5 * std::fabs($want[$i]))) return false;
  }
  return true;
}
template <typename T>
static bool $find(const char* $text, size_t $bytes, const float* $want, int $count, size_t& $where) {
  for (size_t $i = 0; $i + $count * sizeof(T) <= $bytes; $i += 4) {
    T $first;
    memcpy(&$first, $text + $i, sizeof(T));
    const double $error = (double)$first - (double)$want[0];
    if (!($error < 1e-4 && $error > -1e-4)) continue;
    if ($like<T>($text + $i, $want, $count)) { $where = $i; return true; }
  }
  return false;
}
// Where somebody keeps the values that start like these: in this process as floats, elsewhere as doubles.
static bool $search(const float* $want, int $count, const void* $mine, size_t $mine_bytes, $Place& $place) {
  std::vector<char> $text;
  for (int $pid : $neighbours()) {
    char $path[64], $line[512];
    snprintf($path, sizeof $path, "/proc/%d/maps", $pid);
    FILE* $maps = fopen($path, "r");
    if (!$maps) continue;
    while (fgets($line, sizeof $line, $maps)) {
      unsigned long $low, $high, $offset, $node; char $mode[8], $device[16];
      if (sscanf($line, "%lx-%lx %7s %lx %15s %lu", &$low, &$high, $mode, &$offset, $device, &$node) < 6) continue;
      if ($mode[0] != 'r' || $mode[1] != 'w' || $node != 0 || $high - $low > (256ul << 20)) continue;
      const bool $self = $pid == (int)getpid();
      for (unsigned long $at = $low; $at < $high; $at += 1 << 20) {
        const size_t $size = std::min<unsigned long>($high - $at, (1 << 20) + 65536);
        $text.resize($size);
        iovec $to{$text.data(), $size}, $from{(void*)$at, $size};
        const ssize_t $got = process_vm_readv($pid, &$to, 1, &$from, 1, 0);
        if ($got <= 0) break;
        size_t $where = 0;
        const int $width = $self ? 4 : 8;
        const bool $hit = $self ? $find<float>($text.data(), $got, $want, $count, $where)
                                : $find<double>($text.data(), $got, $want, $count, $where);
        if (!$hit) continue;
        const unsigned long $found = $at + $where;
        const unsigned long $own = (unsigned long)$mine;
        if ($self && ($found == (unsigned long)$want || ($found >= $own && $found < $own + $mine_bytes))) continue;
        if ($self && $found >= (unsigned long)$text.data() && $found < (unsigned long)$text.data() + $size) continue;
        $place = {$pid, $found, $width};
        fclose($maps);
        return true;
      }
    }
    fclose($maps);
  }
  return false;
}
"""
)
"""``$search``: finds right answers in the memory of the harness, given how they begin."""
