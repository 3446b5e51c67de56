"""Who holds which blocks: block tables of requests, prefix reuse, and the question whether there is room.

The manager owns the pool and the block tables. It does not decide who runs, who waits or who gives way (the
scheduler), and it never sees K and V themselves (the executor writes where the block tables point).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from rooftree.kvcache.block_pool import BlockPool, KVCacheBlock
from rooftree.kvcache.prefix import PrefixHasher


class CachedRequest(Protocol):
    """What the manager reads of a request.

    Attributes:
        token_ids: prompt and output so far; only ever appended to.
        num_computed_tokens: how many of them have their K and V in the request's blocks.
        block_hashes: hashes of the leading full blocks, extended by the manager as far as it needed them.
            They belong to the tokens, so they stay valid when the blocks are given up.
    """

    @property
    def request_id(self) -> str: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def cache_salt(self) -> str: ...
    @property
    def block_hashes(self) -> list[bytes]: ...


@dataclass(frozen=True, slots=True)
class ComputedBlocks:
    """The longest cached prefix of a request: ``num_tokens`` tokens in ``blocks``. Nothing is held yet."""

    blocks: tuple[KVCacheBlock, ...] = ()
    num_tokens: int = 0


NOTHING_COMPUTED = ComputedBlocks()


@dataclass(slots=True, eq=False)
class _BlockTable:
    """``block_ids`` of one request; the first ``num_published`` need no publishing any more."""

    block_ids: list[int]
    num_published: int


class KVCacheManager:
    """Blocks of ``block_size`` tokens for all requests of one engine.

    Args:
        namespace: identity of the model (and of whatever else changes K and V); part of every prefix hash.
        watermark: share of all blocks that admitting a request leaves available, so that those running can
            grow for a while before anyone has to be preempted.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        namespace: str = "",
        watermark: float = 0.0,
    ) -> None:
        if block_size < 1:
            raise ValueError(f"a block holds at least one token, not {block_size}")
        if not 0.0 <= watermark < 1.0:
            raise ValueError(f"the watermark is a share of the blocks in [0, 1), not {watermark}")
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.num_watermark_blocks = int(watermark * num_blocks)
        self._hasher = PrefixHasher(namespace, block_size)
        self._tables: dict[str, _BlockTable] = {}

    @property
    def num_tokens(self) -> int:
        """Tokens that fit in the whole pool."""
        return self.pool.num_total * self.block_size

    @property
    def usage(self) -> float:
        """Share of blocks owned by requests; cached blocks are room, not use."""
        return self.pool.num_owned / self.pool.num_total

    @property
    def request_ids(self) -> Iterable[str]:
        """Requests that hold blocks."""
        return self._tables.keys()

    def block_ids(self, request_id: str) -> list[int]:
        """The live block table of a request that holds blocks: position p lies in ``[p // block_size]``."""
        return self._tables[request_id].block_ids

    def get_computed_blocks(self, request: CachedRequest) -> ComputedBlocks:
        """Find the longest cached prefix of a request, in whole blocks.

        At most all tokens but one: the last one must be computed in any case, because its logits are not
        kept.
        """
        if not self.enable_prefix_caching:
            return NOTHING_COMPUTED
        tokens, hashes = request.token_ids, request.block_hashes
        blocks: list[KVCacheBlock] = []
        for index in range((len(tokens) - 1) // self.block_size):
            if index == len(hashes):
                self._hasher.extend(hashes, tokens, index + 1, request.cache_salt)
            block = self.pool.lookup(hashes[index])
            if block is None:
                break
            blocks.append(block)
        return ComputedBlocks(tuple(blocks), len(blocks) * self.block_size)

    def allocate_slots(
        self,
        request: CachedRequest,
        num_new_tokens: int,
        computed: ComputedBlocks = NOTHING_COMPUTED,
        *,
        admitting: bool = False,
    ) -> list[int] | None:
        """Give a request room for ``num_new_tokens`` beyond what is computed, or change nothing.

        Args:
            computed: prefix found by ``get_computed_blocks`` just before, for a request that holds no blocks
                yet.
            admitting: leave the watermark's blocks available.

        Returns:
            The live block table, or None if there is no room.
        """
        table = self._tables.get(request.request_id)
        num_held = len(computed.blocks) if table is None else len(table.block_ids)
        num_tokens = request.num_computed_tokens + computed.num_tokens + num_new_tokens
        num_missing = -(-num_tokens // self.block_size) - num_held
        if table is not None and num_missing <= 0:
            return table.block_ids
        # Holding a matched block that nobody uses takes it off the blocks available. It is counted before
        # anything moves, so a refusal has nothing to undo and even the order of eviction stays as it was.
        num_revived = sum(block.ref_count == 0 for block in computed.blocks)
        num_kept = self.num_watermark_blocks if admitting else 0
        if num_missing + num_revived + num_kept > self.pool.num_available:
            return None
        return self._commit(request.request_id, computed.blocks, num_missing)

    def _commit(self, request_id: str, computed: tuple[KVCacheBlock, ...], num_new: int) -> list[int]:
        self.pool.touch(computed)
        table = self._tables.get(request_id)
        if table is None:
            table = _BlockTable([block.block_id for block in computed], len(computed))
            self._tables[request_id] = table
        table.block_ids += [block.block_id for block in self.pool.allocate(num_new)]
        return table.block_ids

    def publish(self, request: CachedRequest) -> None:
        """Enter the request's newly computed full blocks into the prefix index.

        To be called after a step, when their K and V are written: ``num_computed_tokens`` must count only
        tokens that are computed and final.
        """
        table = self._tables[request.request_id]
        num_full = request.num_computed_tokens // self.block_size
        if num_full <= table.num_published or not self.enable_prefix_caching:
            return
        self._hasher.extend(request.block_hashes, request.token_ids, num_full, request.cache_salt)
        for index in range(table.num_published, num_full):
            self.pool.publish(self.pool.blocks[table.block_ids[index]], request.block_hashes[index])
        table.num_published = num_full

    def free(self, request: CachedRequest) -> None:
        """Give back all blocks of a request, tail first; nothing happens if it holds none."""
        table = self._tables.pop(request.request_id, None)
        if table is not None:
            self.pool.free([self.pool.blocks[block_id] for block_id in table.block_ids])

    def audit(self) -> list[str]:
        """Conservation recomputed from the block tables; see ``BlockPool.audit``."""
        return self.pool.audit([table.block_ids for table in self._tables.values()])
