"""Many clients, some leaving early, on a pool far too small: no wrong token, nothing left behind."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing

from msgspec.structs import replace

from rooftree.engine.async_llm import AsyncLLM
from rooftree.engine.config import EngineConfig
from rooftree.engine.llm import LLM
from rooftree.sampling.params import SamplingParams

NUM_CLIENTS, REQUESTS_EACH, LONGEST = 64, 5, 200


def test_sixty_four_clients_on_a_small_pool(tiny_model: Callable[[str, str], str]):
    model = tiny_model("qwen3", "Q4_1")
    rng = random.Random(1)
    prompts = [[rng.randrange(256) for _ in range(rng.randrange(1, 100))] for _ in range(24)]
    params = [SamplingParams(max_tokens=LONGEST, seed=i, ignore_eos=True) for i in range(24)]
    with LLM(model, threads=1, kv_cache_memory=4 << 20) as offline:
        expected = [output.outputs[0].token_ids for output in offline.generate(prompts, params)]

    async def client(llm: AsyncLLM, number: int) -> None:
        for round_ in range(REQUESTS_EACH):
            which, length = rng.randrange(24), rng.randrange(1, LONGEST + 1)
            leaves_at = rng.randrange(1, length + 1) if rng.random() < 0.2 else None
            wanted = replace(params[which], max_tokens=length)
            tokens: list[int] = []
            async with aclosing(llm.generate(f"{number}-{round_}", prompts[which], wanted)) as stream:
                async for output in stream:
                    tokens += output.outputs[0].token_ids
                    if leaves_at is not None and len(tokens) >= leaves_at:
                        break
            assert tokens == expected[which][: len(tokens)]
            assert leaves_at is not None or len(tokens) == length

    async def test() -> None:
        config = EngineConfig(model=model, threads=1, kv_cache_memory=32 * 4096, max_num_seqs=32)
        llm = AsyncLLM.start(config)
        try:
            async with asyncio.timeout(200):
                await llm.wait_ready()
                await asyncio.gather(*(client(llm, number) for number in range(NUM_CLIENTS)))
                while llm.scheduler_stats.num_running or llm.scheduler_stats.num_waiting:
                    await asyncio.sleep(0.01)
            stats = llm.scheduler_stats
            assert stats.num_preemptions > 0
            assert stats.conservation_failures == stats.num_owned_blocks == llm.num_unfinished == 0
            assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks == 32
        finally:
            await llm.shutdown()

    asyncio.run(test())
