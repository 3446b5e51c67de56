"""uvicorn's HTTP connection, with what it lacks against careless and hostile clients."""

from __future__ import annotations

import asyncio
import re
import sys

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from rooftree.errors import RequestError
from rooftree.server.errors import error_body

MAX_HEAD_BYTES = 64 << 10
# Further requests that a client may send before its answer has come; reading stops beyond them.
MAX_PIPELINED = 8

_UPGRADE = re.compile(rb"(?<=\r\n)upgrade(?=[ \t]*:)", re.IGNORECASE)
_HEAD_END = b"\r\n\r\n"


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    Beyond uvicorn's:

    - A head (request line and headers), and whatever else a parser swallows in silence, is bounded in size,
      and in time by ``timeout_keep_alive``. Without that the parser copies an endless header again and again.
    - A client that leaves is noticed even if it has sent further requests behind the one being answered.
    - An offer to upgrade, which is not taken up here, is put aside before the parser sees it, since that
      would drop the request's body.
    - There are at most ``max_connections``; more are told so and closed.
    - HTTP that cannot be parsed is answered with an error object, and never in the midst of an answer.
    """

    max_connections = sys.maxsize

    # What has come since the parser last told of something complete, and whether it reads a head now.
    _silent_bytes = 0
    _in_head = True
    _answering: RequestResponseCycle | None = None
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there: it owes us a head."""
        full = len(self.connections) >= self.max_connections
        super().connection_made(transport)
        if full:
            self._refuse(
                503, f"{self.max_connections} connections are open, and no more possible", "overloaded"
            )
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left: whoever works on its answer is told, and what it sent behind is forgotten."""
        self._cancel_head_timer()
        super().connection_lost(exc)
        self.pipeline.clear()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        self._silent_bytes += len(data)
        super().data_received(_without_upgrade(data) if self._in_head else data)
        if self._in_head and not self._is_answering():
            self._await_head()
        if self._silent_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(431, f"the head of the request has more than {MAX_HEAD_BYTES} bytes")

    def on_headers_complete(self) -> None:
        """A head is complete: start on the request, or queue it behind the one being answered."""
        self._silent_bytes = 0
        self._in_head = False
        self._cancel_head_timer()
        super().on_headers_complete()
        if not self.pipeline:
            self._answering = self.cycle
        elif len(self.pipeline) < MAX_PIPELINED:
            self.flow.resume_reading()  # or nobody would see the client leave

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._silent_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is complete; a head may follow."""
        self._silent_bytes = 0
        self._in_head = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """An answer is complete: the next request's turn."""
        if self.pipeline:
            self._answering = self.pipeline[-1][0]
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP."""
        self._refuse(400, "the request is not valid HTTP")

    def _refuse(self, status: int, message: str, code: str = "invalid_http") -> None:
        if not self._is_answering():
            body = error_body(RequestError(message, status=status, code=code))
            head = (
                b"content-type: application/json",
                b"content-length: %d" % len(body),
                b"connection: close",
                b"\r\n",
            )
            self.transport.write(STATUS_LINE[status] + b"\r\n".join(head) + body)
        self.transport.close()

    def _is_answering(self) -> bool:
        """Whether an answer is under way: what is sent besides would be taken for a part of it."""
        answering = self._answering
        if answering is None or answering.response_complete:
            return False
        return answering.response_started or not answering.more_body

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.timeout_keep_alive, self.transport.close)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def http_protocol(max_connections: int) -> type[HttpProtocol]:
    """The protocol of a server that holds at most so many connections."""
    return type("LimitedHttpProtocol", (HttpProtocol,), {"max_connections": max_connections})


def _without_upgrade(data: bytes) -> bytes:
    """``data``, which begins within a head, with that head's Upgrade header under another name."""
    end = data.find(_HEAD_END)
    head = data if end < 0 else data[:end]
    if _UPGRADE.search(head) is None:
        return data
    return _UPGRADE.sub(b"X-Upgrade", head) + data[len(head) :]
