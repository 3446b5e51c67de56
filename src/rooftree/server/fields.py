"""Which fields of a request mean something here, and what happens to the others.

Three kinds. A field of the request's Struct is honoured. A field of ``..._OFF_VALUES`` belongs to a feature
that this server lacks: it passes only with a value that asks for nothing, so that clients which always send
their defaults work, and is refused by name otherwise. Any other field is refused as unknown. ``null`` is the
same as absence for every field.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from rooftree.errors import RequestError

_MAX_QUOTED = 200

OffValues = Mapping[str, tuple[object, ...]]
Request = TypeVar("Request", bound=msgspec.Struct)

_COMMON: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "include_stop_str_in_output": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "use_beam_search": (False,),
}
COMPLETION_OFF_VALUES: OffValues = {
    **_COMMON,
    "add_special_tokens": (True,),
    "suffix": ("",),
}
CHAT_OFF_VALUES: OffValues = {
    **_COMMON,
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "audio": (),
    "continue_final_message": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    # With no tools to call, neither value asks for anything.
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def read_request(fields: dict[str, Any], kind: type[Request], off_values: OffValues) -> Request:
    """A request of type ``kind`` from the object that the client sent.

    Raises:
        RequestError: 400 naming the field that is missing, unknown, not supported or of a wrong type.
    """
    known = kind.__struct_fields__
    kept = {}
    for name, value in fields.items():
        if value is None:
            continue
        if name in known:
            kept[name] = value
        elif name not in off_values:
            raise _unknown(name, (*known, *off_values))
        elif not any(_same(value, off) for off in off_values[name]):
            raise _unsupported(name, value, off_values[name])
    try:
        return msgspec.convert(kept, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None


def _same(value: object, off: object) -> bool:
    """Equality that tells True from 1."""
    return type(value) is type(off) and value == off


def _unknown(name: str, candidates: tuple[str, ...]) -> RequestError:
    close = difflib.get_close_matches(name[:64], candidates, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return RequestError(f"unknown field {name[:64]!r}{hint}", param=name[:64], code="unknown_field")


def _unsupported(name: str, value: object, off: tuple[object, ...]) -> RequestError:
    shown = " or ".join(msgspec.json.encode(choice).decode() for choice in off)
    allowed = f"leave it out or send {shown}" if shown else "leave it out"
    given = msgspec.json.encode(value).decode()
    given = given if len(given) <= 60 else given[:60] + "..."
    return RequestError(
        f"{name!r} is not supported yet with the value {given}; {allowed}",
        param=name,
        code="unsupported_field",
    )


def _wrong_type(message: str) -> RequestError:
    """The same as msgspec says, with the field's name picked out of ``... - at `$.name[0].part```."""
    what, _, place = message.partition(" - at ")
    what = what if len(what) <= _MAX_QUOTED else f"{what[:_MAX_QUOTED]}...`"
    path = re.search(r"\$\.?([^`]*)", place)
    field = path.group(1) if path else ""
    missing = re.search(r"missing required field `(\w+)`", what) or re.search(r"unknown field `(.+)`", what)
    if missing:
        field = f"{field}.{missing.group(1)}" if field else missing.group(1)
    text = f"{field}: {what}" if field else what
    return RequestError(text.replace("`", "'"), param=field or None, code="invalid_type")
