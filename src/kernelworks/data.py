"""The base of all plain data that crosses a border: frozen, strict about keys, JSON on the wire."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Immutable record. Unknown keys are refused, at every depth."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
