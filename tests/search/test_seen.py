from __future__ import annotations

from kernelworks.search.seen import Seen


def test_a_kernel_is_claimed_once() -> None:
    seen = Seen()
    assert not seen.is_known_kernel("a")
    assert seen.claim("a")
    assert not seen.claim("a")
    assert seen.is_known_kernel("a")


def test_machine_code_belongs_to_the_first_kernel_that_had_it() -> None:
    seen = Seen()
    assert seen.known_code("d") is None
    assert seen.claim_code("d", "a") == "a"
    assert seen.claim_code("d", "b") == "a"
    assert seen.claim_code("d", "a") == "a"
    assert seen.known_code("d") == "a"


def test_code_without_a_digest_is_nobodys_duplicate() -> None:
    seen = Seen()
    assert seen.claim_code("", "a") == "a"
    assert seen.claim_code("", "b") == "b"
    assert seen.known_code("") is None
