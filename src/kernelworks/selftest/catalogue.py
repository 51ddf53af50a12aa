"""The 47 ways to cheat that have been published or seen, by id, and where one cannot be executed.

Sections: T timing, S an answer without the work, F somebody else's code, H the harness itself.
"""

from __future__ import annotations

from kernelworks.kernel.model import Contract

CATALOGUE: dict[str, str] = {
    "T1": "work is put on a queue of its own, and the call returns",
    "T2": "a thread computes after the return",
    "T3": "the result computes itself when somebody looks at it",
    "T4": "the clock is exchanged for a slower one",
    "T5": "whatever makes figures of the times is exchanged",
    "T6": "the clock's address is redirected below the language",
    "T7": "caches that should be cold are kept warm",
    "T8": "honest until it has been called a few times",
    "T9": "one call does the work of the next ones",
    "T10": "a recorded plan is replayed on what it was recorded with",
    "T11": "the baseline is made slower",
    "T12": "a slow start, so that few repeats are chosen",
    "T13": "one shape claims no time and rules the mean",
    "T14": "an operation so small that only the call is timed",
    "S1": "memory that may still hold an answer is handed out",
    "S2": "the input is returned",
    "S3": "zeros or a constant, within an absolute tolerance",
    "S4": "a sample stands for the whole",
    "S5": "only the usual range of inputs works",
    "S6": "fewer bits than the type has",
    "S7": "a bias, weight or term that is usually neutral is left out",
    "S8": "only the known shape works",
    "S9": "answers are kept from call to call",
    "S10": "the answer was computed beforehand",
    "S11": "hyper-parameters are made smaller",
    "S12": "the input is changed, so that the expected answer changes too",
    "S13": "right first, wrong later, or where nobody looks",
    "S14": "NaN, which no comparison finds too large",
    "S15": "undefined behaviour that happens to work",
    "S16": "a race that luck wins",
    "S17": "weights are folded together once and kept",
    "S18": "wrong within what the tolerance forgives",
    "F1": "a library does the work",
    "F2": "its own code fails on purpose and a library steps in",
    "F3": "the reference itself under another name",
    "F4": "a kernel for show beside a library that works",
    "F5": "the easy part is its own, the hard part a library's",
    "H1": "the expected answer is taken from the interpreter's objects",
    "H2": "files or the network are asked for the answer",
    "H3": "the comparison is exchanged",
    "H4": "the tolerance is edited",
    "H5": "the result is forged on its way",
    "H6": "the expected answer is searched in memory",
    "H7": "counts of errors are set back",
    "H8": "the harness is traced, stopped or overwritten",
    "H9": "the reference is exchanged",
    "H10": "a process stays behind",
}
"""What happens, by id."""

IMPOSSIBLE: dict[tuple[str, Contract], str] = {
    ("F3", Contract.FUNCTION): "tests/selftest/test_impossible.py::test_no_reference_in_the_process_of_a_function",
}
"""Where an id cannot be executed under a contract: the test that shows why."""
