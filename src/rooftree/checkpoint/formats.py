"""The storage formats of weights: their sizes, and their exact conversion to and from float32.

The block formats are ggml's. A block holds 32 consecutive elements of a row, all numbers little-endian:

- ``Q4_0``: fp16 d, 16 bytes of nibbles; value (q - 8) * d.
- ``Q4_1``: fp16 d, fp16 m, 16 bytes of nibbles; value q * d + m.
- ``Q8_0``: fp16 d, 32 int8; value q * d.

Element i of a block is the low nibble of byte i, element i + 16 the high nibble. Every product above is exact
in float32, so the value of each element is defined to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rooftree.checkpoint.base import DType, Tensor

FloatArray = npt.NDArray[np.float32]
ByteArray = npt.NDArray[np.uint8]

BLOCK = 32


class Format(NamedTuple):
    """Size of a storage format: ``block_bytes`` bytes for each ``block`` consecutive elements of a row."""

    block: int
    block_bytes: int


FORMATS: dict[DType, Format] = {
    "F32": Format(1, 4),
    "F16": Format(1, 2),
    "BF16": Format(1, 2),
    "Q4_0": Format(BLOCK, 18),
    "Q4_1": Format(BLOCK, 20),
    "Q8_0": Format(BLOCK, 34),
}


def is_quantized(dtype: DType) -> bool:
    """Whether elements are stored in blocks rather than one by one."""
    return FORMATS[dtype].block > 1


def row_bytes(dtype: DType, elements: int) -> int:
    """Bytes of one row of that many elements. Raises ValueError where the row does not fill whole blocks."""
    block, block_bytes = FORMATS[dtype]
    if elements % block:
        raise ValueError(f"a {dtype} row must be a multiple of {block} elements long, not {elements}")
    return elements // block * block_bytes


def tensor_bytes(dtype: DType, shape: tuple[int, ...]) -> int:
    """Bytes of a whole tensor; a scalar (shape ``()``) is a row of one element."""
    row = shape[-1] if shape else 1
    return math.prod(shape[:-1]) * row_bytes(dtype, row)


def dequantize(tensor: Tensor) -> FloatArray:
    """The values of a tensor as float32, in its shape: exactly what its format defines."""
    return dequantize_bytes(tensor.dtype, tensor.data).reshape(tensor.shape)


def dequantize_bytes(dtype: DType, data: ByteArray) -> FloatArray:
    """The values stored in contiguous bytes of a format, as a flat float32 array of its own."""
    return _DECODERS[dtype](data)


def quantize(dtype: DType, values: npt.NDArray[np.floating]) -> ByteArray:
    """The bytes that store an array in a format, flat; the block formats round as ggml's reference code does.

    Raises ValueError where the last axis does not fill whole blocks.
    """
    array = np.ascontiguousarray(values, dtype=np.float32)
    row_bytes(dtype, array.shape[-1] if array.ndim else 1)
    return _ENCODERS[dtype](array.reshape(-1))


def _decode_f32(data: ByteArray) -> FloatArray:
    return data.view("<f4").astype(np.float32)


def _decode_f16(data: ByteArray) -> FloatArray:
    return data.view("<f2").astype(np.float32)


def _decode_bf16(data: ByteArray) -> FloatArray:
    return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _half(columns: ByteArray) -> FloatArray:
    """fp16 numbers out of two byte columns of the blocks, as a float32 column."""
    return np.ascontiguousarray(columns).view("<f2").astype(np.float32)


def _nibbles(packed: ByteArray) -> npt.NDArray[np.uint8]:
    return np.concatenate((packed & 0x0F, packed >> 4), axis=1)


def _decode_q4_0(data: ByteArray) -> FloatArray:
    blocks = data.reshape(-1, FORMATS["Q4_0"].block_bytes)
    quants = _nibbles(blocks[:, 2:]).astype(np.float32)
    quants -= 8.0
    return np.multiply(quants, _half(blocks[:, :2]), out=quants).reshape(-1)


def _decode_q4_1(data: ByteArray) -> FloatArray:
    blocks = data.reshape(-1, FORMATS["Q4_1"].block_bytes)
    quants = _nibbles(blocks[:, 4:]).astype(np.float32)
    quants *= _half(blocks[:, :2])
    return np.add(quants, _half(blocks[:, 2:4]), out=quants).reshape(-1)


def _decode_q8_0(data: ByteArray) -> FloatArray:
    blocks = data.reshape(-1, FORMATS["Q8_0"].block_bytes)
    quants = blocks[:, 2:].view(np.int8).astype(np.float32)
    return np.multiply(quants, _half(blocks[:, :2]), out=quants).reshape(-1)


def _encode_f32(values: FloatArray) -> ByteArray:
    return values.astype("<f4").view(np.uint8)


def _encode_f16(values: FloatArray) -> ByteArray:
    return values.astype("<f2").view(np.uint8)


def _encode_bf16(values: FloatArray) -> ByteArray:
    """Round to nearest, ties to even; a NaN stays one (rounding its bits up could make it infinite)."""
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(values), quiet, rounded).astype("<u2").view(np.uint8)


def _reciprocal(scale: FloatArray) -> FloatArray:
    """1 / scale, and 0 where that would overflow: such a scale is 0 once stored as fp16."""
    normal = np.abs(scale) >= np.finfo(np.float32).tiny
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=normal)


def _half_bytes(column: FloatArray) -> ByteArray:
    return column.astype("<f2").view(np.uint8)


def _pack(quants: ByteArray) -> ByteArray:
    high: ByteArray = quants[:, BLOCK // 2 :] << np.uint8(4)
    return quants[:, : BLOCK // 2] | high


def _encode_q4_0(values: FloatArray) -> ByteArray:
    """The element of largest magnitude (the first of equals) becomes exactly -8 steps."""
    rows = values.reshape(-1, BLOCK)
    largest = np.abs(rows).argmax(axis=1, keepdims=True)
    scale = np.take_along_axis(rows, largest, axis=1) / np.float32(-8)
    steps = rows * _reciprocal(scale) + np.float32(8.5)
    quants = np.minimum(steps.astype(np.int8), 15).astype(np.uint8)
    return np.concatenate((_half_bytes(scale), _pack(quants)), axis=1).reshape(-1)


def _encode_q4_1(values: FloatArray) -> ByteArray:
    rows = values.reshape(-1, BLOCK)
    low = rows.min(axis=1, keepdims=True)
    scale = (rows.max(axis=1, keepdims=True) - low) / np.float32(15)
    steps = (rows - low) * _reciprocal(scale) + np.float32(0.5)
    quants = np.minimum(steps.astype(np.int8), 15).astype(np.uint8)
    return np.concatenate((_half_bytes(scale), _half_bytes(low), _pack(quants)), axis=1).reshape(-1)


def _encode_q8_0(values: FloatArray) -> ByteArray:
    """Rounds half away from zero, as C's roundf does."""
    rows = values.reshape(-1, BLOCK)
    scale = np.abs(rows).max(axis=1, keepdims=True) / np.float32(127)
    steps = rows * _reciprocal(scale)
    whole = np.trunc(steps)
    away = np.where(np.abs(steps - whole) >= 0.5, np.sign(steps), np.float32(0))
    quants: ByteArray = (whole + away).astype(np.int8).view(np.uint8)
    return np.concatenate((_half_bytes(scale), quants), axis=1).reshape(-1)


_DECODERS: dict[DType, Callable[[ByteArray], FloatArray]] = {
    "F32": _decode_f32,
    "F16": _decode_f16,
    "BF16": _decode_bf16,
    "Q4_0": _decode_q4_0,
    "Q4_1": _decode_q4_1,
    "Q8_0": _decode_q8_0,
}

_ENCODERS: dict[DType, Callable[[FloatArray], ByteArray]] = {
    "F32": _encode_f32,
    "F16": _encode_f16,
    "BF16": _encode_bf16,
    "Q4_0": _encode_q4_0,
    "Q4_1": _encode_q4_1,
    "Q8_0": _encode_q8_0,
}
