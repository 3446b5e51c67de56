"""What every POST route does first: read the body, check it, hand over the state."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request

from rooftree.server.fields import OffValues, read_request
from rooftree.server.json_body import parse_object, read_body
from rooftree.server.state import ServerState

Body = TypeVar("Body", bound=msgspec.Struct)


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
    body = await read_body(request.headers, request.receive, state.config.max_body_size)
    return state, read_request(parse_object(body), kind, off_values)
