"""ggml's formats of 32 elements to a block, as bits and as numbers.

A block holds elements 0 <= i < 32, consecutive ones of a row. Numbers are little-endian, d and m are fp16,
nibble(i) is the low half of byte i of ``qs`` for i < 16 and the high half of byte i - 16 from there on, and
bit(i) is bit i of the 32-bit number ``qh``, that is bit i % 8 of its byte i // 8.

====== ===== ============================== ==================================
format bytes block                          value of element i
====== ===== ============================== ==================================
Q4_0   18    d, qs[16]                      (nibble - 8) * d
Q4_1   20    d, m, qs[16]                   nibble * d + m
Q5_0   22    d, qh (4 bytes), qs[16]        (nibble + 16 * bit - 16) * d
Q5_1   24    d, m, qh (4 bytes), qs[16]     (nibble + 16 * bit) * d + m
Q8_0   34    d, qs: 32 int8                 qs[i] * d
====== ===== ============================== ==================================

Every product is exact in float32 and a sum rounds once, so each value is defined to the last bit. Encoders
round as ggml's reference code does (``quantize_row_*_ref`` of ggml-quants.c).

Decoders take blocks (n, block bytes) uint8 and give (n, 32) float32; encoders the reverse.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]

BLOCK = 32


def half_values(columns: ByteArray) -> FloatArray:
    """fp16 numbers out of byte columns of the blocks, as float32 columns."""
    return np.ascontiguousarray(columns).view("<f2").astype(np.float32)


def half_bytes(columns: FloatArray) -> ByteArray:
    """The reverse, rounded to nearest; what exceeds fp16 becomes infinite, as in C."""
    with np.errstate(over="ignore"):
        return columns.astype("<f2").view(np.uint8)


def reciprocal(scale: FloatArray) -> FloatArray:
    """1 / scale, and 0 where that would overflow: such a scale is 0 once stored as fp16."""
    normal = np.abs(scale) >= np.finfo(np.float32).tiny
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=normal)


def decode_q4_0(blocks: ByteArray) -> FloatArray:
    quants = _nibbles(blocks[:, 2:]).astype(np.float32)
    quants -= 8.0
    return np.multiply(quants, half_values(blocks[:, :2]), out=quants)


def decode_q4_1(blocks: ByteArray) -> FloatArray:
    quants = _nibbles(blocks[:, 4:]).astype(np.float32)
    quants *= half_values(blocks[:, :2])
    return np.add(quants, half_values(blocks[:, 2:4]), out=quants)


def decode_q5_0(blocks: ByteArray) -> FloatArray:
    quants = (_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])).astype(np.float32)
    quants -= 16.0
    return np.multiply(quants, half_values(blocks[:, :2]), out=quants)


def decode_q5_1(blocks: ByteArray) -> FloatArray:
    quants = (_nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])).astype(np.float32)
    quants *= half_values(blocks[:, :2])
    return np.add(quants, half_values(blocks[:, 2:4]), out=quants)


def decode_q8_0(blocks: ByteArray) -> FloatArray:
    quants = blocks[:, 2:].view(np.int8).astype(np.float32)
    return np.multiply(quants, half_values(blocks[:, :2]), out=quants)


def encode_q4_0(rows: FloatArray) -> ByteArray:
    scale, quants = _largest_to(rows, 8)
    return np.concatenate((half_bytes(scale), _pack(quants)), axis=1)


def encode_q4_1(rows: FloatArray) -> ByteArray:
    scale, low, quants = _between_extremes(rows, 15)
    return np.concatenate((half_bytes(scale), half_bytes(low), _pack(quants)), axis=1)


def encode_q5_0(rows: FloatArray) -> ByteArray:
    scale, quants = _largest_to(rows, 16)
    return np.concatenate((half_bytes(scale), _high_bits(quants), _pack(quants & np.uint8(0x0F))), axis=1)


def encode_q5_1(rows: FloatArray) -> ByteArray:
    scale, low, quants = _between_extremes(rows, 31)
    parts = (half_bytes(scale), half_bytes(low), _high_bits(quants), _pack(quants & np.uint8(0x0F)))
    return np.concatenate(parts, axis=1)


def encode_q8_0(rows: FloatArray) -> ByteArray:
    """Rounds half away from zero, as C's roundf does."""
    scale = np.abs(rows).max(axis=1, keepdims=True) / np.float32(127)
    steps = rows * reciprocal(scale)
    whole = np.trunc(steps)
    steps -= whole
    whole += np.trunc(2 * steps)
    quants: ByteArray = whole.astype(np.int8).view(np.uint8)
    return np.concatenate((half_bytes(scale), quants), axis=1)


def _largest_to(rows: FloatArray, half_range: int) -> tuple[FloatArray, ByteArray]:
    """The element of largest magnitude (the first of equals) becomes exactly -half_range steps."""
    largest = np.abs(rows).argmax(axis=1, keepdims=True)
    scale = np.take_along_axis(rows, largest, axis=1) / np.float32(-half_range)
    steps = rows * reciprocal(scale) + np.float32(half_range + 0.5)
    return scale, np.minimum(steps.astype(np.int8), 2 * half_range - 1).astype(np.uint8)


def _between_extremes(rows: FloatArray, levels: int) -> tuple[FloatArray, FloatArray, ByteArray]:
    """Least element to 0, greatest to ``levels``. Of zeros of both signs the first counts."""
    low = np.take_along_axis(rows, rows.argmin(axis=1, keepdims=True), axis=1)
    high = np.take_along_axis(rows, rows.argmax(axis=1, keepdims=True), axis=1)
    scale = (high - low) / np.float32(levels)
    steps = (rows - low) * reciprocal(scale) + np.float32(0.5)
    return scale, low, np.minimum(steps.astype(np.int8), levels).astype(np.uint8)


def _nibbles(packed: ByteArray) -> ByteArray:
    return np.concatenate((packed & 0x0F, packed >> 4), axis=1)


def _pack(quants: ByteArray) -> ByteArray:
    high: ByteArray = quants[:, BLOCK // 2 :] << np.uint8(4)
    return quants[:, : BLOCK // 2] | high


def _fifth_bits(packed: ByteArray) -> ByteArray:
    """Bit i of each row's 4 bytes, as 0 or 16 in column i."""
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def _high_bits(quants: ByteArray) -> ByteArray:
    """The reverse for quants of 5 bits."""
    return np.packbits(quants >> np.uint8(4), axis=1, bitorder="little")
