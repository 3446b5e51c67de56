"""The native executor against the numpy one: every family, format, head size and instruction set.

Bounds are shares of the spread (largest less smallest) of a row of logits, four times what was measured on
these models. Float weights differ by the rounding of sums. With an fp16 or bf16 cache an element of K or V
now and then rounds to the other side; with int8 inputs one of 127 steps does, and what follows carries it on.
Queries and weights of positions that meet a bf16 cache in bf16 are rounded, which the reference does not do.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from executor_rig import (
    ISAS,
    Driver,
    make_executor,
    memory_checkpoint,
    random_tokens,
    rounds_to_bf16,
    spread_error,
    tiny_checkpoint,
)

from rigs.models import FAMILIES, DTypes, random_weights, tiny_spec
from rooftree.checkpoint.base import Checkpoint, DType
from rooftree.checkpoint.formats import is_quantized
from rooftree.engine.executors.reference import ReferenceExecutor
from rooftree.kernels.cpu import FORMAT_CODES
from rooftree.specs.model import Family

FLOAT_BOUND = 2e-6
HALF_CACHE_BOUND = 2e-4
BF16_CACHE_BOUND = 1e-3
BF16_BOUND = 5e-3
INT8_BOUND = 3e-2

FLOATS: tuple[DType, ...] = tuple(dtype for dtype in FORMAT_CODES if not is_quantized(dtype))
QUANTISED: tuple[DType, ...] = tuple(dtype for dtype in FORMAT_CODES if is_quantized(dtype))
MODELS: list[tuple[Family, DType, str]] = [
    *((family, dtype, kv) for family in FAMILIES for dtype in FLOATS for kv in ("fp32", "fp16", "bf16")),
    *((family, dtype, "fp16") for family in FAMILIES for dtype in ("Q4_0", "Q4_1", "Q8_0")),
    *(("llama", dtype, "fp32") for dtype in QUANTISED),
]
TOKENS = random_tokens(48)


def mixed(name: str) -> DType:
    """A format of its own for every kind of matrix, as files with mixed quantisation have."""
    kinds: dict[str, DType] = {
        "q_proj": "Q4_0",
        "k_proj": "NVFP4",
        "v_proj": "F8_E4M3",
        "o_proj": "BF16",
        "gate_proj": "Q4_1",
        "up_proj": "F16",
        "down_proj": "MXFP4",
        "embed_tokens": "Q8_0",
    }
    return next((kind for part, kind in kinds.items() if f"{part}.weight" in name), "F32")


def both(checkpoint: Any, isa: str, kv: str, **options: Any) -> tuple[Driver, Driver]:
    """The native executor and the reference."""
    options |= {"kv_cache_dtype": kv}
    native = Driver(make_executor(checkpoint, isa=isa, threads=2, **options))
    return native, Driver(make_executor(checkpoint, ReferenceExecutor, **options))


@cache
def reference_logits(family: Any, dtype: DType, kv: str) -> np.ndarray:
    checkpoint = tiny_checkpoint(family, dtype)
    return Driver(make_executor(checkpoint, ReferenceExecutor, kv_cache_dtype=kv)).read_each(
        TOKENS, 1, range(3)
    )


def bound_of_floats(dtype: str, kv: str, isa: str) -> float:
    """For float weights of that dtype and that cache."""
    if rounds_to_bf16(dtype, isa) or (kv == "bf16" and rounds_to_bf16("BF16", isa)):
        return BF16_BOUND
    return {"fp32": FLOAT_BOUND, "fp16": HALF_CACHE_BOUND, "bf16": BF16_CACHE_BOUND}[kv]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("family", "dtype", "kv"), MODELS)
def test_logits_at_every_position(family: Any, dtype: DType, kv: str, isa: str):
    executor = make_executor(tiny_checkpoint(family, dtype), isa=isa, kv_cache_dtype=kv)
    got = Driver(executor).read_each(TOKENS, 1, range(3))
    bound = INT8_BOUND if dtype not in FLOATS else bound_of_floats(dtype, kv, isa)
    assert spread_error(got, reference_logits(family, dtype, kv)) < bound


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", QUANTISED)
def test_most_quantised_rows_meet_no_tie(dtype: DType, isa: str):
    """Short requests give each row few chances of an int8 step apart: most rows agree as floats do."""
    native, reference = both(tiny_checkpoint("llama", dtype), isa, "fp32", num_blocks=1)
    errors = []
    for seed in range(16):
        tokens = random_tokens(2, seed=seed)
        errors.append(spread_error(native.read(tokens, [], [0]), reference.read(tokens, [], [0])))
    assert np.median(errors) < FLOAT_BOUND
    assert max(errors) < INT8_BOUND


LONG = random_tokens(301, 128)


@cache
def shaped_checkpoint(head_dim: int, heads: int, kv_heads: int, window: int | None) -> Checkpoint:
    return tiny_checkpoint(
        "mistral" if window else "llama",
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=128,
        windows=(window, window),
    )


def read_long(driver: Driver, block_size: int) -> np.ndarray:
    """Logits on both sides of the partition border and beyond it, after chunks and after single tokens."""
    blocks = np.random.default_rng(1).permutation(20)[: -(-len(LONG) // block_size)].tolist()
    return driver.read_at(LONG, [100, 255, 256, 257, 259, 300, 301], blocks)


@cache
def reference_long(shape: tuple[Any, ...], block_size: int, kv: str) -> np.ndarray:
    checkpoint = shaped_checkpoint(*shape)
    options = {"kv_cache_dtype": kv, "block_size": block_size, "num_blocks": 20}
    return read_long(Driver(make_executor(checkpoint, ReferenceExecutor, **options)), block_size)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("shape", "block_size"),
    [
        ((8, 4, 4, None), 16),
        ((8, 48, 1, 5), 64),
        ((16, 9, 3, 257), 32),
        ((24, 6, 2, 100), 64),
        ((40, 7, 1, 270), 16),
        ((64, 9, 1, None), 32),
        ((64, 2, 2, 48), 16),
        ((128, 2, 1, 17), 64),
        ((128, 1, 1, 256), 16),
    ],
)
def test_heads_and_windows_over_the_partition_border(
    shape: tuple[Any, ...], block_size: int, kv: str, isa: str
):
    options = {"kv_cache_dtype": kv, "block_size": block_size, "num_blocks": 20}
    native = make_executor(shaped_checkpoint(*shape), isa=isa, threads=2, **options)
    got = read_long(Driver(native), block_size)
    assert spread_error(got, reference_long(shape, block_size, kv)) < bound_of_floats("F32", kv, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_a_bf16_cache_holds_what_fp16_cannot(isa: str):
    """Keys a million times as large, queries as much smaller: the same scores, unless keys were clamped."""
    spec = tiny_spec("llama")
    weights = random_weights(spec)

    def read(kv: str) -> np.ndarray:
        executor = make_executor(memory_checkpoint(spec, weights), isa=isa, kv_cache_dtype=kv)
        return Driver(executor).read_each(TOKENS, 7, range(4))

    expected = read("bf16")
    for name in weights:
        if "q_proj" in name or "k_proj" in name:
            weights[name] = weights[name] * np.float32(2.0 ** (20 if "k_proj" in name else -20))
    assert np.array_equal(read("bf16"), expected)
    assert spread_error(read("fp16"), expected) > 10 * BF16_CACHE_BOUND


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("window", [1, 2, 5, 16, 17, 24])
def test_a_query_sees_its_window_and_nothing_else(window: int, isa: str):
    """Two layers carry a token 2 (window - 1) positions on: changing it matters there, and no further."""
    driver = Driver(make_executor(tiny_checkpoint("mistral", windows=(window, window)), isa=isa))
    tokens = random_tokens(64)
    last = len(tokens) - 1
    reach = 2 * (window - 1)
    original = driver.read(tokens, [], range(4))
    for place, matters in ((last - reach - 1, False), (last - reach, True)):
        changed = list(tokens)
        changed[place] = (tokens[place] + 1) % 512
        same = np.array_equal(driver.read(changed, [20], range(4)), original)
        assert same is not matters


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [*FLOATS, "mixed"])
def test_biases_everywhere(dtype: DType, isa: str):
    """Llama with attention_bias and mlp_bias."""
    biased = {"qkv_bias": True, "o_bias": True, "mlp_bias": True}
    kinds: DTypes = mixed if dtype == "mixed" else dtype
    native, reference = both(tiny_checkpoint("llama", kinds, **biased), isa, "fp32")
    got, expected = (driver.read_each(TOKENS, 7, range(4)) for driver in (native, reference))
    bound = BF16_BOUND if rounds_to_bf16(dtype, isa) else FLOAT_BOUND
    assert spread_error(got, expected) < (INT8_BOUND if dtype == "mixed" else bound)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv", ["fp32", "fp16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_formats_and_a_tied_quantised_embedding(family: Any, kv: str, isa: str):
    checkpoint = tiny_checkpoint(family, mixed, tie_word_embeddings=True)
    kinds = {tensor.dtype for tensor in checkpoint.tensors.values()}
    assert kinds == {*FLOATS, "Q4_0", "Q4_1", "Q8_0", "MXFP4", "NVFP4"}
    native, reference = both(checkpoint, isa, kv)
    got, expected = (driver.read_each(TOKENS, 9, range(4)) for driver in (native, reference))
    assert spread_error(got, expected) < INT8_BOUND


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("hidden", "intermediate", "vocab"), [(8, 1, 1), (24, 17, 33), (40, 100, 47), (72, 31, 257)]
)
def test_widths_that_fill_no_tile(hidden: int, intermediate: int, vocab: int, isa: str):
    checkpoint = tiny_checkpoint(
        "qwen3", hidden_size=hidden, intermediate_size=intermediate, vocab_size=vocab
    )
    native, reference = both(checkpoint, isa, "fp32")
    tokens = random_tokens(20, vocab)
    got, expected = (driver.read_each(tokens, 5, range(2)) for driver in (native, reference))
    np.testing.assert_allclose(got, expected, atol=2e-5)


def test_the_reference_does_not_care_about_chunks():
    driver = Driver(make_executor(tiny_checkpoint("mistral"), ReferenceExecutor))
    expected = driver.read(TOKENS, [], range(4))
    for chunks in ([1] * 59, [16, 16], [30, 7, 1, 1]):
        assert spread_error(driver.read(TOKENS, chunks, [3, 1, 0, 2]), expected) < 1e-5
