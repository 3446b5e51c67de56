"""Products, norms and the gated layer, one op at a time, against their definitions in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from native_rig import (
    DTYPES,
    FLOATS,
    ISAS,
    QUANTISED,
    SCALED,
    RowProgram,
    round_to_bf16,
    rounds_to_bf16,
    scaled,
    set_scales,
    tensor,
    width,
)

from rooftree.checkpoint.base import DType, Tensor
from rooftree.checkpoint.formats import FORMATS, dequantize, is_quantized
from rooftree.kernels.cpu import CpuRecorder, CpuValue
from rooftree.kernels.ops import Floats
from rooftree.kernels.reference import round_to_int8

# Rows of a step on either side of every way the kernels cut them.
COUNTS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 63, 64, 65, 71)

Body = Callable[[CpuRecorder, CpuValue], CpuValue]


def linear(*weights: Tensor, biases: tuple[Floats | None, ...] = ()) -> Body:
    return lambda ops, x: ops.linear(x, [ops.matrix(w) for w in weights], biases or (None,) * len(weights))


def seen(x: Floats, weight: Tensor, isa: str) -> np.ndarray:
    """What a weight multiplies, in float64."""
    if is_quantized(weight.dtype):
        return round_to_int8(x).astype(np.float64)
    return (round_to_bf16(x) if weight.dtype == "BF16" and rounds_to_bf16(isa) else x).astype(np.float64)


def product(x: Floats, weight: Tensor, isa: str) -> tuple[np.ndarray, np.ndarray]:
    """The defined product in float64, and for each element the sum of its terms' magnitudes."""
    inputs, w = seen(x, weight, isa), dequantize(weight).astype(np.float64)
    return inputs @ w.T, np.abs(inputs) @ np.abs(w).T


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def assert_close(
    got: Floats, expected: np.ndarray, magnitude: np.ndarray, tolerance: float = 1e-6, least: float = 1e-37
) -> None:
    """Within a share of the sum of magnitudes, which is what rounding of a sum scales with."""
    assert np.isfinite(got).all()
    error = np.abs(got - expected)
    worst = np.max(error - tolerance * magnitude)
    assert worst <= least, f"{np.max(error / np.maximum(magnitude, 1e-300)):.2e} of the terms' magnitude"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "blocks"), [(1, 1), (16, 2), (47, 3), (100, 5)])
def test_product_is_the_defined_one(isa: str, dtype: DType, n: int, blocks: int):
    k = width(dtype, blocks)
    x, weight = normal(11, k), tensor("w", normal(n, k, seed=1), dtype)
    got = RowProgram(x, linear(weight), isa=isa).compute(range(11))
    assert_close(got, *product(x, weight, isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (5, 3), (17, 19), (20, 300)])
def test_float_product_of_any_width(isa: str, dtype: DType, n: int, k: int):
    x, weight = normal(4, k), tensor("w", normal(n, k, seed=1), dtype)
    assert_close(RowProgram(x, linear(weight), isa=isa).compute(range(4)), *product(x, weight, isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "n", "k", "block"), SCALED)
def test_product_with_scales_beside_the_weights(
    isa: str, dtype: DType, n: int, k: int, block: tuple[int, int]
):
    """Each row against its own magnitude: factors differ by powers of ten."""
    x, weight = normal(7, k), scaled(dtype, n, k, block)
    got = RowProgram(x, linear(weight), isa=isa).compute(range(7))
    assert_close(got, *product(x, weight, isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_in_any_company(isa: str, dtype: DType):
    k = width(dtype, 2, odd=150)
    x, weight = normal(71, k), tensor("w", normal(40, k, seed=1), dtype)
    program = RowProgram(x, linear(weight), isa=isa)
    alone = np.concatenate([program.compute([row]) for row in range(71)])
    for count in COUNTS:
        order = np.random.default_rng(count).permutation(71)[:count]
        assert np.array_equal(program.compute(order), alone[order])
    for threads in (2, 3):
        shared = RowProgram(x, linear(weight), isa=isa, threads=threads)
        assert np.array_equal(shared.compute(range(71)), alone)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("seed", range(4))
def test_any_bytes_are_weights(isa: str, dtype: DType, seed: int):
    """Every quant, -128 included, under scales of either sign: zero, subnormal, ordinary and the largest."""
    n, k = 37, 512
    rng = np.random.default_rng(seed)
    size = FORMATS[dtype]
    blocks = rng.integers(0, 256, (n * k // size.block, size.block_bytes), dtype=np.uint8)
    halves = np.float16([0.0, -0.0, 6e-8, -6e-8, 3e-5, -3e-5, 0.01, -0.01, 1.0, -1.0, 65504.0, -65504.0])
    set_scales(dtype, blocks, rng.choice(halves, (len(blocks), 2)))
    weight = Tensor("w", (n, k), dtype, blocks.reshape(-1), "test")
    x = normal(9, k, seed=seed) * np.float32(10.0) ** rng.integers(-6, 6, (9, 1)).astype(np.float32)
    got = RowProgram(x, linear(weight), isa=isa).compute(range(9))
    assert_close(got, *product(x, weight, isa))


@pytest.mark.parametrize("isa", ISAS)
def test_any_codes_of_fp8_are_weights(isa: str):
    codes = np.random.default_rng(0).integers(0, 256, (37, 300), dtype=np.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0x7E
    x = normal(9, 300)
    weight = Tensor("w", codes.shape, "F8_E4M3", codes.reshape(-1), "test")
    assert_close(RowProgram(x, linear(weight), isa=isa).compute(range(9)), *product(x, weight, isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dtype", "place"), [("F8_E4M3", 200), ("MXFP4", 17), ("NVFP4", 27)])
def test_weights_that_are_no_numbers_show_in_their_output_alone(isa: str, dtype: DType, place: int):
    """An FP8 code, or the scale of a block of FP4, in row 18."""
    x, weight = normal(5, 256), tensor("w", normal(20, 256, seed=1), dtype)
    clean = RowProgram(x, linear(weight), isa=isa).compute(range(5))
    weight.data.reshape(20, -1)[18, place] = 0xFF
    got = RowProgram(x, linear(weight), isa=isa).compute(range(5))
    assert np.isnan(got[:, 18]).all()
    assert np.array_equal(np.delete(got, 18, 1), np.delete(clean, 18, 1))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", QUANTISED)
@pytest.mark.parametrize("byte", [0x00, 0x0F, 0x77, 0x7F, 0x80, 0x88, 0xF0, 0xFF])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_do_not_overflow(isa: str, dtype: DType, byte: int, sign: int):
    """All weights at one value and all inputs at 127 steps: the largest partial sums that there can be."""
    k, size = 512, FORMATS[dtype]
    blocks = np.full((3 * k // size.block, size.block_bytes), byte, np.uint8)
    set_scales(dtype, blocks, np.float16([[1.0, -7.5]]))
    weight = Tensor("w", (3, k), dtype, blocks.reshape(-1), "test")
    x = np.full((5, k), sign * 127, np.float32)
    x[1, ::2] *= -1
    got = RowProgram(x, linear(weight), isa=isa).compute(range(5))
    assert_close(got, *product(x, weight, isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", QUANTISED)
def test_zero_inputs_give_zero(isa: str, dtype: DType):
    k = width(dtype, 3)
    x = np.zeros((3, k), np.float32)
    x[1, 40] = 1.0  # a block of zeros beside one that is not
    x[2] = -0.0
    weight = tensor("w", normal(20, k, seed=1), dtype)
    got = RowProgram(x, linear(weight), isa=isa).compute(range(3))
    assert np.array_equal(got[[0, 2]], np.zeros((2, 20)))
    assert_close(got, *product(x, weight, isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [*QUANTISED, "F8_E4M3"])
@pytest.mark.parametrize("size", [1e-45, 1e-42, 1e-38, 1e-37, 1e-36, 1e-30, 1e30, 1e32])
def test_inputs_of_any_size(isa: str, dtype: DType, size: float):
    """Down to subnormal inputs, whose reciprocal has no float32: the product is about zero, not NaN."""
    k = width(dtype, 2)
    x = (normal(4, k).astype(np.float64) * size).astype(np.float32)
    weight = tensor("w", normal(20, k, seed=1), dtype)
    got = RowProgram(x, linear(weight), isa=isa).compute(range(4))
    exact = x.astype(np.float64) @ dequantize(weight).astype(np.float64).T
    magnitude = np.abs(x).astype(np.float64) @ np.abs(dequantize(weight)).T
    assert_close(got, exact, magnitude, tolerance=0.02, least=1e-33)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_inputs_that_are_no_numbers_show_in_the_result(isa: str, dtype: DType, bad: float):
    """Else a request gone wrong would go on with finite nonsense. Its neighbours are as without it."""
    k = width(dtype, 2)
    x = normal(5, k)
    weight = tensor("w", normal(20, k, seed=1), dtype)
    clean = RowProgram(x, linear(weight), isa=isa).compute(range(5))
    for column in (0, 17, 31, 63):
        spoilt = x.copy()
        spoilt[2, column] = bad
        got = RowProgram(spoilt, linear(weight), isa=isa).compute(range(5))
        assert not np.isfinite(got[2]).any()
        assert np.array_equal(np.delete(got, 2, 0), np.delete(clean, 2, 0))


@pytest.mark.parametrize("isa", ISAS)
def test_several_weights_of_different_formats_side_by_side(isa: str):
    """As q, k and v may be stored: each from the form of x that it takes, with its bias or without."""
    x = normal(6, 64)
    kinds: list[DType] = ["Q4_0", "F32", "Q8_0", "MXFP4", "F8_E4M3", "Q4_1", "NVFP4", "BF16", "F16"]
    widths = [48, 20, 5, 18, 7, 17, 32, 33, 1]
    weights = [
        tensor(f"w{i}", normal(n, 64, seed=i), kind)
        for i, (n, kind) in enumerate(zip(widths, kinds, strict=True))
    ]
    biases = tuple(normal(n, seed=9) if n % 2 else None for n in widths)
    got = RowProgram(x, linear(*weights, biases=biases), isa=isa).compute(range(6))
    column = 0
    for weight, bias, n in zip(weights, biases, widths, strict=True):
        expected, magnitude = product(x, weight, isa)
        if bias is not None:
            expected, magnitude = expected + bias, magnitude + np.abs(bias)
        assert_close(got[:, column : column + n], expected, magnitude)
        column += n


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["F32", "Q4_0"])
def test_linear_add_adds_to_the_residual(isa: str, dtype: DType):
    x = normal(6, 64)
    first, second = (tensor(name, normal(64, 64, seed=i), dtype) for i, name in enumerate(("a", "b")))
    bias = normal(64, seed=5)

    def body(ops: CpuRecorder, value: CpuValue) -> CpuValue:
        y = ops.linear(value, [ops.matrix(first)], [None])
        return ops.linear_add(value, y, ops.matrix(second), bias)

    got = RowProgram(x, body, isa=isa).compute(range(6))
    inner = product(x, first, isa)[0].astype(np.float32)
    expected, magnitude = product(inner, second, isa)
    # The inner product's rounding may move an int8 step of the outer one: 1 / 254 of a block's largest.
    tolerance = 0.008 if is_quantized(dtype) else 1e-5
    assert_close(got, x + expected + bias, np.abs(x) + magnitude, tolerance)


def silu(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("gate_dtype", "up_dtype", "n"),
    [
        ("F32", "F32", 96),
        ("F32", "BF16", 24),
        ("F16", "F16", 17),
        ("Q4_0", "F32", 96),
        ("BF16", "Q8_0", 40),
        ("F8_E4M3", "MXFP4", 40),
        ("NVFP4", "F8_E4M3", 17),
    ],
)
def test_gated_mlp(isa: str, gate_dtype: DType, up_dtype: DType, n: int):
    x = normal(67, 64)
    gate, up = tensor("g", normal(n, 64, seed=1), gate_dtype), tensor("u", normal(n, 64, seed=2), up_dtype)
    gate_bias, up_bias = normal(n, seed=3), normal(n, seed=4)

    def body(ops: CpuRecorder, value: CpuValue) -> CpuValue:
        return ops.gated_mlp(value, ops.matrix(gate), ops.matrix(up), gate_bias, up_bias)

    program = RowProgram(x, body, isa=isa)
    got = program.compute(range(67))
    g, u = product(x, gate, isa)[0] + gate_bias, product(x, up, isa)[0] + up_bias
    np.testing.assert_allclose(got, silu(g) * u, rtol=1e-5, atol=1e-4)
    for row in (0, 31, 66):
        assert np.array_equal(program.compute([row])[0], got[row])


@pytest.mark.parametrize("isa", ISAS)
def test_silu_of_any_size(isa: str):
    """Gates down past where exp overflows, and 'up' of 1."""
    gates = np.float32([0, -0.0, 1e-30, -1e-30, 1, -1, 20, -20, -80, -86, -88, -90, -104, -1e4, 1e4, 3e38])
    table = np.stack([gates, np.ones_like(gates)], axis=1)
    gate, up = tensor("g", np.float32([[1, 0]])), tensor("u", np.float32([[0, 1]]))

    def body(ops: CpuRecorder, value: CpuValue) -> CpuValue:
        return ops.gated_mlp(value, ops.matrix(gate), ops.matrix(up), None, None)

    got = RowProgram(table, body, isa=isa).compute(range(len(gates)))[:, 0]
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, silu(gates.astype(np.float64)), rtol=1e-6, atol=1e-34)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("columns", [1, 7, 8, 16, 24, 31, 32, 40, 576])
@pytest.mark.parametrize("size", [1e-20, 1.0, 1e15])
def test_rms_norm(isa: str, columns: int, size: float):
    x = normal(5, columns) * np.float32(size)
    weight = normal(columns, seed=1)
    got = RowProgram(x, lambda ops, value: ops.rms_norm(value, weight, 1e-5), isa=isa).compute(range(5))
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=0)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [*QUANTISED, "BF16"])
def test_norm_then_product_rounds_as_the_two_apart(isa: str, dtype: DType):
    """The norm writes the form that the product takes; ``add_narrow`` would have made the same one."""
    k = width(dtype, 3, odd=31)
    x, norm_weight = normal(70, k), normal(k, seed=2)
    weight = tensor("w", normal(33, k, seed=1), dtype)
    normed = RowProgram(x, lambda ops, v: ops.rms_norm(v, norm_weight, 1e-5), isa=isa).compute(range(70))
    apart = RowProgram(normed, linear(weight), isa=isa).compute(range(70))

    def body(ops: CpuRecorder, value: CpuValue) -> CpuValue:
        return ops.linear(ops.rms_norm(value, norm_weight, 1e-5), [ops.matrix(weight)], [None])

    assert np.array_equal(RowProgram(x, body, isa=isa).compute(range(70)), apart)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [*QUANTISED, "BF16"])
def test_gate_then_product_rounds_as_the_two_apart(isa: str, dtype: DType):
    k, n = width(dtype, 2), width(dtype, 3, odd=31)
    x = normal(70, k)
    gate, up = tensor("g", normal(n, k, seed=1), dtype), tensor("u", normal(n, k, seed=2), dtype)
    down = tensor("d", normal(33, n, seed=3), dtype)

    def gated(ops: CpuRecorder, value: CpuValue) -> CpuValue:
        return ops.gated_mlp(value, ops.matrix(gate), ops.matrix(up), None, None)

    def body(ops: CpuRecorder, value: CpuValue) -> CpuValue:
        return ops.linear(gated(ops, value), [ops.matrix(down)], [None])

    inner = RowProgram(x, gated, isa=isa).compute(range(70))
    apart = RowProgram(inner, linear(down), isa=isa).compute(range(70))
    assert np.array_equal(RowProgram(x, body, isa=isa).compute(range(70)), apart)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding_rows_are_exact(isa: str, dtype: DType):
    table = tensor("t", normal(40, width(dtype, 2)), dtype)
    program = RowProgram(dequantize(table), isa=isa)
    order = np.random.default_rng(0).permutation(40)
    assert np.array_equal(program.compute(order), dequantize(table)[order])
