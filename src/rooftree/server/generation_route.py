"""What the routes that generate have in common: a request's checks, and its answer, whole or streamed."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request

from rooftree.engine.outputs import CompletionOutput
from rooftree.sampling.params import SamplingParams
from rooftree.server.answers import DONE, EventStream, GeneratedAnswer, event
from rooftree.server.fields import OffValues
from rooftree.server.gathering import Gathered, gather
from rooftree.server.generation import Job, Tally, generate
from rooftree.server.params import sampling_params, wants_usage
from rooftree.server.protocol import ChatCompletionRequest, CompletionRequest, Usage
from rooftree.server.requests import read
from rooftree.server.state import ServerState

if TYPE_CHECKING:
    from rooftree.engine.async_llm import AsyncLLM

Body = TypeVar("Body", ChatCompletionRequest, CompletionRequest)
Part = TypeVar("Part")

# The log-probabilities of fewer are spelt within a millisecond or two.
_INLINE_POSITIONS = 64

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, checked but for its prompts, and the head of all parts of its answer."""

    state: ServerState
    llm: AsyncLLM
    id: str
    created: int
    model: str
    stream: bool
    include_usage: bool
    params: SamplingParams
    priority: int
    cache_salt: str


class Shape(Protocol[Part]):
    """How a route spells its answers."""

    def whole(self, choices: Sequence[Gathered], usage: Usage) -> msgspec.Struct:
        """The answer in one piece."""

    def parts(self, output: CompletionOutput) -> list[Part]:
        """A piece of news as choices, each for a chunk of its own; none where nothing can be told yet."""

    def chunk(self, choices: list[Part], usage: Usage | UnsetType | None) -> msgspec.Struct:
        """An event of the stream."""


async def read_generation(
    request: Request, kind: type[Body], off_values: OffValues, prefix: str
) -> tuple[Asked, Body]:
    """The request, checked but for its prompts; ``prefix`` begins its id.

    Raises:
        RequestError: it is refused, or the engine is not ready.
        ClientGone: the client left while sending it.
    """
    state, body = await read(request, kind, off_values)
    llm = state.ready_llm()
    asked = Asked(
        state=state,
        llm=llm,
        id=f"{prefix}-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=state.model_name(body.model),
        stream=bool(body.stream),
        include_usage=wants_usage(body),
        params=sampling_params(body, state.sampling_defaults(llm)),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
    )
    return asked, body


def answer(
    asked: Asked, prompts: Sequence[str | list[int]], shape: Shape[Part]
) -> EventStream | GeneratedAnswer:
    """What answers the request once it has run."""
    starting = asked.state.starting
    job = Job(asked.id, prompts, asked.params, asked.priority, asked.cache_salt, starting)
    if asked.stream:
        return EventStream(asked.state, asked.id, _events(asked, job, shape))
    return GeneratedAnswer(asked.state, asked.id, _whole(asked, job, shape))


async def _whole(asked: Asked, job: Job, shape: Shape[Part]) -> bytes:
    tally = Tally()
    choices = await gather(asked.llm, job, tally)

    def spell() -> bytes:
        return _encode(shape.whole(choices, tally.usage()))

    num_positions = sum(len(choice.logprobs) for choice in choices if choice.logprobs is not None)
    return spell() if num_positions <= _INLINE_POSITIONS else await asyncio.to_thread(spell)


async def _events(asked: Asked, job: Job, shape: Shape[Part]) -> AsyncGenerator[bytes, None]:
    """The events: what the shape makes of the news, then the usage if asked for."""
    tally = Tally()
    usage = None if asked.include_usage else UNSET
    async with aclosing(generate(asked.llm, job, tally)) as news:
        async for outputs in news:
            parts = [part for output in outputs for part in shape.parts(output)]
            if parts:
                yield b"".join(event(_encode(shape.chunk([part], usage))) for part in parts)
    if asked.include_usage:
        yield event(_encode(shape.chunk([], tally.usage()))) + DONE
    else:
        yield DONE
