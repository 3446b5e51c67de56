"""Packed weights hold exactly what their format defines (a zero of either sign), from any address."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from native_rig import DTYPES, QUANTISED, set_scales, width

from rooftree import _native
from rooftree.checkpoint.base import DType
from rooftree.checkpoint.formats import FORMATS, dequantize_bytes, quantize, row_bytes
from rooftree.kernels.cpu import FORMAT_CODES

POOL = _native.ThreadPool(2)


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
def test_rows_come_back(dtype: DType, n: int, blocks: int, shift: int, seed: int):
    """Every byte pattern, so scales of any sign and size, -128, subnormals, infinities and NaNs with them."""
    k = width(dtype, blocks, odd=7)
    data = np.random.default_rng(seed).integers(0, 256, n * row_bytes(dtype, k), dtype=np.uint8)
    packed = _native.pack(FORMAT_CODES[dtype], displaced(data, shift), n, k, POOL)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = dequantize_bytes(dtype, data).reshape(n, k)
    got = unpacked(packed)
    assert np.array_equal(got, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("scale", [0.0, -0.0, 5.96e-8, -5.96e-8, 6.1e-5, 1.0, -2.5, 65504.0, -65504.0])
def test_all_quants_under_extreme_scales(dtype: DType, scale: float):
    """Each byte takes every value in turn."""
    steps = np.arange(256, dtype=np.uint8)
    size = FORMATS[dtype].block_bytes
    blocks = np.stack([np.resize(np.roll(steps, i), size) for i in range(0, 256, 4)])
    set_scales(dtype, blocks, np.float16([[scale, -scale]]))
    packed = _native.pack(FORMAT_CODES[dtype], blocks.reshape(-1), 32, width(dtype, 2), POOL)
    expected = dequantize_bytes(dtype, blocks.reshape(-1)).reshape(packed.n, packed.k)
    assert np.array_equal(unpacked(packed), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 15, 16, 33])
def test_size_is_whole_tiles(dtype: DType, n: int):
    k = width(dtype, 2)
    data = quantize(dtype, np.ones((n, k), np.float32))
    packed = _native.pack(FORMAT_CODES[dtype], data, n, k, POOL)
    assert (packed.n, packed.k) == (n, k)
    assert packed.nbytes == -(-n // 16) * _native.tile_bytes(FORMAT_CODES[dtype], k)
    # Scales of 6 bits are widened to 8, so super-blocks may grow a little; nothing shrinks.
    assert 1 <= packed.nbytes / (-(-n // 16) * 16 * row_bytes(dtype, k)) < 1.04


def test_misfits_are_refused():
    data = np.zeros(4 * 64, np.uint8)
    with pytest.raises(ValueError, match="do not fit"):
        _native.pack(FORMAT_CODES["F32"], data, 2, 33, POOL)
    with pytest.raises(ValueError, match="whole blocks"):
        _native.pack(FORMAT_CODES["Q8_0"], data[:34], 1, 33, POOL)
    packed = _native.pack(FORMAT_CODES["F32"], data, 2, 32, POOL)
    for row, size in ((2, 32), (-1, 32), (0, 31)):
        with pytest.raises(ValueError, match="no such row"):
            packed.unpack_row(row, np.empty(size, np.float32))
