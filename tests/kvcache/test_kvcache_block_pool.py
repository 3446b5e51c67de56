"""The block pool: three states, one ring, one index."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooftree.kvcache.block_pool import BlockPool, CachedBlocks, KVCacheBlock


def counts(pool: BlockPool) -> tuple[int, int, int]:
    return pool.num_free, pool.num_cached, pool.num_owned


def publish_all(pool: BlockPool, blocks: list[KVCacheBlock], prefix: bytes) -> None:
    for i, block in enumerate(blocks):
        pool.publish(block, prefix + bytes([i]))


def test_blocks_pass_through_their_states() -> None:
    pool = BlockPool(4)
    assert counts(pool) == (4, 0, 0)
    blocks = pool.allocate(3)
    assert [b.block_id for b in blocks] == [0, 1, 2]
    assert counts(pool) == (1, 0, 3)
    publish_all(pool, blocks[:2], b"a")
    assert counts(pool) == (1, 0, 3)
    pool.free(blocks)
    assert counts(pool) == (2, 2, 0)
    assert pool.num_available == pool.num_total == 4
    assert pool.audit([]) == []


def test_a_pool_needs_a_block() -> None:
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)


def test_asking_too_much_changes_nothing() -> None:
    pool = BlockPool(3)
    held = pool.allocate(2)
    with pytest.raises(ValueError, match="2 blocks asked, 1 available"):
        pool.allocate(2)
    assert counts(pool) == (1, 0, 2)
    assert pool.audit([[b.block_id for b in held]]) == []


def test_free_blocks_are_used_before_cached_ones() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(4)
    publish_all(pool, blocks[:2], b"a")
    pool.free(blocks)
    pool.allocate(2)
    assert counts(pool) == (0, 2, 2)
    assert pool.lookup(b"a\0") is blocks[0]


def test_eviction_is_least_recently_used_and_tail_first() -> None:
    pool = BlockPool(6)
    first, second = pool.allocate(3), pool.allocate(3)
    publish_all(pool, first, b"a")
    publish_all(pool, second, b"b")
    pool.free(first)
    pool.free(second)
    pool.touch([first[0]])
    pool.free([first[0]])
    evicted = [block.block_id for block in pool.allocate(6)]
    assert evicted == [2, 1, 5, 4, 3, 0]
    assert [pool.lookup(p + bytes([i])) for p in (b"a", b"b") for i in range(3)] == [None] * 6


def test_an_evicted_block_can_be_published_anew() -> None:
    pool = BlockPool(1)
    [block] = pool.allocate(1)
    pool.publish(block, b"old")
    pool.free([block])
    [again] = pool.allocate(1)
    pool.publish(again, b"new")
    assert pool.lookup(b"old") is None
    assert pool.lookup(b"new") is again is block


def test_touch_shares_owned_blocks_and_revives_cached_ones() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    publish_all(pool, blocks, b"a")
    pool.touch(blocks)
    pool.free(blocks)
    assert counts(pool) == (1, 0, 2)
    pool.free(blocks)
    assert counts(pool) == (1, 2, 0)
    pool.touch([blocks[1]])
    assert counts(pool) == (1, 1, 1)
    assert pool.audit([[1]]) == []


def test_the_first_published_of_two_equal_blocks_stays() -> None:
    pool = BlockPool(2)
    first, copy = pool.allocate(2)
    pool.publish(first, b"same")
    pool.publish(copy, b"same")
    assert pool.lookup(b"same") is first
    pool.free([copy])
    assert counts(pool) == (1, 0, 1)
    assert list(pool.published()) == [first]


def test_publishing_twice_keeps_the_first_hash() -> None:
    pool = BlockPool(1)
    [block] = pool.allocate(1)
    pool.publish(block, b"x")
    pool.publish(block, b"y")
    assert (pool.lookup(b"x"), pool.lookup(b"y")) == (block, None)
    assert pool.audit([[0]]) == []


def test_audit_names_each_disagreement() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.publish(blocks[0], b"a")
    table = [b.block_id for b in blocks]
    assert pool.audit([table]) == []
    assert any("block 1 counts 1 references, its owners 2" in f for f in pool.audit([table, [1]]))
    assert any("block 0 counts 1 references, its owners 0" in f for f in pool.audit([[1]]))
    assert any("block 9 is owned but does not exist" in f for f in pool.audit([[*table, 9]]))


@pytest.mark.parametrize(
    "damage", ["lost", "twice", "unindexed", "stale", "unlinked", "free_hash", "cached_bare"]
)
def test_audit_finds_damage(damage: str) -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    publish_all(pool, blocks, b"a")
    pool.free(blocks)
    assert pool.audit([]) == []
    if damage == "lost":
        pool._free.pop()
    elif damage == "twice":
        pool._free.append(blocks[0])
    elif damage == "unindexed":
        del pool._index[b"a\0"]
    elif damage == "stale":
        pool._index[b"gone"] = pool.blocks[3]
    elif damage == "unlinked":
        blocks[0].prev.next, blocks[0].next.prev = blocks[0].next, blocks[0].prev
    elif damage == "free_hash":
        pool._free[0].block_hash = b"z"
    else:
        blocks[0].block_hash = None
    assert pool.audit([]) != []


def test_the_ring_removes_from_anywhere() -> None:
    ring = CachedBlocks()
    blocks = [KVCacheBlock(i) for i in range(5)]
    for block in blocks:
        ring.append(block)
    for i in (2, 0, 4):
        ring.remove(blocks[i])
    assert [b.block_id for b in ring] == [1, 3]
    assert len(ring) == 2
    ring.append(blocks[0])
    assert [ring.popleft().block_id for _ in range(3)] == [1, 3, 0]
    assert len(ring) == 0


operations = st.lists(st.tuples(st.sampled_from("afpt"), st.integers(0, 7)), max_size=60)


@given(operations)
def test_against_a_plain_model(steps: list[tuple[str, int]]) -> None:
    """Any order of operations does what dictionaries of ids would do, in the same order of eviction."""
    pool = BlockPool(5)
    tables: list[list[KVCacheBlock]] = []
    cached: OrderedDict[int, bytes] = OrderedDict()
    names: dict[int, bytes] = {}
    for serial, (what, n) in enumerate(steps):
        if what == "a" and n <= pool.num_available:
            num_evicted = max(0, n - pool.num_free)
            evicted = [cached.popitem(last=False)[0] for _ in range(num_evicted)]
            for block_id in evicted:
                del names[block_id]
            blocks = pool.allocate(n)
            assert [b.block_id for b in blocks[n - num_evicted :]] == evicted
            tables.append(blocks)
        elif what == "f" and tables:
            table = tables.pop(n % len(tables))
            pool.free(table)
            for block in reversed(table):
                if block.block_id in names and not any(block in t for t in tables):
                    cached[block.block_id] = names[block.block_id]
        elif what == "p" and tables and tables[n % len(tables)]:
            block = tables[n % len(tables)][0]
            if block.block_id not in names:
                names[block.block_id] = bytes([serial])
            pool.publish(block, bytes([serial]))
        elif what == "t" and names:
            block_id = sorted(names)[n % len(names)]
            block = pool.lookup(names[block_id])
            assert block is pool.blocks[block_id]
            pool.touch([block])
            cached.pop(block_id, None)
            tables.append([block])
        assert [b.block_id for b in pool._cached] == list(cached)
        assert pool.audit([[b.block_id for b in table] for table in tables]) == []
        assert sum(counts(pool)) == 5
