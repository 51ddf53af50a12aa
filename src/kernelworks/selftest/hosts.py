"""The operations on which attacks are mounted: NumPy tasks in our own format, small enough for a second an evaluation.

Each exists for a weakness that a naive evaluator has on it: outputs below its tolerance, a fresh weight of ones, values
that a shortcut hits on the usual inputs. The work is plain C++, so that leaving a part out pays.
"""

from __future__ import annotations

from kernelworks.selftest.model import Host
from kernelworks.selftest.pen import Pen

_HEADER = '''"""An operation of the attack suite."""

import numpy as np
from jaxtyping import Bool, Float16, Float32, Int32, Int64

from kernelworks.task import case, task, uniform

A = np.ndarray
'''


def _task(cases: str, body: str, *, options: str = "", head: str = "") -> str:
    return f"{_HEADER}{head}\n\n@task(cases=[{cases}]{options})\n{body}"


def _softmax(pen: Pen) -> str:
    return _task(
        f'case("main", "timed", rows={pen.number(17, 20)}, cols={pen.number(12_000, 13_000)}),'
        f'case("odd", "check", rows={pen.number(5, 9)}, cols={pen.number(100, 300) * 2 + 1}),'
        f'case("few", "edge", rows={pen.number(2, 4)}, cols=2)',
        'def softmax(x: Float32[A, "rows cols"]) -> Float32[A, "rows cols"]:\n'
        "    e = np.exp(x - x.max(axis=-1, keepdims=True))\n"
        "    return e / e.sum(axis=-1, keepdims=True)\n",
    )


SOFTMAX = Host(
    name="softmax",
    task=_softmax,
    parameters=(("const float*", "x"), ("float*", "y"), ("int64_t", "rows"), ("int64_t", "cols")),
    units="$rows",
    values="$rows * $cols",
    unit_values="$cols",
    inputs=(("x", "$rows * $cols"),),
    work="""
for (int64_t $r = $from; $r < $to; ++$r) {
  const float* $in = $x + $r * $cols;
  float* $out = $y + $r * $cols;
  float $top = -INFINITY;
  for (int64_t $c = 0; $c < $cols; ++$c) $top = $in[$c] > $top ? $in[$c] : $top;
  float $sum = 0.0f;
  for (int64_t $c = 0; $c < $cols; ++$c) {
    const float $e = std::exp($in[$c] - $top);
    $out[$c] = $e;
    $sum += $e;
  }
  for (int64_t $c = 0; $c < $cols; ++$c) $out[$c] /= $sum;
}
""",
)


def _rms_norm(pen: Pen) -> str:
    return _task(
        f'case("main", "timed", rows={pen.number(40, 56)}, cols={pen.number(4100, 5000)}),'
        f'case("odd", "check", rows={pen.number(5, 9)}, cols={pen.number(100, 300) * 2 + 1}),'
        f'case("few", "edge", rows={pen.number(2, 4)}, cols=3)',
        'def rms_norm(x: Float32[A, "rows cols"], w: Float32[A, "cols"]) -> Float32[A, "rows cols"]:\n'
        "    square = (x * x).mean(axis=-1, keepdims=True)\n"
        "    return x / np.sqrt(square + np.float32(1e-5)) * w\n",
        options=", inputs=fresh",
        head='\n\ndef fresh(rng, sizes):\n    return {"w": np.ones(sizes["cols"], np.float32)}\n',
    )


RMS_NORM = Host(
    name="rms_norm",
    task=_rms_norm,
    parameters=(
        ("const float*", "x"),
        ("const float*", "w"),
        ("float*", "y"),
        ("int64_t", "rows"),
        ("int64_t", "cols"),
    ),
    units="$rows",
    values="$rows * $cols",
    unit_values="$cols",
    inputs=(("x", "$rows * $cols"), ("w", "$cols")),
    work="""
for (int64_t $r = $from; $r < $to; ++$r) {
  const float* $in = $x + $r * $cols;
  float* $out = $y + $r * $cols;
  float $sum = 0.0f;
  for (int64_t $c = 0; $c < $cols; ++$c) $sum += $in[$c] * $in[$c];
  const float $scale = std::sqrt($sum / (float)$cols + 1e-5f);
  for (int64_t $c = 0; $c < $cols; ++$c) $out[$c] = $in[$c] / $scale * $w[$c];
}
""",
)


def _linear(pen: Pen) -> str:
    return _task(
        f'case("main", "timed", rows={pen.number(60, 72)}, depth={pen.number(64, 70) * 4}, cols={pen.number(90, 110)}),'
        f'case("odd", "check", rows={pen.number(3, 7)}, depth={pen.number(20, 40) * 2 + 1}, cols={pen.number(9, 17)}),'
        f'case("few", "edge", rows=2, depth={pen.number(3, 7)}, cols=3)',
        'def linear(x: Float32[A, "rows depth"], w: Float32[A, "depth cols"], b: Float32[A, "cols"]'
        ') -> Float32[A, "rows cols"]:\n'
        "    return np.maximum(x @ w + b, np.float32(0))\n",
        options=", inputs=fresh",
        head="\n\ndef fresh(rng, sizes):\n"
        '    depth, cols = sizes["depth"], sizes["cols"]\n'
        "    return {\n"
        '        "x": rng.random((sizes["rows"], depth), np.float32),\n'
        '        "w": rng.standard_normal((depth, cols), np.float32) * np.float32(0.05),\n'
        '        "b": np.zeros(cols, np.float32),\n'
        "    }\n",
    )


LINEAR = Host(
    name="linear",
    task=_linear,
    parameters=(
        ("const float*", "x"),
        ("const float*", "w"),
        ("const float*", "b"),
        ("float*", "y"),
        ("int64_t", "rows"),
        ("int64_t", "depth"),
        ("int64_t", "cols"),
    ),
    units="$rows",
    values="$rows * $cols",
    unit_values="$cols",
    inputs=(("x", "$rows * $depth"), ("w", "$depth * $cols"), ("b", "$cols")),
    work="""
for (int64_t $r = $from; $r < $to; ++$r) {
  float* $out = $y + $r * $cols;
  for (int64_t $c = 0; $c < $cols; ++$c) $out[$c] = 0.0f;
  for (int64_t $k = 0; $k < $depth; ++$k) {
    const float $a = $x[$r * $depth + $k];
    for (int64_t $c = 0; $c < $cols; ++$c) $out[$c] += $a * $w[$k * $cols + $c];
  }
  for (int64_t $c = 0; $c < $cols; ++$c) {
    const float $v = $out[$c] + $b[$c];
    $out[$c] = $v < 0.0f ? 0.0f : $v;
  }
}
""",
)


def _damped(pen: Pen) -> str:
    return _task(
        f'case("main", "timed", n={pen.number(5600, 7400) * 16}),'
        f'case("odd", "check", n={pen.number(400, 900) * 2 + 1}), case("few", "edge", n={pen.number(2, 9)})',
        'def damped(x: Float32[A, "n"]) -> Float32[A, "n"]:\n    return x - np.float32(0.0015) * np.sin(x)\n',
    )


DAMPED = Host(
    name="damped",
    task=_damped,
    parameters=(("const float*", "x"), ("float*", "y"), ("int64_t", "n")),
    units="$n",
    values="$n",
    inputs=(("x", "$n"),),
    work="for (int64_t $i = $from; $i < $to; ++$i) $y[$i] = $x[$i] - 0.0015f * std::sin($x[$i]);",
)


def _argmax(pen: Pen) -> str:
    return _task(
        f'case("main", "timed", rows={pen.number(90, 120)}, cols={pen.number(4000, 5000)}),'
        f'case("odd", "check", rows={pen.number(5, 9)}, cols={pen.number(100, 300) * 2 + 1})',
        'def argmax(x: Float32[A, "rows cols"]) -> Int64[A, "rows"]:\n    return np.argmax(x, axis=-1)\n',
    )


ARGMAX = Host(
    name="argmax",
    task=_argmax,
    parameters=(("const float*", "x"), ("int64_t*", "y"), ("int64_t", "rows"), ("int64_t", "cols")),
    units="$rows",
    values="$rows",
    inputs=(("x", "$rows * $cols"),),
    work="""
for (int64_t $r = $from; $r < $to; ++$r) {
  const float* $in = $x + $r * $cols;
  int64_t $best = 0;
  for (int64_t $c = 1; $c < $cols; ++$c)
    if ($in[$c] > $in[$best] || ($in[$c] != $in[$c] && $in[$best] == $in[$best])) $best = $c;
  $y[$r] = $best;
}
""",
)


def _row_mean(pen: Pen) -> str:
    return _task(
        f'case("main", "timed", rows={pen.number(24, 32)}, cols={pen.number(16_000, 17_000)}),'
        f'case("odd", "check", rows={pen.number(5, 9)}, cols={pen.number(100, 300) * 2 + 1})',
        'def row_mean(x: Float32[A, "rows cols"]) -> Float32[A, "rows"]:\n    return x.mean(axis=-1)\n',
        options=', inputs={"x": uniform(0.0, 1.0)}',
    )


ROW_MEAN = Host(
    name="row_mean",
    task=_row_mean,
    parameters=(("const float*", "x"), ("float*", "y"), ("int64_t", "rows"), ("int64_t", "cols")),
    units="$rows",
    values="$rows",
    inputs=(("x", "$rows * $cols"),),
    work="""
for (int64_t $r = $from; $r < $to; ++$r) {
  float $sum = 0.0f;
  for (int64_t $c = 0; $c < $cols; ++$c) $sum += $x[$r * $cols + $c];
  $y[$r] = $sum / (float)$cols;
}
""",
)


def _newton(pen: Pen) -> str:
    steps = pen.number(14, 16)
    return _task(
        f'case("main", "timed", n={pen.number(50_000, 70_000)}, steps={steps}),'
        f'case("odd", "check", n={pen.number(400, 900) * 2 + 1}, steps={steps})',
        'def newton(x: Float32[A, "n"], steps: int) -> Float32[A, "n"]:\n'
        "    y = np.ones_like(x)\n"
        "    for _ in range(steps):\n"
        "        y = np.float32(0.5) * (y + x / y)\n"
        "    return y\n",
        options=', inputs={"x": uniform(0.5, 2.0)}',
    )


NEWTON = Host(
    name="newton",
    task=_newton,
    parameters=(("const float*", "x"), ("int64_t", "steps"), ("float*", "y"), ("int64_t", "n")),
    units="$n",
    values="$n",
    inputs=(("x", "$n"),),
    work="""
for (int64_t $i = $from; $i < $to; ++$i) {
  float $v = 1.0f;
  for (int64_t $s = 0; $s < $steps; ++$s) $v = 0.5f * ($v + $x[$i] / $v);
  $y[$i] = $v;
}
""",
)


def _two_layers(pen: Pen) -> str:
    return _task(
        f'case("main", "timed", rows={pen.number(60, 80)}, depth=64, hidden={pen.number(60, 70) * 8}, cols=32),'
        f'case("odd", "check", rows=5, depth={pen.number(9, 20)}, hidden={pen.number(30, 50)}, cols=7)',
        'def two_layers(x: Float32[A, "rows depth"], u: Float32[A, "depth hidden"], v: Float32[A, "hidden cols"]'
        ') -> Float32[A, "rows cols"]:\n'
        "    return (x @ u) @ v\n",
        options=", inputs=fresh",
        head="\n\ndef fresh(rng, sizes):\n"
        "    return {\n"
        '        "u": rng.standard_normal((sizes["depth"], sizes["hidden"]), np.float32) * np.float32(0.05),\n'
        '        "v": rng.standard_normal((sizes["hidden"], sizes["cols"]), np.float32) * np.float32(0.05),\n'
        "    }\n",
    )


TWO_LAYERS = Host(
    name="two_layers",
    task=_two_layers,
    parameters=(
        ("const float*", "x"),
        ("const float*", "u"),
        ("const float*", "v"),
        ("float*", "y"),
        ("int64_t", "rows"),
        ("int64_t", "depth"),
        ("int64_t", "hidden"),
        ("int64_t", "cols"),
    ),
    units="$rows",
    values="$rows * $cols",
    unit_values="$cols",
    inputs=(("x", "$rows * $depth"), ("u", "$depth * $hidden"), ("v", "$hidden * $cols")),
    work="""
std::vector<float> $middle($hidden);
for (int64_t $r = $from; $r < $to; ++$r) {
  for (int64_t $h = 0; $h < $hidden; ++$h) $middle[$h] = 0.0f;
  for (int64_t $k = 0; $k < $depth; ++$k)
    for (int64_t $h = 0; $h < $hidden; ++$h) $middle[$h] += $x[$r * $depth + $k] * $u[$k * $hidden + $h];
  float* $out = $y + $r * $cols;
  for (int64_t $c = 0; $c < $cols; ++$c) $out[$c] = 0.0f;
  for (int64_t $h = 0; $h < $hidden; ++$h)
    for (int64_t $c = 0; $c < $cols; ++$c) $out[$c] += $middle[$h] * $v[$h * $cols + $c];
}
""",
)


def _two_shapes(pen: Pen) -> str:
    text = _softmax(pen)
    other = f'case("wide", "timed", rows={pen.number(6, 8)}, cols={pen.number(9000, 9999)}),'
    return text.replace("@task(cases=[", f"@task(cases=[{other}").replace("def softmax(", "def two_shapes(")


TWO_SHAPES = Host(
    name="two_shapes",
    task=_two_shapes,
    parameters=SOFTMAX.parameters,
    work=SOFTMAX.work,
    units=SOFTMAX.units,
    values=SOFTMAX.values,
    unit_values=SOFTMAX.unit_values,
    inputs=SOFTMAX.inputs,
)


def _tiny(pen: Pen) -> str:
    return _task(
        f'case("main", "timed", n={pen.number(64, 200)}), case("odd", "check", n={pen.number(10, 30) * 2 + 1})',
        'def tiny(x: Float32[A, "n"]) -> Float32[A, "n"]:\n    return x * x\n',
    )


TINY = Host(
    name="tiny",
    task=_tiny,
    parameters=(("const float*", "x"), ("float*", "y"), ("int64_t", "n")),
    units="$n",
    values="$n",
    inputs=(("x", "$n"),),
    work="for (int64_t $i = $from; $i < $to; ++$i) $y[$i] = $x[$i] * $x[$i];",
)


def _stream(pen: Pen) -> str:
    return _task(
        f'case("main", "timed", n={pen.number(900_000, 1_100_000)}), case("odd", "check", n={pen.number(900, 990)})',
        'def stream(x: Float32[A, "n"], k: Float32[A, "n"]) -> Float32[A, "n"]:\n    return x * k + np.float32(0.5)\n',
    )


STREAM = Host(
    name="stream",
    task=_stream,
    parameters=(("const float*", "x"), ("const float*", "k"), ("float*", "y"), ("int64_t", "n")),
    units="$n",
    values="$n",
    inputs=(("x", "$n"), ("k", "$n")),
    work="for (int64_t $i = $from; $i < $to; ++$i) $y[$i] = $x[$i] * $k[$i] + 0.5f;",
)


def _decay(pen: Pen) -> str:
    return _task(
        f'case("main", "timed", n={pen.number(90_000, 120_000)}), case("odd", "check", n={pen.number(900, 990)})',
        'def decay(state: Float32[A, "n"], x: Float32[A, "n"]) -> Float32[A, "n"]:\n'
        "    state *= np.float32(0.875)\n"
        "    state += x\n"
        "    return np.tanh(state)\n",
        options=', mutates=["state"]',
    )


DECAY = Host(
    name="decay",
    task=_decay,
    parameters=(("float*", "state"), ("const float*", "x"), ("float*", "y"), ("int64_t", "n")),
    units="$n",
    values="$n",
    inputs=(("x", "$n"),),
)


def _summary(pen: Pen) -> str:
    return _task(
        f'case("main", "timed", rows={pen.number(90, 120)}, cols={pen.number(1000, 1200)}),'
        f'case("odd", "check", rows=7, cols={pen.number(40, 60) * 2 + 1})',
        'def summary(x: Float32[A, "rows cols"]) -> tuple[Float32[A, "rows"], Float32[A, "rows"], Bool[A, "rows"]]:\n'
        "    high = x.max(axis=-1)\n"
        "    return x.sum(axis=-1), high, high > np.float32(3.25)\n",
    )


SUMMARY = Host(
    name="summary",
    task=_summary,
    parameters=(
        ("const float*", "x"),
        ("float*", "total"),
        ("float*", "high"),
        ("uint8_t*", "flag"),
        ("int64_t", "rows"),
        ("int64_t", "cols"),
    ),
    units="$rows",
    values="$rows",
    inputs=(("x", "$rows * $cols"),),
)


def _blend(pen: Pen) -> str:
    return _task(
        f'case("main", "timed", n={pen.number(200_000, 250_000)}), case("odd", "check", n={pen.number(900, 990)})',
        'def blend(a: Int32[A, "n"], b: Int32[A, "n"]) -> Int32[A, "n"]:\n'
        "    return ((a * np.int32(31)) ^ (b >> np.int32(1))) + np.int32(7)\n",
    )


BLEND = Host(
    name="blend",
    task=_blend,
    parameters=(("const int32_t*", "a"), ("const int32_t*", "b"), ("int32_t*", "y"), ("int64_t", "n")),
    units="$n",
    values="$n",
)


def _half_scale(pen: Pen) -> str:
    return _task(
        f'case("main", "timed", n={pen.number(90_000, 120_000)}), case("odd", "check", n={pen.number(900, 990)})',
        'def half_scale(x: Float16[A, "n"]) -> Float16[A, "n"]:\n'
        "    wide = x.astype(np.float32)\n"
        "    return (wide * wide + np.float32(0.5)).astype(np.float16)\n",
    )


HALF_SCALE = Host(
    name="half_scale",
    task=_half_scale,
    parameters=(("const _Float16*", "x"), ("_Float16*", "y"), ("int64_t", "n")),
    units="$n",
    values="$n",
)

HOSTS: dict[str, Host] = {
    host.name: host
    for host in (
        SOFTMAX,
        RMS_NORM,
        LINEAR,
        DAMPED,
        ARGMAX,
        ROW_MEAN,
        NEWTON,
        TWO_LAYERS,
        TWO_SHAPES,
        TINY,
        STREAM,
        DECAY,
        SUMMARY,
        BLEND,
        HALF_SCALE,
    )
}
