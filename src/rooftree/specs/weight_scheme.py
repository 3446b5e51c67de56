"""How weights are stored: a format per tensor, with its scales, and which tensors have which format."""

from __future__ import annotations

from dataclasses import dataclass

from rooftree.specs.weight import Weight


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Elements of ``bits`` bits, and numbers kept per block of them.

    Attributes:
        name: as in ``FORMATS`` (``bf16``, ``fp8-block``, ``mxfp4``, ``q4_1``, ...).
        bits: bits of one element as packed.
        arithmetic: the dtype in which its matrix products run where the chip has it (``bf16`` for weight-only
            formats; ``fp8``, ``int8``, ``fp4`` where activations are quantised as well).
        block: (rows, columns) that share scales; 0 means all of them: (0, 0) per tensor, (1, 0) per output
            channel, (1, 128) per group, (128, 128) per block.
        block_bits: bits kept for each block (scales, zeros, minima).
        column_bytes, tensor_bytes: bytes kept for each input column (GPTQ's g_idx) and for each tensor.
    """

    name: str
    bits: int
    arithmetic: str
    block: tuple[int, int] = (0, 0)
    block_bits: int = 0
    column_bytes: int = 0
    tensor_bytes: int = 0

    def bytes_of(self, shape: tuple[int, ...]) -> int:
        """Bytes of one tensor of that shape, scales included."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """Which tensor is stored in which format.

    Attributes:
        name: for people and for ``--weight-dtype``.
        linear: format of linear weights inside the layers.
        rest: format of everything else (norms, biases, embedding, head, and linear weights that are ignored).
        ignore: module names or ``re:`` patterns that keep ``rest``.
        overrides: (pattern, format) pairs, first match wins, before all other rules.
    """

    name: str
    linear: WeightFormat
    rest: WeightFormat
    ignore: tuple[str, ...] = ()
    overrides: tuple[tuple[str, WeightFormat], ...] = ()

    def format_of(self, path: str, weight: Weight) -> WeightFormat:
        """The format of a tensor; ``path`` is its full module name in the checkpoint."""
        raise NotImplementedError


def named_scheme(name: str) -> WeightScheme:
    """The scheme that ``--weight-dtype NAME`` means. Raises ConfigError listing the names."""
    raise NotImplementedError
