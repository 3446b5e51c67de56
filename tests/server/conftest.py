"""A real HTTP server, in a thread, around a fake engine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
import uvicorn
from fake_llm import FakeLLM

from rooftree.server.app import build_app
from rooftree.server.config import ServerConfig
from rooftree.server.listen import listen
from rooftree.server.metrics import Metrics
from rooftree.server.state import ServerState


@dataclass
class RunningServer:
    """Where the server listens, and its inside."""

    url: str
    port: int
    state: ServerState
    llm: FakeLLM
    http: httpx.Client


@contextlib.contextmanager
def running_server(llm: FakeLLM, config: ServerConfig) -> Iterator[RunningServer]:
    """Serve ``llm`` until the block ends."""
    state = ServerState(config, "tiny", Metrics("tiny"))
    state.llm = llm  # type: ignore[assignment]
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = uvicorn.Server(
        uvicorn.Config(build_app(state), ws="none", lifespan="off", log_level="warning", access_log=False)
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=url, timeout=10) as http:
        yield RunningServer(url, port, state, llm, http)
    server.should_exit = server.force_exit = True
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """One for all tests of a file; those that change its engine start their own."""
    with running_server(FakeLLM(), ServerConfig(served_model_names=("tiny", "other/name"))) as running:
        yield running
