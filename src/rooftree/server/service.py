"""The event loop's part of the serving process: load, serve, drain, end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rooftree.engine.async_llm import AsyncLLM, EngineState
from rooftree.engine.config import EngineConfig
from rooftree.engine.messages import EngineReady
from rooftree.engine.stats import StatLogger
from rooftree.server.app import build_app
from rooftree.server.fetch import fetch
from rooftree.server.http_server import LAST_WORDS_SECONDS, HttpServer
from rooftree.server.listen import address_of
from rooftree.server.startup_report import print_report
from rooftree.server.state import ServerState

log = logging.getLogger("rooftree.server")

_WATCH_SECONDS = 0.2
# Threads that parse and tokenize what is too long for the event loop: few, since the longest texts, where the
# context window admits them, take gigabytes each.
_THREADS_BESIDE = 4


class Service:
    """One run of the server."""

    def __init__(
        self, engine: EngineConfig, state: ServerState, stat_logger: StatLogger, started: float
    ) -> None:
        self._engine = engine
        self._state = state
        self._stat_logger = stat_logger
        self._started = started
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self, listener: socket.socket) -> int:
        """Serve on ``listener`` until the end; the exit status.

        Raises:
            ConfigError, ModelError, EngineDeadError: the engine cannot start.
        """
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(_THREADS_BESIDE, thread_name_prefix="beside-loop"))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        url = address_of(listener)
        http = HttpServer(build_app(self._state))
        serving = asyncio.create_task(http.serve([listener]))
        try:
            return await self._live(url)
        finally:
            if self._state.llm is not None:
                await self._state.llm.shutdown()
            http.should_exit = True
            await serving

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def _live(self, url: str) -> int:
        """Load, serve, drain; the exit status."""
        loading = asyncio.create_task(self._load())
        if not await self._first(loading):
            return 0
        llm, ready = loading.result()
        seconds = time.monotonic() - self._started
        key_needed = bool(self._state.config.api_keys)
        print_report(ready, self._state.names[0], url, seconds, key_needed=key_needed)
        if await self._first(asyncio.create_task(_death(llm))):
            log.error("the engine died: %s", llm.dead_reason)
            await self._settle(LAST_WORDS_SECONDS)
            return 1
        await self._drain()
        return 1 if llm.state is EngineState.DEAD else 0

    async def _first(self, task: asyncio.Task[Any]) -> bool:
        """Whether ``task`` ends before a stop is asked for; otherwise it is cancelled."""
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            return task.done()
        finally:
            stop.cancel()
            task.cancel()
            await asyncio.wait((task,))

    async def _load(self) -> tuple[AsyncLLM, EngineReady]:
        if self._state.llm is None:
            await fetch(self._engine.model)
            self._state.llm = AsyncLLM.start(self._engine, self._stat_logger)
        ready = await self._state.llm.wait_ready()
        self._state.metrics.engine_ready(ready.block_size, ready.num_blocks)
        # What is here by now stays: looking through it for garbage again and again would stop everything for
        # tens of milliseconds each time.
        gc.collect()
        gc.freeze()
        return self._state.llm, ready

    async def _drain(self) -> None:
        """Take no new work, let running answers end, then cut off the rest. Another signal hastens it."""
        self._state.draining = True
        running, timeout = len(self._state.inflight), self._state.config.shutdown_timeout
        log.info("shutting down: %d running answers have %g s to end", running, timeout)
        hurry = asyncio.create_task(self._hurry.wait())
        idle = asyncio.create_task(self._state.inflight.wait_idle())
        await asyncio.wait((hurry, idle), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        idle.cancel()
        if left := len(self._state.inflight):
            log.warning("cutting off %d answers", left)
            self._state.inflight.cut_off()
            await self._settle(LAST_WORDS_SECONDS)

    async def _settle(self, timeout: float) -> None:
        """Let answers that are ending end."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._state.inflight.wait_idle(), timeout)


async def _death(llm: AsyncLLM) -> None:
    """Return when the engine is dead."""
    while llm.state is not EngineState.DEAD:
        await asyncio.sleep(_WATCH_SECONDS)
