"""A request's logits are the same bits however its tokens, blocks, neighbours and threads fall."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from executor_rig import (
    ISAS,
    Driver,
    make_executor,
    memory_checkpoint,
    random_tokens,
    tiny_checkpoint,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from rigs.models import FAMILIES, DTypes, random_weights, tiny_spec
from rooftree import _native
from rooftree.kernels.cpu import KV_FORMAT_CODES

KVS = tuple(KV_FORMAT_CODES)
LENGTH = 300
NUM_BLOCKS = 48
# Either side of blocks, of query tiles and of the partition that scores are normalised in.
BORDERS = [1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 128, 255, 256, 257, 271, 299]
assert _native.PARTITION == 256


class Shape(NamedTuple):
    """Heads and cache of a model: every head size and group size, windows about every border."""

    head_dim: int
    heads: int
    kv_heads: int
    block_size: int
    window: int | None = None


SHAPES = [
    Shape(8, 4, 4, 16),
    Shape(8, 18, 2, 64, 257),
    Shape(16, 4, 2, 32),
    Shape(16, 9, 3, 16, 5),
    Shape(24, 6, 2, 64, 100),
    Shape(40, 7, 1, 16, 270),
    Shape(64, 9, 1, 32),
    Shape(64, 2, 2, 16, 48),
    Shape(128, 2, 1, 64, 17),
    Shape(128, 2, 2, 16, 256),
]
MODELS: list[tuple[Any, DTypes]] = [
    *((family, dtype) for family in FAMILIES for dtype in ("F32", "Q4_1")),
    ("llama", "F16"),
    ("qwen3", "BF16"),
    ("qwen2", "Q8_0"),
    ("mistral", "Q4_0"),
    *(("llama", dtype) for dtype in ("Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")),
    ("qwen2", "F8_E4M3"),
    ("qwen3", "MXFP4"),
    ("mistral", "NVFP4"),
]


@cache
def shaped(shape: Shape, isa: str, kv: str, threads: int = 1) -> Driver:
    checkpoint = tiny_checkpoint(
        "mistral" if shape.window else "llama",
        num_heads=shape.heads,
        num_kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        windows=(shape.window, shape.window),
        vocab_size=96,
    )
    return Driver(
        make_executor(
            checkpoint,
            isa=isa,
            threads=threads,
            block_size=shape.block_size,
            kv_cache_dtype=kv,
            num_blocks=NUM_BLOCKS,
        )
    )


@cache
def modelled(family: Any, dtype: Any, isa: str, threads: int = 1) -> Driver:
    checkpoint = tiny_checkpoint(family, dtype, vocab_size=96)
    return Driver(make_executor(checkpoint, isa=isa, threads=threads, num_blocks=NUM_BLOCKS))


TOKENS = random_tokens(LENGTH, 96)


@cache
def whole(shape: Shape, isa: str, kv: str) -> np.ndarray:
    return shaped(shape, isa, kv).read(TOKENS, [], range(-(-LENGTH // shape.block_size)))


@st.composite
def chunkings(draw: st.DrawFn) -> list[int]:
    cuts = draw(st.sets(st.sampled_from(BORDERS) | st.integers(1, LENGTH - 1), max_size=14))
    edges = [0, *sorted(cuts), LENGTH]
    return [b - a for a, b in pairwise(edges)]


def shuffled_blocks(seed: int, length: int, block_size: int) -> list[int]:
    """A block table of distinct blocks from anywhere in the pool."""
    blocks = np.random.default_rng(seed).permutation(NUM_BLOCKS)
    return blocks[: -(-length // block_size)].tolist()


@pytest.mark.parametrize("kv", KVS)
@pytest.mark.parametrize("isa", ISAS)
@settings(deadline=None, max_examples=12)
@given(shape=st.sampled_from(SHAPES), chunks=chunkings(), seed=st.integers(0, 999))
def test_any_chunks_on_any_blocks(isa: str, kv: str, shape: Shape, chunks: list[int], seed: int):
    blocks = shuffled_blocks(seed, LENGTH, shape.block_size)
    got = shaped(shape, isa, kv).read(TOKENS, chunks, blocks)
    assert np.array_equal(got, whole(shape, isa, kv))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("shape", "kv"),
    [
        *((shape, kv) for shape in SHAPES for kv in ("fp16", "fp32")),
        *((shape, kv) for shape in SHAPES[::3] for kv in KVS if kv not in ("fp16", "fp32")),
    ],
    ids=str,
)
def test_decoding_equals_reading(isa: str, kv: str, shape: Shape):
    """One token at a time over the borders of blocks and partitions, against the prompt read at once."""
    driver = shaped(shape, isa, kv)
    blocks = shuffled_blocks(3, 2 * LENGTH + shape.block_size, shape.block_size)
    half = len(blocks) // 2
    feed = driver.feed([], blocks[:half], num_prompt_tokens=1)
    for begin, end in ((1, 3), (14, 17), (31, 34), (254, 258), (299, 300)):
        for n in range(begin, end + 1):
            feed.tokens[:] = TOKENS[:n]
            driver.step([(feed, n - feed.computed)])
        decoded = driver.logits[feed.request_id]
        assert np.array_equal(decoded, driver.read(TOKENS[:end], [], blocks[half:]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_number_of_threads_changes_nothing(isa: str, shape: Shape):
    chunks = [100, 1, 90, 70, 1]
    blocks = shuffled_blocks(5, LENGTH, shape.block_size)
    for threads in (2, 3):
        got = shaped(shape, isa, "fp16", threads).read(TOKENS, chunks, blocks)
        assert np.array_equal(got, whole(shape, isa, "fp16"))


@pytest.mark.parametrize(
    ("isa", "kv"), [(isa, kv) for isa in ISAS for kv in KVS if kv == "fp16" or isa != "portable"]
)
def test_lone_tokens_over_many_partitions(isa: str, kv: str):
    """Threads and neighbours decide how long the runs of partitions are that one token is split into."""
    lengths = [5 * 256 + 9, 600, 3 * 256 + 1, 256, 1030]
    checkpoint = tiny_checkpoint("mistral", num_layers=3, windows=(None, 300, 700), vocab_size=96)
    options = {"max_model_len": 1300, "max_num_batched_tokens": 2048, "num_blocks": 340, "kv_cache_dtype": kv}
    at_once = Driver(make_executor(checkpoint, isa=isa, **options))
    expected = [at_once.read(tokens_of(i, n), [], range(82)) for i, n in enumerate(lengths)]
    for threads in (1, 3):
        driver = Driver(make_executor(checkpoint, isa=isa, threads=threads, **options))
        for beside in ([0], [1, 2], [3, 4, 1], [2, 0, 4]):
            feeds = {i: driver.feed(tokens_of(i, lengths[i]), range(64 * i, 64 * i + 82)) for i in beside}
            for i, feed in feeds.items():
                driver.step([(feed, lengths[i] - 1)])
            driver.step([(feed, 1) for feed in feeds.values()])
            for i, feed in feeds.items():
                assert np.array_equal(driver.logits[feed.request_id], expected[i])


def run_mixed(driver: Driver, lengths: list[int], block_size: int, seed: int) -> dict[int, np.ndarray]:
    """Sequences of these lengths that advance by random counts, in random order, some at each step."""
    rng = np.random.default_rng(seed)
    free = rng.permutation(NUM_BLOCKS).tolist()
    feeds = []
    for index, length in enumerate(lengths):
        blocks = [free.pop() for _ in range(-(-length // block_size))]
        feeds.append(driver.feed(tokens_of(index, length), blocks))
    logits: dict[int, np.ndarray] = {}
    while len(logits) < len(lengths):
        parts = []
        for index in rng.permutation(len(lengths)).tolist():
            left = lengths[index] - feeds[index].computed
            if left and (rng.random() < 0.7 or not parts):
                parts.append((index, min(left, int(rng.choice([1, 1, 2, 5, 16, 49, 80])))))
        driver.step([(feeds[index], count) for index, count in parts])
        for index, _ in parts:
            if feeds[index].request_id in driver.logits:
                logits[index] = driver.logits[feeds[index].request_id]
    return logits


def tokens_of(index: int, length: int) -> list[int]:
    return random_tokens(length, 96, seed=100 + index)


LENGTHS = [1, 2, 17, 33, 48, 70, 260]


@cache
def alone(family: Any, dtype: Any, isa: str) -> dict[int, np.ndarray]:
    driver = modelled(family, dtype, isa)
    return {i: driver.read(tokens_of(i, n), [], range(20)) for i, n in enumerate(LENGTHS)}


@pytest.mark.parametrize(("family", "dtype"), MODELS)
@settings(deadline=None, max_examples=4)
@given(isa=st.sampled_from(ISAS), threads=st.sampled_from([1, 1, 2]), seed=st.integers(0, 9999))
def test_unequal_neighbours_change_nothing(family: Any, dtype: DTypes, isa: str, threads: int, seed: int):
    expected = alone(family, dtype, isa)
    got = run_mixed(modelled(family, dtype, isa, threads), LENGTHS, 16, seed)
    for index, logits in expected.items():
        assert np.array_equal(got[index], logits), f"request of {LENGTHS[index]} tokens"


POISON = 0
HEALTHY = [token or 1 for token in TOKENS[:70]]


@pytest.mark.parametrize("kv", KVS)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("head_dim", "window", "dtype"), [(16, None, "F32"), (24, 9, "F32"), (8, 20, "Q8_0")]
)
def test_what_others_left_in_memory_changes_nothing(
    isa: str, kv: str, head_dim: int, window: int | None, dtype: DTypes
):
    """Every slot of the pool holds a request's NaNs, and that request goes on beside the healthy one."""
    spec = tiny_spec("mistral", head_dim=head_dim, vocab_size=96, windows=(window, None))
    weights = random_weights(spec)
    weights["model.embed_tokens.weight"][POISON] = np.nan
    dtypes = {name: dtype for name in weights if "embed" not in name}
    checkpoint = memory_checkpoint(spec, weights, dtypes)

    def new_driver() -> Driver:
        executor = make_executor(checkpoint, isa=isa, kv_cache_dtype=kv, num_blocks=20, threads=2)
        return Driver(executor)

    clean = new_driver()
    expected = [clean.read(HEALTHY[:n], [], range(5)) for n in (61, 62, 63, 64, 65, 70)]
    driver = new_driver()
    for begin in (0, 10):
        poison = driver.feed([POISON] * 160, list(range(begin, begin + 10)))
        result = driver.step([(poison, 160)])
        assert list(result.errors) == [poison.request_id]
    blocks = [13, 2, 19, 7, 5]
    beside = driver.feed([POISON] * 80, [0, 1, 3, 4, 6])
    healthy = driver.feed(HEALTHY[:61], blocks)
    driver.step([(beside, 20), (healthy, 40), (driver.feed([POISON], [8]), 1)])
    for n, logits in zip((61, 62, 63, 64, 65, 70), expected, strict=True):
        healthy.tokens[:] = HEALTHY[:n]
        result = driver.step([(beside, 5), (healthy, n - healthy.computed)])
        assert np.array_equal(driver.logits[healthy.request_id], logits)
        assert healthy.request_id in result.sampled_token_ids
