"""The configuration of a run: defaults, then the TOML file, then options. Strict at every depth.

``Config`` is the effective form: it has a value for everything but the half of the budget that does not bind, and it
is stored with the run.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from kernelworks.errors import UsageError
from kernelworks.evaluate.settings import OnLoad, Settings

DEFAULT_EVALUATIONS = 120


def _on_load() -> Any:
    """``KERNELWORKS_ON_LOAD``: on a machine that is always shared, waiting for quiet is in vain."""
    return os.environ.get("KERNELWORKS_ON_LOAD", "wait")


def usable_cores() -> int:
    """Logical cores that this process may use."""
    return len(os.sched_getaffinity(0))


class _Section(BaseModel):
    """A part of the configuration: no unknown key, no silent conversion, no infinite or NaN number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Budget(_Section):
    """When a run stops. The first limit that is reached stops it."""

    evaluations: int | None = Field(default=None, ge=1)
    """Kernels to evaluate; if neither limit is given, 120."""
    minutes: float | None = Field(default=None, gt=0)
    """Minutes of search, set-up and the final measurements apart."""

    @model_validator(mode="before")
    @classmethod
    def _at_least_one(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        given = cast(dict[str, Any], data)
        if given.get("evaluations") is None and given.get("minutes") is None:
            return {**given, "evaluations": DEFAULT_EVALUATIONS}
        return given


class Search(_Section):
    """How kernels are proposed."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of every random choice of the search."""
    proposer: str = "experts"


class Evaluation(_Section):
    """How kernels are built and judged."""

    target: str = "cpp"
    threads: int = Field(default_factory=usable_cores, ge=1, le=4096)
    """OpenMP threads of a candidate and of its baselines."""
    build_workers: int = Field(default_factory=usable_cores, ge=1, le=4096)
    """Builds at the same time; they pause while a timing runs."""
    call_timeout_s: float = Field(default=20.0, gt=0, le=86_400)
    """Limit of one call of a candidate."""
    build_timeout_s: float = Field(default=60.0, gt=0, le=86_400)
    """Limit of one build."""
    allow_unsandboxed: bool = False
    """Run kernels from files, models and agents although nothing confines them."""
    sanitize: bool = False
    """``evaluate``: also run kernels in a build with sanitizers. The winner of a run always is."""
    reference_timeout_s: float = Field(default=120.0, gt=0, le=86_400)
    """Limit of one run of the task's reference."""
    large: bool = False
    """Also run kernels on a case with more than 2^31 elements, where one is known and the memory is there."""

    cache: Literal["cold", "warm"] = "cold"
    """What timed calls find in the caches."""
    on_load: OnLoad = Field(default_factory=_on_load, validate_default=True)
    """What to do where other work uses the machine: ``wait``, ``mark`` the timings, or ``refuse`` to time."""
    load_limit_cores: float = Field(default=0.2, gt=0, le=4096)
    """Other work up to here is let be."""
    load_wait_s: float = Field(default=10.0, ge=0, le=86_400)
    """Time that one evaluation waits at most for other work to end."""


class Config(_Section):
    """The effective configuration."""

    budget: Budget = Field(default_factory=Budget)
    search: Search = Field(default_factory=Search)
    evaluation: Evaluation = Field(default_factory=Evaluation)


def load_config(path: Path | None, options: Mapping[str, Any] | None = None) -> Config:
    """Defaults, then the file, then ``options``: dotted keys (``budget.minutes``) whose None values are left out.

    Raises:
        UsageError: unreadable file, text that is not TOML, unknown key (at any depth), value out of range. One
            sentence that names the key, what was expected and what was found.
    """
    data = _read_toml(path) if path is not None else {}
    given = {key: value for key, value in (options or {}).items() if value is not None}
    budget = data.get("budget")
    if isinstance(budget, dict) and any(key.startswith("budget.") for key in given):
        # A limit given as an option replaces the file's limits: "--minutes 1" means one minute.
        data["budget"] = {k: v for k, v in cast(dict[str, Any], budget).items() if k not in Budget.model_fields}
    for key, value in given.items():
        section, _, name = key.partition(".")
        table = data.setdefault(section, {})
        if isinstance(table, dict):
            table[name] = value
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise UsageError(_sentence(error, str(path) if path is not None else "options")) from error


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"config {path}: expected a readable TOML file, found {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"config {path}: expected TOML, found {error}") from error


def _sentence(error: ValidationError, where: str) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        section = ".".join(str(part) for part in first["loc"][:-1])
        valid = _keys_of(first["loc"][:-1])
        place = f"in [{section}]" if section else "at top level"
        return f"config {where}: expected one of {', '.join(valid)} {place}, found the unknown key {key!r}"
    expected = first["msg"].removeprefix("Input should be ")
    return f"config {where}: {key}: expected {expected}, found {first['input']!r}"


def _keys_of(location: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = Config
    for part in location:
        model = cast(type[BaseModel], model.model_fields[str(part)].annotation)
    return list(model.model_fields)


def settings_of(evaluation: Evaluation) -> Settings:
    """How candidates are run, from this part of the configuration."""
    return Settings(
        threads=evaluation.threads,
        call_timeout_s=evaluation.call_timeout_s,
        build_timeout_s=evaluation.build_timeout_s,
        allow_unsandboxed=evaluation.allow_unsandboxed,
        sanitize=evaluation.sanitize,
        reference_timeout_s=evaluation.reference_timeout_s,
        large=evaluation.large,
        cache=evaluation.cache,
        on_load=evaluation.on_load,
        load_limit_cores=evaluation.load_limit_cores,
        load_wait_s=evaluation.load_wait_s,
    )


def config_toml(config: Config) -> str:
    """The effective configuration as TOML; ``load_config`` reads it back to the same value."""
    lines: list[str] = []
    for section, values in config.model_dump(exclude_none=True).items():
        lines.append(f"[{section}]")
        lines.extend(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items())
        lines.append("")
    return "\n".join(lines)
