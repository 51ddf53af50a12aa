"""Why an attack of the catalogue cannot be executed under a contract."""

from __future__ import annotations

from pathlib import Path

from support.evaluations import HORNER, RIGHT, bench_on, kernel, write_task

from kernelworks.evaluate.evaluation import Evaluation
from kernelworks.kernel.model import Kernel
from kernelworks.kernel.verdict import Status

FOUND = 77
LOOK = """
static bool mentioned(const char* path, const char* word) {
  FILE* file = fopen(path, "r");
  if (!file) return false;
  static char text[1 << 20];
  const size_t size = fread(text, 1, sizeof text, file);
  fclose(file);
  return memmem(text, size, word, strlen(word)) != nullptr;
}
"""


def looking_for(*words: str) -> Kernel:
    """A right kernel that returns ``FOUND`` if its process holds or was given anything of these names."""
    tests = " || ".join(
        f'mentioned("/proc/self/{place}", "{word}")' for word in words for place in ("maps", "cmdline", "environ")
    )
    return kernel(f"if ({tests}) return {FOUND};" + RIGHT, head="#include <string.h>\n" + LOOK)


def test_no_reference_in_the_process_of_a_function(tmp_path: Path) -> None:
    """F3: what a class could inherit from, or a call fall back on, is not there: no task, no framework."""
    with bench_on(write_task(tmp_path, HORNER)) as bench:
        verdict = Evaluation(bench, looking_for("horner", "numpy", "torch")).run(None)
        assert verdict.status is Status.CORRECT, verdict.findings
        control = Evaluation(bench, looking_for("libc.so")).run(None)
        assert control.status is Status.CRASHED
        assert str(FOUND) in control.findings[0].message
