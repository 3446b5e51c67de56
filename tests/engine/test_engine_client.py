"""Messages to an engine process that is not there yet."""

from __future__ import annotations

import asyncio
import sys

from async_rig import run

from rooftree.engine.client import EngineClient
from rooftree.engine.config import EngineConfig
from rooftree.engine.messages import AbortRequests

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


def test_what_was_sent_before_anyone_listens_to_the_engine_is_not_lost_either():
    async def test() -> None:
        client = EngineClient(EngineConfig(model="late"), (sys.executable, "-c", LATE))
        try:
            for name in "ab":
                client.send(AbortRequests([name]))
            heard: asyncio.Queue[str] = asyncio.Queue()
            loop = asyncio.get_running_loop()
            client.attach(loop, lambda m: heard.put_nowait(m.phase), lambda status: None)
            client.send(AbortRequests(["c"]))
            assert [await heard.get() for _ in range(4)] == ["heard of", "a", "b", "c"]
        finally:
            client.close()

    run(test)
