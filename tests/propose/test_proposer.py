from __future__ import annotations

import importlib
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest

from kernelworks.errors import ProposeError
from kernelworks.kernel.frontmatter import default_point, holds, parse_kernel
from kernelworks.kernel.model import Kernel, Language, Origin
from kernelworks.propose.base import Request
from kernelworks.propose.experts import ExpertProposer
from kernelworks.targets.base import Artefact
from kernelworks.targets.cpp import CppTarget

from .conftest import Job
from .test_generate import SAMPLES, job_of

# torch has partial types only.
torch: Any = importlib.import_module("torch")

PROPOSALS = 40


@pytest.fixture(scope="module")
def job() -> Job:
    return job_of(SAMPLES["rows"])


def mutate(proposer: ExpertProposer, job: Job, parent: Kernel, seed: int, attempt: int = 0) -> Kernel:
    request = Request(operator="mutate", parents=(parent,), seed=seed, attempt=attempt)
    made = proposer.propose(job.context, request)
    assert made is not None
    return made


def test_seeds_are_distinct_kernels_at_valid_points(job: Job) -> None:
    seeds = ExpertProposer().seeds(job.context)
    assert 6 <= len(seeds) <= 12
    assert len({seed.id for seed in seeds}) == len(seeds)
    for seed in seeds:
        assert default_point(seed.front, job.task.cases[0].sizes, seed.params) == seed.params
        assert holds(seed.front.covers, job.task.cases[0].sizes)
        assert seed.front.idea
        assert seed.origin.operator == "seed"


def test_seeds_spread_over_the_archive(job: Job) -> None:
    target = CppTarget()
    cells: set[tuple[int, int, int]] = set()
    for seed in ExpertProposer().seeds(job.context):
        artefact = target.build(job.task, seed)
        assert isinstance(artefact, Artefact), artefact
        assert artefact.descriptor is not None
        cells.add(artefact.descriptor.cell)
    for axis in range(3):
        assert len({cell[axis] for cell in cells}) >= 3
    assert len(cells) >= 5


def test_children_are_new_say_what_changed_and_keep_their_recipe(job: Job) -> None:
    proposer = ExpertProposer()
    parent = proposer.seeds(job.context)[0]
    seen: set[str] = set()
    for seed in range(PROPOSALS):
        child = mutate(proposer, job, parent, seed)
        assert child.id != parent.id
        assert child.origin.parents == (parent.id,)
        assert "->" in child.origin.move
        assert child.origin.recipe
        seen.add(child.id)
        parent = child if seed % 4 == 0 else parent
    assert len(seen) > PROPOSALS / 2


def test_proposals_depend_on_the_request_alone(job: Job) -> None:
    first, second = ExpertProposer(), ExpertProposer()
    parent = first.seeds(job.context)[2]
    for seed in range(5):
        one, other = mutate(first, job, parent, seed), mutate(second, job, parent, seed)
        assert one == other
    assert len({mutate(first, job, parent, 0, attempt).id for attempt in range(6)}) > 1


def test_crossover_mixes_two_recipes(job: Job) -> None:
    proposer = ExpertProposer()
    seeds = proposer.seeds(job.context)
    for k, (first, second) in enumerate(pairwise(seeds)):
        request = Request(operator="crossover", parents=(first, second), seed=k)
        child = proposer.propose(job.context, request)
        assert child is not None
        assert child.id not in (first.id, second.id)
        assert child.origin.operator == "crossover"
        assert child.origin.parents == (first.id, second.id)
        if "too alike" not in child.origin.move:
            allowed: list[Any] = [seed.origin.recipe for seed in (first, second)]
            changed = {n: v for n, v in child.origin.recipe.items() if all(v != recipe[n] for recipe in allowed)}
            # A value of neither parent appears only where theirs exclude each other.
            assert set(changed) <= {"stores", "buffer", "style", "math"}


def test_a_user_kernel_is_varied_by_its_params(job: Job) -> None:
    text = """/*---
contract: function
params: {A: [1, 2], B: [true, false]}
constraints: ["A == 1 or B"]
flags: {OPT: ["-O3", "-O2"]}
---*/
extern "C" int launch() { return A + B; }
"""
    parent = parse_kernel(text, Language.CPP, Origin(proposer="file", operator="file"))
    proposer = ExpertProposer()
    children = [mutate(proposer, job, parent, seed) for seed in range(12)]
    assert {child.text for child in children} == {text}
    assert all(child.id != parent.id for child in children)
    assert {child.origin.move for child in children} == {"A: 1 -> 2", "B: True -> False", "OPT: -O3 -> -O2"}


def test_a_user_kernel_without_params_leaves_no_move(job: Job) -> None:
    parent = parse_kernel("/*---\ncontract: function\n---*/\n", Language.CPP, Origin(proposer="file"))
    assert ExpertProposer().propose(job.context, Request(operator="mutate", parents=(parent,), seed=0)) is None


def test_other_targets_and_missing_traces_are_refused(job: Job) -> None:
    with pytest.raises(ProposeError, match="not for cuda"):
        ExpertProposer().seeds(job.context.model_copy(update={"target": "cuda"}))
    with pytest.raises(ProposeError, match="it is numpy"):
        ExpertProposer().seeds(job.context.model_copy(update={"graph": None, "untraced": "it is numpy"}))


def test_a_task_that_uses_a_params_name_is_refused() -> None:
    from .conftest import make_job

    made = make_job(torch.relu, {"LANES": torch.empty(4, 4)})
    with pytest.raises(ProposeError, match="LANES"):
        ExpertProposer().seeds(made.context)


def test_importing_the_experts_loads_no_template_engine() -> None:
    code = "import sys, kernelworks.propose.experts; print({'jinja2', 'torch', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
