"""The responses: a body at hand, an error, a body that generation has yet to make, a stream of events."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from rooftree.errors import EngineDeadError, RequestError
from rooftree.server.errors import as_request_error, error_body, error_headers
from rooftree.server.json_body import ClientGone

if TYPE_CHECKING:
    from rooftree.server.state import ServerState

log = logging.getLogger("rooftree.server")


class JsonAnswer(Response):
    """A body at hand: JSON already, or a value that msgspec can encode."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes of ``content``."""
        return content if isinstance(content, bytes) else msgspec.json.encode(content)


class ErrorAnswer(JsonAnswer):
    """An error object. Counted, since every refusal passes here."""

    def __init__(
        self, state: ServerState, error: RequestError, headers: dict[str, str] | None = None
    ) -> None:
        state.metrics.refused(error)
        headers = error_headers(error) | (headers or {})
        if state.draining:
            headers["Connection"] = "close"
        super().__init__(error_body(error), error.status, headers)


class GeneratedAnswer:
    """A body that generation has yet to make: JSON."""

    def __init__(self, state: ServerState, request_id: str, work: Coroutine[Any, Any, bytes]) -> None:
        self._state = state
        self._request_id = request_id
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wait for it and send it, or the error that prevented it."""
        try:
            body = await self._state.inflight.run(receive, self._work)
        except ClientGone:
            log.info("%s aborted: the client left", self._request_id)
            return
        except Exception as error:
            log_defect(self._request_id, error)
            await ErrorAnswer(self._state, as_request_error(error))(scope, receive, send)
            return
        await JsonAnswer(body)(scope, receive, send)


class EventStream:
    """Server-sent events. Nothing is sent before the first event, so that a refusal still has its status."""

    def __init__(self, state: ServerState, request_id: str, events: AsyncGenerator[bytes, None]) -> None:
        self._state = state
        self._request_id = request_id
        self._events = events
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events, an error being the last one."""
        try:
            await self._state.inflight.run(receive, self._write(send, scope["send_chunk"]))
        except ClientGone:
            log.info("%s aborted: the client left", self._request_id)
            return
        except Exception as error:
            log_defect(self._request_id, error)
            told = as_request_error(error)
            if not self._started:
                await ErrorAnswer(self._state, told)(scope, receive, send)
                return
            self._state.metrics.refused(told)
            await send({"type": "http.response.body", "body": event(error_body(told)), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _write(self, send: Send, send_chunk: Send) -> None:
        async with aclosing(self._events) as events:
            async for data in events:
                if not self._started:
                    self._started = True
                    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
                await send_chunk({"type": "http.response.body", "body": data, "more_body": True})


STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
DONE = b"data: [DONE]\n\n"


def event(data: bytes) -> bytes:
    """One server-sent event; JSON has no line breaks of its own."""
    return b"data: " + data + b"\n\n"


def log_defect(request_id: str, error: Exception) -> None:
    """Leave a trace of an error that nobody meant; the others are the client's to read."""
    if isinstance(error, RequestError | EngineDeadError):
        log.debug("%s refused: %s", request_id, error)
    else:
        log.error("%s failed", request_id, exc_info=error)
