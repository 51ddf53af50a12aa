"""The suite is complete: every id under both contracts, texts that no rule knows, tests for what is impossible."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from kernelworks.evaluate.settings import Settings
from kernelworks.kernel.model import Contract
from kernelworks.selftest.catalogue import CATALOGUE, IMPOSSIBLE
from kernelworks.selftest.listing import ATTACKS, HONEST, HOSTS
from kernelworks.selftest.model import Attack, Honest
from kernelworks.selftest.suite import LANGUAGES, Choice, Stand

ROOT = Path(__file__).parents[2]
SECTIONS = {"T": 14, "S": 18, "F": 5, "H": 10}


def written(item: Attack | Honest, seed: int, folder: Path) -> str:
    """Its text for a seed."""
    place = folder / f"{seed}-{len(list(folder.iterdir()))}"
    place.mkdir()
    host = Choice(seed=seed).host_of(item)
    one = Stand(seed, item.contract, host, place, Settings(threads=1)).prepare(item)
    one.bait.close()
    return one.kernel.text


def test_the_catalogue_has_all_ids() -> None:
    assert list(CATALOGUE) == [f"{letter}{n}" for letter, count in SECTIONS.items() for n in range(1, count + 1)]


@pytest.mark.parametrize("contract", LANGUAGES)
def test_every_id_has_an_entry(contract: Contract) -> None:
    executed = {attack.id for attack in ATTACKS if attack.contract is contract}
    impossible = {id_ for id_, where in IMPOSSIBLE if where is contract}
    assert not executed & impossible
    assert executed | impossible == set(CATALOGUE)
    assert len(executed) >= 35


def test_impossible_names_a_test_that_exists() -> None:
    assert IMPOSSIBLE
    for name in IMPOSSIBLE.values():
        file, _, function = name.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, name


def test_there_are_enough_honest_kernels_of_both_kinds() -> None:
    counts = Counter(one.contract for one in HONEST)
    assert sum(counts.values()) >= 40
    assert min(counts[contract] for contract in LANGUAGES) >= 10


def test_names_are_unique_and_hosts_exist() -> None:
    variants = Counter((attack.contract, attack.id, attack.variant) for attack in ATTACKS)
    names = Counter((one.contract, one.name) for one in HONEST)
    assert max(variants.values()) == max(names.values()) == 1
    for attack in ATTACKS:
        assert attack.hosts and set(attack.hosts) <= set(HOSTS[attack.contract]), attack.variant
    for one in HONEST:
        assert one.host in HOSTS[one.contract], one.name


def test_no_text_is_the_same_for_two_seeds(tmp_path: Path) -> None:
    """No identifier of a file that is its own stands in that of another seed; only what C++ and Python demand does."""
    shared = {"launch", "void"}
    for attack in ATTACKS:
        first, second = (written(attack, seed, tmp_path) for seed in (1, 2))
        assert first != second, attack.variant
        own = [set(re.findall(r"\bstatic [\w:<>* ]*?\*?(\w+)\(", text)) for text in (first, second)]
        assert not (own[0] & own[1]) - shared, attack.variant


def test_python_files_are_python(tmp_path: Path) -> None:
    for item in (*ATTACKS, *HONEST):
        if item.contract is Contract.MODULE:
            ast.parse(written(item, 5, tmp_path))
