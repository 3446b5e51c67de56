"""Every format against its definition, element by element."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rooftree.checkpoint.base import Tensor
from rooftree.checkpoint.formats import (
    FORMATS,
    dequantize,
    dequantize_bytes,
    is_quantized,
    quantize,
    row_bytes,
    tensor_bytes,
)

QUANTIZED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


def half(raw: bytes) -> np.float32:
    return np.float32(struct.unpack("<e", raw)[0])


def nibble(packed: bytes, index: int) -> int:
    return packed[index] & 15 if index < 16 else packed[index - 16] >> 4


def q4_0(block: bytes) -> list[np.float32]:
    return [np.float32(nibble(block[2:], i) - 8) * half(block[:2]) for i in range(32)]


def q4_1(block: bytes) -> list[np.float32]:
    scale, low = half(block[:2]), half(block[2:4])
    return [np.float32(nibble(block[4:], i)) * scale + low for i in range(32)]


def q8_0(block: bytes) -> list[np.float32]:
    return [np.float32(struct.unpack("<b", block[2 + i : 3 + i])[0]) * half(block[:2]) for i in range(32)]


def fifth_bit(packed: bytes, index: int) -> int:
    return int.from_bytes(packed[:4], "little") >> index & 1


def q5_0(block: bytes) -> list[np.float32]:
    quants = [nibble(block[6:], i) + 16 * fifth_bit(block[2:], i) for i in range(32)]
    return [np.float32(q - 16) * half(block[:2]) for q in quants]


def q5_1(block: bytes) -> list[np.float32]:
    quants = [nibble(block[8:], i) + 16 * fifth_bit(block[4:], i) for i in range(32)]
    return [np.float32(q) * half(block[:2]) + half(block[2:4]) for q in quants]


def scale_and_minimum(s: bytes, g: int) -> tuple[int, int]:
    """As ggml's get_scale_min_k4."""
    if g < 4:
        return s[g] & 63, s[g + 4] & 63
    return (s[g + 4] & 15) | (s[g - 4] >> 6) << 4, (s[g + 4] >> 4) | (s[g] >> 6) << 4


def q45_k(block: bytes, high_bytes: int) -> list[np.float32]:
    d, dmin, high, low = (
        half(block[:2]),
        half(block[2:4]),
        block[16 : 16 + high_bytes],
        block[16 + high_bytes :],
    )
    values = []
    for e in range(256):
        g, at = divmod(e, 32)
        scale, minimum = scale_and_minimum(block[4:16], g)
        quant = low[32 * (g // 2) + at] >> 4 * (g % 2) & 15
        if high_bytes:
            quant += 16 * (high[at] >> g & 1)
        values.append(d * np.float32(scale) * np.float32(quant) - dmin * np.float32(minimum))
    return values


def q6_k(block: bytes) -> list[np.float32]:
    low, high, scales, d = (
        block[:128],
        block[128:192],
        np.frombuffer(block[192:208], np.int8),
        half(block[208:]),
    )
    values = []
    for e in range(256):
        h, k, at = e // 128, e % 128 // 32, e % 32
        quant = low[64 * h + 32 * (k % 2) + at] >> 4 * (k // 2) & 15
        quant |= (high[32 * h + at] >> 2 * k & 3) << 4
        values.append(d * np.float32(scales[e // 16]) * np.float32(quant - 32))
    return values


E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def e4m3(code: int) -> float:
    sign, exponent, mantissa = (-1.0 if code >> 7 else 1.0), code >> 3 & 15, code & 7
    if code & 127 == 127:
        return math.nan
    return sign * (2.0 ** (exponent - 7) * (1 + mantissa / 8) if exponent else 2.0**-6 * mantissa / 8)


def e2m1(packed: bytes) -> list[float]:
    return [E2M1[byte & 15] for byte in packed] + [E2M1[byte >> 4] for byte in packed]


def f8_e4m3(code: bytes) -> list[np.float32]:
    return [np.float32(e4m3(code[0]))]


def mxfp4(block: bytes) -> list[np.float32]:
    scale = math.nan if block[0] == 255 else 2.0 ** (block[0] - 127)
    return [np.float32(value * scale) for value in e2m1(block[1:])]


def nvfp4(block: bytes) -> list[np.float32]:
    return [np.float32(value * e4m3(block[0])) for value in e2m1(block[1:])]


DEFINITIONS = {
    "F32": (4, lambda raw: [np.float32(struct.unpack("<f", raw)[0])]),
    "F16": (2, lambda raw: [half(raw)]),
    "BF16": (2, lambda raw: [np.float32(struct.unpack("<f", b"\0\0" + raw)[0])]),
    "Q4_0": (18, q4_0),
    "Q4_1": (20, q4_1),
    "Q5_0": (22, q5_0),
    "Q5_1": (24, q5_1),
    "Q8_0": (34, q8_0),
    "Q4_K": (144, lambda block: q45_k(block, 0)),
    "Q5_K": (176, lambda block: q45_k(block, 32)),
    "Q6_K": (210, q6_k),
    "F8_E4M3": (1, f8_e4m3),
    "MXFP4": (17, mxfp4),
    "NVFP4": (9, nvfp4),
}


@pytest.mark.parametrize("dtype", DEFINITIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_dequantisation_is_the_definition_for_any_bits(dtype):
    size, definition = DEFINITIONS[dtype]
    raw = np.random.default_rng(1).integers(0, 256, 300 * size, dtype=np.uint8).tobytes()
    expected = [x for at in range(0, len(raw), size) for x in definition(raw[at : at + size])]
    actual = dequantize_bytes(dtype, np.frombuffer(raw, np.uint8))
    np.testing.assert_array_equal(actual, np.array(expected, np.float32))


@pytest.mark.parametrize("dtype", DEFINITIONS)
def test_a_tensor_keeps_its_shape_and_its_file(dtype):
    shape = (3, 2, 256)
    values = np.random.default_rng(2).standard_normal(shape)
    data = quantize(dtype, values)
    data.flags.writeable = False
    tensor = Tensor("t", shape, dtype, data, "here")
    result = dequantize(tensor)
    assert result.shape == shape
    assert result.dtype == np.float32
    assert result.flags.writeable
    assert tensor.num_bytes == tensor_bytes(dtype, shape) == data.nbytes
    assert tensor.num_elements == 1536


def test_formats_read_from_any_address():
    raw = np.zeros(1 + 4 * 8, np.uint8)
    raw[1:] = quantize("F32", np.arange(8.0))
    np.testing.assert_array_equal(dequantize_bytes("F32", raw[1:]), np.arange(8))


def test_sizes():
    assert {name: FORMATS[name].block_bytes for name in FORMATS} == {
        name: size for name, (size, _) in DEFINITIONS.items()
    }
    assert [name for name in FORMATS if is_quantized(name)] == [*QUANTIZED, "MXFP4", "NVFP4"]
    assert row_bytes("Q4_1", 576) == 360
    assert tensor_bytes("F16", ()) == 2
    assert tensor_bytes("F32", (0, 5)) == 0


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_a_row_that_is_no_whole_number_of_blocks_is_refused(dtype):
    block = 256 if dtype.endswith("K") else 32
    with pytest.raises(ValueError, match=rf"multiple of {block} .* not {block * 3 // 2}"):
        row_bytes(dtype, block * 3 // 2)
    with pytest.raises(ValueError, match="not 16"):
        quantize(dtype, np.zeros((2, 16)))


floats = st.floats(-1e4, 1e4, width=32)


@given(hnp.arrays(np.float32, (2, 64), elements=floats))
def test_quantising_keeps_every_value_within_half_a_step(values):
    blocks = values.reshape(-1, 32)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    spread = np.ptp(blocks, axis=1, keepdims=True)
    # Half a step, doubled for the lopsided ranges of Q4_0 (-8..7) and Q5_0, plus the rounding to fp16.
    slack = largest * 2**-9 + 1e-3
    bounds = {
        "Q8_0": largest / 254,
        "Q4_0": largest / 8,
        "Q4_1": spread / 30,
        "Q5_0": largest / 16,
        "Q5_1": spread / 62,
    }
    for dtype, bound in bounds.items():
        error = np.abs(dequantize_bytes(dtype, quantize(dtype, values)).reshape(blocks.shape) - blocks)
        assert (error <= bound + slack).all(), dtype


@given(hnp.arrays(np.float32, (2, 256), elements=floats))
def test_super_blocks_keep_every_value_near(values):
    """A group's scale and minimum are rounded too, to a 126th of the block's largest.

    In Q6_K scales reach from -128 to 127 and quants from -32 to 31, so the largest can be off by one of each.
    """
    groups = values.reshape(2, 8, 32)
    spread = np.maximum(groups, 0).max(axis=2) - np.minimum(groups, 0).min(axis=2)
    depth = -np.minimum(groups, 0).min(axis=2)
    largest = np.abs(values).max(axis=1, keepdims=True)
    bounds = {
        dtype: spread / levels / 2
        + spread.max(axis=1, keepdims=True) / 126
        + depth.max(axis=1, keepdims=True) / 126
        for dtype, levels in (("Q4_K", 15), ("Q5_K", 31))
    }
    bounds["Q6_K"] = np.abs(groups).max(axis=2) / 32 + largest / 128
    for dtype, bound in bounds.items():
        error = np.abs(dequantize_bytes(dtype, quantize(dtype, values)).reshape(groups.shape) - groups)
        assert (error <= (bound + largest * 2**-9 + 1e-2)[:, :, None]).all(), dtype


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_what_a_format_can_hold_survives_another_round(dtype):
    """Values with few bits, extremes present in every group, come back unchanged."""
    levels = {"4_0": (-8, 7), "5_0": (-16, 15), "4_1": (0, 15), "5_1": (0, 31), "8_0": (-127, 127)}
    levels |= {"4_K": (0, 15), "5_K": (0, 31), "6_K": (-32, 31)}
    low, high = levels[dtype[1:]]
    values = np.random.default_rng(3).integers(low, high + 1, (64, 16)).astype(np.float32)
    values[:, 0], values[:, 1] = low, high
    values = values.reshape(-1, 256) * np.float32(0.25)
    stored = dequantize_bytes(dtype, quantize(dtype, values)).reshape(values.shape)
    # Scales and minima of the super-blocks are divided by 63 and 128, and rounded to fp16.
    np.testing.assert_allclose(stored, values, rtol=2**-9, atol=2**-9 * high if dtype.endswith("K") else 0)


@pytest.mark.parametrize("dtype", FORMATS)
def test_long_arrays_are_converted_piece_by_piece(dtype):
    """The same bits as row by row."""
    values = np.random.default_rng(4).standard_normal((700, 256)).astype(np.float32)
    data = quantize(dtype, values)
    assert data.tobytes() == b"".join(quantize(dtype, row).tobytes() for row in values)
    rows = [dequantize_bytes(dtype, part) for part in data.reshape(700, -1)]
    assert dequantize_bytes(dtype, data).tobytes() == np.array(rows).tobytes()
    assert dequantize_bytes(dtype, data[:0]).shape == (0,)


def test_quantising_rounds_as_the_reference_does():
    """Q4_0 maps the first of the largest to -8, Q8_0 rounds halves away from zero, zeros stay zeros."""
    block = np.zeros(32, np.float32)
    block[3], block[5] = 4.0, -4.0
    raw = quantize("Q4_0", block).tobytes()
    assert half(raw[:2]) == -0.5
    assert (nibble(raw[2:], 3), nibble(raw[2:], 5), nibble(raw[2:], 0)) == (0, 15, 8)
    block[:] = 0
    block[:4] = 127, 0.5, -0.5, 1.5
    assert quantize("Q8_0", block)[2:6].view(np.int8).tolist() == [127, 1, -1, 2]
    block[:] = 0
    for dtype in QUANTIZED:
        assert not dequantize_bytes(dtype, quantize(dtype, np.zeros(256))).any()
    block[:] = 7
    for dtype in ("Q4_1", "Q5_1"):
        raw = quantize(dtype, block).tobytes()
        assert (half(raw[:2]), half(raw[2:4])) == (0, 7)
    block[:] = np.arange(32) - 16
    raw = quantize("Q5_0", block).tobytes()
    assert half(raw[:2]) == 1
    assert raw[2:6] == b"\0\0\xff\xff"
    assert [nibble(raw[6:], i) + 16 * fifth_bit(raw[2:], i) for i in range(32)] == list(range(32))


def test_bf16_rounds_to_nearest_even_and_keeps_nan():
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7FFFFFFF, 0x7F800000], np.uint32)
    stored = quantize("BF16", bits.view(np.float32)).view(np.uint16)
    assert stored.tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7FFF, 0x7F80]
    assert np.isnan(dequantize_bytes("BF16", stored.view(np.uint8))[3])
