from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from support.evaluations import HEADER, HORNER, MIXED, bench_on, write_task

from kernelworks.errors import EvaluationError, TaskError
from kernelworks.evaluate.bench import Bench
from kernelworks.evaluate.families import FAMILIES
from kernelworks.evaluate.plan import families_by_case
from kernelworks.kernel.hardware import Bandwidth
from kernelworks.kernel.roofline import CaseBound

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
    planned = families_by_case(horner_bench.task)
    assert planned["odd"] == FAMILIES
    dropped = {tuple(text.split(" inputs: ")[0].split(", ")) for text in horner_bench.dropped}
    kept = {name: [f for f in planned[name] if (name, f) not in dropped] for name in planned}
    kept["main"].remove("normal")  # which is the timed one
    assert "wide" in kept["main"] and horner_bench.checks[-1].prepared.case == "main"
    assert families == kept
    assert [c.label for c in horner_bench.timed] == ["main, normal inputs"]
    assert all("disagree about what is finite" in text for text in horner_bench.dropped)
    assert {family for _, family in dropped} - {"heavy"} == {"shifted"}, "their thirteenth powers overflow"


def test_large_check_cases_get_the_draw_of_the_task_alone(module_home: Path, tmp_path: Path) -> None:
    with bench_on(write_task(tmp_path, LARGE)) as bench:
        assert [c.label for c in bench.checks if c.prepared.case == "large"] == ["large, normal inputs"]


def test_integers_from_integers_are_judged_in_every_family(mixed_bench: Bench) -> None:
    assert [c.prepared.family for c in mixed_bench.checks if c.prepared.case == "small"] == list(FAMILIES)
    assert mixed_bench.dropped == []


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
    necessary, counted = horner_bench.needs["main"]
    assert (necessary.read_bytes, necessary.written_bytes) == (4 * 65536, 4 * 65536)
    assert counted.work is None and "NumPy" in counted.untraced

    def bound(**changes: object) -> CaseBound:
        rates = {"memory": 10.0, "l3": 100.0, "l2": 1000.0}
        levels = tuple(
            Bandwidth(level=name, working_set_bytes=1, read_gbs=1.0, copy_gbs=gbs, triad_gbs=2.0)
            for name, gbs in rates.items()
        )
        caches = {"bandwidths": levels, "cores": 2, "l1_bytes": 0, "l2_bytes": 1 << 16, "l3_bytes": 1 << 20, **changes}
        return replace(horner_bench, hardware=horner_bench.hardware.model_copy(update=caches)).bound(case)

    cold = bound()
    assert (cold.level, cold.binds, cold.untraced) == ("l3", "memory", counted.untraced)
    assert cold.floor_ms == pytest.approx(524288 / 100e9 * 1e3)
    assert cold.memory_ms == pytest.approx((262144 - 131072) / 10e9 * 1e3)  # inputs come from memory after a sweep
    warm = bound(l3_bytes=1 << 30)
    assert warm.memory_ms == warm.floor_ms == pytest.approx(524288 / 100e9 * 1e3)
    assert bound(l2_bytes=1 << 20, l3_bytes=1 << 30).floor_ms == pytest.approx(524288 / 1000e9 * 1e3)
    assert bound(l3_bytes=1 << 18).floor_ms == pytest.approx(524288 / 10e9 * 1e3)


def test_calls_start_cold_where_a_sweep_can_do_it(horner_bench: Bench) -> None:
    case = horner_bench.timed[0]

    def on_cache(l3_bytes: int, l2_bytes: int = 1 << 20) -> tuple[int, str]:
        hardware = horner_bench.hardware.model_copy(update={"l3_bytes": l3_bytes, "l2_bytes": l2_bytes})
        bench = replace(horner_bench, hardware=hardware)
        return bench.flush_bytes(case), bench.cache_state(case)

    assert on_cache(32 << 20) == (64 << 20, "cold")
    assert on_cache(384 << 20) == (256 << 20, "warm")
    assert on_cache(1 << 18) == (1 << 19, "cold")  # also below the working set, whose tail would stay
    assert on_cache(0, 1 << 20) == (2 << 20, "cold")


def test_warm_is_an_option_and_labelled(horner_bench: Bench) -> None:
    case = horner_bench.timed[0]
    warm = replace(horner_bench, settings=horner_bench.settings.model_copy(update={"cache": "warm"}))
    assert (warm.flush_bytes(case), warm.cache_state(case), warm.sweep(case)) == (0, "warm", None)


def test_only_small_cases_have_twins(module_home: Path, tmp_path: Path) -> None:
    text = HORNER.replace("n=65536", "n=1048576")
    with bench_on(write_task(tmp_path, text)) as bench:
        assert bench.twins(bench.timed[0]) == (bench.timed[0],)


def test_a_renewed_bench_has_other_inputs_and_gives_them_back(horner_bench: Bench) -> None:
    case = horner_bench.timed[0]
    with horner_bench.renewed() as fresh:
        (other,) = fresh.timed
        assert other.prepared.case == case.prepared.case and other.prepared.seed != case.prepared.seed
        assert fresh.baseline_side(fresh.anchor, (other,)).time(0).elapsed_ms > 0
        assert fresh.bound_ms(other) == horner_bench.bound_ms(case)
    with pytest.raises(EvaluationError, match="prepared case"):
        horner_bench.judge.poison(other.key, 0)
    assert horner_bench.timed == [case]


def test_a_ring_that_calls_nothing_takes_some_time(horner_bench: Bench) -> None:
    case = horner_bench.timed[0]
    one, eight = horner_bench.overhead(case, 1), horner_bench.overhead(case, 8)
    assert (one.calls, eight.calls) == (1, 8)
    assert one.round_trip_ns > 0 and one.step_ns > 0 and one.idle_cpu_ns >= 0
    assert one.host_ms == one.round_trip_ns / 1e6 and eight.host_ms == eight.round_trip_ns / 8e6
    assert horner_bench.overhead(case, 1) is one


def test_a_closed_bench_has_no_cases(module_home: Path, tmp_path: Path) -> None:
    with bench_on(write_task(tmp_path, MIXED)) as bench:
        bench.close()
        assert bench.checks == bench.timed == []
        bench.close()
