"""The application: the route table and what stands before it."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rooftree.errors import RequestError
from rooftree.server import info
from rooftree.server.answers import ErrorAnswer, log_defect
from rooftree.server.chat import chat_completions
from rooftree.server.completions import completions
from rooftree.server.errors import as_request_error
from rooftree.server.exposition import Exposition
from rooftree.server.json_body import ClientGone
from rooftree.server.middleware import RequestId, RequireKey, RequireReady
from rooftree.server.requests import state_of
from rooftree.server.state import ServerState
from rooftree.server.tokens import detokenize, tokenize

Endpoint = Callable[[Request], Awaitable[ASGIApp]]

ENDPOINTS: list[tuple[str, str, Endpoint]] = [
    ("GET", "/", info.root),
    ("GET", "/health", info.health),
    ("GET", "/version", info.version),
    ("GET", "/metrics", info.metrics),
    ("GET", "/v1/models", info.models),
    ("GET", "/v1/models/{id:path}", info.model),
    ("POST", "/v1/chat/completions", chat_completions),
    ("POST", "/v1/completions", completions),
    ("POST", "/tokenize", tokenize),
    ("POST", "/detokenize", detokenize),
]


def build_app(state: ServerState) -> ASGIApp:
    """The ASGI application around ``state``."""
    routes = [Route(path, _answering(endpoint), methods=[method]) for method, path, endpoint in ENDPOINTS]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _no_such_route})
    # A slash at the end makes another path; a redirect would answer for a path that is not served.
    app.router.redirect_slashes = False
    app.state.server = state
    app.state.exposition = Exposition(state.metrics)
    return RequestId(RequireKey(RequireReady(app, state), state, state.config.api_keys))


def _answering(endpoint: Endpoint) -> Endpoint:
    """The endpoint, its errors turned into answers."""

    @functools.wraps(endpoint)
    async def answer(request: Request) -> ASGIApp:
        try:
            return await endpoint(request)
        except ClientGone:
            return _no_answer
        except Exception as error:
            log_defect(request.scope["request_id"], error)
            return ErrorAnswer(state_of(request), as_request_error(error))

    return answer


async def _no_answer(scope: Scope, receive: Receive, send: Send) -> None:
    """For a client that has left: there is no one to send anything to."""


async def _no_such_route(request: Request, error: Exception) -> Response:
    """404 for an unknown path, 405 for a known one with another method."""
    what = f"{request.method} {request.url.path[:200]}"
    allowed = (error.headers or {}).get("Allow") if isinstance(error, HTTPException) else None
    if allowed is None:
        refusal = RequestError(
            f"{what} does not exist; GET / lists what does", status=404, code="unknown_route"
        )
        return ErrorAnswer(state_of(request), refusal)
    refusal = RequestError(
        f"{what} is not possible; allowed: {allowed}", status=405, code="method_not_allowed"
    )
    return ErrorAnswer(state_of(request), refusal, {"Allow": allowed})
