from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelworks.app.config import DEFAULT_EVALUATIONS, Config, config_toml, load_config
from kernelworks.errors import UsageError


def written(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


def test_defaults_bind_evaluations_alone() -> None:
    config = load_config(None)
    assert config.budget.evaluations == DEFAULT_EVALUATIONS
    assert config.budget.minutes is None


def test_options_come_after_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, '[search]\nseed = 3\n[evaluation]\nthreads = 2\ntarget = "cpp"\n')
    config = load_config(path, {"search.seed": 8, "evaluation.target": None})
    assert config.search.seed == 8
    assert config.evaluation.threads == 2
    assert config.evaluation.target == "cpp"


def test_a_limit_given_as_an_option_replaces_the_files_limits(tmp_path: Path) -> None:
    path = written(tmp_path, "[budget]\nevaluations = 500\n")
    assert load_config(path, {"budget.minutes": 2.0}).budget.evaluations is None
    assert load_config(path, {"search.seed": 2}).budget.evaluations == 500


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[budget]\nevaluation = 3\n", ("evaluations, minutes in [budget]", "'budget.evaluation'")),
        ("[serach]\nseed = 1\n", ("budget, search, evaluation at top level", "'serach'")),
        ("[evaluation]\nthreads = 0\n", ("evaluation.threads", "greater than or equal to 1", "found 0")),
        ('[search]\nseed = "7"\n', ("search.seed", "a valid integer", "found '7'")),
        ("[search]\nseed = true\n", ("search.seed", "a valid integer", "found True")),
        ("[evaluation]\ncall_timeout_s = nan\n", ("evaluation.call_timeout_s", "finite", "nan")),
        ("[budget]\nminutes = inf\n", ("budget.minutes", "finite", "inf")),
        ("budget = 3\n", ("budget", "found 3")),
        ("[budget\n", ("expected TOML",)),
    ],
)
def test_a_bad_file_gets_one_sentence(tmp_path: Path, text: str, expected: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        load_config(written(tmp_path, text), {"search.proposer": "experts"})
    assert "\n" not in caught.value.message
    for part in (*expected, "run.toml"):
        assert part in caught.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.toml: expected a readable TOML file, found No such file"):
        load_config(tmp_path / "absent.toml")


@given(
    evaluations=st.none() | st.integers(1, 10**9),
    minutes=st.none() | st.floats(1e-3, 1e6),
    seed=st.integers(0, 2**63 - 1),
    proposer=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])),
)
def test_effective_form_reads_back(
    tmp_path_factory: pytest.TempPathFactory, evaluations: int | None, minutes: float | None, seed: int, proposer: str
) -> None:
    config = Config.model_validate(
        {
            "budget": {"evaluations": evaluations, "minutes": minutes},
            "search": {"seed": seed, "proposer": proposer},
        }
    )
    path = tmp_path_factory.mktemp("config") / "effective.toml"
    path.write_text(config_toml(config), encoding="utf-8")
    assert load_config(path) == config
