from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.runs import META, judge, propose

import kernelworks
from kernelworks.errors import StoreError
from kernelworks.kernel.descriptor import Descriptor, Evidence
from kernelworks.kernel.model import Contract, FrontMatter, Kernel, Language, Origin
from kernelworks.kernel.outcome import Outcome
from kernelworks.kernel.verdict import Baseline, Comparison, Decision, Finding, Status, Verdict
from kernelworks.search import Ask
from kernelworks.store.lock import is_locked
from kernelworks.store.run import RunStore

SOURCE = str(Path(kernelworks.__file__).parents[1])


def program(text: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([SOURCE, str(Path(__file__).parents[1])])},
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
    )


def kernel_of(seed: int) -> Kernel:
    kernel = propose(Ask(number=1, operator="seed", seed=seed, seed_index=seed))
    assert kernel is not None
    return kernel


words = st.text(max_size=30)
finite = st.floats(allow_nan=False, allow_infinity=False)
numbers = st.floats(allow_nan=True, allow_infinity=True)
scalars = st.integers() | finite | st.booleans() | words
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | finite | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
fronts = st.builds(
    FrontMatter,
    lang=st.sampled_from(Language),
    contract=st.sampled_from(Contract),
    idea=words,
    params=st.dictionaries(words, st.lists(scalars, max_size=3).map(tuple), max_size=3),
    flags=st.dictionaries(words, st.lists(words, max_size=3).map(tuple), max_size=2),
    let=st.dictionaries(words, words, max_size=2),
)
origins = st.builds(
    Origin,
    proposer=words,
    parents=st.lists(words, max_size=2).map(tuple),
    operator=words,
    move=words,
    recipe=st.dictionaries(words, json_values, max_size=3),
)
kernels = st.builds(
    Kernel,
    text=st.text(),
    front=fronts,
    params=st.dictionaries(words, scalars, max_size=3),
    flags=st.dictionaries(words, words, max_size=2),
    origin=origins,
    path=words,
)
comparisons = st.builds(
    Comparison,
    opponent=words,
    policy=st.sampled_from(["kernel", "as_called"]),
    case=words,
    time_ms=finite,
    opponent_time_ms=finite,
    ratio=finite,
    ratio_low=numbers.filter(lambda x: x == x),
    ratio_high=numbers.filter(lambda x: x == x),
    decision=st.sampled_from(Decision),
    blocks=st.integers(0, 96),
    cache=st.sampled_from(["cold", "warm"]),
    samples_ms=st.lists(st.tuples(finite, finite, finite, finite), max_size=4).map(tuple),
    orders=words,
)
findings = st.builds(Finding, kind=words, message=words, evidence=st.dictionaries(words, json_values, max_size=2))
descriptors = st.builds(
    Descriptor,
    memory=st.integers(0, 3),
    compute=st.integers(0, 3),
    parallelism=st.integers(0, 3),
    basis=words,
    evidence=st.lists(st.builds(Evidence, axis=words, address=words, instruction=words, reason=words), max_size=2).map(
        tuple
    ),
)
positive = st.floats(min_value=1e-300, allow_nan=False, allow_infinity=False)


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    status = draw(st.sampled_from(Status))
    timed = status is Status.CORRECT and draw(st.booleans())
    low, high = sorted([draw(positive), draw(positive)])
    return Verdict(
        kernel=draw(words),
        path=draw(words),
        status=status,
        decision=draw(st.sampled_from(Decision)) if timed else None,
        speedup=draw(positive) if timed else None,
        speedup_low=low if timed else None,
        speedup_high=high if timed else None,
        time_ms=draw(positive) if timed else None,
        contract=draw(st.none() | st.sampled_from(Contract)),
        params=draw(st.dictionaries(words, scalars, max_size=2)),
        flags=tuple(draw(st.lists(words, max_size=3))),
        host_ms=draw(st.none() | finite),
        coverage=draw(st.none() | finite),
        roofline=draw(st.none() | finite),
        cache=draw(st.sampled_from([None, "cold", "warm"])),
        baselines=tuple(
            draw(
                st.lists(
                    st.builds(
                        Baseline, name=words, time_ms=finite, speedup=finite, speedup_low=finite, speedup_high=finite
                    ),
                    max_size=2,
                )
            )
        ),
        findings=tuple(draw(st.lists(findings, min_size=1, max_size=2))),
        descriptor=draw(st.none() | descriptors),
        code_digest=draw(words),
        comparisons=tuple(draw(st.lists(comparisons, max_size=2))),
        stages_ms=draw(st.dictionaries(words, finite, max_size=3)),
    )


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore.create(tmp_path / "run", META)


# One database for all examples: they add to it, and the last row is compared.
round_trip = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


@round_trip
@given(kernel=kernels)
def test_a_kernel_comes_back_as_it_was(store: RunStore, kernel: Kernel) -> None:
    known = {k.id for k in store.kernels()}
    store.record_kernel(kernel)
    if kernel.id not in known:
        found = store.kernel(kernel.id)
        assert found == kernel
        assert found.id == kernel.id
        assert store.kernels()[-1] == kernel


@round_trip
@given(verdict=verdicts(), number=st.none() | st.integers(1, 1000))
def test_a_verdict_comes_back_as_it_was(store: RunStore, verdict: Verdict, number: int | None) -> None:
    kernel = kernel_of(1)
    verdict = verdict.model_copy(update={"kernel": kernel.id})
    with store.step() as step:
        step.record_kernel(kernel)
        row = step.record_verdict(number, verdict)
    found = store.verdicts(samples=True)[-1]
    assert (found.id, found.number, found.verdict) == (row, number, verdict)
    bare = store.verdicts()[-1].verdict
    assert [c.samples_ms for c in bare.comparisons] == [()] * len(verdict.comparisons)


@round_trip
@given(data=st.dictionaries(words, json_values, max_size=4))
def test_an_event_comes_back_as_it_was(store: RunStore, data: dict[str, object]) -> None:
    number = store.append("built", data)
    (event,) = store.events(after=number - 1)
    assert (event.id, event.kind, event.data, event.session) == (number, "built", data, 1)
    assert event.elapsed_s >= 0.0


def test_events_are_numbered_from_one_and_read_from_where_one_was(store: RunStore) -> None:
    assert [store.append("built", {"n": n}) for n in range(4)] == [1, 2, 3, 4]
    assert [e.data["n"] for e in store.events(after=2)] == [2, 3]
    assert store.events(after=4) == ()


def test_a_step_writes_all_or_nothing(store: RunStore) -> None:
    def fail_half_way() -> None:
        with store.step() as step:
            step.append("built", {})
            step.record_kernel(kernel_of(1))
            raise RuntimeError("half-way")

    with pytest.raises(RuntimeError, match="half-way"):
        fail_half_way()
    assert store.events() == ()
    assert store.kernels() == ()


def test_the_same_kernel_is_kept_once(store: RunStore) -> None:
    first = kernel_of(1)
    again = first.model_copy(update={"origin": Origin(proposer="llm")})
    store.record_kernel(first)
    store.record_kernel(again)
    assert store.kernels() == (first,)


def test_a_kernel_is_found_by_the_beginning_of_its_id(store: RunStore) -> None:
    several = [kernel_of(n) for n in range(20)]
    for kernel in several:
        store.record_kernel(kernel)
    assert store.kernel(several[3].id[:10]) == several[3]
    for prefix in ("", "x", "%", several[3].id + "0"):
        with pytest.raises(StoreError, match="expected one kernel whose id begins with"):
            store.kernel(prefix)
    crowded = next(k.id[0] for k in several if sum(o.id[0] == k.id[0] for o in several) > 1)
    with pytest.raises(StoreError, match="found several"):
        store.kernel(crowded)


def test_a_verdict_of_an_unknown_kernel_is_refused(store: RunStore) -> None:
    with pytest.raises(StoreError, match="FOREIGN KEY"):
        store.record_verdict(1, judge(kernel_of(1), None))


def test_telling_an_evaluation_without_its_verdict_is_refused(store: RunStore) -> None:
    outcome = Outcome.evaluated(judge(kernel_of(1), None))
    with pytest.raises(ValueError, match="told 3: expected its verdict to be recorded before"), store.step() as step:
        step.told(3, kernel_of(1).id, outcome, META)


def test_the_log_refuses_to_be_changed(store: RunStore) -> None:
    store.append("built", {})
    connection = sqlite3.connect(store.folder / "run.sqlite")
    for change in ("DELETE FROM events", "UPDATE events SET kind = 'told'"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(change)
    connection.close()


def test_a_reopened_run_goes_on_in_a_new_session(store: RunStore) -> None:
    store.append("started", {})
    store.close()
    store.close()
    with RunStore.open(store.folder) as again:
        assert again.meta == META
        assert again.append("resumed", {}) == 2
    with RunStore.open(store.folder, read_only=True) as reader:
        assert [e.session for e in reader.events()] == [1, 2]


def test_a_reader_cannot_write(store: RunStore) -> None:
    with (
        RunStore.open(store.folder, read_only=True) as reader,
        pytest.raises(StoreError, match="opened read-only"),
    ):
        reader.append("built", {})


def test_a_reader_sees_whole_steps_only_while_another_process_writes(store: RunStore) -> None:
    store.close()
    writer = program(
        """
        import sys
        from pathlib import Path
        from kernelworks.store.run import RunStore
        with RunStore.open(Path(sys.argv[1])) as store:
            for n in range(150):
                with store.step() as step:
                    step.append("built", {"n": n})
                    step.append("evaluated", {"n": n})
        """,
        str(store.folder),
    )
    counts: list[int] = []
    with RunStore.open(store.folder, read_only=True) as reader:
        while writer.poll() is None:
            counts.append(len(reader.events()))
        counts.append(len(reader.events()))
    writer.communicate()
    assert writer.returncode == 0
    assert counts[-1] == 300
    assert all(count % 2 == 0 for count in counts)
    assert counts == sorted(counts)


def test_threads_share_a_store(store: RunStore) -> None:
    def write(name: int) -> None:
        for n in range(25):
            store.append("built", {"thread": name, "n": n})

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = store.events()
    assert len(events) == 100
    for name in range(4):
        assert [e.data["n"] for e in events if e.data["thread"] == name] == list(range(25))


def test_a_second_writer_is_told_who_writes(store: RunStore) -> None:
    with pytest.raises(StoreError, match=f"found it in use by process {os.getpid()} "):
        RunStore.open(store.folder)
    assert is_locked(store.folder)
    assert is_locked(store.folder)
    store.close()
    assert not is_locked(store.folder)
    RunStore.open(store.folder).close()


def test_a_folder_without_a_run_is_not_locked(tmp_path: Path) -> None:
    assert not is_locked(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_lock_dies_with_its_holder_though_its_children_live(store: RunStore) -> None:
    store.close()
    holder = program(
        """
        import os, subprocess, sys, time
        from pathlib import Path
        from kernelworks.store.run import RunStore
        store = RunStore.open(Path(sys.argv[1]))
        forked = os.fork()
        if forked == 0:
            time.sleep(60)
        executed = subprocess.Popen(["sleep", "60"]).pid
        print(forked, executed, flush=True)
        time.sleep(60)
        """,
        str(store.folder),
    )
    assert holder.stdout is not None
    children = [int(word) for word in holder.stdout.readline().split()]
    try:
        with pytest.raises(StoreError, match=f"in use by process {holder.pid} "):
            RunStore.open(store.folder)
        holder.kill()
        holder.wait()
        RunStore.open(store.folder).close()
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        holder.communicate()


def test_a_creation_that_died_leaves_a_folder_that_can_be_used_again(tmp_path: Path) -> None:
    victim = program(
        """
        import os, signal, sys
        from pathlib import Path
        from kernelworks.store import schema
        from kernelworks.store.run import RunStore
        from support.runs import META
        schema.publish = lambda path: os.kill(os.getpid(), signal.SIGKILL)
        RunStore.create(Path(sys.argv[1]), META)
        """,
        str(tmp_path / "run"),
    )
    victim.communicate()
    assert victim.returncode == -signal.SIGKILL
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["run.lock", "run.sqlite.new"]
    with pytest.raises(StoreError, match=r"expected the folder of a run, found no run.sqlite in it"):
        RunStore.open(tmp_path / "run")
    with RunStore.create(tmp_path / "run", META) as store:
        assert store.meta == META


def test_what_a_killed_writer_had_written_is_read_without_writing(store: RunStore) -> None:
    store.close()
    writer = program(
        """
        import os, signal, sys
        from pathlib import Path
        from kernelworks.store.run import RunStore
        store = RunStore.open(Path(sys.argv[1]))
        for n in range(50):
            store.append("built", {"n": n})
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        str(store.folder),
    )
    writer.communicate()
    with RunStore.open(store.folder, read_only=True) as reader:
        assert len(reader.events()) == 50


def test_folders_that_cannot_hold_a_new_run_are_refused(tmp_path: Path, store: RunStore) -> None:
    store.close()
    (tmp_path / "file").write_text("")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("")
    for folder, found in {
        tmp_path / "run": "expected a new or empty folder, found a run .resume it",
        tmp_path / "file": "expected a new or empty folder, found a file",
        tmp_path / "file" / "below": "expected a folder that can be made, found: Not a directory",
        tmp_path / "other": "expected a new or empty folder, found 'thesis.tex' in it",
    }.items():
        with pytest.raises(StoreError, match=found) as caught:
            RunStore.create(folder, META)
        assert caught.value.exit_code == 2
        assert "\n" not in str(caught.value)
    assert [p.name for p in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_written_is_refused_and_can_be_read(tmp_path_factory: pytest.TempPathFactory) -> None:
    # In a process of its own: root may write everywhere, so it becomes nobody there.
    result = program(
        """
        import os, sys, tempfile
        from pathlib import Path
        from kernelworks.errors import StoreError
        from kernelworks.store.run import RunStore
        from support.runs import META
        base = Path(tempfile.mkdtemp(dir="/tmp"))
        RunStore.create(base / "run", META).close()
        RunStore.open(base / "run", read_only=True).close()
        if os.getuid() == 0:
            os.chown(base / "run" / "run.sqlite", 65534, 65534)
        for path, mode in ((base / "run" / "run.sqlite", 0o444), (base / "run", 0o555), (base, 0o555)):
            path.chmod(mode)
        child = os.fork()
        if child == 0:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            for attempt in (lambda: RunStore.create(base / "new", META), lambda: RunStore.open(base / "run")):
                try:
                    attempt()
                except StoreError as error:
                    print(error)
            with RunStore.open(base / "run", read_only=True) as store:
                print(store.meta.run, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        for path in (base, base / "run"):
            path.chmod(0o755)
        for path in (*(base / "run").iterdir(), base / "run", base):
            path.unlink() if path.is_file() else path.rmdir()
        """
    )
    lines = result.communicate()[0].splitlines()
    assert "expected a folder that can be made, found: Permission denied" in lines[0]
    assert "expected a writable run folder, found: Permission denied" in lines[1]
    assert lines[2:] == [META.run]


def test_folders_without_a_run_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for read_only in (True, False):
        with pytest.raises(StoreError, match="expected the folder of a run, found no such folder"):
            RunStore.open(tmp_path / "nowhere", read_only=read_only)
        with pytest.raises(StoreError, match=r"expected the folder of a run, found no run.sqlite in it"):
            RunStore.open(tmp_path / "empty", read_only=read_only)
    assert list((tmp_path / "empty").iterdir()) == []


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("damage", ["not a database", "empty", "cut", "overwritten"])
def test_a_damaged_database_is_refused_in_one_sentence(store: RunStore, damage: str, read_only: bool) -> None:
    for n in range(200):
        store.append("built", {"n": n, "text": "x" * 200})
    store.close()
    path = store.folder / "run.sqlite"
    whole = path.read_bytes()
    assert len(whole) > 40_000
    changed = {
        "not a database": b"hello\n" * 1000,
        "empty": b"",
        "cut": whole[: len(whole) // 2],
        "overwritten": whole[:20_480] + bytes(12_288) + whole[32_768:],
    }[damage]
    path.write_bytes(changed)
    with pytest.raises(StoreError) as caught:
        RunStore.open(store.folder, read_only=read_only)
    assert caught.value.exit_code == 2
    assert "run.sqlite: expected" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == changed


def test_a_kernel_that_was_tampered_with_is_noticed(store: RunStore) -> None:
    kernel = kernel_of(1)
    store.record_kernel(kernel)
    connection = sqlite3.connect(store.folder / "run.sqlite")
    with connection:
        connection.execute("UPDATE kernels SET text = text || ' '")
    connection.close()
    with pytest.raises(StoreError, match=f"expected kernel {kernel.id}, found text and params of"):
        store.kernels()


def test_a_record_of_another_shape_is_named(store: RunStore) -> None:
    connection = sqlite3.connect(store.folder / "run.sqlite")
    with connection:
        connection.execute("""UPDATE run SET record = json_set(record, '$.colour', 'red')""")
    connection.close()
    store.close()
    with pytest.raises(StoreError, match="expected a RunMeta that this version of Kernelworks knows, found colour"):
        RunStore.open(store.folder, read_only=True)
