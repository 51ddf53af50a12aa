"""The face of the experts to the search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from kernelworks.errors import ExpressionError, KernelError, ProposeError
from kernelworks.kernel.frontmatter import default_point, parse_kernel
from kernelworks.kernel.model import Kernel, Language, Origin
from kernelworks.kernel.model import Params as KernelParams
from kernelworks.propose.base import ProposalContext, Request
from kernelworks.propose.experts.generate import write_kernel
from kernelworks.propose.experts.moves import Move, Moves, Point
from kernelworks.propose.experts.naming import with_free_names
from kernelworks.propose.experts.recipe import Choices, choices_for, recipe_of
from kernelworks.propose.experts.recognise import OTHER_WAYS, recognise
from kernelworks.task.graph import Graph
from kernelworks.task.model import Task, size_bytes

NAME = "experts"


class ExpertProposer:
    """Writes kernels for the ``cpp`` target; see ``kernelworks.propose.base.Proposer``."""

    name = NAME

    def __init__(self) -> None:
        self._last: tuple[Graph, _Expertise] | None = None

    def seeds(self, context: ProposalContext) -> Sequence[Kernel]:
        """The first kernels, most promising first, spread over the archive's cells.

        Raises:
            ProposeError: the target is not ``cpp``, there is no trace, or no expert knows an operator.
        """
        return self._expertise(context).seeds()

    def propose(self, context: ProposalContext, request: Request) -> Kernel | None:
        """A neighbour of the first parent, or a mixture of two. Of a kernel that is not the experts', its params.

        Raises:
            ProposeError: as ``seeds``, where a parent is the experts' own.
        """
        random = Random(f"{request.seed}/{request.attempt}")
        known = {parent.id for parent in request.parents}
        written = [p for p in request.parents if p.origin.proposer == NAME and recipe_of(p.origin.recipe)]
        if written:
            made = self._expertise(context).children(written, random)
        elif request.parents:
            made = _other_points(request.parents[0], context.task, random)
        else:
            made = iter(self._expertise(context).seeds())
        return next((kernel for kernel in made if kernel.id not in known), None)

    def _expertise(self, context: ProposalContext) -> _Expertise:
        if context.target != "cpp":
            raise ProposeError(f"the experts write for the target cpp, not for {context.target}; {OTHER_WAYS}")
        if context.graph is None:
            reason = context.untraced or "there is no trace of it"
            raise ProposeError(f"the experts cannot read the reference: {reason}; {OTHER_WAYS}")
        if self._last is None or self._last[0] is not context.graph:
            self._last = (context.graph, _Expertise(context, context.graph))
        return self._last[1]


class _Expertise:
    """What is known of one task: derived from the context alone, kept to save time."""

    def __init__(self, context: ProposalContext, graph: Graph) -> None:
        programs = recognise(context.task, graph)
        self._task, self._programs = with_free_names(context.task, programs)
        self._choices: Choices = choices_for(programs, context.hardware.simd_bits)
        self._moves = Moves(self._choices)
        self._larger = _working_set_bytes(context.task) > context.hardware.l3_bytes

    def seeds(self) -> list[Kernel]:
        moves = self._moves.seeds(larger_than_cache=self._larger)
        return [self._kernel(move, Origin(proposer=NAME, operator="seed")) for move in moves]

    def children(self, parents: Sequence[Kernel], random: Random) -> Iterator[Kernel]:
        points = [self._point(parent) for parent in parents]
        mixed = len(points) > 1
        moves = (
            self._moves.mixtures(points[0], points[1], random) if mixed else self._moves.mutations(points[0], random)
        )
        ids = tuple(parent.id for parent in parents[:2])
        for move in moves:
            operator = "crossover" if mixed else "mutate"
            yield self._kernel(move, Origin(proposer=NAME, parents=ids, operator=operator, move=move.words))

    def _point(self, kernel: Kernel) -> Point:
        recipe = recipe_of(kernel.origin.recipe)
        assert recipe is not None
        integers = {name: value for name, value in kernel.params.items() if isinstance(value, int)}
        return self._moves.point(recipe, integers)

    def _kernel(self, move: Move, origin: Origin) -> Kernel:
        recipe = move.point.recipe
        text = write_kernel(self._task, self._programs, recipe, self._choices)
        params: KernelParams = dict(move.point.params)
        origin = origin.model_copy(update={"recipe": recipe.as_dict()})
        return parse_kernel(text, Language.CPP, origin, params=params)


def _working_set_bytes(task: Task) -> int:
    return max(sum(size_bytes(tensor, case) for tensor in task.tensors) for case in task.cases)


def _other_points(kernel: Kernel, task: Task, random: Random) -> Iterator[Kernel]:
    """The same text with one param or flag changed, in random order."""
    sizes = task.cases[0].sizes
    front = kernel.front
    moves: list[tuple[str, dict[str, Any]]] = []
    try:
        point = default_point(front, sizes, kernel.params)
        for name, values in front.params.items():
            for value in values:
                if value != point[name]:
                    params = {**point, name: value}
                    moves.append((f"{name}: {point[name]} -> {value}", {"params": params}))
    except (KernelError, ExpressionError):
        return  # its judge will say what is wrong with it
    for name, values in front.flags.items():
        chosen = kernel.flags.get(name, values[0])
        for value in values:
            if value != chosen:
                moves.append((f"{name}: {chosen} -> {value}", {"flags": {**kernel.flags, name: value}}))
    random.shuffle(moves)
    for words, changed in moves:
        origin = Origin(proposer=NAME, parents=(kernel.id,), operator="mutate", move=words)
        yield kernel.model_copy(update={**changed, "origin": origin, "path": ""})
