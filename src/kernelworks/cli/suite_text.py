"""The attack suite as lines: one an outcome while it runs, and what it comes to."""

from __future__ import annotations

from collections import Counter

from kernelworks.kernel.verdict import Status
from kernelworks.selftest.catalogue import CATALOGUE
from kernelworks.selftest.outcome import AttackOutcome, Outcome, SuiteReport


def outcome_text(outcome: Outcome) -> str:
    """One attack or honest kernel, as it comes."""
    if isinstance(outcome, AttackOutcome):
        word = "caught" if outcome.caught else "MISSED"
        return (
            f"{word}  {outcome.id:<4}{outcome.contract.value:<9} {outcome.variant}, on {outcome.host}: {outcome.by}"
            f" ({outcome.seconds:.1f} s)"
        )
    right = outcome.status is Status.CORRECT
    problem = "" if right else f" ({outcome.status.value}: {outcome.message})"
    word = "passed" if right else "REFUSED"
    return f"{word}  honest {outcome.contract.value}: {outcome.name}, on {outcome.host}{problem}"


def suite_text(report: SuiteReport) -> str:
    """All ids with their results by contract, what caught them, and what is wrong."""
    by_id = report.by_id()
    contracts = list(dict.fromkeys(name for entry in by_id.values() for name in entry))
    lines = [f"{'id':<5}" + "".join(f"{name:<12}" for name in contracts) + "what it does"]
    for id_ in sorted(by_id, key=list(CATALOGUE).index):
        results = "".join(f"{by_id[id_].get(name, ''):<12}" for name in contracts)
        lines.append(f"{id_:<5}{results}{CATALOGUE[id_]}")
    counts = Counter(attack.by for attack in report.attacks if attack.caught)
    if counts:
        lines.append("caught by: " + ", ".join(f"{by} {count}" for by, count in counts.most_common()))
    for attack in report.attacks:
        if not attack.caught:
            lines.append(f"missed: {attack.id} {attack.contract.value}, {attack.variant}: {attack.by}")
    for honest in report.honest:
        if honest.status is not Status.CORRECT:
            lines.append(f"refused: {honest.name} ({honest.contract.value}): {honest.status.value}: {honest.message}")
    results = [result for entry in by_id.values() for result in entry.values()]
    executed = len(results) - results.count("impossible")
    lines.append(
        f"{results.count('caught')} of {executed} attacks caught, {len(report.refused)} of {len(report.honest)} honest"
        f" kernels refused, {report.elapsed_s:.0f} s, seed {report.seed}"
    )
    return "\n".join(lines)
