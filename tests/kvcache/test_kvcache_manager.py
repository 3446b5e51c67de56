"""Block tables and prefix reuse."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooftree.kvcache.manager import KVCacheManager
from rooftree.kvcache.prefix import PrefixHasher

B = 4


@dataclass
class Tokens:
    """The part of a request that the manager reads."""

    request_id: str
    token_ids: list[int]
    cache_salt: str = ""
    num_computed_tokens: int = 0
    block_hashes: list[bytes] = field(default_factory=list)
    rank: tuple[int, int] = (0, 0)


def manager(num_blocks: int = 16, **options: object) -> KVCacheManager:
    return KVCacheManager(num_blocks, B, namespace="m", **options)


def compute(kv: KVCacheManager, request: Tokens, num_tokens: int | None = None) -> int:
    """Admit a request and compute its tokens; how many of them were cached."""
    computed = kv.get_computed_blocks(request)
    table = kv.allocate_slots(request, len(request.token_ids) - computed.num_tokens, computed)
    assert table is not None
    request.num_computed_tokens = len(request.token_ids) if num_tokens is None else num_tokens
    kv.publish(request)
    assert kv.audit() == []
    return computed.num_tokens


def state(kv: KVCacheManager) -> object:
    """All that a refusal must leave alone, the order of eviction included."""
    pool = kv.pool
    return (
        [b.block_id for b in pool._free],
        [b.block_id for b in pool._cached],
        [b.ref_count for b in pool.blocks],
        {h: b.block_id for h, b in pool._index.items()},
        {r: list(kv.block_ids(r)) for r in kv.request_ids},
    )


@pytest.mark.parametrize("length", [B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1])
def test_a_known_prompt_leaves_at_least_one_token_to_compute(length: int) -> None:
    """Case 08: whole blocks only, never the last token, a real hit where there is a block to hit."""
    kv = manager()
    prompt = list(range(length))
    hits = []
    for i in range(3):
        request = Tokens(f"r{i}", prompt.copy())
        hits.append(compute(kv, request))
        kv.free(request)
    assert hits == [0, (length - 1) // B * B, (length - 1) // B * B]


@pytest.mark.parametrize(("shared", "hit"), [(B, B), (B + B // 2, B), (2 * B, 2 * B), (B - 1, 0), (0, 0)])
def test_a_hit_ends_where_prompts_differ(shared: int, hit: int) -> None:
    kv = manager()
    first = Tokens("a", list(range(3 * B)))
    compute(kv, first)
    second = Tokens("b", list(range(shared)) + [99] * (3 * B - shared))
    assert compute(kv, second) == hit
    assert kv.block_ids("b")[: hit // B] == kv.block_ids("a")[: hit // B]
    assert not set(kv.block_ids("b")[hit // B :]) & set(kv.block_ids("a"))


def test_only_computed_full_blocks_are_published() -> None:
    kv = manager()
    request = Tokens("a", list(range(3 * B)))
    assert kv.allocate_slots(request, 3 * B) is not None
    probe = Tokens("p", list(range(3 * B)))
    for num_computed, hit in [(0, 0), (B - 1, 0), (B, B), (2 * B - 1, B), (2 * B, 2 * B)]:
        request.num_computed_tokens = num_computed
        kv.publish(request)
        assert kv.get_computed_blocks(probe).num_tokens == hit


def test_output_is_published_as_it_is_computed() -> None:
    kv = manager()
    request = Tokens("a", list(range(B - 1)))
    compute(kv, request)
    for token in range(50, 50 + B + 1):
        request.token_ids.append(token)
        assert kv.allocate_slots(request, 1) is kv.block_ids("a")
        request.num_computed_tokens += 1
        kv.publish(request)
    assert kv.get_computed_blocks(Tokens("p", [*request.token_ids, 7])).num_tokens == 2 * B
    assert kv.pool.num_owned == 2


def test_other_salts_share_nothing() -> None:
    kv = manager()
    compute(kv, Tokens("a", list(range(9)), cache_salt="one"))
    assert compute(kv, Tokens("b", list(range(9)), cache_salt="two")) == 0
    assert compute(kv, Tokens("c", list(range(9)), cache_salt="one")) == 8


def test_without_prefix_caching_nothing_is_published() -> None:
    kv = manager(enable_prefix_caching=False)
    request = Tokens("a", list(range(9)))
    assert compute(kv, request) == compute(kv, Tokens("b", list(range(9)))) == 0
    assert request.block_hashes == []
    kv.free(request)
    assert (kv.pool.num_cached, kv.pool.num_free) == (0, 13)


def test_equal_prompts_computed_side_by_side_both_keep_their_blocks() -> None:
    kv = manager()
    a, b = Tokens("a", list(range(9))), Tokens("b", list(range(9)))
    assert kv.allocate_slots(a, 9) is not None
    assert kv.allocate_slots(b, 9) is not None
    for request in (a, b):
        request.num_computed_tokens = 9
        kv.publish(request)
    kv.free(a)
    assert (kv.pool.num_cached, kv.pool.num_owned) == (2, 3)
    kv.free(b)
    assert (kv.pool.num_cached, kv.pool.num_free) == (2, 14)
    assert kv.audit() == []


def admit(kv: KVCacheManager, name: str, tokens: list[int], rank: int) -> Tokens:
    """Give a request blocks for all its tokens, none of them computed."""
    request = Tokens(name, tokens, rank=(0, rank))
    computed = kv.get_computed_blocks(request)
    assert kv.allocate_slots(request, len(tokens) - computed.num_tokens, computed) is not None
    request.num_computed_tokens = computed.num_tokens
    assert kv.audit() == []
    return request


def test_blocks_about_to_be_computed_are_shared_and_awaited() -> None:
    kv = manager()
    first, second = (admit(kv, name, list(range(9)), rank) for rank, name in enumerate("ab"))
    assert kv.block_ids("a")[:2] == kv.block_ids("b")[:2]
    assert (kv.claim(first, 9), kv.claim(second, 9)) == (9, 0)
    for num_computed, known in [(B - 1, 0), (B, B), (9, 2 * B)]:
        first.num_computed_tokens = num_computed
        kv.publish(first)
        assert kv.catch_up(second) == known
        assert kv.audit() == []
    second.num_computed_tokens = 2 * B
    assert kv.claim(second, 1) == 1


def test_a_block_is_computed_by_the_first_in_rank_that_holds_it() -> None:
    kv = manager()
    late = admit(kv, "late", list(range(9)), rank=9)
    urgent = admit(kv, "urgent", [*range(B), 50, 51, 52, 53], rank=1)
    later = admit(kv, "later", list(range(9)), rank=10)
    assert (kv.claim(urgent, 8), kv.claim(late, 9), kv.claim(later, 9)) == (8, 0, 0)
    late.num_computed_tokens = urgent.num_computed_tokens = B
    kv.publish(urgent)
    assert (kv.claim(urgent, 4), kv.claim(late, 5)) == (4, 5)
    kv.free(late)
    assert kv.audit() == []
    assert kv.catch_up(later) == B
    later.num_computed_tokens = B
    assert kv.claim(later, 5) == 5


def test_what_a_chunk_computes_ends_where_another_ones_block_begins() -> None:
    kv = manager()
    short = admit(kv, "short", list(range(B)), rank=0)
    long = admit(kv, "long", list(range(9)), rank=1)
    kv.free(short)
    assert kv.claim(long, 3) == 3
    longer = admit(kv, "longer", list(range(13)), rank=2)
    kv.free(long)
    again = admit(kv, "again", list(range(B + 1)), rank=0)
    assert (kv.claim(again, B + 1), kv.claim(longer, 13)) == (B + 1, 0)


def test_a_copy_that_is_computed_first_does_not_hide_the_block_that_others_wait_for() -> None:
    kv = manager()
    first = admit(kv, "first", list(range(9)), rank=0)
    copy = admit(kv, "copy", list(range(B)), rank=1)  # the last token is to be computed: a block of its own
    second, third = (admit(kv, name, list(range(9)), rank) for rank, name in [(2, "second"), (3, "third")])
    kv.free(first)
    assert kv.claim(copy, B) == B
    copy.num_computed_tokens = B
    kv.publish(copy)
    assert kv.audit() == []
    assert (kv.claim(second, 9), kv.claim(third, 9)) == (9, 0)
    second.num_computed_tokens = 9
    kv.publish(second)
    assert kv.audit() == []
    assert kv.catch_up(third) == 2 * B


def test_a_block_that_is_computed_is_not_computed_again_for_want_of_the_one_before() -> None:
    kv = manager(num_blocks=8)
    head = admit(kv, "head", list(range(B)), rank=0)
    copy = admit(kv, "copy", list(range(B)), rank=1)
    for request in (head, copy):
        request.num_computed_tokens = B
        kv.publish(request)
    copy.token_ids += range(B, 2 * B)
    assert kv.allocate_slots(copy, B) is not None
    copy.num_computed_tokens = 2 * B
    kv.publish(copy)
    kv.free(head)
    evicting = admit(kv, "evicting", [40] * 6 * B, rank=2)
    kv.free(evicting)
    # Of this prefix only the second block is known.
    writer, waiting = (
        admit(kv, name, list(range(9)), rank) for rank, name in [(3, "writer"), (4, "waiting")]
    )
    assert kv.block_ids("waiting")[1] == kv.block_ids("copy")[1]
    kv.free(writer)
    assert kv.claim(waiting, 9) == B
    waiting.num_computed_tokens = B
    kv.publish(waiting)
    assert kv.audit() == []
    assert kv.catch_up(waiting) == 2 * B


def test_a_decode_takes_a_block_only_when_one_is_full() -> None:
    kv = manager()
    request = Tokens("a", list(range(B)))
    compute(kv, request)
    sizes = []
    for _ in range(2 * B):
        request.token_ids.append(1)
        sizes.append(len(kv.allocate_slots(request, 1) or []))
        request.num_computed_tokens += 1
    assert sizes == [2] * B + [3] * B


def test_the_block_table_is_a_live_list() -> None:
    kv = manager()
    request = Tokens("a", list(range(B)))
    table = kv.allocate_slots(request, B)
    request.num_computed_tokens = B
    assert kv.allocate_slots(request, 1) is table is kv.block_ids("a")
    assert len(table) == 2


def test_a_refusal_changes_nothing() -> None:
    kv = manager(num_blocks=6)
    for name, first in (("x", 0), ("y", 100)):
        request = Tokens(name, list(range(first, first + B + 1)))
        compute(kv, request)
        kv.free(request)
    compute(kv, Tokens("owner", list(range(200, 200 + 2 * B))))
    before = state(kv)
    newcomer = Tokens("n", [*range(B), *range(300, 300 + 4 * B)])
    computed = kv.get_computed_blocks(newcomer)
    assert computed.num_tokens == B
    assert kv.allocate_slots(newcomer, 4 * B, computed) is None
    assert state(kv) == before
    assert kv.allocate_slots(newcomer, 3 * B, computed) is not None
    assert kv.pool.num_available == 0


def test_a_matched_block_that_nobody_uses_counts_as_taken() -> None:
    """The hit comes out of the blocks available: otherwise it could be evicted to serve its own request."""
    kv = manager(num_blocks=3)
    request = Tokens("a", list(range(2 * B + 1)))
    compute(kv, request)
    kv.free(request)
    longer = Tokens("b", list(range(3 * B + 1)))
    computed = kv.get_computed_blocks(longer)
    assert computed.num_tokens == 2 * B
    assert kv.allocate_slots(longer, 2 * B, computed) is None
    assert kv.allocate_slots(longer, B, computed) is not None
    assert kv.audit() == []


def test_the_watermark_holds_back_newcomers_only() -> None:
    kv = manager(num_blocks=10, watermark=0.2)
    a = Tokens("a", list(range(6 * B)))
    assert kv.allocate_slots(a, 6 * B, admitting=True) is not None
    b = Tokens("b", list(range(3 * B)))
    assert kv.allocate_slots(b, 3 * B, admitting=True) is None
    assert kv.allocate_slots(b, 2 * B, admitting=True) is not None
    a.num_computed_tokens = 6 * B
    assert kv.allocate_slots(a, 2 * B) is not None
    assert kv.pool.num_available == 0


def test_freeing_twice_or_nothing_is_harmless() -> None:
    kv = manager()
    request = Tokens("a", list(range(5)))
    kv.free(request)
    compute(kv, request)
    kv.free(request)
    kv.free(request)
    assert kv.usage == 0.0
    assert list(kv.request_ids) == []


def test_usage_counts_owned_blocks() -> None:
    kv = manager(num_blocks=8)
    request = Tokens("a", list(range(2 * B)))
    compute(kv, request)
    assert kv.usage == 0.25
    kv.free(request)
    assert (kv.usage, kv.pool.num_cached, kv.num_tokens) == (0.0, 2, 32)


def test_no_block_is_hashed_twice_in_a_requests_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queued, refused, admitted, decoded, given up, resumed: one hash for each block."""
    calls: list[object] = []
    child = PrefixHasher.child
    monkeypatch.setattr(PrefixHasher, "child", lambda *args: calls.append(args) or child(*args))
    kv = manager()
    request = Tokens("a", list(range(4 * B)))
    for _ in range(3):
        kv.get_computed_blocks(request)
    compute(kv, request)
    request.token_ids += range(B)
    assert kv.allocate_slots(request, B) is not None
    request.num_computed_tokens += B
    kv.publish(request)
    kv.free(request)
    request.num_computed_tokens = 0
    assert compute(kv, request) == 4 * B
    assert len(calls) == len(request.block_hashes) == 5


@pytest.mark.parametrize(("block_size", "watermark"), [(0, 0.0), (4, 1.0), (4, -0.1), (4, float("nan"))])
def test_impossible_settings_are_refused(block_size: int, watermark: float) -> None:
    with pytest.raises(ValueError, match=r"block|watermark"):
        KVCacheManager(4, block_size, watermark=watermark)


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=20), min_size=1, max_size=12), st.integers(1, 6)
)
def test_hits_are_exactly_the_known_blocks_while_nothing_is_evicted(
    prompts: list[list[int]], block_size: int
) -> None:
    kv = KVCacheManager(300, block_size)
    known: set[tuple[int, ...]] = set()
    for i, prompt in enumerate(prompts):
        expected = 0
        while expected + block_size < len(prompt) and tuple(prompt[: expected + block_size]) in known:
            expected += block_size
        assert compute(kv, Tokens(str(i), prompt)) == expected
        known |= {tuple(prompt[:n]) for n in range(block_size, len(prompt) + 1, block_size)}
