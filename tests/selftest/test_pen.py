from __future__ import annotations

import re
import subprocess
from pathlib import Path

from kernelworks.selftest.pen import Pen
from kernelworks.targets.compiler import find_toolchain


def test_the_same_seed_writes_the_same_and_another_does_not() -> None:
    def text(seed: int) -> str:
        pen = Pen.of(seed, "some", "labels")
        return pen.write("int $a = ${n}; int $b = $a;", n=str(pen.number(0, 10**6)))

    assert text(1) == text(1)
    names = [set(re.findall(r"[a-z]\w+", text(seed))) - {"int"} for seed in range(20)]
    assert all(len(found) == 2 for found in names)
    assert not names[0].intersection(*names[1:])


def test_one_name_stands_for_one_key_and_parts_are_filled_in_any_depth() -> None:
    pen = Pen(3)
    written = pen.write("$x ${outer} $y", outer="(${inner})", inner="$x")
    first, inner, last = written.split()
    assert inner == f"({first})"
    assert first != last


def test_hidden_strings_are_the_strings(tmp_path: Path) -> None:
    wanted = 'say "clock_gettime"\nand \\ more'
    texts: set[str] = set()
    for seed in range(6):
        pen = Pen(seed)
        expression = pen.cstring(wanted)
        texts.add(expression)
        source = tmp_path / "a.cpp"
        source.write_text(
            pen.write(
                "#include <cstdio>\n${helpers}\nint main() { fputs(${s}, stdout); }",
                s=expression,
                helpers=pen.helpers(),
            ).replace("#include <cstdio>", "#include <cstdio>\n#include <initializer_list>\n#include <string>")
        )
        binary = tmp_path / f"a{seed}"
        subprocess.run([*find_toolchain().command, str(source), "-o", str(binary)], check=True)
        assert subprocess.run([str(binary)], capture_output=True, text=True, check=True).stdout == wanted
        assert eval(pen.python_string(wanted)) == wanted
    assert len(texts) > 2
