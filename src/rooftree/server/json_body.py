"""From the bytes of a request body to a JSON object, strictly."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.types import Message, Receive

from rooftree.errors import RequestError
from rooftree.server.many_prompts import cut_out_prompts
from rooftree.text.json_size import check_json_size, is_quickly_read

BODY_SECONDS = 60.0


class ClientGone(Exception):  # noqa: N818 - an event, not a fault
    """The client closed the connection before its answer was complete."""


@dataclass(slots=True)
class BodyBudget:
    """Bytes of all bodies that are being received or parsed: clients that stall could fill the memory."""

    limit: int
    held: int = 0

    @contextlib.contextmanager
    def account(self) -> Iterator[Callable[[int], None]]:
        """A function that adds to one body's bytes; they are given back at the end.

        It raises a RequestError, 503, where there is no room.
        """
        mine = 0

        def add(num_bytes: int) -> None:
            nonlocal mine
            if self.held + num_bytes > self.limit:
                raise RequestError(
                    f"the bodies being received have {self.held} bytes together, of at most {self.limit}; "
                    f"there is no room for more now",
                    status=503,
                    code="overloaded",
                    retry_after=1.0,
                )
            self.held += num_bytes
            mine += num_bytes

        try:
            yield add
        finally:
            self.held -= mine


async def read_body(headers: Headers, receive: Receive, limit: int, add: Callable[[int], None]) -> bytearray:
    """The whole body; ``add`` is told of each part's bytes.

    Raises:
        RequestError: what ``add`` raises; 415 unless the content type is JSON in UTF-8, 413 beyond ``limit``
            bytes, 408 when nothing more of it comes.
        ClientGone: the connection closed first.
    """
    _check_content_type(headers.get("content-type"))
    declared = headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(int(declared), limit)
    body = bytearray()
    while True:
        message = await _next_message(receive)
        if message["type"] == "http.disconnect":
            raise ClientGone
        add(len(message.get("body", b"")))
        body += message.get("body", b"")
        if len(body) > limit:
            raise _too_large(len(body), limit)
        if not message.get("more_body", False):
            return body


async def _next_message(receive: Receive) -> Message:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await receive()
    except TimeoutError:
        raise RequestError(
            f"nothing of the body came for {BODY_SECONDS:g} s", status=408, code="request_timeout"
        ) from None


def parse_object(body: bytes | bytearray) -> dict[str, Any]:
    """The JSON object that ``body`` spells, as RFC 8259 has it.

    Python's own reader lets NaN, Infinity, numbers beyond a double and repeated keys pass; here none does.

    Raises:
        RequestError: 400 with the place of the fault; 413 for more values than can be read in a moment.
    """
    if is_quickly_read(body, "the body"):
        return _parse(body)
    try:
        rest, prompts = cut_out_prompts(body)
    except msgspec.DecodeError as error:
        raise _not_json(error) from None
    check_json_size(rest, "the body")
    return _parse(rest) | {"prompt": prompts}


def _parse(body: bytes | bytearray) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
        # Only now, since this reader is the lenient one: it is here for the keys alone.
        json.loads(body, object_pairs_hook=_refuse_repeated_keys)
    except msgspec.DecodeError as error:
        raise _not_json(error) from None
    except ValueError:
        raise RequestError("the body holds a number of absurd length", code="invalid_json") from None
    except RecursionError:
        raise RequestError("the body nests arrays or objects too deeply", code="invalid_json") from None
    if not isinstance(value, dict):
        kind = "an array" if isinstance(value, list) else f"a bare {type(value).__name__}"
        raise RequestError(f"the body must be a JSON object, not {kind}", code="invalid_json")
    return value


def _not_json(error: msgspec.DecodeError) -> RequestError:
    return RequestError(f"the body is not valid JSON: {error}", code="invalid_json")


def _check_content_type(content_type: str | None) -> None:
    if content_type is None:
        return
    kind, *options = (part.strip().lower() for part in content_type.split(";"))
    charset = next((option[8:].strip('"') for option in options if option.startswith("charset=")), "utf-8")
    if kind != "application/json" or charset not in ("utf-8", "utf8"):
        raise RequestError(
            f"content type {content_type[:200]!r} is not accepted; send JSON with the header "
            f"'Content-Type: application/json'",
            status=415,
            code="unsupported_media_type",
        )


def _too_large(size: int, limit: int) -> RequestError:
    return RequestError(
        f"the body has {size} bytes or more; this server accepts {limit} (--max-body-size)",
        status=413,
        code="request_too_large",
    )


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return
    (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
    raise RequestError(
        f"the key {twice[:64]!r} appears twice in one object", param=twice[:64], code="invalid_json"
    )
