"""What every POST route does first: read the body, check it, hand over the state."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TypeVar

import msgspec
from starlette.requests import Request

from rooftree.server.fields import OffValues, read_request
from rooftree.server.json_body import parse_object, read_body
from rooftree.server.state import ServerState

Body = TypeVar("Body", bound=msgspec.Struct)

# Shorter bodies are read within a few milliseconds, the longest in some hundred.
_INLINE_BYTES = 64 << 10


def state_of(request: Request) -> ServerState:
    """The state that ``build_app`` put there."""
    state: ServerState = request.app.state.server
    return state


async def read(request: Request, kind: type[Body], off_values: OffValues) -> tuple[ServerState, Body]:
    """The server's state and the request's checked body.

    Raises:
        RequestError: a body that is refused.
        ClientGone: the client left while sending it.
    """
    state = state_of(request)
    with state.bodies.account() as add:
        body = await read_body(request.headers, request.receive, state.config.max_body_size, add)
        check = partial(_check, body, kind, off_values)
        return state, check() if len(body) <= _INLINE_BYTES else await asyncio.to_thread(check)


def _check(body: bytearray, kind: type[Body], off_values: OffValues) -> Body:
    return read_request(parse_object(body), kind, off_values)
