"""How much memory judging a case takes, told before anything is drawn, and whether that is there.

What the judge must hold of a case is known from its shapes alone: inputs twice (as drawn, and as kernels get them),
results in each lane and once in native precision, golden values in float64. What the reference itself needs on top is
not; where its leading rows can be computed in blocks (``blocks``), float64 takes little more, otherwise at least its
inputs once more. The estimate is therefore the least that it can be: a case that it refuses cannot be judged here.
"""

from __future__ import annotations

from kernelworks.errors import DoesNotFitError
from kernelworks.evaluate.bound import results
from kernelworks.evaluate.records import LANES
from kernelworks.targets.hardware_cpu import available_memory_bytes
from kernelworks.task.model import Case, Task, TensorArgument, element_count, size_bytes

RESERVE_SHARE = 0.05
"""Of what is left, this much is not counted on: other programs live here too."""
_DOUBLE_BYTES = 8


def least_bytes(task: Task, case: Case, *, blockwise: bool = False) -> int:
    """The least that the judge and a candidate take together while a case is prepared and run.

    Args:
        task: gives the tensors.
        case: gives their sizes.
        blockwise: float64 runs go by blocks of rows.
    """
    answers = results(task)
    sources = [a for a in (*task.inputs, *task.weights) if isinstance(a, TensorArgument)]
    inputs = sum(size_bytes(a, case) for a in sources)
    outputs = sum(size_bytes(a, case) for a in answers)
    golden = sum(_double_bytes(a, case) for a in answers)
    widened = 0 if blockwise else sum(_double_bytes(a, case) for a in sources)
    return 2 * inputs + LANES * outputs + golden + max(outputs, widened)


def refuse_oversize(task: Task, case: Case, *, blockwise: bool = False) -> None:
    """Nothing, if a case can fit.

    Raises:
        DoesNotFitError: it cannot, with the estimate.
    """
    left = available_memory_bytes()
    if left is None:
        return
    need = least_bytes(task, case, blockwise=blockwise)
    usable = int(left * (1 - RESERVE_SHARE))
    if need > usable:
        raise DoesNotFitError(
            f"case {case.name} of task {task.name} does not fit: judging it takes at least {_gib(need)} of memory,"
            f" expected at most {_gib(usable)}, which is what is left here",
            {"need_bytes": need, "left_bytes": left},
            mend="give it smaller sizes (--set NAME=VALUE), or more memory",
        )


def _double_bytes(argument: TensorArgument, case: Case) -> int:
    """Of a tensor in double precision; exact ones stay as they are."""
    if not argument.dtype.is_floating:
        return size_bytes(argument, case)
    parts = 2 if argument.dtype.value.startswith("complex") else 1
    return element_count(argument, case) * _DOUBLE_BYTES * parts


def _gib(count_bytes: int) -> str:
    return f"{count_bytes / 2**30:.3g} GiB"
