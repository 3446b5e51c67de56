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
from rooftree.kvcache.promises import Promises, Writer


class CachedRequest(Writer, Protocol):
    """What the manager reads of a request.

    Attributes:
        token_ids: prompt and output so far; only ever appended to.
        num_computed_tokens: how many of them have their K and V in the request's blocks.
        block_hashes: hashes of the leading full blocks, extended by the manager as far as it needed them.
            They belong to the tokens, so they stay valid when the blocks are given up.
    """

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
    """The longest prefix of a request that need not be computed again. Nothing is held yet.

    Attributes:
        blocks: those that are cached, then those that running requests are about to compute.
        num_tokens: the cached ones, at the beginning.
        is_awaited: whether there are others.
    """

    blocks: tuple[KVCacheBlock, ...] = ()
    num_tokens: int = 0
    is_awaited: bool = False


NOTHING_COMPUTED = ComputedBlocks()


@dataclass(slots=True, eq=False)
class _BlockTable:
    """``block_ids`` of one request.

    The first ``num_published`` need no publishing any more; of those up to ``num_promised``, others may hold
    the same block before it is computed.
    """

    block_ids: list[int]
    num_published: int
    num_promised: int


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A request that found no room, and how many blocks must have come back before it can."""

    request: CachedRequest
    num_returned: int
    admitting: bool


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
        self._promises = Promises()
        self._refusal: _Refusal | None = None

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
        """Find the longest prefix of a request that is cached or about to be, in whole blocks.

        At most all tokens but one: the last one must be computed in any case, because its logits are not
        kept.
        """
        if not self.enable_prefix_caching:
            return NOTHING_COMPUTED
        tokens, hashes = request.token_ids, request.block_hashes
        blocks: list[KVCacheBlock] = []
        num_cached = 0
        for index in range((len(tokens) - 1) // self.block_size):
            if index == len(hashes):
                self._hasher.extend(hashes, tokens, index + 1, request.cache_salt)
            block = self._find(hashes[index])
            if block is None:
                break
            blocks.append(block)
            if num_cached == index and block.block_hash is not None:
                num_cached += 1
        return ComputedBlocks(tuple(blocks), num_cached * self.block_size, num_cached < len(blocks))

    def _find(self, block_hash: bytes) -> KVCacheBlock | None:
        return self.pool.lookup(block_hash) or self._promises.find(block_hash)

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
        num_lacking = num_missing + num_revived + num_kept - self.pool.num_available
        if num_lacking > 0:
            if table is None:
                self._refusal = _Refusal(request, self.pool.num_returned + num_lacking, admitting)
            return None
        if table is None:
            return self._admit(request, computed, num_missing)
        table.block_ids += [block.block_id for block in self.pool.allocate(num_missing)]
        return table.block_ids

    def _admit(self, request: CachedRequest, computed: ComputedBlocks, num_new: int) -> list[int]:
        """Give a request its first table, and promise the full blocks that it will compute."""
        self.pool.touch(computed.blocks)
        new = self.pool.allocate(num_new)
        ids = [block.block_id for block in (*computed.blocks, *new)]
        num_shared = len(computed.blocks)
        num_promised = 0
        if self.enable_prefix_caching:
            num_promised = min(len(request.token_ids) // self.block_size, len(ids))
            self._hasher.extend(request.block_hashes, request.token_ids, num_promised, request.cache_salt)
            for block_hash, block in zip(request.block_hashes[num_shared:num_promised], new, strict=False):
                if self.pool.lookup(block_hash) is None:
                    self._promises.make(block_hash, block, request)
        self._tables[request.request_id] = _BlockTable(
            ids, computed.num_tokens // self.block_size, num_promised
        )
        return ids

    def is_still_refused(self, request: CachedRequest, *, admitting: bool) -> bool:
        """Whether a request that has just found no room would find none again, told without a look-up.

        Only blocks that their owners give back bring it nearer. Others that take blocks, and eviction, do
        not; nor does a block of its prefix that becomes known, since its writer takes a new one for it.
        """
        refusal = self._refusal
        return (
            refusal is not None
            and refusal.request is request
            and refusal.admitting == admitting
            and self.pool.num_returned < refusal.num_returned
        )

    def catch_up(self, request: CachedRequest) -> int:
        """How many leading tokens of a running request are computed, by whoever holds the same blocks."""
        table = self._tables[request.request_id]
        num_computed = request.num_computed_tokens
        index = num_computed // self.block_size
        last = min(table.num_promised, (len(request.token_ids) - 1) // self.block_size)
        while index < last and self.pool.blocks[table.block_ids[index]].block_hash is not None:
            index += 1
            num_computed = index * self.block_size
        return num_computed

    def claim(self, request: CachedRequest, num_tokens: int) -> int:
        """How many of a running request's next ``num_tokens`` it should compute itself, and now.

        Fewer where a request ranked before it is about to compute the same block, none if that is the next;
        and fewer where a further one is computed, to catch up over.
        """
        table = self._tables[request.request_id]
        start = request.num_computed_tokens
        first, last = start // self.block_size, -(-(start + num_tokens) // self.block_size)
        for index in range(first, min(last, table.num_promised)):
            block = self.pool.blocks[table.block_ids[index]]
            is_computed = index > first and block.block_hash is not None
            if is_computed or not self._promises.claim(request.block_hashes[index], block, request):
                return max(0, index * self.block_size - start)
        return num_tokens

    def must_claim(self, request: CachedRequest) -> bool:
        """Whether the next token of a running request lies in a block that others may compute as well."""
        table = self._tables[request.request_id]
        return request.num_computed_tokens < table.num_promised * self.block_size

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
            block, block_hash = self.pool.blocks[table.block_ids[index]], request.block_hashes[index]
            # A copy stays unknown where others wait for the promised one: by its hash they see it computed.
            if self._promises.keep(block_hash, block):
                self.pool.publish(block, block_hash)
        table.num_published = num_full

    def free(self, request: CachedRequest) -> None:
        """Give back all blocks of a request, tail first; nothing happens if it holds none."""
        table = self._tables.pop(request.request_id, None)
        if table is None:
            return
        blocks = [self.pool.blocks[block_id] for block_id in table.block_ids]
        self.pool.free(blocks)
        for index in range(table.num_published, table.num_promised):
            self._promises.leave(request.block_hashes[index], blocks[index], request)

    def audit(self) -> list[str]:
        """Conservation recomputed from the block tables; see ``BlockPool.audit`` and ``Promises.audit``."""
        tables = {request_id: table.block_ids for request_id, table in self._tables.items()}
        return [*self.pool.audit(tables.values()), *self._promises.audit(tables, self.pool)]
