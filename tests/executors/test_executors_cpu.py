"""What executors report, refuse and answer; and that one request's fault stays its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from executor_rig import ISAS, Driver, make_executor, memory_checkpoint, random_tokens, tiny_checkpoint

from rigs.models import path_successor, random_weights, successor_weights, tiny_spec
from rooftree.checkpoint.base import Checkpoint
from rooftree.engine.executors.cpu import CPUExecutor
from rooftree.engine.executors.reference import ReferenceExecutor
from rooftree.errors import ConfigError, EngineDeadError, ModelError
from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.output import SchedulerOutput

EXECUTORS = [CPUExecutor, ReferenceExecutor]
LOGPROBS = SamplingParams(temperature=0.0, logprobs=3)


@pytest.mark.parametrize("kind", EXECUTORS)
def test_sizes(kind: Any):
    checkpoint = tiny_checkpoint()
    executor = make_executor(checkpoint, kind, block_size=32)
    matrices = sum(t.num_bytes for t in checkpoint.tensors.values() if len(t.shape) == 2)
    assert executor.weight_bytes == matrices
    assert executor.activation_bytes >= 4 * 512 * checkpoint.spec.hidden_size
    assert executor.kv_bytes_per_block > 0


@pytest.mark.parametrize(("kv", "size"), [("fp16", 2), ("bf16", 2), ("fp32", 4)])
def test_kv_bytes_of_a_block(kv: str, size: int):
    checkpoint = tiny_checkpoint()
    executor = make_executor(checkpoint, kv_cache_dtype=kv, block_size=32)
    assert executor.kv_bytes_per_block == 32 * checkpoint.spec.kv_bytes_per_token(size)


def test_a_closed_executor_says_so():
    executor = make_executor(tiny_checkpoint())
    executor.close()
    executor.close()
    with pytest.raises(EngineDeadError, match="closed"):
        Driver(executor).read([1], [], [0])


def test_packed_weights_are_as_large_as_the_stored_ones():
    checkpoint = tiny_checkpoint("qwen2", "Q4_1")
    stored = sum(t.num_bytes for t in checkpoint.tensors.values() if len(t.shape) == 2)
    assert make_executor(checkpoint).weight_bytes == stored


def test_a_tied_head_is_packed_once():
    tied = make_executor(tiny_checkpoint(tie_word_embeddings=True)).weight_bytes
    assert make_executor(tiny_checkpoint()).weight_bytes == tied + 4 * 512 * 64


def test_the_best_instruction_set_is_chosen():
    assert make_executor(tiny_checkpoint()).isa == ISAS[0]
    assert make_executor(tiny_checkpoint(), isa="portable").isa == "portable"


def test_threads_default_to_the_cores():
    assert make_executor(tiny_checkpoint(), threads=None).threads >= 1


def test_refusals():
    with pytest.raises(ConfigError, match=r"--isa sse9 \(or ROOFTREE_ISA\): .* run .*portable"):
        make_executor(tiny_checkpoint(), isa="sse9")
    for size in (0, -16, 8, 17):
        with pytest.raises(ConfigError, match=f"--block-size {size}.*multiple of 16"):
            make_executor(tiny_checkpoint(), block_size=size)
    with pytest.raises(ModelError, match="head_dim 12 is not a multiple of 8"):
        make_executor(tiny_checkpoint(head_dim=12))
    with pytest.raises(ModelError, match="48 query heads per KV head"):
        make_executor(tiny_checkpoint(num_heads=49, num_kv_heads=1, head_dim=8))


def test_a_pool_that_the_system_refuses():
    with pytest.raises(ConfigError, match=r"refused .* GiB for \d+ KV blocks; lower --kv-cache-memory"):
        make_executor(tiny_checkpoint(), num_blocks=2**46 // (16 * 512))


@pytest.mark.parametrize("isa", ISAS)
def test_the_last_position_of_the_context(isa: str):
    tokens = random_tokens(33)
    roomy, exact = (
        Driver(make_executor(tiny_checkpoint(), isa=isa, max_model_len=length)).read(tokens, [32], [2, 0, 1])
        for length in (512, 33)
    )
    assert np.array_equal(roomy, exact)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["F32", "Q4_1"])
def test_a_hundred_decodes_in_one_step(isa: str, dtype: Any):
    """More sampled rows than one pass over a weight tile serves."""
    options = {"max_num_seqs": 100, "max_num_batched_tokens": 1024, "num_blocks": 100, "threads": 2}
    driver = Driver(make_executor(tiny_checkpoint(dtype=dtype), isa=isa, **options))
    feeds = [driver.feed(random_tokens(1 + i % 16, seed=i), [i]) for i in range(100)]
    driver.step([(feed, len(feed.tokens)) for feed in feeds])
    together = driver.logits
    for feed in feeds[::9]:
        assert np.array_equal(driver.read(feed.tokens, [], feed.block_ids), together[feed.request_id])


@pytest.mark.parametrize("kind", EXECUTORS)
def test_only_requests_that_sample_get_tokens(kind: Any):
    driver = Driver(make_executor(tiny_checkpoint(), kind))
    a, b, c = (driver.feed(random_tokens(9, seed=i), [i], params=LOGPROBS) for i in range(3))
    result = driver.step([(a, 9), (b, 4), (c, 9)])
    assert list(result.sampled_token_ids) == [a.request_id, c.request_id]
    assert list(result.logprobs) == [a.request_id, c.request_id]
    assert result.errors == {}
    result = driver.step([(b, 2)])
    assert (result.sampled_token_ids, result.logprobs, result.errors) == ({}, {}, {})
    result = driver.step([(b, 3)])
    assert list(result.sampled_token_ids) == [b.request_id]
    assert driver.executor.last_native_seconds >= 0


def test_an_empty_step_is_harmless():
    driver = Driver(make_executor(tiny_checkpoint()))
    before = driver.read([1, 2, 3], [], [0])
    result = driver.executor.execute(SchedulerOutput([], {}, 0))
    assert (result.sampled_token_ids, result.errors) == ({}, {})
    assert np.array_equal(driver.read([1, 2, 3], [], [0]), before)


def test_a_step_larger_than_the_program_is_refused_before_it_starts():
    driver = Driver(make_executor(tiny_checkpoint(), max_num_batched_tokens=16, max_num_seqs=2))
    before = driver.read([1, 2, 3], [], [0])
    with pytest.raises(ValueError, match="more tokens than the program was made for"):
        driver.read(random_tokens(17), [], [1, 2])
    assert np.array_equal(driver.read([1, 2, 3], [], [0]), before)


def test_a_step_without_a_cache_is_refused():
    executor = CPUExecutor(
        tiny_checkpoint(), max_num_seqs=1, max_num_batched_tokens=16, max_model_len=16, threads=1
    )
    with pytest.raises(ValueError, match="no memory yet"):
        Driver(executor).read([1], [], [0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", ["F32", "Q8_0", "Q4_1"])
def test_numbers_that_are_none_end_their_request_alone(isa: str, bad: float, dtype: Any):
    """A token whose embedding is no number, beside healthy requests in prefill and in decode."""
    spec = tiny_spec("qwen3")
    weights = random_weights(spec)
    weights["model.embed_tokens.weight"][7] = bad
    dtypes = {name: dtype for name in weights if "embed" not in name}
    checkpoint = memory_checkpoint(spec, weights, dtypes)
    prompts = [[t if t != 7 else 8 for t in random_tokens(n, seed=n)] for n in (1, 20, 40)]

    def answers(poisoned: bool) -> list[Any]:
        driver = Driver(make_executor(checkpoint, isa=isa, threads=2))
        feeds = [
            driver.feed(p, [3 * i, 3 * i + 1, 3 * i + 2], params=LOGPROBS) for i, p in enumerate(prompts)
        ]
        got = []
        for step in range(4):
            parts = [(feed, len(feed.tokens) - feed.computed) for feed in feeds]
            if poisoned:
                parts.insert(step % 3, (driver.feed([*range(20, 20 + step), 7], [9]), 1 + step))
            result = driver.step(parts)
            if poisoned:
                failed = set(result.errors)
                assert failed == {parts[step % 3][0].request_id}
                assert not failed & set(result.sampled_token_ids)
                assert "not finite" in next(iter(result.errors.values()))
            for feed in feeds:
                feed.tokens.append(result.sampled_token_ids[feed.request_id])
                got.append((feed.tokens[-1], result.logprobs[feed.request_id]))
        return got

    assert answers(poisoned=True) == answers(poisoned=False)


def broken_checkpoint(token: int) -> Checkpoint:
    """A model of which one token's embedding is no number."""
    spec = tiny_spec()
    weights = random_weights(spec)
    weights["model.embed_tokens.weight"][token] = np.nan
    return memory_checkpoint(spec, weights)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("chunks", [[], [3]])
def test_a_past_that_is_no_number_is_an_error_too(isa: str, kv: str, chunks: list[int]):
    """Not the last token but one before it went wrong: its K and V must not turn into numbers."""
    driver = Driver(make_executor(broken_checkpoint(7), isa=isa, kv_cache_dtype=kv))
    feed = driver.feed([1, 2, 7, 20, 21], [0])
    for chunk in chunks:
        driver.step([(feed, chunk)])
    result = driver.step([(feed, 5 - feed.computed)])
    assert list(result.errors) == [feed.request_id]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv", ["fp16", "bf16", "fp32"])
def test_a_prefix_is_healthy_whatever_came_after_it(isa: str, kv: str):
    """A later token of the same step is no number; another request then goes on from the block before it."""
    prefix = random_tokens(16, 7)
    driver = Driver(make_executor(broken_checkpoint(7), isa=isa, kv_cache_dtype=kv))
    expected = driver.read([*prefix, 3, 4], [], [0, 1])
    driver.step([(driver.feed([*prefix, 7], [2, 3]), 17)])
    heir = driver.feed([*prefix, 3, 4], [2, 4])
    heir.computed = 16
    driver.step([(heir, 2)])
    assert np.array_equal(driver.logits[heir.request_id], expected)


@pytest.mark.parametrize("isa", ISAS)
def test_a_scripted_model_walks_its_path(isa: str):
    """R1 through prefill, decode and eviction: the last token alone says what comes next."""
    spec = tiny_spec(vocab_size=300)
    path = [5, 9, 250, 17, 3, 299, 0, 42]
    weights = successor_weights(spec, path_successor(300, path))
    executor = make_executor(memory_checkpoint(spec, weights), isa=isa, max_num_seqs=3)
    driver = Driver(executor)
    for begin in range(6):
        feeds = [driver.feed([path[(begin + i) % 8]], [i]) for i in range(3)]
        for _ in range(7):
            result = driver.step([(feed, len(feed.tokens) - feed.computed) for feed in feeds])
            for feed in feeds:
                feed.tokens.append(result.sampled_token_ids[feed.request_id])
        for i, feed in enumerate(feeds):
            assert feed.tokens == [path[(begin + i + n) % 8] for n in range(8)]


@pytest.mark.parametrize("isa", ISAS)
def test_both_executors_choose_the_same_tokens(isa: str):
    """Sampling and log-probabilities through the executors, logits included."""
    options = [
        SamplingParams(temperature=0.0, logprobs=5),
        SamplingParams(temperature=0.75, top_p=0.875, logprobs=2),
        SamplingParams(top_k=30, min_p=0.015625, frequency_penalty=0.5, logprobs=0),
        SamplingParams(repetition_penalty=1.25, presence_penalty=0.5, logit_bias={3: 6.0}),
    ]

    def run(kind: Any) -> tuple[list[list[int]], list[Any]]:
        driver = Driver(make_executor(tiny_checkpoint(), kind, kv_cache_dtype="fp32"))
        feeds = [
            driver.feed(random_tokens(3 + 7 * i, seed=i), [2 * i, 2 * i + 1], params=params, seed=i)
            for i, params in enumerate(options)
        ]
        logprobs = []
        for _ in range(8):
            result = driver.step([(feed, len(feed.tokens) - feed.computed) for feed in feeds])
            for feed in feeds:
                feed.tokens.append(result.sampled_token_ids[feed.request_id])
            logprobs.append(result.logprobs)
        return [feed.tokens for feed in feeds], logprobs

    (tokens, logprobs), (expected, expected_logprobs) = run(CPUExecutor), run(ReferenceExecutor)
    assert tokens == expected
    for step, expected_step in zip(logprobs, expected_logprobs, strict=True):
        assert list(step) == list(expected_step)
        for got, wanted in zip(step.values(), expected_step.values(), strict=True):
            assert (got.rank, got.top_ids) == (wanted.rank, wanted.top_ids)
            assert got.logprob == pytest.approx(wanted.logprob, abs=1e-4)
            assert got.top_logprobs == pytest.approx(wanted.top_logprobs, abs=1e-4)
