"""POST /v1/chat/completions: from messages to a prompt, from news to messages or chunks."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UnsetType
from starlette.requests import Request

from rooftree.engine.outputs import CompletionOutput
from rooftree.server.answers import EventStream, GeneratedAnswer
from rooftree.server.fields import CHAT_OFF_VALUES
from rooftree.server.gathering import Gathered
from rooftree.server.generation_route import Asked, answer, read_generation
from rooftree.server.logprobs import chat_logprobs
from rooftree.server.prompts import chat_prompt
from rooftree.server.protocol import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionRequest,
    Delta,
    Usage,
    if_any,
)

FIRST_DELTA = Delta(role="assistant", content="")
LAST_DELTA = Delta()


async def chat_completions(request: Request) -> EventStream | GeneratedAnswer:
    """The route."""
    asked, body = await read_generation(request, ChatCompletionRequest, CHAT_OFF_VALUES, "chatcmpl")
    prompt = await chat_prompt(asked.llm, body.messages)
    return answer(asked, [prompt], _ChatShape(asked))


class _ChatShape:
    """In a stream, a choice's role, text and end come apart."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._opened: set[int] = set()  # choices whose role has been told

    def whole(self, choices: Sequence[Gathered], usage: Usage) -> ChatCompletion:
        asked = self._asked
        return ChatCompletion(asked.id, asked.created, asked.model, [*map(_choice, choices)], usage)

    def parts(self, output: CompletionOutput) -> list[ChatChunkChoice]:
        parts = []
        if output.index not in self._opened:
            self._opened.add(output.index)
            parts.append(ChatChunkChoice(output.index, FIRST_DELTA))
        if output.text or output.logprobs:
            logprobs = chat_logprobs(output.logprobs) if output.logprobs is not None else None
            parts.append(ChatChunkChoice(output.index, Delta(content=output.text), logprobs))
        if output.finish_reason is not None:
            stop_reason = if_any(output.stop_reason)
            parts.append(ChatChunkChoice(output.index, LAST_DELTA, None, output.finish_reason, stop_reason))
        return parts

    def chunk(self, choices: list[ChatChunkChoice], usage: Usage | UnsetType | None) -> ChatChunk:
        return ChatChunk(self._asked.id, self._asked.created, self._asked.model, choices, usage)


def _choice(gathered: Gathered) -> ChatChoice:
    return ChatChoice(
        index=gathered.index,
        message=AssistantMessage(gathered.text),
        logprobs=None if gathered.logprobs is None else chat_logprobs(gathered.logprobs),
        finish_reason=gathered.finish_reason,
        stop_reason=if_any(gathered.stop_reason),
    )
