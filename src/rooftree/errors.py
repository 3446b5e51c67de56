"""The errors that Rooftree raises on purpose. Everything else that escapes is a defect."""

from __future__ import annotations


class RooftreeError(Exception):
    """Base of every error with a message written for the person who reads it."""


class ModelError(RooftreeError):
    """A model that cannot be loaded. The message names the file and, if it is one, the tensor or key."""


class ConfigError(RooftreeError):
    """Start-up options that contradict each other or the machine. The message names the flag to change."""


class EngineDeadError(RooftreeError):
    """The engine ended while requests were running; they cannot be finished."""


class RequestError(RooftreeError):
    """A request refused at the door, before it could cost anything.

    Attributes:
        status: the HTTP status that says the same (400, 404, 413, 429, 503, ...).
        param: the field of the request at fault, if it is one field.
        code: a short machine-readable word such as ``context_length_exceeded``.
        retry_after: seconds after which trying again makes sense, for 429 and 503.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after
