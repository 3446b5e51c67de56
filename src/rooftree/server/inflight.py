"""The answers being written: ended when their client leaves, waited for and finally cut off at shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from rooftree.errors import RequestError
from rooftree.server.json_body import ClientGone

T = TypeVar("T")


class InFlight:
    """Runs the work behind each answer beside a watch on its connection."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._cut = False

    def __len__(self) -> int:
        return len(self._tasks)

    async def run(self, receive: Receive, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, which is cancelled, clean-up included, if the client leaves first.

        Raises:
            ClientGone: it did.
            RequestError: 503 if ``cut_off`` ended it.
        """
        task = asyncio.create_task(work)
        watch = asyncio.create_task(_disconnected(receive))
        self._tasks.add(task)
        self._idle.clear()
        try:
            await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            task.cancel()
            await asyncio.wait((task,))
            self._tasks.discard(task)
            if not self._tasks:
                self._idle.set()
        if not task.cancelled():
            return task.result()
        if self._cut:
            raise RequestError(
                "the server is shutting down and cut this answer off (--shutdown-timeout)",
                status=503,
                code="shutting_down",
            )
        raise ClientGone

    async def wait_idle(self) -> None:
        """Return when no answer is being written."""
        while self._tasks:
            await self._idle.wait()

    def cut_off(self) -> None:
        """End all that runs, now and later; the clients are told so."""
        self._cut = True
        for task in self._tasks:
            task.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
