"""Ends that nobody asked for, of the engine process and of its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from async_rig import collect, greedy, run, running
from engine_fakes import StatRecorder, foretell

from rooftree.engine.async_llm import EngineState
from rooftree.errors import EngineDeadError


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
from async_rig import launch
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
