"""POST /v1/chat/completions: from messages to a prompt, from news to messages or chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET
from starlette.requests import Request

from rooftree.engine.outputs import CompletionOutput
from rooftree.server.answers import DONE, EventStream, GeneratedAnswer, event
from rooftree.server.fields import CHAT_OFF_VALUES
from rooftree.server.gathering import Gathered, gather
from rooftree.server.generation import Job, Tally, generate
from rooftree.server.logprobs import chat_logprobs
from rooftree.server.params import sampling_params, wants_usage
from rooftree.server.prompts import chat_prompt
from rooftree.server.protocol import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionRequest,
    Delta,
)
from rooftree.server.requests import read

if TYPE_CHECKING:
    from rooftree.engine.async_llm import AsyncLLM

encode = msgspec.json.Encoder().encode
FIRST_DELTA = Delta(role="assistant", content="")
LAST_DELTA = Delta()


@dataclass(frozen=True, slots=True)
class _Answer:
    """What all parts of one answer have in common."""

    id: str
    created: int
    model: str


async def chat_completions(request: Request) -> EventStream | GeneratedAnswer:
    """The route."""
    state, body = await read(request, ChatCompletionRequest, CHAT_OFF_VALUES)
    llm = state.ready_llm()
    answer = _Answer(f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), state.model_name(body.model))
    include_usage = wants_usage(body)
    params = sampling_params(body, state.sampling_defaults(llm))
    prompt = await chat_prompt(llm, body.messages)
    job = Job(answer.id, [prompt], params, body.priority or 0, body.cache_salt or "")
    if body.stream:
        return EventStream(state, answer.id, _chunks(llm, job, answer, include_usage))
    return GeneratedAnswer(state, answer.id, _whole(llm, job, answer))


async def _whole(llm: AsyncLLM, job: Job, answer: _Answer) -> ChatCompletion:
    tally = Tally()
    choices = [_choice(gathered) for gathered in await gather(llm, job, tally)]
    return ChatCompletion(answer.id, answer.created, answer.model, choices, tally.usage())


def _choice(gathered: Gathered) -> ChatChoice:
    return ChatChoice(
        index=gathered.index,
        message=AssistantMessage(gathered.text),
        logprobs=None if gathered.logprobs is None else chat_logprobs(gathered.logprobs),
        finish_reason=gathered.finish_reason,
        stop_reason=UNSET if gathered.stop_reason is None else gathered.stop_reason,
    )


async def _chunks(
    llm: AsyncLLM, job: Job, answer: _Answer, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """The events: the role of each choice, its text, its end, then the usage if asked for."""
    tally = Tally()
    usage = None if include_usage else UNSET

    def chunk(choice: ChatChunkChoice) -> bytes:
        return event(encode(ChatChunk(answer.id, answer.created, answer.model, [choice], usage)))

    opened: set[int] = set()
    async with aclosing(generate(llm, job, tally)) as news:
        async for outputs in news:
            choices = [choice for output in outputs for choice in _chunk_choices(output, opened)]
            if choices:
                yield b"".join(map(chunk, choices))
    if include_usage:
        last = ChatChunk(answer.id, answer.created, answer.model, [], tally.usage())
        yield event(encode(last)) + DONE
    else:
        yield DONE


def _chunk_choices(output: CompletionOutput, opened: set[int]) -> list[ChatChunkChoice]:
    """A piece of news as chunks: role, text and end come apart; without any (text held back) there is none.

    ``opened`` holds the choices whose role has been told.
    """
    choices = []
    if output.index not in opened:
        opened.add(output.index)
        choices.append(ChatChunkChoice(output.index, FIRST_DELTA))
    if output.text or output.logprobs:
        logprobs = chat_logprobs(output.logprobs) if output.logprobs is not None else None
        choices.append(ChatChunkChoice(output.index, Delta(content=output.text), logprobs))
    if output.finish_reason is not None:
        stop_reason = UNSET if output.stop_reason is None else output.stop_reason
        choices.append(ChatChunkChoice(output.index, LAST_DELTA, None, output.finish_reason, stop_reason))
    return choices
