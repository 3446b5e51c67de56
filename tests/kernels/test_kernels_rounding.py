"""Weights rounded on their way into tiles are, bit for bit, what numpy rounds and is packed then."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from native_rig import ISAS, pack

from rooftree import _native
from rooftree.checkpoint.base import DType, Scales, Tensor
from rooftree.checkpoint.formats import dequantize, quantize, row_bytes
from rooftree.checkpoint.quantize_on_load import SCHEMES, RoundedTensor
from rooftree.kernels.cpu import FORMAT_CODES

POOL = _native.ThreadPool(2)
SOURCES: tuple[DType, ...] = ("F32", "F16", "BF16", "F8_E4M3")
TARGETS: tuple[DType, ...] = tuple(SCHEMES.values())
PAIRS = [(source, target) for source in SOURCES for target in TARGETS if source != target]


def packed_bits(matrix: _native.PackedMatrix, dtype: DType) -> np.ndarray:
    """The tiles, every NaN among their numbers the same one."""
    bits = matrix.tiles.copy()
    header = 64 if dtype in ("Q4_1", "Q5_1") else 32
    step = _native.tile_bytes(FORMAT_CODES[dtype], 32)
    words = bits.view("<u2") if dtype == "BF16" else bits.reshape(-1, step)[:, :header].view("<u2")
    words[words & 0x7FFF > (0x7F80 if dtype == "BF16" else 0x7C00)] = 0x7FFF
    return bits


def rounded(tensor: Tensor, target: DType, isa: str) -> _native.PackedMatrix:
    n, k = tensor.shape
    matrix = _native.PackedMatrix(FORMAT_CODES[target], n, k, _native.WeightMemory())
    scales = () if tensor.scales is None else (tensor.scales.values, *tensor.scales.block)
    matrix.pack_rows(0, FORMAT_CODES[tensor.dtype], tensor.data, POOL, *scales, isa=isa)
    return matrix


def check(tensor: Tensor, target: DType) -> None:
    """NaN for NaN, all else to the bit."""
    n, k = tensor.shape
    with np.errstate(all="ignore"):
        data = RoundedTensor(tensor, target).data
    expected = packed_bits(pack(target, data, n, k, POOL), target)
    for isa in ISAS:
        assert np.array_equal(packed_bits(rounded(tensor, target, isa), target), expected), isa


def stored(source: DType, values: np.ndarray, scales: Scales | None = None) -> Tensor:
    with np.errstate(over="ignore", invalid="ignore"):
        return Tensor("w", values.shape, source, quantize(source, values), "test", scales)


@settings(deadline=None, max_examples=200)
@given(
    pair=st.sampled_from(PAIRS),
    n=st.integers(1, 40),
    blocks=st.integers(1, 40),
    odd=st.integers(0, 31),
    exponent=st.integers(-44, 38),
    seed=st.integers(0, 2**32 - 1),
)
@example(pair=("F16", "Q4_0"), n=17, blocks=33, odd=0, exponent=0, seed=0)
@example(pair=("F32", "Q8_0"), n=1, blocks=17, odd=0, exponent=38, seed=0)
def test_numbers_of_every_size(
    pair: tuple[DType, DType], n: int, blocks: int, odd: int, exponent: int, seed: int
):
    source, target = pair
    k = 32 * blocks - (odd if target == "BF16" else 0)
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore", under="ignore"):
        values = (rng.standard_normal((n, k)) * 10.0**exponent).astype(np.float32)
    check(stored(source, values), target)


@settings(deadline=None, max_examples=200)
@given(
    pair=st.sampled_from(PAIRS),
    n=st.integers(1, 20),
    blocks=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_bits(pair: tuple[DType, DType], n: int, blocks: int, seed: int):
    """NaN and infinity among them, and blocks whose extremes are too far apart for a float."""
    source, target = pair
    k = 32 * blocks
    data = np.random.default_rng(seed).integers(0, 256, n * row_bytes(source, k), dtype=np.uint8)
    check(Tensor("w", (n, k), source, data, "test"), target)


AWKWARD = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    8.0,
    -8.0,
    127.0,
    -127.0,
    6e-8,
    -6e-8,
    1e-40,
    65504.0,
    7.5,
    0.03125,
]
NO_NUMBERS = [np.inf, -np.inf, np.nan, -np.nan]


@settings(deadline=None, max_examples=300)
@given(
    pair=st.sampled_from(PAIRS),
    few=st.lists(st.sampled_from(AWKWARD + NO_NUMBERS), min_size=1, max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
@example(pair=("F32", "Q4_0"), few=[0.0, -0.0], seed=0)
@example(pair=("F32", "Q4_1"), few=[-0.0, 0.0], seed=1)
@example(pair=("BF16", "Q5_0"), few=[8.0, -8.0], seed=2)
def test_blocks_of_few_numbers(pair: tuple[DType, DType], few: list[float], seed: int):
    """Ties, equal extremes of both signs, zeros of both signs, half steps."""
    values = np.random.default_rng(seed).choice(np.array(few, np.float32), (19, 96))
    check(stored(pair[0], values), pair[1])


@pytest.mark.parametrize("target", TARGETS)
def test_every_half(target: DType):
    data = np.arange(1 << 16, dtype="<u2").view(np.uint8)
    for width in (32, 512):
        check(Tensor("w", ((1 << 16) // width, width), "F16", data, "test"), target)


@pytest.mark.parametrize("source", ["F32", "F16", "BF16"])
def test_half_steps(source: DType):
    """What lies halfway between two codes of each format."""
    steps = np.arange(-127, 128, dtype=np.float32)
    for largest, size in ((127, 1), (8, 1), (16, 1), (15, 2), (31, 2)):
        halves = (steps[np.abs(steps) < 2 * largest] / 2)[:, None].repeat(32, axis=1)
        halves[:, 7], halves[:, 9] = -largest, largest / size * (size - 1)
        for target in TARGETS:
            if source != target:
                check(stored(source, halves), target)


@settings(deadline=None, max_examples=100)
@given(
    target=st.sampled_from(TARGETS),
    n=st.integers(1, 50),
    blocks=st.integers(1, 24),
    block=st.tuples(st.integers(1, 60), st.integers(1, 800)),
    seed=st.integers(0, 2**32 - 1),
)
def test_scales_beside_fp8(target: DType, n: int, blocks: int, block: tuple[int, int], seed: int):
    """Of blocks of any shape, those that the kernels do not take as well."""
    k = 32 * blocks
    rng = np.random.default_rng(seed)
    shape = (-(-n // block[0]), -(-k // block[1]))
    factors = (rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 4, shape)).astype(np.float32)
    check(stored("F8_E4M3", rng.standard_normal((n, k)) * 100, Scales(factors, block)), target)


def test_pieces_are_the_whole():
    values = np.random.default_rng(0).standard_normal((50, 640)).astype(np.float32)
    factors = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    tensor = stored("F8_E4M3", values, Scales(factors, (15, 250)))
    matrix = _native.PackedMatrix(FORMAT_CODES["Q5_1"], 50, 640, _native.WeightMemory())
    for first, last in ((32, 50), (0, 32)):
        matrix.pack_rows(first, FORMAT_CODES["F8_E4M3"], tensor.rows(first, last), POOL, factors, 15, 250)
    expected = pack("Q5_1", quantize("Q5_1", dequantize(tensor)), 50, 640, POOL)
    assert np.array_equal(matrix.tiles, expected.tiles)


def test_what_cannot_be_rounded_is_refused():
    matrix = _native.PackedMatrix(FORMAT_CODES["Q4_K"], 1, 256, _native.WeightMemory())
    with pytest.raises(ValueError, match="no such rounding"):
        matrix.pack_rows(0, FORMAT_CODES["F32"], np.zeros(1024, np.uint8), POOL)
    matrix = _native.PackedMatrix(FORMAT_CODES["Q8_0"], 1, 256, _native.WeightMemory())
    for source in ("Q4_0", "NVFP4"):
        with pytest.raises(ValueError, match="no such rounding"):
            matrix.pack_rows(0, FORMAT_CODES[source], np.zeros(row_bytes(source, 256), np.uint8), POOL)
    with pytest.raises(ValueError, match="no scales"):
        matrix.pack_rows(
            0, FORMAT_CODES["F16"], np.zeros(512, np.uint8), POOL, np.ones((1, 1), np.float32), 1, 256
        )
    with pytest.raises(ValueError, match="not available"):
        matrix.pack_rows(0, FORMAT_CODES["F16"], np.zeros(512, np.uint8), POOL, isa="no such")
