"""The blocks of the KV cache: which are clean, which hold a prefix nobody uses now, which are owned.

Every block is in exactly one of three states, so that free + cached + owned = total at all times:

- free: no reference, no hash. Its contents mean nothing.
- cached: no reference, but published under a hash: kept in case the same prefix comes again, least recently
  used first in line for eviction.
- owned: referenced by at least one block table, published or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence


class KVCacheBlock:
    """One block. ``prev`` and ``next`` link it into the ring of cached blocks; elsewhere, to itself."""

    __slots__ = ("block_hash", "block_id", "next", "prev", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.block_hash: bytes | None = None
        self.prev = self
        self.next = self

    def __repr__(self) -> str:
        published = "" if self.block_hash is None else f", {self.block_hash.hex()[:8]}"
        return f"KVCacheBlock({self.block_id}, refs={self.ref_count}{published})"


class CachedBlocks:
    """Unreferenced published blocks, least recently used first: a ring through the blocks themselves."""

    __slots__ = ("_ring", "_size")

    def __init__(self) -> None:
        self._ring = KVCacheBlock(-1)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self._ring.next
        while block is not self._ring:
            yield block
            block = block.next

    def append(self, block: KVCacheBlock) -> None:
        """Put a block at the most recently used end."""
        last = self._ring.prev
        block.prev, block.next = last, self._ring
        last.next = self._ring.prev = block
        self._size += 1

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block out from anywhere in the ring."""
        block.prev.next, block.next.prev = block.next, block.prev
        block.prev = block.next = block
        self._size -= 1

    def popleft(self) -> KVCacheBlock:
        """Take the least recently used block out; the ring must not be empty."""
        block = self._ring.next
        self.remove(block)
        return block


class BlockPool:
    """All blocks, and the index of published ones. Every operation is O(1) for each block it names.

    ``num_returned``: how many times a block has lost its last owner; it never falls.

    Free blocks are handed out last freed first (their memory is the likeliest to be warm), cached ones only
    once no free one is left, least recently used first.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, not {num_blocks}")
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self._free = self.blocks[::-1]
        self._cached = CachedBlocks()
        self._index: dict[bytes, KVCacheBlock] = {}
        self.num_returned = 0

    @property
    def num_total(self) -> int:
        """All blocks."""
        return len(self.blocks)

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Published blocks that nobody references."""
        return len(self._cached)

    @property
    def num_owned(self) -> int:
        """Blocks in at least one block table."""
        return len(self.blocks) - len(self._free) - len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that ``allocate`` can hand out: free and cached."""
        return len(self._free) + len(self._cached)

    def lookup(self, block_hash: bytes) -> KVCacheBlock | None:
        """The block published under a hash, owned or cached."""
        return self._index.get(block_hash)

    def allocate(self, num_blocks: int) -> list[KVCacheBlock]:
        """Hand out blocks with one reference each, evicting cached ones where free ones do not suffice.

        Raises:
            ValueError: more than ``num_available`` were asked; nothing has changed.
        """
        if num_blocks > self.num_available:
            raise ValueError(f"{num_blocks} blocks asked, {self.num_available} available")
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(num_blocks)]
        for block in blocks:
            block.ref_count = 1
        return blocks

    def _evict(self) -> KVCacheBlock:
        block = self._cached.popleft()
        if block.block_hash is not None:
            del self._index[block.block_hash]
            block.block_hash = None
        return block

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add a reference to each of these published blocks, taking unreferenced ones back from the cache."""
        for block in blocks:
            if block.ref_count == 0:
                self._cached.remove(block)
            block.ref_count += 1

    def free(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Drop one reference of each block of a table, tail first.

        The tail of a prefix is useless without its head, so it goes to the cache earlier and is evicted
        earlier.
        """
        for block in reversed(blocks):
            block.ref_count -= 1
            if block.ref_count == 0:
                self.num_returned += 1
                if block.block_hash is None:
                    self._free.append(block)
                else:
                    self._cached.append(block)

    def publish(self, block: KVCacheBlock, block_hash: bytes) -> None:
        """Make an owned block findable under its hash.

        Where another block holds the same contents already, that one stays the published one: block tables
        are never rewritten, so the copy simply lives as long as its owner.
        """
        if block.block_hash is None and block_hash not in self._index:
            block.block_hash = block_hash
            self._index[block_hash] = block

    def published(self) -> Iterator[KVCacheBlock]:
        """All published blocks, owned and cached."""
        return iter(self._index.values())

    def audit(self, owners: Iterable[Sequence[int]]) -> list[str]:
        """Recompute the state of every block from the block tables of all owners.

        Returns:
            One sentence for each disagreement; empty when free + cached + owned = total holds, every
            reference has its owner and the index is exact.
        """
        references = Counter(block_id for table in owners for block_id in table)
        free = Counter(block.block_id for block in self._free)
        cached = Counter(block.block_id for block in self._cached)
        faults = []
        for block in self.blocks:
            b = block.block_id
            if block.ref_count != references[b]:
                faults.append(f"block {b} counts {block.ref_count} references, its owners {references[b]}")
            places = free[b] + cached[b] + (references[b] > 0)
            if places != 1:
                faults.append(f"block {b} is in {places} places: free {free[b]}, cached {cached[b]}, owned")
            if free[b] and block.block_hash is not None:
                faults.append(f"block {b} is free but published")
            if block.block_hash is None:
                if cached[b]:
                    faults.append(f"block {b} is cached but not published")
            elif self._index.get(block.block_hash) is not block:
                faults.append(f"block {b} claims a hash that the index does not give it")
        num_published = sum(block.block_hash is not None for block in self.blocks)
        if num_published != len(self._index):
            faults.append(f"{len(self._index)} hashes in the index, {num_published} blocks published")
        if sum(cached.values()) != len(self._cached):
            faults.append(f"{len(self._cached)} cached blocks counted, {sum(cached.values())} linked")
        unknown = [b for b in references if not 0 <= b < len(self.blocks)]
        return faults + [f"block {b} is owned but does not exist" for b in unknown]
