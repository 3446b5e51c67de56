"""Errors as clients see them: a status and an error object."""

from __future__ import annotations

import math

import msgspec

from rooftree.errors import EngineDeadError, RequestError
from rooftree.server.protocol import ErrorBody, ErrorResponse

_MAX_MESSAGE = 4000

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def as_request_error(error: Exception) -> RequestError:
    """What the client is told of ``error``: all of it if it was meant for clients, nothing of a defect."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, EngineDeadError):
        return RequestError(f"the engine has stopped: {error}", status=503, code="engine_dead")
    return RequestError("an internal error ended this request; the server's log has it", status=500)


def error_response(error: RequestError) -> ErrorResponse:
    """The error object."""
    kind = TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    return ErrorResponse(ErrorBody(_short(error.message), kind, error.param, error.code))


def _short(message: str) -> str:
    """A message may quote what a client or a chat template wrote; it is for reading all the same."""
    return message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}..."


def error_headers(error: RequestError) -> dict[str, str]:
    """Headers that go with the status."""
    headers = {}
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.retry_after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    return headers


def error_body(error: RequestError) -> bytes:
    """The error object as JSON."""
    return msgspec.json.encode(error_response(error))
