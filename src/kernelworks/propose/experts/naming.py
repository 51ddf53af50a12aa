"""Names of the prototype that would clash with those of the generated code are changed; only their order binds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from kernelworks.errors import ProposeError
from kernelworks.propose.experts.ir import Program
from kernelworks.task.model import Task

PARAM_NAMES = frozenset({"LANES", "UNROLL", "TILE", "BLOCK", "CHUNK", "PREFETCH", "RUN"})
_USED = frozenset(
    "INLINE UNROLLED UNROLLED_TILE Lane Vec Bits Mask Native Short Word Wide Bytes S Body splat select as_bits"
    " as_value to_value load store stream fence keep sweep widen narrow maximum minimum online_add online_end"
    " online_across malloc free abort aligned_alloc task tasks pieces start size width tile vectors tail lanes part"
    " c u v parts kept_at from to splat_wide Half HalfVec".split()
)
"""Names in ``launch`` and those that it uses."""
_PATTERNS = re.compile(
    r"(n\d+|i\d+|kept_\d+|\w+_of|\w+_across|\w+_row|\w+_rows|\w+_here|\w+_parts|\w+_run|\w+_partial|\w+_total)\Z"
)
_WORD = re.compile(r"[A-Za-z_]\w*")


def with_free_names(task: Task, programs: Sequence[Program]) -> tuple[Task, tuple[Program, ...]]:
    """The task and programs with arguments and dims renamed where needed.

    ``covers`` keeps the task's own names, since it is read outside of the code.

    Raises:
        ProposeError: the task uses a name that the kernels' params have.
    """
    names = [a.name for a in task.arguments] + list(task.dims)
    clash = sorted(PARAM_NAMES & {*names, *task.constants})
    if clash:
        raise ProposeError(f"the experts' kernels use the name {clash[0]} for a param, and so does task {task.name!r}")
    taken = set(names)
    renamed: dict[str, str] = {}
    for name in names:
        if name in _USED or _PATTERNS.match(name):
            free = f"arg_{name}"
            while free in taken:
                free += "_"
            taken.add(free)
            renamed[name] = free
    if not renamed:
        return task, tuple(programs)
    return _task(task, renamed), tuple(_program(program, renamed) for program in programs)


def _task(task: Task, renamed: Mapping[str, str]) -> Task:
    data = task.model_dump()
    for argument in (*data["inputs"], *data["weights"], *data["outputs"]):
        argument["name"] = renamed.get(argument["name"], argument["name"])
        if "shape" in argument:
            argument["shape"] = tuple(renamed.get(axis, axis) for axis in argument["shape"])
    data["dims"] = tuple(renamed.get(dim, dim) for dim in task.dims)
    for case in data["cases"]:
        case["sizes"] = {renamed.get(dim, dim): size for dim, size in case["sizes"].items()}
    return Task.model_validate(data)


def _program(program: Program, renamed: Mapping[str, str]) -> Program:
    def text(found: str) -> str:
        return _WORD.sub(lambda match: renamed.get(match[0], match[0]), found)

    return replace(
        program,
        axes=tuple(replace(axis, size=text(axis.size)) for axis in program.axes),
        nodes=tuple(
            replace(node, name=renamed.get(node.name, node.name), count=text(node.count))
            if node.op in ("load", "scalar", "count")
            else node
            for node in program.nodes
        ),
        outputs=tuple(replace(o, argument=renamed.get(o.argument, o.argument)) for o in program.outputs),
        strides={
            renamed.get(name, name): {axis: text(stride) for axis, stride in strides.items()}
            for name, strides in program.strides.items()
        },
    )
