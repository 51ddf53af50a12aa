from __future__ import annotations

import pytest
from support.builds import kernel_text, make_kernel, scale_task

from kernelworks.evaluate.domain import Domain, domain_of
from kernelworks.evaluate.endings import EndedEvaluation
from kernelworks.kernel.hardware import Hardware
from kernelworks.kernel.model import Params
from kernelworks.kernel.verdict import Status
from kernelworks.task.model import Case, CaseRole, Task

MACHINE = Hardware(name="a machine", kind="cpu", cores=2, simd_bits=512, features=("avx2", "avx512"))


def task_with_edges(*sizes: int) -> Task:
    task = scale_task()
    edges = tuple(Case(name=f"edge{n}", role=CaseRole.EDGE, sizes={"n": n}) for n in sizes)
    return task.model_copy(update={"cases": (*task.cases, *edges)})


def domain(front: str = "", task: Task | None = None, params: Params | None = None) -> Domain:
    return domain_of(make_kernel(kernel_text("y[i] = 0;", front=front), params=params), task or scale_task(), MACHINE)


def refusal(front: str, params: Params | None = None) -> tuple[Status, str, str]:
    with pytest.raises(EndedEvaluation) as caught:
        domain(front, params=params)
    (finding,) = caught.value.findings
    return caught.value.status, finding.kind, finding.message


def test_without_conditions_every_case_lies_inside() -> None:
    assert domain() == Domain(point={}, cases=frozenset({"small", "large"}), coverage=1.0)


def test_edge_cases_may_lie_outside() -> None:
    found = domain("covers: [n > 3]\nconstraints: [n != 5]\n", task_with_edges(1, 2, 4, 5))
    assert found.cases == {"small", "large", "edge4"}
    assert found.coverage == 0.25


@pytest.mark.parametrize("key", ["covers", "constraints"])
def test_timed_and_check_cases_must_lie_inside(key: str) -> None:
    message = "expected n % 8 == 0 in every timed and check case, found case small with n 7"
    assert refusal(f"{key}: [n > 2, n % 8 == 0]\n") == (Status.INVALID, "kernel", message)


def test_the_point_is_the_first_that_the_first_timed_case_allows() -> None:
    assert domain("params: {B: [3000000, 4, 2], C: [1, 2]}\nconstraints: [B <= n]\ncovers: [n >= B]\n").point == {
        "B": 4,
        "C": 1,
    }


def test_params_are_known_to_conditions() -> None:
    front = "params: {B: [4, 8]}\ncovers: [n >= B]\n"
    assert domain(front).point == {"B": 4}
    found = refusal(front, params={"B": 8})
    assert found[2] == "expected n >= B in every timed and check case, found case small with n 7"


def test_names_of_let_are_known_to_conditions() -> None:
    front = "params: {B: [16, 2]}\nlet: {TWO: 2 * B, FOUR: 2 * TWO}\nconstraints: [FOUR <= 8]\ncovers: [n >= TWO]\n"
    assert domain(front).point == {"B": 2}


def test_what_the_device_lacks_is_unsupported() -> None:
    assert domain("needs: [avx512, avx2]\n").coverage == 1.0
    found = refusal("needs: [avx512, sm_90a, cluster]\n")
    assert found == (Status.UNSUPPORTED, "needs", "needs sm_90a, cluster, which a machine does not have")


@pytest.mark.parametrize(
    ("front", "params", "kind", "said"),
    [
        ("covers: [rows > 1]\n", None, "expression", "unknown name 'rows'"),
        ("covers: [n // 0 > 1]\n", None, "expression", "zero"),
        ("params: {B: [1]}\nconstraints: [B > 1]\n", None, "kernel", "found none"),
        ("params: {B: [1]}\n", {"B": 2}, "kernel", "param B: expected one of [1], found 2"),
        ("", {"Z": 2}, "kernel", "param Z"),
    ],
)
def test_conditions_that_cannot_be_decided_are_invalid(front: str, params: Params | None, kind: str, said: str) -> None:
    found = refusal(front, params)
    assert found[:2] == (Status.INVALID, kind)
    assert said in found[2]
