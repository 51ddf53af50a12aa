"""Tasks: what must be computed, and where tasks come from.

A task file of our own format imports its vocabulary from here::

    from kernelworks.task import case, task
"""

from kernelworks.task.declare import (
    Distribution,
    TaskFunction,
    case,
    integers,
    normal,
    task,
    uniform,
)

__all__ = ["Distribution", "TaskFunction", "case", "integers", "normal", "task", "uniform"]
