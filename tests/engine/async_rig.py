"""An AsyncLLM around a fake engine process, and what tests do with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
from engine_fakes import StatRecorder, make_frontend

from rooftree.engine.async_llm import AsyncLLM
from rooftree.engine.client import EngineClient
from rooftree.engine.config import EngineConfig
from rooftree.engine.frontend import Frontend
from rooftree.engine.merging import merge, sort_choices
from rooftree.engine.outputs import RequestOutput
from rooftree.sampling.params import SamplingParams

# The process must find what this one has found, wherever that is.
FAKE = (
    "env",
    f"PYTHONPATH={os.pathsep.join(sys.path)}",
    sys.executable,
    str(Path(__file__).with_name("fake_engine_process.py")),
)
FRONTEND = make_frontend()
NUM_BLOCKS = 64


def greedy(max_tokens: int | None = 8, **params: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, "ignore_eos": True} | params)


def launch(model: str = "fake", stats: StatRecorder | None = None, **options: Any) -> AsyncLLM:
    config = EngineConfig(model=model, **options)
    frontend: Future[Frontend] = Future()
    frontend.set_result(FRONTEND)
    return AsyncLLM(config, EngineClient(config, FAKE), frontend, stats)


@contextlib.asynccontextmanager
async def running(
    model: str = "fake", stats: StatRecorder | None = None, **options: Any
) -> AsyncIterator[AsyncLLM]:
    llm = launch(model, stats, **options)
    try:
        await llm.wait_ready()
        yield llm
    finally:
        await llm.shutdown()
        assert not psutil.pid_exists(llm._client.pid)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine with a limit, so that a hang is a failure."""

    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


async def collect(
    llm: AsyncLLM, request_id: str, prompt: Any, params: SamplingParams, **more: Any
) -> RequestOutput:
    total = RequestOutput(request_id, [], [])
    async for delta in llm.generate(request_id, prompt, params, **more):
        merge(total, delta)
    return sort_choices(total)


async def at_rest(llm: AsyncLLM) -> None:
    """Wait until the engine says that nothing runs; all blocks must be back."""
    while llm.scheduler_stats.num_running or llm.scheduler_stats.num_waiting:
        await asyncio.sleep(0.01)
    stats = llm.scheduler_stats
    assert stats.num_owned_blocks == 0
    assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks == NUM_BLOCKS
    assert stats.conservation_failures == 0
    assert llm.num_unfinished == 0
