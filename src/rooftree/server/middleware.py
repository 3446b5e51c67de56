"""What stands before every route, outermost first: request id, key, readiness."""

from __future__ import annotations

import hashlib
import hmac
import re
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rooftree.errors import RequestError
from rooftree.server.answers import ErrorAnswer
from rooftree.server.state import ServerState

# The routes that answer without a key, exactly as spelt here. All others, future ones too, ask for it.
OPEN_PATHS = frozenset({"/health"})
# The routes that answer whatever state the engine is in.
ALWAYS_PATHS = frozenset({"/", "/health", "/metrics", "/version"})
REQUEST_ID = re.compile(r"[!-~]{1,128}")


class RequestId:
    """Gives each response the X-Request-Id of its request, or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope["request_id"] = request_id
        # What comes after the start of a response concerns no wrapper; a stream sends its chunks this way.
        scope["send_chunk"] = send

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


class RequireKey:
    """Lets a request pass if it carries one of the keys, or its path is open."""

    def __init__(self, app: ASGIApp, state: ServerState, keys: Sequence[str]) -> None:
        self._app = app
        self._state = state
        # Digests have one length, so that comparing tells nothing of a key's own.
        self._keys = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if not self._keys or scope["path"] in OPEN_PATHS or self._opens(scope):
            await self._app(scope, receive, send)
            return
        error = RequestError(
            "a valid API key is needed: 'Authorization: Bearer KEY'", status=401, code="invalid_api_key"
        )
        await ErrorAnswer(self._state, error)(scope, receive, send)

    def _opens(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, key = given[0].partition(b" ")
        digest = _digest(key.strip(b" "))
        matches = [hmac.compare_digest(digest, known) for known in self._keys]
        return scheme.lower() == b"bearer" and any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class RequireReady:
    """Answers 503 on every route that needs the engine until it is ready, and once it drains."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["path"] not in ALWAYS_PATHS:
            try:
                self._state.ready_llm()
            except RequestError as error:
                await ErrorAnswer(self._state, error)(scope, receive, send)
                return
        await self._app(scope, receive, send)
