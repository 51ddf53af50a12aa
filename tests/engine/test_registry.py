from __future__ import annotations

from pathlib import Path

import pytest
from support.evaluations import HORNER, SETTINGS, write_task

from kernelworks.engine.local import LocalEngine
from kernelworks.engine.registry import open_engine
from kernelworks.errors import UsageError
from kernelworks.evaluate.session import Session


def test_the_local_engine_is_found_by_name(tmp_path: Path) -> None:
    with Session.open(write_task(tmp_path, HORNER), "cpp", SETTINGS) as session:
        engine = open_engine("local", session, build_workers=1)
        assert isinstance(engine, LocalEngine)
        with pytest.raises(UsageError, match=r"engine 'grid': expected one of the registered engines \(.*local.*\)"):
            open_engine("grid", session, build_workers=1)
        engine.close()
