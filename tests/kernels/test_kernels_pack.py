"""Packed weights hold exactly what their format defines, and any address will do as the source."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rooftree import _native
from rooftree.checkpoint.base import DType
from rooftree.checkpoint.formats import FORMATS, dequantize_bytes, quantize, row_bytes
from rooftree.kernels.cpu import FORMAT_CODES

POOL = _native.ThreadPool(2)
DTYPES = tuple(FORMATS)


def unpacked(packed: _native.PackedMatrix) -> np.ndarray:
    out = np.empty((packed.n, packed.k), np.float32)
    for row, values in enumerate(out):
        packed.unpack_row(row, values)
    return out


def displaced(data: np.ndarray, shift: int) -> np.ndarray:
    """The same bytes at an address ``shift`` bytes past an aligned one, read-only as a memory map is."""
    home = np.zeros(len(data) + 64 + shift, np.uint8)
    begin = -home.ctypes.data % 64 + shift
    home[begin : begin + len(data)] = data
    view = home[begin : begin + len(data)]
    view.flags.writeable = False
    return view


@settings(deadline=None, max_examples=120)
@given(
    dtype=st.sampled_from(DTYPES),
    n=st.integers(1, 70),
    blocks=st.integers(1, 4),
    shift=st.integers(0, 7),
    seed=st.integers(0, 2**32 - 1),
)
@example(dtype="Q8_0", n=16, blocks=1, shift=1, seed=0)
@example(dtype="F32", n=17, blocks=3, shift=3, seed=0)
def test_rows_come_back_to_the_bit(dtype: DType, n: int, blocks: int, shift: int, seed: int):
    """Every byte pattern, so scales of any sign and size, -128, subnormals, infinities and NaNs with them."""
    k = blocks * (32 if dtype.startswith("Q") else 7)
    data = np.random.default_rng(seed).integers(0, 256, n * row_bytes(dtype, k), dtype=np.uint8)
    packed = _native.pack(FORMAT_CODES[dtype], displaced(data, shift), n, k, POOL)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = dequantize_bytes(dtype, data).reshape(n, k)
    got = unpacked(packed)
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.isnan(got), ~numbers)
    assert np.array_equal(got[numbers].view(np.uint32), expected[numbers].view(np.uint32))


@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("scale", [0.0, -0.0, 5.96e-8, -5.96e-8, 6.1e-5, 1.0, -2.5, 65504.0, -65504.0])
def test_all_quants_under_extreme_scales(dtype: DType, scale: float):
    steps = np.arange(256, dtype=np.uint8)
    payload = FORMATS[dtype].block_bytes - (4 if dtype == "Q4_1" else 2)
    halves = [np.float16(scale)] + [np.float16(-scale)] * (dtype == "Q4_1")
    header = np.array(halves, np.float16).view(np.uint8)
    data = np.concatenate([np.concatenate((header, np.roll(steps, i)[:payload])) for i in range(0, 256, 8)])
    packed = _native.pack(FORMAT_CODES[dtype], data, 32, 32, POOL)
    expected = dequantize_bytes(dtype, data).reshape(32, 32)
    assert np.array_equal(unpacked(packed).view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 15, 16, 33])
def test_size_is_whole_tiles(dtype: DType, n: int):
    k = 64
    data = quantize(dtype, np.ones((n, k), np.float32))
    packed = _native.pack(FORMAT_CODES[dtype], data, n, k, POOL)
    assert (packed.n, packed.k) == (n, k)
    assert packed.nbytes == -(-n // 16) * _native.tile_bytes(FORMAT_CODES[dtype], k)
    assert packed.nbytes == -(-n // 16) * 16 * row_bytes(dtype, k)


def test_misfits_are_refused():
    data = np.zeros(4 * 64, np.uint8)
    with pytest.raises(ValueError, match="do not fit"):
        _native.pack(FORMAT_CODES["F32"], data, 2, 33, POOL)
    with pytest.raises(ValueError, match="multiples of 32"):
        _native.pack(FORMAT_CODES["Q8_0"], data[:34], 1, 33, POOL)
    packed = _native.pack(FORMAT_CODES["F32"], data, 2, 32, POOL)
    for row, size in ((2, 32), (-1, 32), (0, 31)):
        with pytest.raises(ValueError, match="no such row"):
            packed.unpack_row(row, np.empty(size, np.float32))
