"""Chat messages as clients send them, checked and brought to the one shape that templates are given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from rooftree.errors import RequestError
from rooftree.text.template_facts import TemplateFacts

# vLLM and llama.cpp put a line break between text parts too where a template wants one text.
PART_SEPARATOR = "\n"


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        content: a text, the texts of its parts, or None for null.
        fields: everything else that was sent, less what was null; arguments of tool calls as objects.
    """

    role: str
    content: str | tuple[str, ...] | None
    fields: Mapping[str, Any]

    @property
    def texts(self) -> tuple[str, ...]:
        """Its texts, each of which must reach the prompt."""
        if self.content is None:
            return ()
        return (self.content,) if isinstance(self.content, str) else self.content

    @property
    def has_tool_calls(self) -> bool:
        """Whether it calls tools."""
        return "tool_calls" in self.fields

    def with_texts(self, texts: Sequence[str]) -> Message:
        """The same message with other texts, as many as it has."""
        content = (
            texts[0] if isinstance(self.content, str) else tuple(texts) if self.content else self.content
        )
        return Message(self.role, content, self.fields)

    def joined(self) -> Message:
        """The same message with its parts made one text."""
        if not isinstance(self.content, tuple):
            return self
        return Message(self.role, PART_SEPARATOR.join(self.content), self.fields)

    def shaped(self, facts: TemplateFacts) -> dict[str, Any]:
        """The message as a template with these habits expects it."""
        return {**self.fields, "role": self.role, "content": self._shaped_content(facts)}

    def _shaped_content(self, facts: TemplateFacts) -> Any:
        """Parts for a template that loops over them, a text for one that takes it, null for one that asks."""
        content = self.content
        nothing_said = content is None or (self.has_tool_calls and not any(self.texts))
        if nothing_said and facts.tests_none:
            return None
        wants_parts = facts.iterates_content and not facts.tests_string
        if isinstance(content, tuple):
            wants_parts = facts.iterates_content
        if wants_parts:
            return [{"type": "text", "text": text} for text in self.texts]
        return PART_SEPARATOR.join(self.texts)


class ToolArguments(dict[str, Any]):
    """Arguments of a tool call: an object, and its JSON text where a template adds it to a text."""

    def __add__(self, other: str) -> str:
        return self._text() + other

    def __radd__(self, other: str) -> str:
        return other + self._text()

    def _text(self) -> str:
        return json.dumps(self, ensure_ascii=False)


def check_messages(messages: Sequence[Any]) -> list[Message]:
    """Check what a client sent.

    Raises:
        RequestError: a message that is not one, with its place and what is possible instead.
    """
    if not messages:
        raise RequestError("messages is empty; at least one message is needed", param="messages")
    return [_message(f"messages[{index}]", message) for index, message in enumerate(messages)]


def _refuse(problem: str) -> NoReturn:
    raise RequestError(problem, param="messages")


def _message(where: str, message: Any) -> Message:
    if not isinstance(message, Mapping):
        _refuse(f"{where} must be an object with a role and a content")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        _refuse(f"{where}.role must be a text such as 'user', not {role!r}")
    if message.get("function_call") is not None:
        _refuse(f"{where}.function_call is not supported; use tool_calls")
    fields = {key: value for key, value in message.items() if value is not None and key != "content"}
    calls = fields.pop("tool_calls", None)
    if calls:
        fields["tool_calls"] = _tool_calls(f"{where}.tool_calls", calls)
    if "content" not in message and role != "assistant":
        _refuse(f"{where}.content is missing; a message of the role {role!r} needs one")
    return Message(role, _content(f"{where}.content", message.get("content")), fields)


def _content(where: str, content: Any) -> str | tuple[str, ...] | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        _refuse(f"{where} must be a text, a list of text parts or null, not {type(content).__name__}")
    return tuple(_part(f"{where}[{index}]", part) for index, part in enumerate(content))


def _part(where: str, part: Any) -> str:
    if not isinstance(part, Mapping):
        _refuse(f'{where} must be an object such as {{"type": "text", "text": "..."}}')
    if part.get("type") != "text":
        _refuse(f"{where}: parts of the type {part.get('type')!r} are not supported; 'text' is")
    text = part.get("text")
    if not isinstance(text, str):
        _refuse(f"{where}.text must be a text, not {type(text).__name__}")
    return text


def _tool_calls(where: str, calls: Any) -> list[dict[str, Any]]:
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        _refuse(f"{where} must be a list, not {type(calls).__name__}")
    return [_tool_call(f"{where}[{index}]", call) for index, call in enumerate(calls)]


def _tool_call(where: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        _refuse(f"{where} must have a function with a name")
    arguments = _arguments(f"{where}.function.arguments", function.get("arguments"))
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def _arguments(where: str, arguments: Any) -> ToolArguments:
    """Arguments as an object. None, as clients write for a function without any, may be null or blank."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return ToolArguments()
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            _refuse(f"{where} is not JSON: {error}")
    if not isinstance(arguments, Mapping):
        _refuse(f"{where} must be a JSON object, not {type(arguments).__name__}")
    return ToolArguments(arguments)
