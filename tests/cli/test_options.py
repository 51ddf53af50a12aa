from __future__ import annotations

import json

import pytest

from kernelworks.cli.options import parse_overrides, print_json
from kernelworks.errors import UsageError


def test_overrides_keep_their_text() -> None:
    assert parse_overrides(["M=64", "name=a=b"]) == {"M": "64", "name": "a=b"}
    assert parse_overrides(None) == {}


@pytest.mark.parametrize("setting", ["M", "=3", "2x=3", "a b=3"])
def test_a_bad_override_is_named(setting: str) -> None:
    with pytest.raises(UsageError, match="--set: expected NAME=VALUE, found"):
        parse_overrides([setting])


def test_an_override_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="--set M: expected one value, found '1' and '2'"):
        parse_overrides(["M=1", "M=2"])


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [1, None]})
    out = capsys.readouterr().out
    assert json.loads(out) == {"a": [1, None]}
    assert out.count("\n") == 1
