"""Whether the device still works after a candidate crashed or hung; if not, nothing more is evaluated on it."""

from __future__ import annotations

import time
from collections.abc import Callable

from kernelworks.errors import EvaluationError
from kernelworks.evaluate.doorbell import doorbell_shim
from kernelworks.evaluate.process import CandidateError, CandidatePool
from kernelworks.kernel.verdict import Finding, Status, Verdict

TRIES = 3
PAUSE_S = 1.0
"""Between tries: a device may need a moment to come back."""
CALL_S = 10.0
_FAULTS = frozenset({Status.CRASHED, Status.TIMED_OUT, Status.DISHONEST})
_FAULT_KINDS = frozenset({"out_of_bounds", "address_sanitizer"})


class DeviceHealth:
    """A record of one device; quarantined for good by the first check that fails ``TRIES`` times.

    Args:
        device: its name, for people.
        check: runs something known to be good on it; what is wrong in one sentence, empty if nothing is.
        pause_s: between tries.
    """

    def __init__(self, device: str, check: Callable[[], str], pause_s: float = PAUSE_S) -> None:
        self._device = device
        self._check = check
        self._pause_s = pause_s
        self.problem = ""
        """Why the device is in quarantine; empty while it is not."""

    def after(self, verdict: Verdict) -> None:
        """Look at the device where an evaluation ended in a way that may have harmed it."""
        if verdict.status in _FAULTS or any(finding.kind in _FAULT_KINDS for finding in verdict.findings):
            self.look()

    def look(self) -> None:
        """Check now; what fails every time is the end of the device."""
        tries = 1
        while problem := self._check():
            if tries == TRIES:
                self.problem = problem
                return
            tries += 1
            time.sleep(self._pause_s)

    def finding(self) -> Finding | None:
        """Why nothing is evaluated here; ``None`` while the device works."""
        if not self.problem:
            return None
        message = f"{self._device} does not answer any more and is left alone: {self.problem}"
        return Finding(kind="quarantine", message=message, evidence={"device": self._device, "tries": TRIES})


def check_by_call(pool: CandidatePool) -> str:
    """Start a candidate, load a library that does nothing, and call it; what is wrong, empty if nothing is."""
    try:
        with pool.start(doorbell_shim()) as candidate:
            candidate.bind("health", [])
            returned = candidate.call("health", CALL_S).returned
    except (CandidateError, EvaluationError) as error:
        return str(error)
    return "" if returned == 0 else f"a call that does nothing returned {returned}"
