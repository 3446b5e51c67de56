from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_fakes import StatRecorder, foretell, make_frontend, make_llm
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftree.engine.async_llm import AsyncLLM, EngineState
from rooftree.engine.client import EngineClient
from rooftree.engine.config import EngineConfig
from rooftree.engine.frontend import Frontend
from rooftree.engine.merging import merge, sort_choices
from rooftree.engine.messages import AbortRequests
from rooftree.engine.outputs import RequestOutput
from rooftree.errors import ConfigError, EngineDeadError, ModelError, RequestError
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


def test_answers_equal_those_of_llm_in_process():
    prompts = [[i] * (5 * i + 1) for i in range(12)]
    params = [greedy(20, n=1 + i % 3, logprobs=i % 2, stop=("a", "xy")) for i in range(12)]
    offline = make_llm().generate(prompts, params)

    async def test() -> None:
        async with running() as llm:
            jobs = [collect(llm, str(i), prompts[i], params[i]) for i in range(12)]
            for output, expected in zip(await asyncio.gather(*jobs), offline, strict=True):
                assert output.outputs == expected.outputs
            await at_rest(llm)

    run(test)


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


LATE = """
import pathlib, sys, time
import msgspec, zmq
from rooftree.engine.channel import input_address, output_address
from rooftree.engine.messages import EngineInput, EngineProgress

folder, context = pathlib.Path(sys.argv[1]), zmq.Context()
out = context.socket(zmq.PUSH)
out.connect(output_address(folder))
out.send(msgspec.msgpack.encode(EngineProgress("heard of")))
time.sleep(0.3)
inbox = context.socket(zmq.PULL)
inbox.connect(input_address(folder))
for _ in range(3):
    message = msgspec.msgpack.decode(inbox.recv(), type=EngineInput)
    out.send(msgspec.msgpack.encode(EngineProgress(message.request_ids[0])))
time.sleep(60)
"""


def test_nothing_sent_before_the_engine_listens_is_lost():
    async def test() -> None:
        client = EngineClient(EngineConfig(model="late"), (sys.executable, "-c", LATE))
        heard: asyncio.Queue[str] = asyncio.Queue()
        client.attach(asyncio.get_running_loop(), lambda m: heard.put_nowait(m.phase), lambda status: None)
        try:
            assert await heard.get() == "heard of"
            for name in "abc":
                client.send(AbortRequests([name]))
            assert [await heard.get() for _ in range(3)] == ["a", "b", "c"]
        finally:
            client.close()

    run(test)


def test_closing_a_generator_ends_its_request():
    async def test() -> None:
        async with running(max_num_seqs=1, stats=(stats := StatRecorder())) as llm:
            for index in range(10):
                stream = llm.generate(str(index), [1], greedy(500))
                await anext(stream)
                await stream.aclose()
            assert (await collect(llm, "next", [2], greedy())).outputs[0].token_ids == foretell([2], 8)
            await at_rest(llm)
            assert stats.finished_by_reason() == {"abort": 10, "length": 1}

    run(test)


def test_cancelling_a_reader_ends_its_request_also_while_it_waits():
    async def test() -> None:
        async with running("slow", max_num_seqs=1) as llm:
            tasks = [asyncio.create_task(collect(llm, str(i), [i], greedy(500))) for i in range(4)]
            await asyncio.sleep(0.3)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await at_rest(llm)

    run(test)


def test_abort_gives_the_reader_a_last_delta():
    async def test() -> None:
        async with running("slow") as llm:
            outputs = []
            async for output in llm.generate("r", [1], greedy(500, n=2)):
                outputs.append(output)
                await llm.abort("r")
            assert [choice.finish_reason for choice in outputs[-1].outputs] == ["abort", "abort"]
            assert outputs[-1].finished
            await llm.abort("unknown")
            await at_rest(llm)

    run(test)


def test_an_id_can_be_used_again_at_once_but_not_twice_at_a_time():
    async def test() -> None:
        async with running("slow") as llm:
            for _ in range(5):
                stream = llm.generate("r", [1], greedy(500))
                await anext(stream)
                with pytest.raises(RequestError, match="in use"):
                    await anext(llm.generate("r", [1], greedy()))
                await stream.aclose()
            assert (await collect(llm, "r", [2], greedy(4))).outputs[0].token_ids == foretell([2], 4)
            await at_rest(llm)

    run(test)


def test_a_slow_reader_gets_few_large_deltas_and_the_whole_answer():
    async def test() -> None:
        async with running() as llm:
            deltas = []
            async for output in llm.generate("slow", [1], greedy(300)):
                deltas.append(output)
                other = await collect(llm, "other", [2], greedy(40))
                assert other.outputs[0].token_ids == foretell([2], 40)
            assert len(deltas) < 60
            assert [t for d in deltas for t in d.outputs[0].token_ids] == foretell([1], 300)

    run(test)


def test_refusals_cost_nothing_and_leave_the_engine_answering():
    async def test() -> None:
        async with running() as llm:
            for prompt, params, priority in [
                ([], greedy(), 0),
                ([10**9], greedy(), 0),
                ("\udcff", greedy(), 0),
                ([1], greedy(600), 0),
                ([1] * 600, greedy(None), 0),
                ([1], greedy(temperature=-1.0), 0),
                ([1], greedy(), 3),
                ([1], greedy(stop=("x" * 100_000,)), 0),
            ]:
                with pytest.raises(RequestError) as caught:
                    await collect(llm, "bad", prompt, params, priority=priority)
                assert 400 <= caught.value.status < 500
            assert (await collect(llm, "good", [1], greedy())).outputs[0].token_ids == foretell([1], 8)
            await at_rest(llm)

    run(test)


def test_a_long_text_is_tokenized_like_a_short_one():
    async def test() -> None:
        async with running() as llm:
            with pytest.raises(RequestError) as caught:
                await collect(llm, "r", "x" * 30_000, greedy())
            assert caught.value.code == "context_length_exceeded"
            output = await collect(llm, "r", "xyz", greedy(2))
            tokens = FRONTEND.tokenizer.encode("xyz", add_special_tokens=True)
            assert output.outputs[0].token_ids == foretell(tokens, 2)

    run(test)


def test_more_than_may_wait_are_refused_with_503():
    async def test() -> None:
        async with running("slow", max_num_seqs=2, max_num_waiting=3) as llm:
            tasks = [asyncio.create_task(collect(llm, str(i), [i], greedy(5))) for i in range(5)]
            await asyncio.sleep(0)
            with pytest.raises(RequestError) as caught:
                await collect(llm, "more", [1], greedy())
            assert (caught.value.status, caught.value.code) == (503, "overloaded")
            assert caught.value.retry_after is not None
            for task, index in zip(tasks, range(5), strict=True):
                assert (await task).outputs[0].token_ids == foretell([index], 5)
            with pytest.raises(RequestError, match="asks for 6 generations, of at most 5") as caught:
                await collect(llm, "many", [1], greedy(n=6))
            assert (caught.value.status, caught.value.retry_after) == (400, None)
            assert len((await collect(llm, "five", [1], greedy(n=5))).outputs) == 5

    run(test)


def test_draining_lets_running_requests_end_and_takes_no_new_ones():
    async def test() -> None:
        async with running("slow") as llm:
            task = asyncio.create_task(collect(llm, "r", [1], greedy(20)))
            await asyncio.sleep(0.1)
            drain = asyncio.create_task(llm.drain(30))
            await asyncio.sleep(0)
            assert llm.state == "DRAINING"
            with pytest.raises(RequestError) as caught:
                await collect(llm, "late", [1], greedy())
            assert caught.value.status == 503
            assert await drain == 0
            output = await task
            assert (output.outputs[0].token_ids, output.error) == (foretell([1], 20), None)

    run(test)


def test_draining_ends_what_takes_too_long_with_an_error():
    async def test() -> None:
        async with running("slow") as llm:
            task = asyncio.create_task(collect(llm, "r", [1], greedy(500)))
            await asyncio.sleep(0.1)
            assert await llm.drain(0.1) == 1
            output = await task
            assert output.outputs[0].finish_reason == "abort"
            assert "shutting down" in output.error
            await at_rest(llm)

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


def test_a_killed_engine_fails_all_its_requests_and_refuses_new_ones():
    async def test() -> None:
        stats = StatRecorder()
        async with running("slow", stats, max_num_seqs=2) as llm:
            tasks = [asyncio.create_task(collect(llm, str(i), [i], greedy(500))) for i in range(5)]
            await asyncio.sleep(0.2)
            os.kill(llm._client.pid, signal.SIGKILL)
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, EngineDeadError)
            assert llm.state == "DEAD"
            assert "-9" in llm.dead_reason
            with pytest.raises(EngineDeadError):
                await collect(llm, "new", [1], greedy())
            with pytest.raises(EngineDeadError):
                await llm.wait_ready()
            await llm.abort("0")
            assert await llm.drain(1) == 0
            assert stats.finished_by_reason() == {"error": 5}
        assert llm.state == "DEAD"

    run(test)


@pytest.mark.timeout(60)
def test_nothing_waits_for_an_engine_that_was_killed_a_moment_ago():
    async def test() -> None:
        async with running("slow") as llm:
            stream = llm.generate("left", [1], greedy(500))
            await anext(stream)
            os.kill(llm._client.pid, signal.SIGKILL)
            assert llm._client.wait(5) is not None
            time.sleep(0.2)  # ZeroMQ's own thread knows by now, the event loop does not
            await stream.aclose()
            with pytest.raises(EngineDeadError):
                await collect(llm, "late", [1], greedy())

    run(test)


def test_a_defect_in_the_engine_is_told_to_its_requests():
    async def test() -> None:
        async with running("mortal") as llm:
            with pytest.raises(EngineDeadError, match="a defect in the tenth step"):
                await collect(llm, "r", [1], greedy(500))
            assert llm.state is EngineState.DEAD

    run(test)


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


def test_the_engine_leaves_signals_to_its_parent():
    async def test() -> None:
        async with running() as llm:
            os.kill(llm._client.pid, signal.SIGINT)
            os.kill(llm._client.pid, signal.SIGTERM)
            await asyncio.sleep(0.1)
            assert (await collect(llm, "r", [1], greedy())).outputs[0].token_ids == foretell([1], 8)

    run(test)


PARENT = """
import asyncio, sys
sys.path[:0] = {path!r}
from test_engine_async_llm import launch
async def main():
    llm = launch({model!r})
    print(llm._client.pid, llm._client._folder, flush=True)
    while not llm.loading_phase:
        llm._attach()
        await asyncio.sleep(0.01)
    print("up", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("model", ["fake", "loads"])
def test_the_engine_dies_with_its_parent_even_a_killed_one(model: str):
    code = PARENT.format(path=sys.path, model=model)
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid, folder = parent.stdout.readline().split()
    assert parent.stdout.readline() == "up\n"
    assert psutil.pid_exists(int(pid))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while psutil.pid_exists(int(pid)) and psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not Path(folder).exists()


def test_aborts_at_any_moment_leave_the_others_whole():
    plan = st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 40), st.integers(0, 30), st.integers(0, 3)),
        min_size=1,
        max_size=10,
    )

    async def test() -> None:
        async with running(max_num_seqs=3, max_num_batched_tokens=32) as llm:
            serial = 0

            async def reader(length: int, max_tokens: int, reads: int, pause: int) -> None:
                nonlocal serial
                serial += 1
                prompt = [length % 3] * length
                tokens: list[int] = []
                async with contextlib.aclosing(
                    llm.generate(str(serial), prompt, greedy(max_tokens))
                ) as stream:
                    async for output in stream:
                        tokens += output.outputs[0].token_ids
                        if reads == 0:
                            break
                        reads -= 1
                        for _ in range(pause):
                            await asyncio.sleep(0)
                    else:
                        assert len(tokens) == max_tokens
                assert tokens == foretell(prompt, max_tokens)[: len(tokens)]

            async def trial(plans: list[tuple[int, int, int, int]]) -> None:
                await asyncio.gather(*(reader(*plan) for plan in plans))
                await at_rest(llm)

            loop = asyncio.get_running_loop()

            @settings(max_examples=40, deadline=None)
            @given(plan)
            def trials(plans: list[tuple[int, int, int, int]]) -> None:
                asyncio.run_coroutine_threadsafe(trial(plans), loop).result(30)

            await asyncio.to_thread(trials)

    run(test)
