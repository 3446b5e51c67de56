"""Bodies with very many token ids: their prompts are read one by one, the rest as any other body.

A reader of JSON keeps all other threads waiting until it has done, so what it may read at once is limited.
Between two prompts, others have their turn.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from rooftree.text.json_size import check_json_size

_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_values = msgspec.json.Decoder(list[Any]).decode
_begins_with_list = re.compile(rb"\[\s*\[").match


def cut_out_prompts(body: bytes | bytearray) -> tuple[bytes | bytearray, list[list[Any]] | None]:
    """A body with ``null`` in the place of its prompts, and the prompts, where these are lists of numbers.

    Raises:
        RequestError: 413 for a single prompt that is too long.
        msgspec.DecodeError: the body is not JSON.
    """
    try:
        prompt = _members(body).get("prompt", msgspec.Raw())
    except msgspec.ValidationError:  # not an object
        return body, None
    lists = _split(bytes(prompt)) if _begins_with_list(prompt) else None
    if lists is None:
        return body, None
    # Should a string before the prompts spell the same, it is cut instead, and leaves too many values.
    head, _, tail = body.partition(prompt)
    return head + b"null" + tail, [_read(b"[%b]" % ids) for ids in lists]


def _split(prompts: bytes) -> list[bytes] | None:
    """What is between the brackets of each list in a list of lists; None if anything else is in it."""
    if b'"' in prompts or b"{" in prompts:
        return None
    first, *others = prompts.split(b"]")
    *lists, end, _ = b"," + first[1:], *others
    parts = [each.partition(b"[") for each in lists]
    if end.strip() or any(comma.strip() != b"," or b"[" in ids for comma, _, ids in parts):
        return None
    return [ids for _, _, ids in parts]


def _read(ids: bytes) -> list[Any]:
    check_json_size(ids, "a prompt", "prompt")
    return _values(ids)
