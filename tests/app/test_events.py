from __future__ import annotations

import json

from support.samples import correct_verdict

from kernelworks.app.events import EVENT_ADAPTER, Evaluated, Trying, event_json
from kernelworks.kernel.verdict import Comparison, Decision


def test_events_read_back_from_json() -> None:
    event = Trying(elapsed_s=1.5, number=3, kernel="ab", operator="mutate", move="unroll 2 -> 4")
    assert EVENT_ADAPTER.validate_json(event_json(event)) == event


def test_an_evaluated_event_leaves_the_samples_out() -> None:
    comparison = Comparison(
        opponent="eager",
        policy="kernel",
        case="large",
        time_ms=1.0,
        opponent_time_ms=2.0,
        ratio=2.0,
        ratio_low=1.9,
        ratio_high=2.1,
        decision=Decision.FASTER,
        blocks=1,
        cache="cold",
        samples_ms=((1.0, 1.0, 2.0, 2.0),),
        orders="a",
    )
    verdict = correct_verdict("ab", 2.0).model_copy(update={"comparisons": (comparison,)})
    text = event_json(Evaluated(elapsed_s=2.0, number=3, evaluations=1, kernel="ab", verdict=verdict))
    assert json.loads(text)["verdict"]["comparisons"][0]["ratio"] == 2.0
    assert "samples_ms" not in text
    assert EVENT_ADAPTER.validate_json(text).kind == "evaluated"
