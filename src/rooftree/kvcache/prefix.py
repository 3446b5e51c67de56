"""Names for cached prefixes: a chain of hashes, one for each full block of tokens.

The hash of a block covers its tokens and, through its parent's hash, every token before it and the namespace:
two blocks have the same name only if their K and V are the same. BLAKE2b with 256 bits: strong enough that a
collision need not be checked for, and at 0.4 microseconds a block as fast as SHA-256 with its own
instructions, and faster without.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from struct import Struct

HASH_BYTES = 32


class PrefixHasher:
    """Hash chains over blocks of ``block_size`` tokens within one namespace (the model's identity).

    All fields are typed and framed: strings by their length, token ids as 32 bits little-endian, so that no
    two different inputs give the same bytes, on any machine.
    """

    def __init__(self, namespace: str, block_size: int) -> None:
        self._namespace = namespace
        self._block_size = block_size
        self._pack = Struct(f"<{block_size}I").pack

    def root(self, cache_salt: str) -> bytes:
        """The parent of a first block: only requests with the same salt share prefixes."""
        digest = blake2b(digest_size=HASH_BYTES, person=b"rooftree.kv.root")
        digest.update(self._block_size.to_bytes(8, "little"))
        for text in (self._namespace, cache_salt):
            encoded = text.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "little"))
            digest.update(encoded)
        return digest.digest()

    def child(self, parent: bytes, token_ids: Sequence[int]) -> bytes:
        """The hash of a block of exactly ``block_size`` tokens that follows ``parent``."""
        return blake2b(parent + self._pack(*token_ids), digest_size=HASH_BYTES).digest()

    def extend(self, hashes: list[bytes], token_ids: Sequence[int], num_blocks: int, cache_salt: str) -> None:
        """Append to ``hashes`` until it covers the first ``num_blocks`` blocks of ``token_ids``.

        Hashes already there are trusted, never computed again.
        """
        size = self._block_size
        for index in range(len(hashes), num_blocks):
            parent = hashes[-1] if hashes else self.root(cache_salt)
            hashes.append(self.child(parent, token_ids[index * size : (index + 1) * size]))
