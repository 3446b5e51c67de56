"""8-bit and 4-bit floats: every code, rounding, saturation and scales kept apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rooftree.checkpoint.base import Scales, Tensor
from rooftree.checkpoint.float_formats import E4M3, e8m0_values, is_nan_e4m3, pair_halves
from rooftree.checkpoint.formats import apply_scales, dequantize, dequantize_bytes, quantize

ALL_CODES = np.arange(256, dtype=np.uint8)
ORDINARY = ALL_CODES[(ALL_CODES & 127) != 127]


def test_known_codes():
    codes = {0x00: 0, 0x01: 2**-9, 0x07: 7 * 2**-9, 0x08: 2**-6, 0x38: 1, 0x3C: 1.5, 0x7E: 448, 0xB8: -1}
    for code, value in codes.items():
        assert E4M3[code] == value
    assert np.signbit(E4M3[0x80])
    assert np.isnan(E4M3[[0x7F, 0xFF]]).all()
    assert np.isfinite(E4M3[ORDINARY]).all()
    assert [is_nan_e4m3(ALL_CODES[i : i + 1]) for i in (0x7E, 0x7F, 0xFE, 0xFF)] == [False, True, False, True]


def test_every_code_comes_back():
    np.testing.assert_array_equal(quantize("F8_E4M3", dequantize_bytes("F8_E4M3", ORDINARY)), ORDINARY)
    for scale in (2.0**-127, 2.0**-10, 1.0, 2.0**100):
        elements = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6] * 2 + [-0.5, -1, -1.5, -2, -3, -4, -6, 6] * 2)
        values = (elements * scale).astype(np.float32)
        np.testing.assert_array_equal(dequantize_bytes("MXFP4", quantize("MXFP4", values)), values)
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6, 6], np.float32)
    np.testing.assert_array_equal(dequantize_bytes("NVFP4", quantize("NVFP4", values)), values)


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1.0625, 1.0),  # halfway between 1 and 1.125: to the even code
        (1.1875, 1.25),
        (1.1874, 1.125),
        (2**-10, 0.0),
        (3 * 2**-10, 2**-8),
        (2**-10 * 1.001, 2**-9),
        (464.0, 448.0),
        (1e30, 448.0),
        (np.inf, 448.0),
        (0.0, 0.0),
    ],
)
def test_e4m3_rounds_to_nearest_even_and_saturates(value, rounded):
    for sign in (1, -1):
        stored = dequantize_bytes("F8_E4M3", quantize("F8_E4M3", np.array([sign * value])))
        assert stored[0] == sign * rounded
        assert np.signbit(stored[0]) == (sign < 0)
    assert quantize("F8_E4M3", np.array([np.nan]))[0] == 0x7F


def test_e2m1_rounds_to_nearest_even():
    values = np.zeros(16, np.float32)
    values[:9] = 6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -5
    stored = dequantize_bytes("NVFP4", quantize("NVFP4", values))
    assert stored[:9].tolist() == [6, 0, 1, 1, 2, 2, 4, 4, -4]


@given(hnp.arrays(np.float32, (2, 64), elements=st.floats(-1e4, 1e4, width=32)))
def test_blocks_keep_every_value_near(values):
    """MXFP4's largest is cut from below 8 to 6 steps; NVFP4's scale is rounded to 1 part in 16."""
    for dtype, block, share in (("MXFP4", 32, 0.25), ("NVFP4", 16, 0.25)):
        groups = values.reshape(-1, block)
        largest = np.abs(groups).max(axis=1, keepdims=True)
        if dtype == "NVFP4":
            groups = groups / 1e4 * 448
            largest = largest / 1e4 * 448
        error = np.abs(dequantize_bytes(dtype, quantize(dtype, groups)).reshape(groups.shape) - groups)
        assert (error <= largest * share + 2**-9 * 6).all(), dtype


def test_e8m0_reaches_from_subnormal_to_the_largest():
    values = e8m0_values(ALL_CODES)
    assert values[0] == np.float32(2.0**-127)
    assert values[127] == 1
    assert values[254] == np.float32(2.0**127)
    assert np.isnan(values[255])
    assert (np.diff(np.log2(values[:255].astype(np.float64))) == 1).all()


@pytest.mark.parametrize("block", [16, 32])
def test_nibbles_move_from_neighbours_to_halves(block):
    elements = np.random.default_rng(0).integers(0, 16, (7, block), dtype=np.uint8)
    stored = elements[:, ::2] | elements[:, 1::2] << 4
    half = block // 2
    np.testing.assert_array_equal(pair_halves(stored), elements[:, :half] | elements[:, half:] << 4)


# Scales


def scaled(rows, columns, block, seed=0):
    rng = np.random.default_rng(seed)
    shape = (-(-rows // block[0]), -(-columns // block[1]))
    scales = Scales(rng.standard_normal(shape).astype(np.float32), block)
    codes = rng.choice(ORDINARY, rows * columns)
    return Tensor("w", (rows, columns), "F8_E4M3", codes, "here", scales)


@pytest.mark.parametrize(
    "block", [(37, 83), (1, 83), (37, 1), (1, 1), (8, 16), (37, 16), (8, 83), (128, 128)]
)
def test_scales_multiply_their_block_and_round_once(block):
    tensor = scaled(37, 83, block)
    values = dequantize(tensor)
    for row in range(37):
        for column in range(83):
            code = tensor.data[row * 83 + column]
            scale = tensor.scales.values[row // block[0], column // block[1]]
            assert values[row, column] == np.float32(float(E4M3[code]) * float(scale))


@given(st.integers(0, 36), st.integers(1, 37), st.sampled_from([(8, 16), (1, 83), (37, 83), (5, 1)]))
def test_scales_of_a_stretch_of_rows(first, count, block):
    tensor = scaled(37, 83, block)
    rows = dequantize_bytes("F8_E4M3", tensor.data).reshape(37, 83)[first : first + count]
    expected = dequantize(tensor)[first : first + count]
    apply_scales(rows, tensor.scales, first)
    np.testing.assert_array_equal(rows, expected)
