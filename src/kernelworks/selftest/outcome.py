"""What the suite says at its end, as plain data."""

from __future__ import annotations

from collections import Counter
from typing import Any

from kernelworks.data import Frozen
from kernelworks.kernel.model import Contract
from kernelworks.kernel.verdict import Status
from kernelworks.selftest.catalogue import IMPOSSIBLE


class AttackOutcome(Frozen):
    """One variant of one attack."""

    id: str
    contract: Contract
    variant: str
    host: str
    caught: bool
    by: str
    """What caught it: the kind of the first finding, or in words why it does no harm; where missed, what it got."""
    status: Status
    message: str = ""
    seconds: float = 0.0


class HonestOutcome(Frozen):
    """One honest kernel."""

    name: str
    contract: Contract
    host: str
    status: Status
    message: str = ""
    seconds: float = 0.0


Outcome = AttackOutcome | HonestOutcome


class SuiteReport(Frozen):
    """All outcomes of one run."""

    seed: int
    attacks: tuple[AttackOutcome, ...]
    honest: tuple[HonestOutcome, ...]
    impossible: tuple[tuple[str, Contract], ...]
    """Entries of ``IMPOSSIBLE`` that were asked for."""
    elapsed_s: float

    @property
    def missed(self) -> tuple[str, ...]:
        """``ID/CONTRACT`` of every attack of which a variant got through."""
        return tuple(dict.fromkeys(f"{a.id}/{a.contract.value}" for a in self.attacks if not a.caught))

    @property
    def refused(self) -> tuple[str, ...]:
        """Honest kernels that are not ``correct``."""
        return tuple(h.name for h in self.honest if h.status is not Status.CORRECT)

    @property
    def ok(self) -> bool:
        """Everything caught, nobody refused."""
        return not self.missed and not self.refused

    def by_id(self) -> dict[str, dict[str, str]]:
        """``caught``, ``missed`` or ``impossible`` by id and contract. An id is caught if all its variants are."""
        found: dict[str, dict[str, str]] = {}
        for attack in self.attacks:
            entry = found.setdefault(attack.id, {})
            worst = "missed" if not attack.caught or entry.get(attack.contract.value) == "missed" else "caught"
            entry[attack.contract.value] = worst
        for id_, contract in self.impossible:
            found.setdefault(id_, {})[contract.value] = "impossible"
        return found

    def as_json(self) -> dict[str, Any]:
        """The object that ``selftest attacks --json`` prints (docs/attacks.md)."""
        by_id = self.by_id()
        results = [result for entry in by_id.values() for result in entry.values()]
        defences = Counter(a.by for a in self.attacks if a.caught)
        return {
            "attacks": {
                "total": len(results) - results.count("impossible"),
                "caught": results.count("caught"),
                "missed": list(self.missed),
                "by_id": by_id,
                "impossible": {f"{i}/{c.value}": IMPOSSIBLE[i, c] for i, c in self.impossible},
                "by_defence": dict(defences.most_common()),
                "variants": [a.model_dump(mode="json") for a in self.attacks],
            },
            "honest": {
                "total": len(self.honest),
                "refused": list(self.refused),
                "kernels": [h.model_dump(mode="json") for h in self.honest],
            },
            "seed": self.seed,
            "elapsed_s": round(self.elapsed_s, 1),
        }
