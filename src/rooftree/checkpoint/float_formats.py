"""Formats of 8-bit and 4-bit floating-point elements, as bits and as numbers.

E4M3 (OCP OFP8, ``float8_e4m3fn``): bit 7 the sign, bits 6-3 the exponent e, bits 2-0 the mantissa m.
    e > 0: 2^(e - 7) * (1 + m / 8); e = 0: 2^-6 * m / 8. 448 is the largest; 0x7F and 0xFF are NaN.
E2M1 (OCP MX FP4): bit 3 the sign, bits 2-0 index 0, 0.5, 1, 1.5, 2, 3, 4, 6.
E8M0 (OCP MX scale): 2^(e - 127) for a byte e; 0xFF is NaN.

F8_E4M3, 1 byte an element: its E4M3 code. The tensor's ``scales`` multiply it.
MXFP4, blocks of 32 elements, 17 bytes: E8M0 scale x, qs[16]. Value E2M1(q) * x. (ggml's ``block_mxfp4``.)
NVFP4, blocks of 16 elements, 9 bytes: E4M3 scale x, qs[8]. Value E2M1(q) * E4M3(x); the tensor's ``scales``
    multiply it.

q of element i of a block of b is the low half of qs[i] for i < b / 2, the high half of qs[i - b / 2] from
there on. All of this is exact in float32; the multiplication with ``scales`` rounds once.

Checkpoints never hold a NaN on purpose, so readers refuse its codes; here they decode to NaN. Encoders round
to nearest, ties to even, and saturate. They choose scales by the largest magnitude of a block: MXFP4's as
OCP's specification does (its exponent less 2), NVFP4's as a sixth of it.

Decoders take blocks (n, block bytes) uint8 and give (n, block) float32; encoders the reverse.
"""

from __future__ import annotations

import numpy as np

from rooftree.checkpoint.block_formats import ByteArray, FloatArray, reciprocal

MX_BLOCK = 32
NV_BLOCK = 16

_E2M1_STEPS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_E2M1 = np.concatenate((_E2M1_STEPS, -_E2M1_STEPS))


def _e8m0_table() -> FloatArray:
    powers = np.ldexp(1.0, np.arange(256) - 127)
    powers[255] = np.nan
    return powers.astype(np.float32)


def _e4m3_table() -> FloatArray:
    """The value of each of the 256 codes."""
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    fraction = np.where(exponent > 0, 8 + mantissa, mantissa)
    values = np.ldexp(fraction.astype(np.float32), np.maximum(exponent, 1) - 10)
    values[127] = np.nan
    return np.concatenate((values, -values))


E4M3 = _e4m3_table()
_E8M0 = _e8m0_table()
# Halfway between neighbours: rounding is a search among them.
_E4M3_BORDERS = (E4M3[:126] + E4M3[1:127]) / np.float32(2)
_E2M1_BORDERS = (_E2M1_STEPS[:-1] + _E2M1_STEPS[1:]) / np.float32(2)


def is_nan_e4m3(codes: ByteArray) -> bool:
    """Whether any E4M3 code is NaN."""
    return bool(((codes & np.uint8(0x7F)) == 0x7F).any())


def decode_f8_e4m3(blocks: ByteArray) -> FloatArray:
    return np.take(E4M3, blocks)


def encode_f8_e4m3(rows: FloatArray) -> ByteArray:
    codes = _nearest(np.abs(rows), _E4M3_BORDERS) | np.signbit(rows).astype(np.uint8) << np.uint8(7)
    return np.where(np.isnan(rows), np.uint8(0x7F), codes)


def decode_mxfp4(blocks: ByteArray) -> FloatArray:
    values = _decode_e2m1(blocks[:, 1:])
    values *= e8m0_values(blocks[:, :1])
    return values


def encode_mxfp4(rows: FloatArray) -> ByteArray:
    largest = np.abs(rows).max(axis=1, keepdims=True)
    # frexp's fraction lies in [0.5, 1), so its exponent is one more than floor(log2); 6 is just below 2^3.
    exponent = np.frexp(largest)[1].clip(-124, 127 + 3) - 3
    quants = _encode_e2m1(np.ldexp(rows, -exponent))
    return np.concatenate(((exponent + 127).astype(np.uint8), quants), axis=1)


def decode_nvfp4(blocks: ByteArray) -> FloatArray:
    values = _decode_e2m1(blocks[:, 1:])
    values *= np.take(E4M3, blocks[:, :1])
    return values


def encode_nvfp4(rows: FloatArray) -> ByteArray:
    largest = np.abs(rows).max(axis=1, keepdims=True)
    scale = encode_f8_e4m3(largest / np.float32(6))
    quants = _encode_e2m1(rows * reciprocal(np.take(E4M3, scale)))
    return np.concatenate((scale, quants), axis=1)


def e8m0_values(codes: ByteArray) -> FloatArray:
    """2^(code - 127) as float32, which is subnormal for code 0; NaN for 0xFF."""
    return np.take(_E8M0, codes)


def pair_halves(packed: ByteArray) -> ByteArray:
    """Blocks of b nibbles, (..., b / 2) bytes, moved to the order of this module's formats.

    From neighbours (element 2i low, 2i + 1 high in byte i) to halves (element i low, i + b / 2 high).
    """
    quarter = packed.shape[-1] // 2
    first, second = packed[..., :quarter], packed[..., quarter:]
    even = (first & np.uint8(0x0F)) | second << np.uint8(4)
    odd = first >> np.uint8(4) | (second & np.uint8(0xF0))
    return np.stack((even, odd), axis=-1).reshape(packed.shape)


def _decode_e2m1(packed: ByteArray) -> FloatArray:
    codes = np.concatenate((packed & np.uint8(0x0F), packed >> np.uint8(4)), axis=1)
    return np.take(_E2M1, codes)


def _encode_e2m1(scaled: FloatArray) -> ByteArray:
    codes = _nearest(np.abs(scaled), _E2M1_BORDERS) | np.signbit(scaled).astype(np.uint8) << np.uint8(3)
    half = codes.shape[1] // 2
    high: ByteArray = codes[:, half:] << np.uint8(4)
    return codes[:, :half] | high


def _nearest(magnitudes: FloatArray, borders: FloatArray) -> ByteArray:
    """The code of the nearest value; a magnitude on a border goes to the even one of its two neighbours."""
    codes = np.searchsorted(borders, magnitudes).astype(np.uint8)
    on_border = np.take(borders, codes, mode="clip") == magnitudes
    codes += (on_border & (codes % 2 == 1)).astype(np.uint8)
    return codes
