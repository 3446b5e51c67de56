"""Where one request's news waits for its reader: never more than one delta, however slow the reader."""

from __future__ import annotations

import asyncio

from rooftree.engine.merging import merge
from rooftree.engine.outputs import RequestOutput


class OutputCollector:
    """A queue of length one in which deltas merge. For one reader on one event loop."""

    __slots__ = ("_error", "_pending", "_waiter")

    def __init__(self) -> None:
        self._pending: RequestOutput | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, output: RequestOutput) -> None:
        """Add a delta; never blocks. After ``fail`` nothing is taken."""
        if self._error is not None:
            return
        if self._pending is None:
            self._pending = output
        else:
            merge(self._pending, output)
        self._wake()

    def fail(self, error: Exception) -> None:
        """Let the reader's ``get`` raise ``error`` once what came before has been read."""
        self._error = error
        self._wake()

    async def get(self) -> RequestOutput:
        """Everything that came since the last call; waits until there is something."""
        while self._pending is None:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        output, self._pending = self._pending, None
        return output

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
