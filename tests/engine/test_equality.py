"""An answer depends on its request alone: tokens and log-probabilities, bit for bit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from rigs.models import FAMILIES
from rigs.real_model import smollm2_path
from rooftree import _native
from rooftree.engine.async_llm import AsyncLLM
from rooftree.engine.config import EngineConfig
from rooftree.engine.llm import LLM
from rooftree.engine.merging import merge, sort_choices
from rooftree.engine.outputs import CompletionOutput, RequestOutput
from rooftree.sampling.params import SamplingParams

ModelPath = Callable[[str, str], str]
MakeLLM = Callable[..., LLM]

MODELS = [
    *((family, "F32") for family in FAMILIES),
    *((family, "Q4_1") for family in FAMILIES),
    ("llama", "F16"),
    ("qwen3", "BF16"),
    ("qwen2", "Q8_0"),
    ("mistral", "Q4_0"),
]
MAX_TOKENS = 14


def make_prompts() -> list[list[int]]:
    """Lengths about the borders of blocks and windows; some share a beginning, one comes twice."""
    rng = np.random.default_rng(5)
    shared = rng.integers(0, 256, 40).tolist()
    prompts = [rng.integers(0, 256, length).tolist() for length in (1, 2, 15, 16, 17, 24, 33, 70)]
    prompts += [shared + rng.integers(0, 256, length).tolist() for length in (1, 8, 30)]
    return [*prompts, prompts[6]]


PROMPTS = make_prompts()


def options_of(index: int) -> SamplingParams:
    """Greedy, sampled and penalised requests in turn."""
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_p": 0.95, "seed": 11 + index},
        {"temperature": 1.2, "top_k": 40, "min_p": 0.01, "seed": -index},
        {"temperature": 0.7, "repetition_penalty": 1.3, "frequency_penalty": 0.5, "seed": 5},
    ]
    return SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=3, **kinds[index % len(kinds)])


PARAMS = [options_of(index) for index in range(len(PROMPTS))]


def answers(llm: LLM) -> list[list[CompletionOutput]]:
    """All prompts at once."""
    return [output.outputs for output in llm.generate(PROMPTS, PARAMS)]


def answers_alone(llm: LLM) -> list[list[CompletionOutput]]:
    """One prompt after another."""
    return [llm.generate([prompt], params)[0].outputs for prompt, params in zip(PROMPTS, PARAMS, strict=True)]


@pytest.fixture(scope="module")
def expected(tiny_model: ModelPath) -> dict[tuple[Any, ...], list[list[CompletionOutput]]]:
    """Answers of each model alone in a cold engine, made once."""
    return {}


def alone(
    made: dict[tuple[Any, ...], list[list[CompletionOutput]]],
    make_tiny_llm: MakeLLM,
    family: str,
    dtype: str,
    **options: Any,
) -> list[list[CompletionOutput]]:
    key = (family, dtype, *sorted(options.items()))
    if key not in made:
        llm = make_tiny_llm(family, dtype, enable_prefix_caching=False, **options)
        made[key] = answers_alone(llm)
        assert all(len(choice.logprobs) == MAX_TOKENS for (choice,) in made[key])
    return made[key]


def assert_at_rest(llm: LLM) -> None:
    assert llm.core.scheduler.check_conservation() == []
    assert llm.core.stats().num_owned_blocks == 0


@pytest.mark.parametrize(("family", "dtype"), MODELS)
def test_batched_equals_alone(make_tiny_llm: MakeLLM, expected: Any, family: str, dtype: str):
    llm = make_tiny_llm(family, dtype)
    assert answers(llm) == alone(expected, make_tiny_llm, family, dtype)
    assert_at_rest(llm)


@pytest.mark.parametrize("budget", [1, 2, 3, 7, 16, 64])
@pytest.mark.parametrize(("family", "dtype"), MODELS)
def test_chunked_equals_whole(make_tiny_llm: MakeLLM, expected: Any, family: str, dtype: str, budget: int):
    llm = make_tiny_llm(family, dtype, max_num_batched_tokens=budget, max_num_seqs=min(budget, 5))
    assert answers(llm) == alone(expected, make_tiny_llm, family, dtype)


@pytest.mark.parametrize(("family", "dtype"), MODELS)
def test_cached_equals_cold(make_tiny_llm: MakeLLM, expected: Any, family: str, dtype: str):
    llm = make_tiny_llm(family, dtype)
    cold = alone(expected, make_tiny_llm, family, dtype)
    for round_ in range(2):
        outputs = [llm.generate([p], params)[0] for p, params in zip(PROMPTS, PARAMS, strict=True)]
        assert [output.outputs for output in outputs] == cold
        cached = [output.num_cached_tokens for output in outputs]
        if round_:
            assert cached == [(len(prompt) - 1) // 16 * 16 for prompt in PROMPTS]
    assert answers(llm) == cold


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize(("family", "dtype"), MODELS)
def test_preempted_equals_uninterrupted(
    make_tiny_llm: MakeLLM, expected: Any, family: str, dtype: str, prefix_caching: bool
):
    block = 16 * 2 * 2 * 32 * 2
    llm = make_tiny_llm(
        family,
        dtype,
        kv_cache_memory=12 * block,
        kv_watermark=0.0,
        max_num_batched_tokens=64,
        enable_prefix_caching=prefix_caching,
    )
    assert llm.ready.num_blocks == 12
    assert answers(llm) == alone(expected, make_tiny_llm, family, dtype)
    assert llm.core.stats().num_preemptions > 0
    assert_at_rest(llm)


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize(("family", "dtype"), MODELS)
def test_the_number_of_threads_changes_nothing(
    make_tiny_llm: MakeLLM, expected: Any, family: str, dtype: str, threads: int
):
    llm = make_tiny_llm(family, dtype, threads=threads, max_num_batched_tokens=32)
    assert answers(llm) == alone(expected, make_tiny_llm, family, dtype)


@pytest.mark.parametrize("isa", _native.supported_isas())
@pytest.mark.parametrize("kv_cache_dtype", ["fp16", "fp32"])
@pytest.mark.parametrize("dtype", ["F32", "Q4_1"])
def test_every_instruction_set_and_cache_format_keeps_the_promise(
    make_tiny_llm: MakeLLM, expected: Any, isa: str, kv_cache_dtype: str, dtype: str
):
    options = {"isa": isa, "kv_cache_dtype": kv_cache_dtype}
    llm = make_tiny_llm("llama", dtype, threads=2, max_num_batched_tokens=16, **options)
    cold = alone(expected, make_tiny_llm, "llama", dtype, **options)
    assert answers(llm) == cold
    assert answers(llm) == cold


@pytest.mark.parametrize("block_size", [32, 64])
def test_the_size_of_blocks_changes_nothing(make_tiny_llm: MakeLLM, expected: Any, block_size: int):
    llm = make_tiny_llm("mistral", "F32", block_size=block_size)
    assert answers(llm) == alone(expected, make_tiny_llm, "mistral", "F32")


@pytest.mark.parametrize(("family", "dtype"), MODELS)
def test_streamed_equals_whole(make_tiny_llm: MakeLLM, expected: Any, family: str, dtype: str):
    llm = make_tiny_llm(family, dtype)
    cold = alone(expected, make_tiny_llm, family, dtype)
    for prompt, params, outputs in zip(PROMPTS, PARAMS, cold, strict=True):
        total = RequestOutput("", [], [])
        for delta in llm.stream(prompt, params):
            merge(total, delta)
        assert total.outputs == outputs


async def collect(llm: AsyncLLM, index: int) -> list[CompletionOutput]:
    total = RequestOutput("", [], [])
    async for delta in llm.generate(str(index), PROMPTS[index], PARAMS[index]):
        merge(total, delta)
    return sort_choices(total).outputs


@pytest.mark.parametrize(("family", "dtype"), [("llama", "F32"), ("qwen3", "Q4_1")])
def test_async_equals_offline(
    make_tiny_llm: MakeLLM, tiny_model: ModelPath, expected: Any, family: str, dtype: str
):
    config = EngineConfig(
        model=tiny_model(family, dtype), threads=2, max_num_seqs=5, max_num_batched_tokens=16
    )

    async def test() -> Sequence[list[CompletionOutput]]:
        llm = AsyncLLM.start(config)
        try:
            async with asyncio.timeout(60):
                await llm.wait_ready()
                return await asyncio.gather(*(collect(llm, index) for index in range(len(PROMPTS))))
        finally:
            await llm.shutdown()

    assert list(asyncio.run(test())) == alone(expected, make_tiny_llm, family, dtype)


def test_choices_are_those_of_requests_with_their_seeds(make_tiny_llm: MakeLLM):
    llm = make_tiny_llm("llama", "F32")
    params = SamplingParams(n=4, seed=3, max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=0)
    first, second = llm.generate([PROMPTS[4]] * 2, params)
    assert first.outputs == second.outputs
    assert [choice.index for choice in first.outputs] == [0, 1, 2, 3]
    assert len({tuple(choice.token_ids) for choice in first.outputs}) == 4
    (one,) = llm.generate(
        [PROMPTS[4]], SamplingParams(seed=3, max_tokens=MAX_TOKENS, ignore_eos=True, logprobs=0)
    )
    assert one.outputs[0] == first.outputs[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_executor_runs_the_same_engine(make_tiny_llm: MakeLLM, family: str):
    options = {"kv_cache_dtype": "fp32", "max_num_batched_tokens": 32}
    native = make_tiny_llm(family, "F32", **options)
    reference = make_tiny_llm(family, "F32", executor="reference", **options)
    greedy = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=0)
    for ours, theirs in zip(
        native.generate(PROMPTS, greedy), reference.generate(PROMPTS, greedy), strict=True
    ):
        for mine, other in zip(ours.outputs[0].logprobs, theirs.outputs[0].logprobs, strict=True):
            if mine.chosen.token_id != other.chosen.token_id:
                break  # a tie within rounding; what follows has another prefix
            assert mine.chosen.logprob == pytest.approx(other.chosen.logprob, abs=1e-3)


TEXTS = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "Water boils at a temperature of",
    "Water boils at a temperature of one hundred degrees, and it freezes at a temperature of",
]


@pytest.mark.model
def test_smollm2_answers_the_same_however_it_is_run():
    params = [
        SamplingParams(max_tokens=12, ignore_eos=True, logprobs=2, temperature=0.7 * (index % 2), seed=index)
        for index in range(len(TEXTS))
    ]

    def ask(**options: Any) -> LLM:
        return LLM(str(smollm2_path()), **{"kv_cache_memory": 1 << 27, "threads": 2} | options)

    def together(llm: LLM) -> list[list[CompletionOutput]]:
        return [output.outputs for output in llm.generate(TEXTS, params)]

    with ask(enable_prefix_caching=False) as llm:
        cold = [llm.generate([t], p)[0].outputs for t, p in zip(TEXTS, params, strict=True)]
        assert together(llm) == cold
    assert cold[0][0].text.startswith(" Paris")
    with ask(threads=1, max_num_batched_tokens=7, max_num_seqs=3) as llm:
        assert together(llm) == cold
        assert together(llm) == cold
        assert llm.core.stats().prefix_cache_hits > 0
    with ask(kv_cache_memory=6 * 16 * 23040, max_model_len=64, kv_watermark=0.0) as llm:
        assert together(llm) == cold
        assert llm.core.stats().num_preemptions > 0
