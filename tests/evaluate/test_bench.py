from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from support.evaluations import HEADER, MIXED, bench_on, write_task

from kernelworks.errors import TaskError
from kernelworks.evaluate.bench import CHECK_FAMILIES, EDGE_FAMILIES, Bench
from kernelworks.kernel.hardware import Bandwidth

NEVER_FINITE = (
    HEADER
    + """
@task(cases=[case("main", "timed", n=64)])
def overflow(x: Float32[A, "n"]) -> Float32[A, "n"]:
    with np.errstate(over="ignore"):
        return x * x.dtype.type(3e38) * x.dtype.type(1e30)
"""
)
LARGE = (
    HEADER
    + """
@task(cases=[case("main", "timed", n=64), case("large", "check", n=9_000_000)])
def twice(x: Float32[A, "n"]) -> Float32[A, "n"]:
    return x * np.float32(2)
"""
)


def test_small_cases_are_prepared_in_several_families(horner_bench: Bench) -> None:
    families: defaultdict[str, list[str]] = defaultdict(list)
    for case in horner_bench.checks:
        families[case.prepared.case].append(case.prepared.family)
    assert families == {"odd": list(CHECK_FAMILIES), "seven": list(EDGE_FAMILIES), "eight": list(EDGE_FAMILIES)}
    assert [c.label for c in horner_bench.timed] == ["main, normal inputs"]
    assert horner_bench.dropped == []


def test_large_check_cases_get_the_draw_of_the_task_alone(module_home: Path, tmp_path: Path) -> None:
    with bench_on(write_task(tmp_path, LARGE)) as bench:
        assert [c.label for c in bench.checks] == ["large, normal inputs"]


def test_families_that_cannot_judge_are_listed_with_the_reason(mixed_bench: Bench) -> None:
    names = [text.split(":")[0] for text in mixed_bench.dropped]
    assert names == ["small, integers inputs", "small, constant inputs"]
    assert all("undetermined" in text for text in mixed_bench.dropped)


def test_a_timed_case_that_cannot_be_judged_is_refused(module_home: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(TaskError, match=r"case main: expected inputs on which answers can be judged: .*finite"),
        bench_on(write_task(tmp_path, NEVER_FINITE)),
    ):
        pass


def test_as_called_prepares_timed_cases_alone(module_home: Path, tmp_path: Path) -> None:
    with bench_on(write_task(tmp_path, MIXED), heap="default") as bench:
        assert (bench.policy, bench.checks, bench.anchor) == ("as_called", [], "reference")
        assert [c.prepared.case for c in bench.timed] == ["wide", "tall"]


def test_seeds_are_not_known_beforehand(horner_bench: Bench) -> None:
    assert len({c.prepared.seed for c in horner_bench.checks}) == len(horner_bench.checks)


def test_the_bound_is_that_of_the_level_where_the_working_set_lives(horner_bench: Bench) -> None:
    case = horner_bench.timed[0]
    assert case.working_set_bytes == 2 * 4 * 65536
    assert horner_bench.necessary_bytes == {"main": 2 * 4 * 65536}

    def rates(working_set_bytes: int, gbs: float) -> Bandwidth:
        return Bandwidth(level="x", working_set_bytes=working_set_bytes, read_gbs=1.0, copy_gbs=gbs, triad_gbs=2.0)

    def bound_ms(*levels: Bandwidth) -> float:
        hardware = horner_bench.hardware.model_copy(update={"bandwidths": levels})
        return replace(horner_bench, hardware=hardware).bound_ms(case)

    small, fitting, large = rates(1 << 10, 1000.0), rates(1 << 20, 100.0), rates(1 << 30, 10.0)
    assert bound_ms(large, fitting, small) == pytest.approx(524288 / 100e9 * 1e3)
    assert bound_ms(small) == pytest.approx(524288 / 1000e9 * 1e3)
    assert bound_ms(rates(1 << 20, 0.5)) == pytest.approx(524288 / 2e9 * 1e3)


def test_calls_start_cold_where_a_sweep_can_do_it(horner_bench: Bench) -> None:
    case = horner_bench.timed[0]

    def on_cache(l3_bytes: int, l2_bytes: int = 1 << 20) -> tuple[int, str]:
        hardware = horner_bench.hardware.model_copy(update={"l3_bytes": l3_bytes, "l2_bytes": l2_bytes})
        bench = replace(horner_bench, hardware=hardware)
        return bench.flush_bytes(case), bench.cache_state(case)

    assert on_cache(32 << 20) == (64 << 20, "cold")
    assert on_cache(384 << 20) == (256 << 20, "warm")
    assert on_cache(1 << 18) == (0, "cold")
    assert on_cache(0, 1 << 20) == (2 << 20, "cold")


def test_a_closed_bench_has_no_cases(module_home: Path, tmp_path: Path) -> None:
    with bench_on(write_task(tmp_path, MIXED)) as bench:
        bench.close()
        assert bench.checks == bench.timed == []
        bench.close()
