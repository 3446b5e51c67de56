"""Packed weights hold exactly what their format defines (a zero of either sign), from any address.

F8_E4M3 alone differs where it is no number: the 128 inputs that share a NaN code's scale are all NaN.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from native_rig import DTYPES, QUANTISED, SCALED, pack, scaled, set_scales, width

from rooftree import _native
from rooftree.checkpoint.base import DType
from rooftree.checkpoint.formats import FORMATS, dequantize, dequantize_bytes, quantize, row_bytes
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


def spread_nan(rows: np.ndarray) -> None:
    """NaN codes of F8_E4M3 as the tiles hold them."""
    for begin in range(0, rows.shape[1], 128):
        step = rows[:, begin : begin + 128]
        step[np.isnan(step).any(axis=1)] = np.nan


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
@example(dtype="F8_E4M3", n=70, blocks=40, shift=0, seed=0)
def test_rows_come_back(dtype: DType, n: int, blocks: int, shift: int, seed: int):
    """Every byte pattern, so scales of any sign and size, -128, subnormals, infinities and NaNs with them."""
    k = width(dtype, blocks, odd=7)
    data = np.random.default_rng(seed).integers(0, 256, n * row_bytes(dtype, k), dtype=np.uint8)
    packed = pack(dtype, displaced(data, shift), n, k, POOL)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = dequantize_bytes(dtype, data).reshape(n, k)
    if dtype == "F8_E4M3":
        spread_nan(expected)
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
    packed = pack(dtype, blocks.reshape(-1), 32, 2 * FORMATS[dtype].block, POOL)
    expected = dequantize_bytes(dtype, blocks.reshape(-1)).reshape(packed.n, packed.k)
    assert np.array_equal(unpacked(packed), expected)


def one_scale(dtype: DType, scale: int) -> tuple[np.ndarray, np.ndarray]:
    """A row of 32 elements of every E2M1 code under one scale code: as packed, and as defined."""
    block = np.array([scale, *range(0, 256, 17)], np.uint8)
    data = block if dtype == "MXFP4" else np.insert(block, 9, scale)
    with np.errstate(over="ignore"):
        expected = dequantize_bytes(dtype, data)
    return unpacked(pack(dtype, data, 1, 32, POOL))[0], expected


@pytest.mark.parametrize("dtype", ["MXFP4", "NVFP4"])
def test_every_scale_of_fp4(dtype: DType):
    """Subnormal ones, those that overflow, and NaN."""
    for scale in range(256):
        got, expected = one_scale(dtype, scale)
        assert np.array_equal(got, expected, equal_nan=True), scale
    assert np.isnan(one_scale("MXFP4", 0xFF)[0]).all()
    assert np.isnan(one_scale("NVFP4", 0xFF)[0]).all()


def test_every_code_of_fp8():
    codes = np.arange(256, dtype=np.uint8)
    expected = dequantize_bytes("F8_E4M3", codes)
    got = unpacked(pack("F8_E4M3", codes, 256, 1, POOL)).reshape(-1)
    assert np.array_equal(got, expected, equal_nan=True)
    assert np.flatnonzero(np.isnan(got)).tolist() == [0x7F, 0xFF]


@pytest.mark.parametrize(("dtype", "n", "k", "block"), SCALED)
def test_scales_beside_the_elements(dtype: DType, n: int, k: int, block: tuple[int, int]):
    """FP8 exactly; FP4 to the last bit, for there the factor and the block's scale become one float first."""
    tensor = scaled(dtype, n, k, block)
    assert tensor.scales is not None
    got = unpacked(pack(dtype, tensor.data, n, k, POOL, tensor.scales.values, *block))
    expected = dequantize(tensor)
    last_bit = np.spacing(np.abs(expected))
    assert np.all(np.abs(got - expected) <= (0 if dtype == "F8_E4M3" else last_bit))


def test_scales_that_do_not_fit_are_refused():
    data = np.zeros(64 * 256, np.uint8)

    def pack_scaled(dtype: DType, k: int, shape: tuple[int, int], *block: int) -> None:
        size = row_bytes(dtype, k) * 32
        pack(dtype, data[:size], 32, k, POOL, np.ones(shape, np.float32), *block)

    pack_scaled("F8_E4M3", 256, (2, 2), 16, 128)
    for shape, block in (((1, 2), (16, 128)), ((2, 1), (16, 128)), ((2, 2), (0, 128)), ((2, 2), (16, -1))):
        with pytest.raises(ValueError, match="do not cover"):
            pack_scaled("F8_E4M3", 256, shape, *block)
    for dtype, k, columns in (
        ("F8_E4M3", 256, 64),
        ("F8_E4M3", 256, 192),
        ("NVFP4", 64, 16),
        ("MXFP4", 96, 48),
    ):
        with pytest.raises(ValueError, match="multiples of the kernels' step"):
            pack_scaled(dtype, k, (1, -(-k // columns)), 32, columns)
    for dtype in ("F16", "BF16", "Q4_0", "Q8_0"):
        with pytest.raises(ValueError, match="no scales"):
            pack_scaled(dtype, 64, (1, 1), 32, 64)


# F8_E4M3 keeps a float for each 128 weights, MXFP4 for each 32, NVFP4 for each 16; K-quants a byte for each
# 6-bit scale. The others are as large as stored.
PACKED_BITS: dict[DType, float] = {"F8_E4M3": 8.25, "MXFP4": 5, "NVFP4": 6, "Q4_K": 4.625, "Q5_K": 5.625}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 15, 16, 33])
def test_size_is_whole_tiles(dtype: DType, n: int):
    k = width(dtype, 2, odd=128)
    data = quantize(dtype, np.ones((n, k), np.float32))
    packed = pack(dtype, data, n, k, POOL)
    assert (packed.n, packed.k) == (n, k)
    tiles = -(-n // 16)
    assert packed.nbytes == tiles * _native.tile_bytes(FORMAT_CODES[dtype], k)
    bits = PACKED_BITS.get(dtype, 8 * row_bytes(dtype, k) / k)
    assert packed.nbytes == tiles * 16 * k * bits / 8


@settings(deadline=None, max_examples=60)
@given(
    dtype=st.sampled_from(DTYPES),
    tiles=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    last=st.integers(1, 16),
)
def test_pieces_are_the_whole(dtype: DType, tiles: list[int], last: int):
    """Rows packed in pieces of whole tiles, in any order, are those packed at once."""
    n, k = 16 * (sum(tiles) - 1) + last, width(dtype, 2, odd=128)
    data = np.random.default_rng(n).integers(0, 256, n * row_bytes(dtype, k), dtype=np.uint8)
    scales = (
        (np.arange(1, n + 1, dtype=np.float32).reshape(n, 1), 1, k)
        if dtype in ("F8_E4M3", "MXFP4", "NVFP4")
        else ()
    )
    code = FORMAT_CODES[dtype]
    packed = _native.PackedMatrix(code, n, k, _native.WeightMemory())
    ends = np.cumsum(tiles) * 16
    for begin, end in reversed(list(zip(ends - np.array(tiles) * 16, ends, strict=True))):
        size = row_bytes(dtype, k)
        packed.pack_rows(int(begin), code, data[begin * size : end * size], POOL, *scales)
    assert np.array_equal(unpacked(packed), unpacked(pack(dtype, data, n, k, POOL, *scales)), equal_nan=True)


def test_misfits_are_refused():
    data = np.zeros(4 * 64, np.uint8)
    with pytest.raises(ValueError, match="whole rows"):
        pack("F32", data, 2, 33, POOL)
    with pytest.raises(ValueError, match="does not have these rows"):
        pack("F32", data, 1, 32, POOL)
    with pytest.raises(ValueError, match="whole tiles"):
        pack("F32", data, 3, 32, POOL)
    with pytest.raises(ValueError, match="whole blocks"):
        pack("Q8_0", data[:34], 1, 33, POOL)
    with pytest.raises(ValueError, match="whole blocks"):
        pack("NVFP4", data[:18], 1, 48, POOL)
    with pytest.raises(ValueError, match="whole blocks"):
        pack("F32", data[:0], 16, 0, POOL)
    with pytest.raises(ValueError, match="no such format"):
        _native.PackedMatrix(99, 1, 32, _native.WeightMemory())
    packed = pack("F32", data, 2, 32, POOL)
    for source in (FORMAT_CODES["Q8_0"], FORMAT_CODES["F16"], -1, 99):
        with pytest.raises(ValueError, match=r"no such rounding|whole rows"):
            packed.pack_rows(0, source, data[:68], POOL)
    for row, size in ((2, 32), (-1, 32), (0, 31)):
        with pytest.raises(ValueError, match="no such row"):
            packed.unpack_row(row, np.empty(size, np.float32))
