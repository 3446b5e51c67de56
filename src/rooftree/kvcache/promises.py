"""Blocks that are about to be computed, so that whoever needs the same ones shares them now.

A block is published once its K and V are written. From its request's admission until then it is promised:
other requests with the same prefix take it into their tables too, and wait for the one that writes it. If
that one leaves early, the next takes over. So a prefix is computed once, however many ask for it at the same
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rooftree.kvcache.block_pool import BlockPool, KVCacheBlock


class Writer(Protocol):
    """A request, as far as promises look at it. ``rank``: the lower, the sooner it runs."""

    @property
    def request_id(self) -> str: ...
    @property
    def rank(self) -> tuple[int, int]: ...


@dataclass(slots=True, eq=False)
class Promise:
    """A block and the running request that will write it; None if it has left."""

    block: KVCacheBlock
    writer: Writer | None


class Promises:
    """All promised blocks, by hash. Every operation is O(1) for each block it names."""

    def __init__(self) -> None:
        self._promises: dict[bytes, Promise] = {}

    def find(self, block_hash: bytes) -> KVCacheBlock | None:
        """The block that will be published under a hash."""
        promise = self._promises.get(block_hash)
        return None if promise is None else promise.block

    def make(self, block_hash: bytes, block: KVCacheBlock, writer: Writer) -> None:
        """Promise a block; the first one promised under a hash stays the one that is shared."""
        self._promises.setdefault(block_hash, Promise(block, writer))

    def claim(self, block_hash: bytes, block: KVCacheBlock, request: Writer) -> bool:
        """Let a request that holds the block be its writer, unless the one there is ranks before it.

        Ranks keep requests from waiting for each other, and the first of all from waiting for anyone.
        """
        promise = self._promises.get(block_hash)
        if promise is None or promise.block is not block:
            return True
        if promise.writer is not None and promise.writer.rank < request.rank:
            return False
        promise.writer = request
        return True

    def keep(self, block_hash: bytes, block: KVCacheBlock) -> bool:
        """A block has been computed; whether nothing is promised under its hash any more, so that it can be
        published: it may be a copy of the one promised.
        """
        if self.find(block_hash) is block:
            del self._promises[block_hash]
        return block_hash not in self._promises

    def leave(self, block_hash: bytes, block: KVCacheBlock, request: Writer) -> None:
        """A request has dropped its reference to a block that is not computed."""
        promise = self._promises.get(block_hash)
        if promise is None or promise.block is not block:
            return
        if block.ref_count == 0:
            del self._promises[block_hash]
        elif promise.writer is request:
            promise.writer = None

    def audit(self, tables: Mapping[str, Sequence[int]], pool: BlockPool) -> Iterable[str]:
        """One sentence for each promise that nobody can keep."""
        for block_hash, promise in self._promises.items():
            block, writer = promise.block.block_id, promise.writer
            if promise.block.block_hash is not None:
                yield f"block {block} is promised but published"
            elif pool.lookup(block_hash) is not None:
                yield f"block {block} is promised, but one like it published"
            if promise.block.ref_count == 0:
                yield f"block {block} is promised but not owned"
            if writer is not None and block not in tables.get(writer.request_id, ()):
                yield f"block {block} is promised by {writer.request_id!r}, which does not hold it"
