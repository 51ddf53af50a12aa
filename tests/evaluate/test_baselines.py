from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.references import numpy_task, prepared, reference_of, tensor

import kernelworks
from kernelworks.errors import EvaluationError
from kernelworks.evaluate.baselines import Baselines
from kernelworks.evaluate.casestate import view
from kernelworks.evaluate.heap import heap_environment
from kernelworks.evaluate.records import Heap
from kernelworks.task.model import DType

Array = NDArray[Any]


def test_a_numpy_reference_is_its_own_anchor() -> None:
    loaded = numpy_task(lambda x: x * 2, [tensor("x", "n")], [tensor("y", "n")], {"n": 1 << 16})
    state = prepared(loaded)
    baselines = Baselines(reference_of(loaded))
    assert baselines.names().names == ("reference",)
    baselines.warm("reference", state)
    timed = baselines.time("reference", [state] * 5, 1 << 20)
    assert len(timed.elapsed_ns) == len(timed.page_faults) == 5
    assert min(timed.elapsed_ns) > 0
    state.close()


def test_baselines_read_the_shared_inputs() -> None:
    seen: list[float] = []

    def spy(x: Array) -> Array:
        seen.append(float(x[0]))
        return x * 2

    loaded = numpy_task(spy, [tensor("x", "n")], [tensor("y", "n")], {"n": 100})
    state = prepared(loaded)
    baselines = Baselines(reference_of(loaded))
    baselines.warm("reference", state)
    view(state.shared["x"], DType.FLOAT32)[0] = 12345
    baselines.time("reference", [state], 0)
    assert seen[-1] == 12345
    state.close()


def test_inputs_changed_in_place_are_restored_before_every_call() -> None:
    seen: list[float] = []

    def accumulate(x: Array, y: Array) -> None:
        seen.append(float(y[0]))
        y += x

    loaded = numpy_task(accumulate, [tensor("x", "n"), tensor("y", "n")], [], {"n": 100}, mutates=("y",))
    state = prepared(loaded)
    seen.clear()
    baselines = Baselines(reference_of(loaded))
    baselines.warm("reference", state)
    for _ in range(3):
        baselines.time("reference", [state], 0)
    assert len(seen) > 3
    assert set(seen) == {float(state.drawn[1][0])}
    assert np.array_equal(view(state.lanes[0]["y"], DType.FLOAT32), state.drawn[1]), "a candidate's input is untouched"
    state.close()


def test_unknown_and_cold_baselines_are_refused() -> None:
    loaded = numpy_task(lambda x: x * 2, [tensor("x", "n")], [tensor("y", "n")], {"n": 100})
    state = prepared(loaded)
    baselines = Baselines(reference_of(loaded))
    with pytest.raises(EvaluationError, match="expected one of reference, found 'eager'"):
        baselines.warm("eager", state)
    with pytest.raises(EvaluationError, match="expected it warm"):
        baselines.time("reference", [state], 0)
    baselines.warm("reference", state)
    baselines.forget(state.key)
    with pytest.raises(EvaluationError, match="expected it warm"):
        baselines.time("reference", [state], 0)
    state.close()


HEAP = """
import json, resource, sys
from pathlib import Path
import numpy as np
from kernelworks.evaluate.heap import scratch

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(8 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident_pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

heap = sys.argv[1]
faults(), faults()
start = resident_pages()
with scratch(heap):
    np.ones(24 << 20)
scratched = resident_pages()
again = faults()
np.ones(24 << 20)
print(json.dumps([again, scratched - start, resident_pages() - start]))
"""


@pytest.mark.parametrize("heap", ["warm", "default"])
def test_the_warm_heap_keeps_its_pages_but_not_those_of_scratch_work(heap: Heap) -> None:
    if not (os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""):
        pytest.skip("needs glibc")
    source = str(Path(kernelworks.__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", HEAP, heap],
        env={**os.environ, **heap_environment(heap), "PYTHONPATH": source},
        capture_output=True,
        check=True,
    )
    faults, kept_of_scratch, kept = json.loads(done.stdout)
    size_pages = (64 << 20) // resource.getpagesize()  # of the array whose faults are counted; the large one is 3 such
    few = size_pages // 800  # with transparent huge pages there is one fault for 512 pages
    if heap == "warm":
        assert faults < few
        assert kept_of_scratch < size_pages // 2 < size_pages < kept
    else:
        assert faults > few
        assert kept < size_pages // 2
