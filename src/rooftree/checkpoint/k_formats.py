"""ggml's "K" formats, super-blocks of 256 elements with quantised scales, as bits and as numbers.

A super-block holds elements 0 <= e < 256, consecutive ones of a row. Numbers are little-endian, d and dmin
fp16. Q4_K and Q5_K have 8 groups of 32 elements, g = e // 32, l = e % 32; Q6_K has 16 groups of 16.

Q4_K, 144 bytes: d, dmin, scales[12], qs[128].
    q(e) = low nibble of qs[32 * (g // 2) + l] for even g, high nibble of the same byte for odd g.
    value = (d * sc(g)) * q - dmin * mn(g), with sc and mn of 6 bits out of ``scales`` (s below):
    g < 4:  sc = s[g] & 63, mn = s[g + 4] & 63;
    g >= 4: sc = (s[g + 4] & 15) | (s[g - 4] >> 6) << 4, mn = (s[g + 4] >> 4) | (s[g] >> 6) << 4.

Q5_K, 176 bytes: d, dmin, scales[12], qh[32], qs[128].
    As Q4_K with q(e) = nibble + 16 * (bit g of qh[l]).

Q6_K, 210 bytes: ql[128], qh[64], scales[16] (int8), d.
    With h = e // 128, k = e % 128 // 32, l = e % 32:
    q(e) = nibble + 16 * ((qh[32 * h + l] >> 2 * k) & 3) - 32, where nibble is the low one (k < 2) or the high
    one (k >= 2) of ql[64 * h + 32 * (k % 2) + l].
    value = (d * scales[e // 16]) * q.

Every product is exact in float32 and the difference rounds once, so each value is defined to the last bit.

The encoders find each group's scale from its extremes and round; ggml's search for better scales is not
repeated, so files that llama.cpp wrote are a little closer to the weights. Decoders take blocks
(n, block bytes) uint8 and give (n, 256) float32; encoders the reverse.
"""

from __future__ import annotations

import numpy as np

from rooftree.checkpoint.block_formats import ByteArray, FloatArray, half_bytes, half_values, reciprocal

SUPER_BLOCK = 256

_NIBBLE_SHIFTS = np.array([0, 4], np.uint8)
_PAIR_SHIFTS = np.array([0, 2, 4, 6], np.uint8)
_BIT_SHIFTS = np.arange(8, dtype=np.uint8)


def decode_q4_k(blocks: ByteArray) -> FloatArray:
    return _scale_and_shift(blocks, _group_nibbles(blocks[:, 16:]))


def decode_q5_k(blocks: ByteArray) -> FloatArray:
    bits = (blocks[:, None, 16:48] >> _BIT_SHIFTS[:, None]) & np.uint8(1)
    return _scale_and_shift(blocks, _group_nibbles(blocks[:, 48:]) | bits << np.uint8(4))


def decode_q6_k(blocks: ByteArray) -> FloatArray:
    low = blocks[:, :128].reshape(-1, 2, 1, 2, 32) >> _NIBBLE_SHIFTS[:, None, None] & np.uint8(0x0F)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> _PAIR_SHIFTS[:, None] & np.uint8(3)
    quants = (low.reshape(-1, 2, 4, 32) | high << np.uint8(4)).reshape(-1, 16, 16).astype(np.float32)
    quants -= 32.0
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32) * half_values(blocks[:, 208:210])
    quants *= scales[:, :, None]
    return quants.reshape(-1, SUPER_BLOCK)


def encode_q4_k(rows: FloatArray) -> ByteArray:
    head, quants = _groups_with_minima(rows, 15)
    return np.concatenate((head, _pack_groups(quants)), axis=1)


def encode_q5_k(rows: FloatArray) -> ByteArray:
    head, quants = _groups_with_minima(rows, 31)
    high = np.bitwise_or.reduce(quants >> np.uint8(4) << _BIT_SHIFTS[:, None], axis=1)
    return np.concatenate((head, high, _pack_groups(quants & np.uint8(0x0F))), axis=1)


def encode_q6_k(rows: FloatArray) -> ByteArray:
    groups = rows.reshape(-1, 16, 16)
    group_scale = _largest(groups) / np.float32(-32)
    d = half_bytes(_largest(group_scale)[:, None] / np.float32(-128))
    scale_step = half_values(d)
    scales = np.rint(group_scale * reciprocal(scale_step)).clip(-128, 127)
    steps = groups * reciprocal(scales * scale_step)[:, :, None]
    quants = (np.rint(steps).clip(-32, 31) + 32).astype(np.uint8)
    low = (quants & np.uint8(0x0F)).reshape(-1, 2, 2, 64)
    pairs = quants.reshape(-1, 2, 4, 32) >> np.uint8(4) << _PAIR_SHIFTS[:, None]
    parts = (
        (low[:, :, 0] | low[:, :, 1] << np.uint8(4)).reshape(-1, 128),
        np.bitwise_or.reduce(pairs, axis=2).reshape(-1, 64),
        scales.astype(np.int8).view(np.uint8),
        d,
    )
    return np.concatenate(parts, axis=1)


def _largest(values: FloatArray) -> FloatArray:
    """The element of largest magnitude along the last axis, with its sign."""
    place = np.abs(values).argmax(axis=-1)[..., None]
    return np.take_along_axis(values, place, axis=-1)[..., 0]


def _group_nibbles(packed: ByteArray) -> ByteArray:
    """(n, 128) bytes to (n, 8, 32) nibbles: two groups to each 32 bytes."""
    pairs = packed.reshape(-1, 4, 1, 32) >> _NIBBLE_SHIFTS[:, None] & np.uint8(0x0F)
    return pairs.reshape(-1, 8, 32)


def _pack_groups(quants: ByteArray) -> ByteArray:
    pairs = quants.reshape(-1, 4, 2, 32)
    packed: ByteArray = pairs[:, :, 0] | pairs[:, :, 1] << np.uint8(4)
    return packed.reshape(-1, 128)


def _scale_and_shift(blocks: ByteArray, quants: ByteArray) -> FloatArray:
    """(d * sc) * q - dmin * mn for the (n, 8, 32) quants of blocks that begin as Q4_K's do."""
    scales, minima = _unpack_scales(blocks[:, 4:16])
    values = quants.astype(np.float32)
    values *= (half_values(blocks[:, :2]) * scales)[:, :, None]
    values -= (half_values(blocks[:, 2:4]) * minima)[:, :, None]
    return values.reshape(-1, SUPER_BLOCK)


def _unpack_scales(packed: ByteArray) -> tuple[ByteArray, ByteArray]:
    """The 6-bit scales and minima of 8 groups, each (n, 8)."""
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((first & 63, (third & 15) | first >> 6 << 4), axis=1)
    minima = np.concatenate((second & 63, third >> 4 | second >> 6 << 4), axis=1)
    return scales, minima


def _pack_scales(scales: ByteArray, minima: ByteArray) -> ByteArray:
    first = scales[:, :4] | scales[:, 4:] >> 4 << 6
    second = minima[:, :4] | minima[:, 4:] >> 4 << 6
    third = (scales[:, 4:] & 15) | minima[:, 4:] << 4
    return np.concatenate((first, second, third), axis=1)


def _groups_with_minima(rows: FloatArray, levels: int) -> tuple[ByteArray, ByteArray]:
    """The first 16 bytes (d, dmin, scales) of Q4_K and Q5_K blocks, and their quants (n, 8, 32).

    A minimum is subtracted, so it is that of the group and 0.
    """
    groups = rows.reshape(-1, 8, 32)
    depth = -np.minimum(groups.min(axis=2), np.float32(0))
    step = (groups.max(axis=2) + depth) / np.float32(levels)
    d = half_bytes(step.max(axis=1, keepdims=True) / np.float32(63))
    dmin = half_bytes(depth.max(axis=1, keepdims=True) / np.float32(63))
    scale_step, minimum_step = half_values(d), half_values(dmin)
    scales = np.rint(step * reciprocal(scale_step)).clip(0, 63)
    minima = np.rint(depth * reciprocal(minimum_step)).clip(0, 63)
    shifted = groups + (minimum_step * minima)[:, :, None]
    steps = shifted * reciprocal(scale_step * scales)[:, :, None]
    packed = _pack_scales(scales.astype(np.uint8), minima.astype(np.uint8))
    return np.concatenate((d, dmin, packed), axis=1), np.rint(steps).clip(0, levels).astype(np.uint8)
