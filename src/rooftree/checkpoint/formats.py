"""The storage formats of weights: their sizes, and their exact conversion to and from float32.

F32, F16 and BF16 store elements one by one. ``block_formats`` and ``k_formats`` define the bits of ggml's
formats, ``float_formats`` those of 8-bit and 4-bit floating-point elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rooftree.checkpoint import block_formats as ggml
from rooftree.checkpoint import float_formats
from rooftree.checkpoint import k_formats as ggml_k
from rooftree.checkpoint.base import DType, Scales, Tensor
from rooftree.checkpoint.block_formats import BLOCK, ByteArray, FloatArray
from rooftree.checkpoint.float_formats import MX_BLOCK, NV_BLOCK
from rooftree.checkpoint.k_formats import SUPER_BLOCK

# Elements converted at once: intermediate arrays stay in the cache, and small beside any large tensor.
_CHUNK = 1 << 16


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
    "Q5_0": Format(BLOCK, 22),
    "Q5_1": Format(BLOCK, 24),
    "Q8_0": Format(BLOCK, 34),
    "Q4_K": Format(SUPER_BLOCK, 144),
    "Q5_K": Format(SUPER_BLOCK, 176),
    "Q6_K": Format(SUPER_BLOCK, 210),
    "F8_E4M3": Format(1, 1),
    "MXFP4": Format(MX_BLOCK, 17),
    "NVFP4": Format(NV_BLOCK, 9),
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
    """The values of a tensor as float32, in its shape: exactly what its format defines.

    Where the tensor has scales, each value is the product with one of them, rounded once.
    """
    values = dequantize_bytes(tensor.dtype, tensor.rows(0, tensor.num_rows)).reshape(tensor.shape)
    tensor.give_back(0, tensor.num_rows)
    if tensor.scales is not None:
        apply_scales(values, tensor.scales)
    return values


def apply_scales(rows: FloatArray, scales: Scales, first_row: int = 0) -> None:
    """Multiply rows ``first_row`` and on of a matrix, (any number, k), with their scales in place."""
    height, width = scales.block
    k = rows.shape[1]
    by_column = scales.values
    if by_column.shape[1] > 1:
        by_column = np.repeat(by_column, width, axis=1)[:, :k]
    last = first_row + len(rows)
    if height == 1:
        rows *= by_column[first_row:last]
        return
    for block in range(first_row // height, -(-last // height)):
        begin, end = max(block * height, first_row), min((block + 1) * height, last)
        rows[begin - first_row : end - first_row] *= by_column[block]


def dequantize_bytes(dtype: DType, data: ByteArray) -> FloatArray:
    """The values stored in contiguous bytes of a format, as a flat float32 array of its own."""
    block, block_bytes = FORMATS[dtype]
    decode = _CODECS[dtype].decode
    blocks = data.reshape(-1, block_bytes)
    values = np.empty((len(blocks), block), np.float32)
    at_once = _CHUNK // block
    for first in range(0, len(blocks), at_once):
        values[first : first + at_once] = decode(blocks[first : first + at_once])
    return values.reshape(-1)


def quantize(dtype: DType, values: npt.NDArray[np.floating]) -> ByteArray:
    """The bytes that store an array in a format, flat; see each format's module for how it rounds.

    Raises ValueError where the last axis does not fill whole blocks.
    """
    array = np.ascontiguousarray(values, dtype=np.float32)
    row_bytes(dtype, array.shape[-1] if array.ndim else 1)
    block, block_bytes = FORMATS[dtype]
    encode = _CODECS[dtype].encode
    rows = array.reshape(-1, block)
    data = np.empty((len(rows), block_bytes), np.uint8)
    at_once = _CHUNK // block
    for first in range(0, len(rows), at_once):
        data[first : first + at_once] = encode(rows[first : first + at_once])
    return data.reshape(-1)


def _decode_f32(data: ByteArray) -> FloatArray:
    return data.view("<f4").astype(np.float32)


def _decode_f16(data: ByteArray) -> FloatArray:
    return data.view("<f2").astype(np.float32)


def _decode_bf16(data: ByteArray) -> FloatArray:
    return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)


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


class _Codec(NamedTuple):
    """Between blocks (n, block bytes) uint8 and their elements (n, block) float32."""

    decode: Callable[[ByteArray], FloatArray]
    encode: Callable[[FloatArray], ByteArray]


_CODECS: dict[DType, _Codec] = {
    "F32": _Codec(_decode_f32, _encode_f32),
    "F16": _Codec(_decode_f16, _encode_f16),
    "BF16": _Codec(_decode_bf16, _encode_bf16),
    "Q4_0": _Codec(ggml.decode_q4_0, ggml.encode_q4_0),
    "Q4_1": _Codec(ggml.decode_q4_1, ggml.encode_q4_1),
    "Q5_0": _Codec(ggml.decode_q5_0, ggml.encode_q5_0),
    "Q5_1": _Codec(ggml.decode_q5_1, ggml.encode_q5_1),
    "Q8_0": _Codec(ggml.decode_q8_0, ggml.encode_q8_0),
    "Q4_K": _Codec(ggml_k.decode_q4_k, ggml_k.encode_q4_k),
    "Q5_K": _Codec(ggml_k.decode_q5_k, ggml_k.encode_q5_k),
    "Q6_K": _Codec(ggml_k.decode_q6_k, ggml_k.encode_q6_k),
    "F8_E4M3": _Codec(float_formats.decode_f8_e4m3, float_formats.encode_f8_e4m3),
    "MXFP4": _Codec(float_formats.decode_mxfp4, float_formats.encode_mxfp4),
    "NVFP4": _Codec(float_formats.decode_nvfp4, float_formats.encode_nvfp4),
}
