from __future__ import annotations

import pytest

from kernelworks.errors import UsageError
from kernelworks.propose.experts import ExpertProposer
from kernelworks.propose.registry import available_proposers, get_proposer


def test_the_experts_are_registered() -> None:
    assert "experts" in available_proposers()
    assert isinstance(get_proposer("experts"), ExpertProposer)


def test_an_unknown_proposer_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'oracle'.*experts"):
        get_proposer("oracle")
