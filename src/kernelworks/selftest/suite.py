"""Runs the attacks and the honest kernels, one session for each operation and contract."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kernelworks.evaluate.opponent import Opponent
from kernelworks.evaluate.session import Session
from kernelworks.evaluate.settings import Settings
from kernelworks.kernel.frontmatter import parse_kernel
from kernelworks.kernel.model import Contract, Kernel, Language, Origin
from kernelworks.kernel.verdict import Decision, Status, Verdict
from kernelworks.selftest.bait import Bait
from kernelworks.selftest.catalogue import IMPOSSIBLE
from kernelworks.selftest.listing import ATTACKS, HONEST, HOSTS, PLAIN
from kernelworks.selftest.model import Attack, Criterion, Honest, Host
from kernelworks.selftest.outcome import AttackOutcome, HonestOutcome, Outcome, SuiteReport
from kernelworks.selftest.pen import Pen
from kernelworks.task.source import TaskReference

NEVER_RAN = frozenset({Status.BUILD_ERROR, Status.SETUP_ERROR, Status.UNSUPPORTED, Status.DOES_NOT_FIT})
"""No verdict on an attack: whatever ends it here would end an honest kernel too."""
CONFIRMATIONS = 2
"""Times that an attack must be found faster than its twin: one comparison of equals in a hundred is decided."""
BUILD_WORKERS = 2
TARGETS = {Contract.FUNCTION: "cpp", Contract.MODULE: "python"}
LANGUAGES = {Contract.FUNCTION: Language.CPP, Contract.MODULE: Language.PYTHON}
CONTROL = "control"


@dataclass(frozen=True)
class Choice:
    """What to run."""

    seed: int = 0
    ids: frozenset[str] = frozenset()
    """Of attacks; empty: all, and the honest kernels."""
    contracts: frozenset[Contract] = frozenset(LANGUAGES)
    short: bool = False
    """Only the attacks and honest kernels that are marked for it: about a minute."""

    def takes(self, item: Attack | Honest) -> bool:
        """Whether it is asked for."""
        if item.contract not in self.contracts or (self.short and not item.short):
            return False
        return not self.ids or (isinstance(item, Attack) and item.id in self.ids)

    def host_of(self, item: Attack | Honest) -> str:
        """The operation: that of an honest kernel, one of an attack's by the seed."""
        if isinstance(item, Honest):
            return item.host
        if self.short:
            return item.hosts[0]  # few sessions
        return Pen.of(self.seed, "host", item.id, item.contract, item.variant).pick(*item.hosts)

    def impossible(self) -> tuple[tuple[str, Contract], ...]:
        """Entries of the catalogue that cannot be executed, of those asked for."""
        if self.short:
            return ()
        return tuple((i, c) for i, c in IMPOSSIBLE if c in self.contracts and (not self.ids or i in self.ids))


def run_suite(choice: Choice, settings: Settings, on_outcome: Callable[[Outcome], None]) -> SuiteReport:
    """Run what is chosen.

    Args:
        choice: what.
        settings: of every evaluation.
        on_outcome: told of each as it comes.

    Raises:
        EnvironmentLackError: no compiler, no torch for the module contract, or no inotify.
    """
    begun_s = time.monotonic()
    groups: dict[tuple[Contract, str], list[Attack | Honest]] = {}
    for item in filter(choice.takes, (*HONEST, *ATTACKS)):
        groups.setdefault((item.contract, choice.host_of(item)), []).append(item)
    found: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="kernelworks-attacks-") as folder:
        for (contract, host), items in groups.items():
            place = Path(folder) / f"{contract}-{host}"
            place.mkdir()
            for outcome in Stand(choice.seed, contract, host, place, settings).outcomes(items):
                found.append(outcome)
                on_outcome(outcome)
    return SuiteReport(
        seed=choice.seed,
        attacks=tuple(o for o in found if isinstance(o, AttackOutcome)),
        honest=tuple(o for o in found if isinstance(o, HonestOutcome)),
        impossible=choice.impossible(),
        elapsed_s=time.monotonic() - begun_s,
    )


@dataclass(frozen=True)
class _Prepared:
    """A kernel that is written."""

    item: Attack | Honest
    kernel: Kernel
    twin: Kernel | None
    bait: Bait


class Stand:
    """One operation under one contract: its task file, its session, and everything that is tried on it.

    Args:
        seed: of the suite.
        contract: of all kernels here.
        host: name of the operation.
        folder: new and empty.
        settings: of every evaluation.
    """

    def __init__(self, seed: int, contract: Contract, host: str, folder: Path, settings: Settings) -> None:
        self._seed = seed
        self._contract = contract
        self._host = HOSTS[contract][host]
        self._folder = folder
        self._settings = settings
        self._task_text = self._host.task(Pen.of(seed, "task", contract, host))
        path = folder / f"{host}.py"
        path.write_text(self._task_text, encoding="utf-8")
        self.reference = TaskReference(target=str(path))
        """The task."""

    def outcomes(self, items: Iterable[Attack | Honest]) -> Iterable[Outcome]:
        """One of each, after that of a control: where the plainest kernel is refused, no refusal means anything.

        A session ends with an attack that may have spoiled it.
        """
        prepared = [self.prepare(item) for item in sorted(items, key=lambda i: isinstance(i, Attack) and i.spoils)]
        attacks = [one for one in prepared if isinstance(one.item, Attack)]
        if attacks:
            control = Honest(f"{CONTROL}, {self._host.name}", self._contract, self._host.name, self._plain)
            prepared.insert(0, self.prepare(control))
        problem = ""
        session: Session | None = None
        try:
            for one in prepared:
                session = session or self._open(prepared)
                begun_s = time.monotonic()
                outcome = _tried(session, one, self._host.name, problem)
                yield outcome.model_copy(update={"seconds": round(time.monotonic() - begun_s, 2)})
                if isinstance(outcome, HonestOutcome) and outcome.name.startswith(CONTROL):
                    problem = "" if outcome.status is Status.CORRECT else f"the control is {outcome.status.value}"
                if isinstance(one.item, Attack) and one.item.spoils:
                    session.close()
                    session = None
        finally:
            if session is not None:
                session.close()
            for one in prepared:
                one.bait.close()

    def prepare(self, item: Attack | Honest) -> _Prepared:
        """Write its file, and its twin's where it is compared with one."""
        labels = (item.contract, item.name) if isinstance(item, Honest) else (item.contract, item.id, item.variant)
        place = self._folder / f"bait{len(list(self._folder.iterdir()))}"
        place.mkdir()
        bait = Bait(place, self._task_text)
        pen = Pen.of(self._seed, *labels)
        if isinstance(item, Honest):
            return _Prepared(item, self._kernel(item.write(pen, self._host)), None, bait)
        kernel = self._kernel(item.write(pen, self._host, bait))
        compared = item.criterion is Criterion.HARMLESS
        twin = self._kernel(item.twin(Pen.of(self._seed, *labels, "twin"), self._host, bait)) if compared else None
        return _Prepared(item, kernel, twin, bait)

    def _open(self, prepared: Sequence[_Prepared]) -> Session:
        """A session with everything built; the cache makes the builds of a second session free."""
        session = Session.open(self.reference, TARGETS[self._contract], self._settings)
        kernels = [k for one in prepared for k in (one.kernel, one.twin) if k is not None]
        with ThreadPoolExecutor(BUILD_WORKERS) as pool:
            list(pool.map(session.build, kernels))
        return session

    def _plain(self, pen: Pen, host: Host) -> str:
        return PLAIN[self._contract](pen, host)

    def _kernel(self, text: str) -> Kernel:
        return parse_kernel(text, LANGUAGES[self._contract], Origin(proposer="file"))


def _tried(session: Session, one: _Prepared, host: str, problem: str) -> Outcome:
    item = one.item
    one.bait.lay_out()
    verdict = _evaluated(session, one)
    message = verdict.findings[0].message if verdict.findings else ""
    if isinstance(item, Honest):
        return HonestOutcome(name=item.name, contract=item.contract, host=host, status=verdict.status, message=message)
    caught, by = (False, problem) if problem else _judged(item, verdict, one, session)
    return AttackOutcome(
        id=item.id,
        contract=item.contract,
        variant=item.variant,
        host=host,
        caught=caught,
        by=by,
        status=verdict.status,
        message=message,
    )


def _evaluated(session: Session, one: _Prepared) -> Verdict:
    """The verdict; against the twin, and again where it was found faster."""
    if one.twin is None:
        return session.evaluate(one.kernel, None)
    opponent = Opponent(kernel=one.twin, speedup=1.0, speedup_low=1.0, speedup_high=1.0)
    verdict = session.evaluate(one.kernel, opponent)
    for _ in range(CONFIRMATIONS - 1):
        if _faster_than(verdict, one.twin):
            verdict = session.evaluate(one.kernel, opponent)
    return verdict


def _faster_than(verdict: Verdict, twin: Kernel) -> bool:
    return any(c.opponent == twin.id and c.decision is Decision.FASTER for c in verdict.comparisons)


def _judged(attack: Attack, verdict: Verdict, one: _Prepared, session: Session) -> tuple[bool, str]:
    """Whether it is caught, and by what."""
    if verdict.status in NEVER_RAN:
        return False, f"did not run: {verdict.status.value}"
    if verdict.status is not Status.CORRECT:
        return True, verdict.findings[0].kind
    match attack.criterion:
        case Criterion.REFUSED:
            return False, "correct"
        case Criterion.HARMLESS:
            return _harmless(verdict, one.twin)
        case Criterion.UNTOUCHED:
            touched = one.bait.touched()
            return not touched, touched or "no access"
        case Criterion.NAMED:
            kinds = {f.kind for f in verdict.findings} | {p.kind for p in session.check_task()}
            named = attack.finding in kinds
            return named, attack.finding if named else f"correct, without {attack.finding}"


def _harmless(verdict: Verdict, twin: Kernel | None) -> tuple[bool, str]:
    assert twin is not None
    ratios = [c.ratio for c in verdict.comparisons if c.opponent == twin.id]
    if not ratios:
        return False, "not timed against its twin"
    if _faster_than(verdict, twin):
        return False, f"{max(ratios):.2f} times as fast as its twin"
    return True, "no faster than its twin"
