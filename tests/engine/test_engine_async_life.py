"""An engine from its start to the end that was asked for."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import psutil
import pytest
from async_rig import FAKE, FRONTEND, NUM_BLOCKS, collect, greedy, launch, run, running
from engine_fakes import foretell

from rooftree.engine.async_llm import AsyncLLM
from rooftree.engine.client import EngineClient
from rooftree.engine.config import EngineConfig
from rooftree.engine.frontend import Frontend
from rooftree.errors import ConfigError, EngineDeadError, ModelError, RequestError


def test_life_from_loading_to_stopped():
    async def test() -> None:
        llm = launch()
        assert llm.state == "LOADING"
        with pytest.raises(RequestError) as caught:
            await collect(llm, "r", [1], greedy())
        assert (caught.value.status, caught.value.retry_after) == (503, 1.0)
        ready = await llm.wait_ready()
        assert str(llm.state) == "READY"
        assert (ready.num_blocks, llm.max_model_len, llm.tokenizer) == (NUM_BLOCKS, 512, FRONTEND.tokenizer)
        assert await llm.wait_ready() is ready
        assert (await collect(llm, "r", [1], greedy())).outputs[0].token_ids == foretell([1], 8)
        assert llm.seconds_since_heartbeat < 5
        await llm.shutdown()
        await llm.shutdown()
        assert llm.state == "STOPPED"
        with pytest.raises(RequestError) as caught:
            await collect(llm, "r", [1], greedy())
        assert (caught.value.status, caught.value.code) == (503, "shutting_down")
        assert not psutil.pid_exists(llm._client.pid)
        assert not llm._client._folder.exists()

    run(test)


def test_an_idle_engine_beats_and_uses_no_processor():
    async def test() -> None:
        async with running() as llm:
            process = psutil.Process(llm._client.pid)
            before = process.cpu_times()
            beats = set()
            for _ in range(25):
                await asyncio.sleep(0.1)
                beats.add(llm._last_heartbeat)
            after = process.cpu_times()
            assert len(beats) >= 2
            assert (after.user + after.system) - (before.user + before.system) < 0.1

    run(test)


@pytest.mark.parametrize(("model", "silent"), [("long", False), ("stuck", True)])
def test_a_step_that_gets_on_is_heard_of(model: str, silent: bool):
    async def test() -> None:
        async with running(model=model) as llm:
            job = asyncio.ensure_future(collect(llm, "r", [1], greedy(1)))
            heard = set()
            while not job.done():
                await asyncio.sleep(0.05)
                heard.add(llm._last_heartbeat)
            assert (len(heard) <= 2) == silent  # before the step, and its end

    run(test)


def test_shutdown_ends_running_requests_with_an_error():
    async def test() -> None:
        llm = launch("slow")
        await llm.wait_ready()
        task = asyncio.create_task(collect(llm, "r", [1], greedy(500)))
        await asyncio.sleep(0.1)
        await llm.shutdown()
        output = await task
        assert output.outputs[0].finish_reason == "abort"
        assert "shut down" in output.error
        assert llm.state == "STOPPED"

    run(test)


def test_shutdown_while_loading_does_not_wait_for_the_load():
    async def test() -> None:
        llm = launch("loads")
        waiting = asyncio.create_task(llm.wait_ready())
        while not llm.loading_phase:
            await asyncio.sleep(0.01)
        await llm.shutdown()
        with pytest.raises(EngineDeadError, match="shut down"):
            await waiting
        assert not psutil.pid_exists(llm._client.pid)

    run(test)


def test_options_wrong_in_themselves_are_refused_before_a_process_starts():
    with pytest.raises(ConfigError, match="block-size"):
        AsyncLLM.start(EngineConfig(block_size=17))


@pytest.mark.parametrize(
    ("model", "error", "text"),
    [
        ("refuses", ConfigError, "too large by half"),
        ("crashes", EngineDeadError, "ZeroDivisionError: a defect"),
    ],
)
def test_a_failed_start_says_why(model: str, error: type[Exception], text: str):
    async def test() -> None:
        llm = launch(model)
        with pytest.raises(error, match=text):
            await llm.wait_ready()
        assert llm.state == "DEAD"
        assert text in llm.dead_reason
        with pytest.raises(error):
            await llm.wait_ready()
        await llm.shutdown()

    run(test)


def test_a_tokenizer_that_cannot_be_read_ends_the_engine_too():
    async def test() -> None:
        config = EngineConfig(model="loads")
        frontend: Future[Frontend] = Future()
        frontend.set_exception(ModelError("tokenizer.json: line 1"))
        llm = AsyncLLM(config, EngineClient(config, FAKE), frontend)
        with pytest.raises(ModelError, match="line 1"):
            await llm.wait_ready()
        assert not psutil.pid_exists(llm._client.pid)

    run(test)
