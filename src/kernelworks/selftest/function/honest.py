"""Honest C++ kernels of many styles: what a hasty rule, a tight bound or a nervous sandbox would refuse."""

from __future__ import annotations

from functools import partial

from kernelworks.kernel.model import Contract
from kernelworks.selftest.function.assemble import assemble
from kernelworks.selftest.model import Honest, Host, Part
from kernelworks.selftest.pen import Pen

_ALL = "  ${all}"
_EXP_POLYNOMIAL = """
static inline float $exp(float $v) {
  if ($v < -87.0f) return 0.0f;
  const float $scaled = $v * 1.44269504f;
  const float $whole = std::nearbyint($scaled);
  const float $rest = ($v - $whole * 0.693359375f) + $whole * 2.12194440e-4f;
  float $p = 1.9875691e-4f;
  for (float $k : {1.3981999e-3f, 8.3334519e-3f, 4.1665796e-2f, 1.6666665e-1f, 0.5f}) $p = $p * $rest + $k;
  $p = $p * $rest * $rest + $rest + 1.0f;
  int32_t $bits = ((int32_t)$whole + 127) << 23;
  float $power;
  memcpy(&$power, &$bits, 4);
  return $p * $power;
}
"""


def _softmax_with(exp: str) -> str:
    return f"""
for (int64_t $r = $from; $r < $to; ++$r) {{
  const float* $in = $x + $r * $cols;
  float* $out = $y + $r * $cols;
  float $top = -INFINITY, $sum = 0.0f;
  for (int64_t $c = 0; $c < $cols; ++$c) $top = std::max($top, $in[$c]);
  for (int64_t $c = 0; $c < $cols; ++$c) $sum += $out[$c] = {exp}($in[$c] - $top);
  for (int64_t $c = 0; $c < $cols; ++$c) $out[$c] *= 1.0f / $sum;
}}"""


def _loop(pragma: str, each: str) -> str:
    return f"{pragma}\nfor (int64_t $i = 0; $i < $n; ++$i) {{ {each} }}"


def _rows(pragma: str) -> str:
    return f"{pragma}\n  for (int64_t $r = 0; $r < $rows; ++$r) $work(${{passed}}, $r, $r + 1);"


_OMP_TASKS = """
  #pragma omp parallel
  #pragma omp single
  for (int64_t $first = 0; $first < $rows; $first += 8) {
    #pragma omp task firstprivate($first)
    $work(${passed}, $first, std::min<int64_t>($first + 8, $rows));
  }
"""
_MATRIX_BLOCKED = """
const int64_t $tile = 48;
for (int64_t $r = $from; $r < $to; ++$r)
  for (int64_t $c = 0; $c < $cols; ++$c) $y[$r * $cols + $c] = $b[$c];
for (int64_t $k0 = 0; $k0 < $depth; $k0 += $tile)
  for (int64_t $c0 = 0; $c0 < $cols; $c0 += $tile)
    for (int64_t $r = $from; $r < $to; ++$r)
      for (int64_t $k = $k0; $k < std::min($k0 + $tile, $depth); ++$k)
        for (int64_t $c = $c0; $c < std::min($c0 + $tile, $cols); ++$c)
          $y[$r * $cols + $c] += $x[$r * $depth + $k] * $w[$k * $cols + $c];
for (int64_t $i = $from * $cols; $i < $to * $cols; ++$i) $y[$i] = $y[$i] < 0.0f ? 0.0f : $y[$i];
"""
_MATRIX_SERIAL = """
for (int64_t $r = $from; $r < $to; ++$r)
  for (int64_t $c = 0; $c < $cols; ++$c) {
    float $sum = 0.0f;
    for (int64_t $k = 0; $k < $depth; ++$k) $sum += $x[$r * $depth + $k] * $w[$k * $cols + $c];
    $sum += $b[$c];
    $y[$r * $cols + $c] = $sum < 0.0f ? 0.0f : $sum;
  }
"""
_KAHAN = """
for (int64_t $r = $from; $r < $to; ++$r) {
  float $sum = 0.0f, $lost = 0.0f;
  for (int64_t $c = 0; $c < $cols; ++$c) {
    const float $term = $x[$r * $cols + $c] - $lost, $next = $sum + $term;
    $lost = ($next - $sum) - $term;
    $sum = $next;
  }
  $y[$r] = $sum / (float)$cols;
}
"""
_RECURSIVE = """
static float $sum(const float* $at, int64_t $count) {
  if ($count <= 8) {
    float $total = 0.0f;
    for (int64_t $i = 0; $i < $count; ++$i) $total += $at[$i];
    return $total;
  }
  return $sum($at, $count / 2) + $sum($at + $count / 2, $count - $count / 2);
}
"""
_TEMPLATE = """
template <int $lanes> struct $Lanes {
  float $part[$lanes] = {};
  template <typename Step> void $each(int64_t $count, Step $step) {
    for (int64_t $c = 0; $c < $count; ++$c) $part[$c % $lanes] += $step($c);
  }
  float $total() const { float $all_parts = 0; for (float $p : $part) $all_parts += $p; return $all_parts; }
};
"""
_SUMMARY = """
  ${pragma}
  for (int64_t $r = 0; $r < $rows; ++$r) {
    float $sum = 0.0f, $top = $x[$r * $cols];
    for (int64_t $c = 0; $c < $cols; ++$c) {
      $sum += $x[$r * $cols + $c];
      const float $v = $x[$r * $cols + $c];
      $top = $v > $top || $v != $v ? $v : $top;
    }
    $total[$r] = $sum; $high[$r] = $top; $flag[$r] = $top > 3.25f;
  }
"""
_NORM_PARTIALS = """
  std::vector<float> $part($rows, 0.0f);
  #pragma omp parallel
  {
    #pragma omp for schedule(dynamic, 4)
    for (int64_t $r = 0; $r < $rows; ++$r) {
      float $s = 0.0f;
      #pragma omp simd reduction(+ : $s)
      for (int64_t $c = 0; $c < $cols; ++$c) $s += $x[$r * $cols + $c] * $x[$r * $cols + $c];
      $part[$r] = 1.0f / std::sqrt($s / (float)$cols + 1e-5f);
    }
    #pragma omp for collapse(2)
    for (int64_t $r = 0; $r < $rows; ++$r)
      for (int64_t $c = 0; $c < $cols; ++$c) $y[$r * $cols + $c] = $x[$r * $cols + $c] * $part[$r] * $w[$c];
  }
"""
_STREAMING = """
#if defined(__AVX__)
  int64_t $i = 0;
  for (; $i < $n && ((uintptr_t)($y + $i) & 31); ++$i) $y[$i] = $x[$i] * $k[$i] + 0.5f;
  for (; $i + 8 <= $n; $i += 8)
    _mm256_stream_ps($y + $i, _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps($x + $i), _mm256_loadu_ps($k + $i)),
                                            _mm256_set1_ps(0.5f)));
  for (; $i < $n; ++$i) $y[$i] = $x[$i] * $k[$i] + 0.5f;
  _mm_sfence();
#else
  ${all}
#endif
"""
_INTRINSICS = """
#if defined(__AVX__)
  int64_t $i = 0;
  for (; $i + 8 <= $n; $i += 8)
    _mm256_storeu_ps($y + $i, _mm256_mul_ps(_mm256_loadu_ps($x + $i), _mm256_loadu_ps($x + $i)));
  for (; $i < $n; ++$i) $y[$i] = $x[$i] * $x[$i];
#else
  ${all}
#endif
"""
_IMMINTRIN = "#if defined(__AVX__)\n#include <immintrin.h>\n#endif"
_TRY = """
  try {
    if ($rows < 0) throw std::runtime_error("no rows");
    ${all}
  } catch (const std::exception& $problem) {
    fprintf(stderr, "%s\\n", $problem.what());
    return 1;
  }
"""
_TABLE_ON_FIRST_CALL = """
static const std::vector<float>& $powers() {
  static const std::vector<float> $table = [] {
    std::vector<float> $made(256);
    for (int $i = 0; $i < 256; ++$i) $made[$i] = (float)std::exp2($i / 256.0);
    return $made;
  }();
  return $table;
}
static inline float $exp(float $v) {
  if ($v < -87.0f) return 0.0f;
  const double $steps = (double)$v * 369.3299304675746;  // 256 / ln 2
  const double $whole = std::floor($steps);
  const int64_t $n = (int64_t)$whole;
  const double $rest = ($steps - $whole) * 0.0027076061740622863;
  const double $fine = 1.0 + $rest * (1.0 + $rest * 0.5);
  return (float)std::ldexp($powers()[$n & 255] * $fine, (int)($n >> 8));
}
"""
_ARGMAX_LANES = """
for (int64_t $r = $from; $r < $to; ++$r) {
  const float* $in = $x + $r * $cols;
  float $top[8];
  int64_t $where[8], $none = $cols;
  for (int $j = 0; $j < 8; ++$j) { $top[$j] = -INFINITY; $where[$j] = $cols; }
  for (int64_t $c = $cols; $c-- > 0;) {
    if ($in[$c] != $in[$c]) $none = $c;  // the first that is no number wins
    if ($in[$c] >= $top[$c & 7]) { $top[$c & 7] = $in[$c]; $where[$c & 7] = $c; }
  }
  int $best = 0;
  for (int $j = 1; $j < 8; ++$j)
    if ($top[$j] > $top[$best] || ($top[$j] == $top[$best] && $where[$j] < $where[$best])) $best = $j;
  $y[$r] = $none < $cols ? $none : $where[$best];
}
"""
_DECAY = "$state[$i] = $state[$i] * 0.875f + $x[$i]; $y[$i] = std::tanh($state[$i]);"
_HALF = "const float $v = (float)$x[$i]; $y[$i] = (_Float16)($v * $v + 0.5f);"
_BLEND = "$y[$i] = (int32_t)(((uint32_t)$a[$i] * 31u) ^ (uint32_t)($b[$i] >> 1)) + 7;"


def _write(part: Part, pen: Pen, host: Host) -> str:
    passed = host.passed
    filled = Part(body=part.body.replace("${passed}", passed), head=part.head, work=part.work, front=part.front)
    return assemble(pen, host, filled)


def _honest(name: str, host: str, body: str = _ALL, *, head: str = "", work: str = "", front: str = "") -> Honest:
    return Honest(name, Contract.FUNCTION, host, partial(_write, Part(body, head, work, front)), short=name in _SHORT)


_SHORT = frozenset("plain sums|polynomial exp|try and catch|OpenMP tasks|serial matrix product|fast math".split("|"))

FUNCTION_HONEST = (
    _honest("plain sums", "softmax"),
    _honest("polynomial exp", "softmax", head=_EXP_POLYNOMIAL, work=_softmax_with("$exp")),
    _honest("a table made on the first call", "softmax", head=_TABLE_ON_FIRST_CALL, work=_softmax_with("$exp")),
    _honest(
        "exponentials in double",
        "softmax",
        work=_softmax_with("(float)$wide"),
        head="static double $wide(double $v) { return std::exp($v); }",
    ),
    _honest("OpenMP static", "softmax", _rows("  #pragma omp parallel for schedule(static)")),
    _honest("OpenMP dynamic", "softmax", _rows("  #pragma omp parallel for schedule(dynamic, 3)")),
    _honest("OpenMP guided", "softmax", _rows("  #pragma omp parallel for schedule(guided)")),
    _honest("OpenMP tasks", "softmax", _OMP_TASKS),
    _honest("more threads than there are", "softmax", _rows("  #pragma omp parallel for num_threads(64)")),
    _honest("try and catch", "softmax", _TRY),
    _honest("fast math", "softmax", front="flags: {MATH: ['-ffast-math']}"),
    _honest("prints a line", "softmax", '  printf("row by row, cache and stream\\n"); fflush(stdout);\n  ${all}'),
    _honest(
        "asks for the time",
        "softmax",
        "  timespec $t; clock_gettime(CLOCK_MONOTONIC, &$t);\n  ${all}\n  if ($t.tv_sec < 0) return 1;",
    ),
    _honest("reads the environment", "softmax", '  const char* $n = getenv("OMP_NUM_THREADS"); (void)$n;\n  ${all}'),
    _honest("plain norm", "rms_norm"),
    _honest("partial sums by thread", "rms_norm", _NORM_PARTIALS),
    _honest(
        "static scratch",
        "rms_norm",
        work="""
static float $scratch[1 << 14];
for (int64_t $r = $from; $r < $to; ++$r) {
  const float* $in = $x + $r * $cols;
  float $sum = 0.0f;
  for (int64_t $c = 0; $c < $cols; ++$c) { $scratch[$c] = $in[$c] * $w[$c]; $sum += $in[$c] * $in[$c]; }
  const float $scale = 1.0f / std::sqrt($sum / (float)$cols + 1e-5f);
  for (int64_t $c = 0; $c < $cols; ++$c) $y[$r * $cols + $c] = $scratch[$c] * $scale;
}""",
    ),
    _honest(
        "scratch by thread",
        "rms_norm",
        _rows("  #pragma omp parallel for"),
        head="static thread_local std::vector<float> $scratch;",
        work="""
$scratch.resize($cols);
for (int64_t $r = $from; $r < $to; ++$r) {
  float $sum = 0.0f;
  for (int64_t $c = 0; $c < $cols; ++$c) { $scratch[$c] = $x[$r * $cols + $c]; $sum += $scratch[$c] * $scratch[$c]; }
  const float $scale = 1.0f / std::sqrt($sum / (float)$cols + 1e-5f);
  for (int64_t $c = 0; $c < $cols; ++$c) $y[$r * $cols + $c] = $scratch[$c] * $scale * $w[$c];
}""",
    ),
    _honest(
        "arrays of variable length",
        "rms_norm",
        work="""
float $row[$cols];
for (int64_t $r = $from; $r < $to; ++$r) {
  memcpy($row, $x + $r * $cols, sizeof(float) * $cols);
  float $sum = 0.0f;
  for (int64_t $c = 0; $c < $cols; ++$c) $sum += $row[$c] * $row[$c];
  const float $scale = 1.0f / std::sqrt($sum / (float)$cols + 1e-5f);
  for (int64_t $c = 0; $c < $cols; ++$c) $y[$r * $cols + $c] = $row[$c] * $scale * $w[$c];
}""",
    ),
    _honest(
        "templates",
        "rms_norm",
        head=_TEMPLATE,
        work="""
for (int64_t $r = $from; $r < $to; ++$r) {
  const float* $in = $x + $r * $cols;
  $Lanes<16> $sum;
  $sum.$each($cols, [&](int64_t $c) { return $in[$c] * $in[$c]; });
  const float $scale = 1.0f / std::sqrt($sum.$total() / (float)$cols + 1e-5f);
  for (int64_t $c = 0; $c < $cols; ++$c) $y[$r * $cols + $c] = $in[$c] * $scale * $w[$c];
}""",
    ),
    _honest("blocked matrix product", "linear", work=_MATRIX_BLOCKED),
    _honest("serial matrix product", "linear", work=_MATRIX_SERIAL),
    _honest("fast math in a product", "linear", front="flags: {MATH: ['-ffast-math -funroll-loops']}"),
    _honest(
        "a transposed copy",
        "linear",
        work="""
std::vector<float> $turned($depth * $cols);
for (int64_t $k = 0; $k < $depth; ++$k)
  for (int64_t $c = 0; $c < $cols; ++$c) $turned[$c * $depth + $k] = $w[$k * $cols + $c];
for (int64_t $r = $from; $r < $to; ++$r)
  for (int64_t $c = 0; $c < $cols; ++$c) {
    float $s[4] = {};
    for (int64_t $k = 0; $k < $depth; ++$k) $s[$k & 3] += $x[$r * $depth + $k] * $turned[$c * $depth + $k];
    const float $sum = $s[0] + $s[1] + ($s[2] + $s[3]) + $b[$c];
    $y[$r * $cols + $c] = $sum < 0.0f ? 0.0f : $sum;
  }""",
    ),
    _honest(
        "products in double",
        "linear",
        work="""
for (int64_t $r = $from; $r < $to; ++$r)
  for (int64_t $c = 0; $c < $cols; ++$c) {
    double $sum = $b[$c];
    for (int64_t $k = 0; $k < $depth; ++$k) $sum += (double)$x[$r * $depth + $k] * $w[$k * $cols + $c];
    $y[$r * $cols + $c] = $sum < 0.0 ? 0.0f : (float)$sum;
  }""",
    ),
    _honest("plain mean", "row_mean"),
    _honest("Kahan", "row_mean", work=_KAHAN),
    _honest(
        "recursion",
        "row_mean",
        head=_RECURSIVE,
        work="for (int64_t $r = $from; $r < $to; ++$r) $y[$r] = $sum($x + $r * $cols, $cols) / (float)$cols;",
    ),
    _honest(
        "one sum over two threads",
        "row_mean",
        """
  for (int64_t $r = 0; $r < $rows; ++$r) {
    float $sum = 0.0f;
    #pragma omp parallel for reduction(+ : $sum)
    for (int64_t $c = 0; $c < $cols; ++$c) $sum += $x[$r * $cols + $c];
    $y[$r] = $sum / (float)$cols;
  }
""",
    ),
    _honest(
        "atomic additions",
        "row_mean",
        """
  for (int64_t $r = 0; $r < $rows; ++$r) $y[$r] = 0.0f;
  #pragma omp parallel for collapse(2)
  for (int64_t $r = 0; $r < $rows; ++$r)
    for (int64_t $block = 0; $block < 4; ++$block) {
      float $part = 0.0f;
      for (int64_t $c = $cols * $block / 4; $c < $cols * ($block + 1) / 4; ++$c) $part += $x[$r * $cols + $c];
      #pragma omp atomic
      $y[$r] += $part / (float)$cols;
    }
""",
    ),
    _honest("plain argmax", "argmax"),
    _honest("argmax in lanes", "argmax", work=_ARGMAX_LANES),
    _honest("plain Newton", "newton"),
    _honest("vector intrinsics", "tiny", _INTRINSICS, head=_IMMINTRIN),
    _honest("stores past the cache", "stream", _STREAMING, head=_IMMINTRIN),
    _honest("OpenMP simd", "stream", _loop("  #pragma omp parallel for simd", "$y[$i] = $x[$i] * $k[$i] + 0.5f;")),
    _honest(
        "copies and prefetches",
        "stream",
        """
  for (int64_t $at = 0; $at < $n; $at += 512) {
    __builtin_prefetch($x + std::min($at + 1024, $n - 1));
    const int64_t $end = std::min<int64_t>($at + 512, $n);
    $work(${passed}, $at, $end);
  }
""",
    ),
    _honest("in place", "decay", _loop("  #pragma omp parallel for", _DECAY)),
    _honest("several outputs", "summary", _SUMMARY.replace("${pragma}", "#pragma omp parallel for")),
    _honest("integers", "blend", _loop("", _BLEND)),
    _honest("half precision", "half_scale", _loop("", _HALF)),
    _honest("scratch on the heap", "two_layers"),
    _honest("two shapes", "two_shapes", _rows("  #pragma omp parallel for")),
)
