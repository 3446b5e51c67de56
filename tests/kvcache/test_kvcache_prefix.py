"""Names of prefixes: equal exactly where the K and V are equal."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rooftree.kvcache.prefix import HASH_BYTES, PrefixHasher

# BLAKE2b-256 over the framed fields, written down once.
ROOT = "c7f427df7e3e7bbd160bab464ac050e69fa263ad149152fe655fa03a4b2615a0"
CHILD = "eaf525b3bbda2e7dacc4aef1e40e78dd11630fe9bcb72fa30ce465b7074e68d3"

token_lists = st.lists(st.integers(0, 2**32 - 1), max_size=24)


def chain(tokens: list[int], block_size: int = 4, namespace: str = "m", salt: str = "") -> list[bytes]:
    hashes: list[bytes] = []
    PrefixHasher(namespace, block_size).extend(hashes, tokens, len(tokens) // block_size, salt)
    return hashes


@given(token_lists, token_lists)
def test_hashes_agree_exactly_as_far_as_the_tokens(a: list[int], b: list[int]) -> None:
    for i, (x, y) in enumerate(zip(chain(a), chain(b), strict=False)):
        assert (x == y) == (a[: 4 * i + 4] == b[: 4 * i + 4])


@given(token_lists, st.integers(0, 6))
def test_a_chain_in_two_goes_is_the_chain_in_one(tokens: list[int], first: int) -> None:
    hasher = PrefixHasher("m", 4)
    num_blocks = len(tokens) // 4
    hashes: list[bytes] = []
    hasher.extend(hashes, tokens, min(first, num_blocks), "s")
    hasher.extend(hashes, tokens, num_blocks, "s")
    assert hashes == chain(tokens, salt="s")


def test_the_same_tokens_differ_by_position_namespace_salt_and_block_size() -> None:
    tokens = [7] * 8
    chains = [
        chain(tokens),
        chain(tokens, namespace="other"),
        chain(tokens, salt="user"),
        chain(tokens, namespace="mu", salt="ser"),
        chain(tokens, namespace="", salt="m"),
        chain(tokens, block_size=8),
        chain(tokens, block_size=2),
    ]
    hashes = [h for c in chains for h in c]
    assert len(set(hashes)) == len(hashes)


def test_a_root_is_no_block() -> None:
    hasher = PrefixHasher("", 2)
    assert hasher.root("") not in (
        hasher.child(bytes(HASH_BYTES), [0, 0]),
        hasher.child(hasher.root(""), [0, 0]),
    )


def test_names_do_not_depend_on_machine_or_version() -> None:
    """Kept beyond one process some day: a change of the scheme must be noticed."""
    hasher = PrefixHasher("model", 4)
    assert hasher.root("salt").hex() == ROOT
    assert hasher.child(hasher.root("salt"), [1, 2, 3, 2**31]).hex() == CHILD
    assert all(len(h) == HASH_BYTES for h in chain(list(range(16))))


def test_any_text_can_be_a_salt() -> None:
    salts = ["", "\0", "\ud800", "ä", "a" * 1000]
    roots = {PrefixHasher("m", 4).root(salt) for salt in salts}
    assert len(roots) == len(salts)


def test_known_hashes_are_never_computed_again() -> None:
    calls: list[int] = []

    class Counting(PrefixHasher):
        def child(self, parent: bytes, token_ids: object) -> bytes:
            calls.append(1)
            return super().child(parent, token_ids)

    hasher, hashes, tokens = Counting("m", 2), [], list(range(20))
    for num_blocks in (0, 3, 3, 2, 7, 10, 10):
        hasher.extend(hashes, tokens, num_blocks, "")
    assert len(calls) == len(hashes) == 10
    assert all(a != b for a, b in pairwise(hashes))
