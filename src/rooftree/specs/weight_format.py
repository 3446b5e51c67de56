"""Storage formats of weights and of KV: bits per element and what is kept beside them, exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rooftree.errors import ConfigError

Arithmetic = Literal["fp32", "fp16", "bf16", "fp8", "fp4", "int8"]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Elements of ``bits`` bits, and numbers kept for blocks of them.

    Attributes:
        name: a name of ``FORMATS``, or one that tells how it differs.
        bits: bits of one element as packed.
        arithmetic: the dtype in which its matrix products run where the chip has it (``bf16`` for weight-only
            formats; ``fp8``, ``int8``, ``fp4`` where activations are quantised as well).
        block: (rows, columns) that share numbers; 0 means all of them: (0, 0) per tensor, (1, 0) per output
            channel, (1, 128) per group, (128, 128) per block.
        block_bits: bits kept for each block (scales, zeros, minima).
        column_bytes, tensor_bytes: bytes kept for each input column (GPTQ's g_idx) and for each tensor.
        fallback: the format of tensors whose rows do not fill whole blocks (GGUF's 256-element blocks).
    """

    name: str
    bits: int
    arithmetic: Arithmetic = "bf16"
    block: tuple[int, int] = (0, 0)
    block_bits: int = 0
    column_bytes: int = 0
    tensor_bytes: int = 0
    fallback: str | None = None

    def bytes_of(self, shape: tuple[int, ...], *, continues: bool = False) -> int:
        """Bytes of one tensor, scales included.

        Args:
            shape: row-major; all axes but the last are rows.
            continues: these are further rows of a tensor already counted, which share its per-column and
                per-tensor numbers.
        """
        columns = shape[-1] if shape else 1
        rows = math.prod(shape[:-1])
        blocks = -(-rows // (self.block[0] or rows)) * -(-columns // (self.block[1] or columns))
        bits = rows * columns * self.bits + blocks * self.block_bits
        once = 0 if continues else columns * self.column_bytes + self.tensor_bytes
        return -(-bits // 8) + once


def _ggml(name: str, block: int, block_bytes: int, fallback: str | None = None) -> WeightFormat:
    """One of ggml's block formats: so many bytes for so many consecutive elements of a row."""
    bits, rest = divmod(block_bytes * 8, block)
    return WeightFormat(name, bits, block=(1, block), block_bits=rest, fallback=fallback)


def grouped(
    name: str, bits: int, group: int, *, zeros: bool, column_bytes: int = 0, tensor_bytes: int = 0
) -> WeightFormat:
    """Weight-only integers: a 16-bit scale per group of a row (0: the whole row), a zero of ``bits``."""
    extra = 16 + bits * zeros
    return WeightFormat(name, bits, "bf16", (1, group), extra, column_bytes, tensor_bytes)


# Scales of fp8, int8 and fp4 as their usual checkpoints store them: fp32 per tensor and per 128 x 128 block,
# 16-bit per channel; NVFP4 keeps an fp32 scale each for weight and input of every tensor.
_FORMATS = (
    WeightFormat("fp32", 32, "fp32"),
    WeightFormat("fp16", 16, "fp16"),
    WeightFormat("bf16", 16, "bf16"),
    WeightFormat("fp8", 8, "fp8", tensor_bytes=4),
    WeightFormat("fp8-channel", 8, "fp8", (1, 0), 16),
    WeightFormat("fp8-block", 8, "fp8", (128, 128), 32),
    WeightFormat("int8", 8, "int8", (1, 0), 16),
    grouped("gptq", 4, 128, zeros=True, column_bytes=4),
    grouped("awq", 4, 128, zeros=True),
    WeightFormat("mxfp4", 4, "bf16", (1, 32), 8),
    WeightFormat("nvfp4", 4, "fp4", (1, 16), 8, tensor_bytes=8),
    _ggml("q4_0", 32, 18),
    _ggml("q4_1", 32, 20),
    _ggml("q5_0", 32, 22),
    _ggml("q5_1", 32, 24),
    _ggml("q8_0", 32, 34),
    _ggml("iq4_nl", 32, 18),
    _ggml("q2_k", 256, 84, "iq4_nl"),
    _ggml("q3_k", 256, 110, "iq4_nl"),
    _ggml("q4_k", 256, 144, "q5_0"),
    _ggml("q5_k", 256, 176, "q5_1"),
    _ggml("q6_k", 256, 210, "q8_0"),
    _ggml("iq1_s", 256, 50, "iq4_nl"),
    _ggml("iq1_m", 256, 56, "iq4_nl"),
    _ggml("iq2_xxs", 256, 66, "iq4_nl"),
    _ggml("iq2_xs", 256, 74, "iq4_nl"),
    _ggml("iq2_s", 256, 82, "iq4_nl"),
    _ggml("iq3_xxs", 256, 98, "iq4_nl"),
    _ggml("iq3_s", 256, 110, "iq4_nl"),
    _ggml("iq4_xs", 256, 136, "iq4_nl"),
    _ggml("tq1_0", 256, 54, "q4_0"),
    _ggml("tq2_0", 256, 66, "q4_0"),
)

FORMATS = {weight_format.name: weight_format for weight_format in _FORMATS}

# Bits of one element of KV or state, doubled, so that 32 elements with a 16-bit scale are whole numbers too.
_CACHE_HALF_BITS = {
    "fp32": 64,
    "bf16": 32,
    "fp16": 32,
    "fp8": 16,
    "int8": 16,
    "q8_0": 17,
    "q4_0": 9,
    "nvfp4": 9,
}
# With an fp32 scale for each vector (head of K or V of a token): int8 and fp8 of Rooftree's own engine.
_SCALED = {"int8-per-head": "int8", "fp8-per-head": "fp8"}
_OWN = {plain: scaled for scaled, plain in _SCALED.items()}
_SCALE_BYTES = 4
CACHE_DTYPES = (*_CACHE_HALF_BITS, *_SCALED)


def own_cache_dtype(dtype: str) -> str:
    """What Rooftree's own engine stores as ``dtype``: int8 and fp8 with their scales."""
    return _OWN.get(dtype, dtype)


def cache_bytes(elements: int, dtype: str, vectors: int = 0) -> int:
    """Bytes of that many elements of KV or state, which make up so many vectors.

    Raises:
        ConfigError: there is no such dtype.
    """
    half_bits = _CACHE_HALF_BITS.get(_SCALED.get(dtype, dtype))
    if half_bits is None:
        raise ConfigError(f"KV dtype {dtype!r} is not known; known are {', '.join(CACHE_DTYPES)}")
    return -(-elements * half_bits // 16) + _SCALE_BYTES * vectors * (dtype in _SCALED)
