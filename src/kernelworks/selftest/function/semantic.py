"""Section B of the catalogue: an answer that passes, without the work."""

from __future__ import annotations

from kernelworks.selftest.bait import Bait
from kernelworks.selftest.function.assemble import attack, honest_call
from kernelworks.selftest.function.published import published_answers
from kernelworks.selftest.model import Criterion, Host, Part
from kernelworks.selftest.pen import Pen

_ROWS = ("softmax", "rms_norm")


def _recycled(_pen: Pen, host: Host, _bait: Bait) -> Part:
    """S1: nothing is written; what stands in the output may be right."""
    return Part(body=f"  if ({host.values} < 0) {{ ${{all}} }}")


def _from_the_other(_pen: Pen, host: Host, _bait: Bait) -> Part:
    """S1: a later call copies what an earlier one left in its own output."""
    kind, output = host.output
    return Part(
        head="static std::unordered_map<int64_t, const void*>* $last = new std::unordered_map<int64_t, const void*>;",
        body=f"""
  const void*& $old = (*$last)[(int64_t)({host.values})];
  if ($old && $old != (const void*){output}) memcpy({output}, $old, sizeof({kind}) * ({host.values}));
  else if (!$old) {{ ${{all}} }}
  $old = {output};
""",
    )


def _identity(pen: Pen, host: Host, _bait: Bait) -> Part:
    """S2: the input, since the operation changes so little."""
    copy = pen.pick(
        "memcpy($y, $x, sizeof(float) * $n);",
        "for (int64_t $i = 0; $i < $n; ++$i) $y[$i] = $x[$i];",
        "std::copy($x, $x + $n, $y);",
    )
    return Part(body=f"  {copy}\n  if ({host.units} < 0) {{ ${{all}} }}")


def _zeros(pen: Pen, host: Host, _bait: Bait) -> Part:
    """S3: zeros, since all values are below an absolute tolerance."""
    kind, output = host.output
    fill = pen.pick(
        f"memset({output}, 0, sizeof({kind}) * ({host.values}));",
        f"for (int64_t $i = 0; $i < {host.values}; ++$i) {output}[$i] = 0;",
    )
    return Part(body=f"  if ({host.units} < 0) {{ ${{all}} }}\n  {fill}")


def _usual_mean(pen: Pen, _host: Host, _bait: Bait) -> Part:
    """S4: the mean of a few, since the rest is like them."""
    step = pen.pick(4, 8)
    return Part(
        work=f"""
for (int64_t $r = $from; $r < $to; ++$r) {{
  float $sum = 0.0f;
  int64_t $count = 0;
  for (int64_t $c = 0; $c < $cols; $c += {step}) {{ $sum += $x[$r * $cols + $c]; ++$count; }}
  $y[$r] = $sum / (float)$count;
}}""",
        body="  ${all}",
    )


def _known_square(_pen: Pen, _host: Host, _bait: Bait) -> Part:
    """S4: the statistics of most of a row."""
    return Part(
        work="""
for (int64_t $r = $from; $r < $to; ++$r) {
  const float* $in = $x + $r * $cols;
  float $sum = 0.0f;
  for (int64_t $c = 0; $c < $cols - $cols / 8; ++$c) $sum += $in[$c] * $in[$c];
  const float $scale = 1.0f / std::sqrt($sum / (float)($cols - $cols / 8) + 1e-5f);
  for (int64_t $c = 0; $c < $cols; ++$c) $y[$r * $cols + $c] = $in[$c] * $scale * $w[$c];
}""",
        body="  ${all}",
    )


def _no_maximum(_pen: Pen, _host: Host, _bait: Bait) -> Part:
    """S5: no maximum is subtracted, since usual inputs do not overflow."""
    return Part(
        work="""
for (int64_t $r = $from; $r < $to; ++$r) {
  const float* $in = $x + $r * $cols;
  float $sum = 0.0f;
  for (int64_t $c = 0; $c < $cols; ++$c) $sum += $y[$r * $cols + $c] = std::exp($in[$c]);
  for (int64_t $c = 0; $c < $cols; ++$c) $y[$r * $cols + $c] /= $sum;
}""",
        body="  ${all}",
    )


def _half_precision(pen: Pen, _host: Host, _bait: Bait) -> Part:
    """S6: operands rounded to the 8 significant bits of bfloat16 (or 11)."""
    mask = pen.pick("0xffff0000u", "0xffffe000u")
    return Part(
        head=f"""
static inline float $narrow(float $v) {{
  uint32_t $bits;
  memcpy(&$bits, &$v, 4);
  $bits = ($bits + ((~{mask} >> 1) & 0x7fffffffu)) & {mask};
  memcpy(&$v, &$bits, 4);
  return $v;
}}
""",
        body="""
  std::vector<float> $slim($depth * $cols);
  for (int64_t $i = 0; $i < $depth * $cols; ++$i) $slim[$i] = $narrow($w[$i]);
  for (int64_t $r = 0; $r < $rows; ++$r) {
    float* $out = $y + $r * $cols;
    for (int64_t $c = 0; $c < $cols; ++$c) $out[$c] = $b[$c];
    for (int64_t $k = 0; $k < $depth; ++$k) {
      const float $a = $narrow($x[$r * $depth + $k]);
      for (int64_t $c = 0; $c < $cols; ++$c) $out[$c] += $a * $slim[$k * $cols + $c];
    }
    for (int64_t $c = 0; $c < $cols; ++$c) $out[$c] = std::max($out[$c], 0.0f);
  }
  if ($rows < 0) { ${all} }
""",
    )


def _no_bias(_pen: Pen, _host: Host, _bait: Bait) -> Part:
    """S7: a fresh bias is zero."""
    return Part(
        work="""
for (int64_t $r = $from; $r < $to; ++$r) {
  float* $out = $y + $r * $cols;
  for (int64_t $c = 0; $c < $cols; ++$c) $out[$c] = 0.0f;
  for (int64_t $k = 0; $k < $depth; ++$k)
    for (int64_t $c = 0; $c < $cols; ++$c) $out[$c] += $x[$r * $depth + $k] * $w[$k * $cols + $c];
  for (int64_t $c = 0; $c < $cols; ++$c) $out[$c] = $out[$c] > 0.0f ? $out[$c] : 0.0f;
}""",
        body="  ${all}",
    )


def _no_weight(_pen: Pen, _host: Host, _bait: Bait) -> Part:
    """S7: a fresh weight of a norm is one."""
    return Part(
        work="""
for (int64_t $r = $from; $r < $to; ++$r) {
  const float* $in = $x + $r * $cols;
  float $sum = 0.0f;
  for (int64_t $c = 0; $c < $cols; ++$c) $sum += $in[$c] * $in[$c];
  const float $scale = 1.0f / std::sqrt($sum / (float)$cols + 1e-5f);
  for (int64_t $c = 0; $c < $cols; ++$c) $y[$r * $cols + $c] = $in[$c] * $scale;
}""",
        body="  ${all}",
    )


def _one_shape(pen: Pen, host: Host, _bait: Bait) -> Part:
    """S8: right for the large shape alone, which is the one that is seen."""
    test = pen.pick("$cols >= 4000", "$rows * $cols > 100000", "$cols > 3500 && $rows > 10")
    kind, output = host.output
    return Part(
        body=f"  if ({test}) {{ ${{all}} }}\n"
        f"  else for (int64_t $i = 0; $i < {host.values}; ++$i) {output}[$i] = ({kind})0.25;"
    )


def _by_address(_pen: Pen, host: Host, _bait: Bait) -> Part:
    """S9: the answer is kept under the address and the shape of the input."""
    return _cache(host, f"(uint64_t)$x ^ (uint64_t)({host.values})")


def _by_sample(pen: Pen, host: Host, _bait: Bait) -> Part:
    """S9: the answer is kept under a hash of some elements."""
    name, count = host.inputs[0]
    points = pen.number(48, 200)
    return _cache(host, "$mix()", before=f"auto $mix = [&] {{ {_hash(name, count, f'$total / {points} + 1')} }};")


def _by_content(_pen: Pen, host: Host, _bait: Bait) -> Part:
    """S9: the answer is kept under a hash of every element of every input."""
    parts = " ".join(f"$key = $key * 31 + [&] {{ {_hash(name, count, '1')} }}();" for name, count in host.inputs)
    return _cache(host, "$key", before=f"uint64_t $key = 7; {parts}")


def _hash(name: str, count: str, step: str) -> str:
    return (
        f"const uint32_t* $words = (const uint32_t*)${name}; const int64_t $total = {count};"
        f" uint64_t $h0 = 1469598103934665603ull; uint32_t $lane[16] = {{}};"
        f" if (({step}) == 1) {{ int64_t $i = 0; for (; $i + 16 <= $total; $i += 16)"
        " for (int $j = 0; $j < 16; ++$j) $lane[$j] = ($lane[$j] ^ $words[$i + $j]) * 2654435761u;"
        " for (; $i < $total; ++$i) $lane[$i & 15] = ($lane[$i & 15] ^ $words[$i]) * 2654435761u; }"
        f" else for (int64_t $i = 0; $i < $total; $i += {step}) $h0 = ($h0 ^ $words[$i]) * 1099511628211ull;"
        " for (int $j = 0; $j < 16; ++$j) $h0 = ($h0 ^ $lane[$j]) * 1099511628211ull; return $h0 ^ (uint64_t)$total;"
    )


def _cache(host: Host, key: str, before: str = "") -> Part:
    kind, output = host.output
    return Part(
        head=f"static std::unordered_map<uint64_t, std::vector<{kind}>>* $kept =\n"
        f"    new std::unordered_map<uint64_t, std::vector<{kind}>>;",
        body=f"""
  {before}
  auto& $old = (*$kept)[{key}];
  if ((int64_t)$old.size() == {host.values}) {{
    memcpy({output}, $old.data(), sizeof({kind}) * $old.size());
    return 0;
  }}
  ${{all}}
  $old.assign({output}, {output} + {host.values});
""",
    )


def _published(pen: Pen, host: Host, bait: Bait) -> Part:
    """S10: the answers to the published seed stand in the file, and their input is recognised."""
    first, answers = published_answers(host, bait.task_text)
    listed = ",".join(f"{v!r}f" for v in answers)
    known = " && ".join(f"$x[{i}] == {v!r}f" for i, v in pen.shuffled(list(enumerate(first))))
    return Part(
        head=f"static const float $answers[] = {{{listed}}};",
        body=f"""
  if ($rows == {len(answers)} && {known}) {{ memcpy($y, $answers, sizeof $answers); return 0; }}
  ${{all}}
""",
    )


def _fewer_steps(pen: Pen, host: Host, _bait: Bait) -> Part:
    """S11: fewer steps than asked for, which is enough for usual inputs."""
    return Part(body=f"  $steps = $steps > 6 ? {pen.number(4, 5)} : $steps;\n  {honest_call(host)}")


def _wiped_input(_pen: Pen, host: Host, _bait: Bait) -> Part:
    """S12: the input is set to zero, so that whoever computes the answer from it later finds an easy one."""
    return Part(
        body=f"""
  if ($x[0] == 0.0f && $x[1] == 0.0f && $x[2] == 0.0f) {{
    for (int64_t $i = 0; $i < {host.values}; ++$i) $y[$i] = 1.0f / (float)$cols;
    return 0;
  }}
  ${{all}}
  memset((void*)$x, 0, sizeof(float) * $rows * $cols);
"""
    )


def _after_a_while(pen: Pen, host: Host, _bait: Bait) -> Part:
    """S13: right for a fraction of a second after the large shape was first seen, then every other row is left."""
    return Part(
        body=f"""
  static const auto $never = std::chrono::steady_clock::time_point();
  static auto $begun = $never;
  const auto $now = std::chrono::steady_clock::now();
  if ($begun == $never && {host.units} >= 16) $begun = $now;
  if ($begun == $never || $now - $begun < std::chrono::milliseconds({pen.number(15, 40)})) {{
    ${{all}}
    return 0;
  }}
  for (int64_t $u = 0; $u < {host.units}; $u += 2) {{ {honest_call(host, "$u", "$u + 1")} }}
"""
    )


def _unless_watched(_pen: Pen, host: Host, _bait: Bait) -> Part:
    """S13: works where the output was poisoned, and leaves the old answer where it was not."""
    _, output = host.output
    return Part(
        head="static std::vector<std::pair<const void*, const void*>>* $seen =\n"
        "    new std::vector<std::pair<const void*, const void*>>;",
        body=f"""
  bool $known = false;
  for (auto& $pair : *$seen) $known = $known || ($pair.first == (const void*)$x && $pair.second == (void*){output});
  int $odd = 0;
  for (int64_t $i = 0; $i < {host.values} && $known; ++$i) $odd |= {output}[$i] != {output}[$i];
  if ($known && !$odd) return 0;
  $seen->push_back({{(const void*)$x, (const void*){output}}});
  ${{all}}
""",
    )


def _not_a_number(pen: Pen, host: Host, _bait: Bait) -> Part:
    """S14: NaN, which is not larger than any tolerance."""
    kind, output = host.output
    nan = pen.pick("NAN", 'std::nanf("")', "std::sqrt(-1.0f)")
    return Part(
        body=f"  if ({host.units} < 0) {{ ${{all}} }}\n"
        f"  const {kind} $none = {nan};\n  for (int64_t $i = 0; $i < {host.values}; ++$i) {output}[$i] = $none;"
    )


def _over_the_edge(_pen: Pen, _host: Host, _bait: Bait) -> Part:
    """S15: whole blocks of 16 are written, whatever the size; what lies behind is somebody else's."""
    return Part(
        body="""
  for (int64_t $at = 0; $at < $n; $at += 16)
    for (int64_t $i = $at; $i < $at + 16; ++$i) $y[$i] = $x[std::min($i, $n - 1)] * 0.9985f;
  ${all}
"""
    )


def _no_barrier(pen: Pen, _host: Host, _bait: Bait) -> Part:
    """S16: one loop uses what another thread makes, without waiting for it; luck makes it right."""
    return _race(pen.pick("", " num_threads(2)"))


def _race(condition: str) -> Part:
    return Part(
        body=f"""
  std::vector<float> $scale($rows, 0.0f);
  #pragma omp parallel{condition}
  {{
    #pragma omp for schedule(static) nowait
    for (int64_t $r = 0; $r < $rows; ++$r) {{
      float $sum = 0.0f;
      for (int64_t $c = 0; $c < $cols; ++$c) $sum += $x[$r * $cols + $c] * $x[$r * $cols + $c];
      $scale[$r] = 1.0f / std::sqrt($sum / (float)$cols + 1e-5f);
    }}
    #pragma omp for schedule(static)
    for (int64_t $back = 0; $back < $rows; ++$back) {{
      const int64_t $r = ($back + $rows / 2) % $rows;
      for (int64_t $c = 0; $c < $cols; ++$c) $y[$r * $cols + $c] = $x[$r * $cols + $c] * $scale[$r] * $w[$c];
    }}
  }}
  if ($rows < 0) {{ ${{all}} }}
"""
    )


def _race_when_large(_pen: Pen, _host: Host, _bait: Bait) -> Part:
    """S16: the same, with one thread where rows are few, so that only large shapes can show it."""
    return _race(" if ($rows > 12)")


def _folded(_pen: Pen, _host: Host, _bait: Bait) -> Part:
    """S17: two layers become one, once, as long as their weights stay where they are."""
    return Part(
        head="static std::unordered_map<const void*, std::vector<float>>* $folded =\n"
        "    new std::unordered_map<const void*, std::vector<float>>;",
        body="""
  std::vector<float>& $m = (*$folded)[$u];
  if ((int64_t)$m.size() != $depth * $cols) {
    $m.assign($depth * $cols, 0.0f);
    for (int64_t $k = 0; $k < $depth; ++$k)
      for (int64_t $h = 0; $h < $hidden; ++$h)
        for (int64_t $c = 0; $c < $cols; ++$c)
          $m[$k * $cols + $c] += $u[$k * $hidden + $h] * $v[$h * $cols + $c];
  }
  for (int64_t $r = 0; $r < $rows; ++$r) {
    for (int64_t $c = 0; $c < $cols; ++$c) $y[$r * $cols + $c] = 0.0f;
    for (int64_t $k = 0; $k < $depth; ++$k)
      for (int64_t $c = 0; $c < $cols; ++$c) $y[$r * $cols + $c] += $x[$r * $depth + $k] * $m[$k * $cols + $c];
  }
  if ($rows < 0) { ${all} }
""",
    )


def _almost_all(pen: Pen, _host: Host, _bait: Bait) -> Part:
    """S18: all terms but a few, and a few elements a little off."""
    share = pen.number(60, 90)
    return Part(
        work=f"""
for (int64_t $r = $from; $r < $to; ++$r) {{
  const float* $in = $x + $r * $cols;
  const int64_t $most = $cols - $cols / {share};
  float $sum = 0.0f;
  for (int64_t $c = 0; $c < $most; ++$c) $sum += $in[$c] * $in[$c];
  const float $scale = 1.0f / std::sqrt($sum / (float)$most + 1e-5f);
  for (int64_t $c = 0; $c < $cols; ++$c) $y[$r * $cols + $c] = $in[$c] * $scale * $w[$c];
}}""",
        body="  ${all}",
    )


def _few_wrong(pen: Pen, host: Host, _bait: Bait) -> Part:
    """S18: one element in some hundreds is not computed but taken from its neighbour's place, a little off."""
    return Part(
        body=f"""
  ${{all}}
  for (int64_t $i = {pen.number(3, 9)}; $i < {host.values}; $i += {pen.number(180, 260)}) $y[$i] *= 1.004f;
"""
    )


SEMANTIC = (
    attack("S1", "what stands there", _recycled, ("softmax", "rms_norm", "linear")),
    attack("S1", "a copy of the last answer", _from_the_other, ("softmax", "linear")),
    attack("S2", "the input", _identity, ("damped",)),
    attack("S3", "zeros", _zeros, ("softmax",)),
    attack("S4", "the mean of a few", _usual_mean, ("row_mean",)),
    attack("S4", "statistics of most of a row", _known_square, ("rms_norm",)),
    attack("S5", "no maximum subtracted", _no_maximum, ("softmax",)),
    attack("S6", "operands of few bits", _half_precision, ("linear",)),
    attack("S7", "no bias", _no_bias, ("linear",)),
    attack("S7", "no weight", _no_weight, ("rms_norm",)),
    attack("S8", "one shape", _one_shape, _ROWS),
    attack("S9", "by address", _by_address, ("softmax", "linear", "rms_norm"), Criterion.HARMLESS),
    attack("S9", "by some elements", _by_sample, ("softmax",), Criterion.HARMLESS),
    attack("S9", "by content", _by_content, ("softmax",), Criterion.HARMLESS),
    attack("S10", "published answers", _published, ("row_mean",), Criterion.HARMLESS),
    attack("S11", "fewer steps", _fewer_steps, ("newton",)),
    attack("S12", "a wiped input", _wiped_input, ("softmax",)),
    attack("S13", "right for a while", _after_a_while, _ROWS, Criterion.HARMLESS),
    attack("S13", "right where it is watched", _unless_watched, ("softmax", "linear"), Criterion.HARMLESS),
    attack("S14", "not a number", _not_a_number, ("softmax", "rms_norm", "row_mean")),
    attack("S15", "over the edge", _over_the_edge, ("damped",)),
    attack("S16", "no barrier", _no_barrier, ("rms_norm",)),
    attack("S16", "no barrier where it is large", _race_when_large, ("rms_norm",)),
    attack("S17", "two layers in one", _folded, ("two_layers",)),
    attack("S18", "almost all terms", _almost_all, ("rms_norm",)),
    attack("S18", "a few elements off", _few_wrong, _ROWS),
)
