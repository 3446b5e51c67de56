"""POST /v1/completions: one or several prompts, continued as they are."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request

from rooftree.engine.outputs import CompletionOutput
from rooftree.server.answers import DONE, EventStream, GeneratedAnswer, event
from rooftree.server.fields import COMPLETION_OFF_VALUES
from rooftree.server.gathering import Gathered, gather
from rooftree.server.generation import Job, Tally, generate
from rooftree.server.logprobs import TextOffsets, completion_logprobs
from rooftree.server.params import sampling_params, wants_usage
from rooftree.server.prompts import encode_prompts, split_prompts
from rooftree.server.protocol import Completion, CompletionChoice, CompletionRequest, Usage
from rooftree.server.requests import read

if TYPE_CHECKING:
    from rooftree.engine.async_llm import AsyncLLM

encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class _Answer:
    """What all parts of one answer have in common."""

    id: str
    created: int
    model: str

    def part(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> Completion:
        return Completion(self.id, self.created, self.model, choices, usage)


async def completions(request: Request) -> EventStream | GeneratedAnswer:
    """The route."""
    state, body = await read(request, CompletionRequest, COMPLETION_OFF_VALUES)
    llm = state.ready_llm()
    answer = _Answer(f"cmpl-{uuid.uuid4().hex}", int(time.time()), state.model_name(body.model))
    include_usage = wants_usage(body)
    params = sampling_params(body, state.sampling_defaults(llm))
    prompts = split_prompts(body.prompt)
    if len(prompts) > 1:
        llm.check_room(len(prompts) * params.n)
        prompts = await encode_prompts(llm, prompts)
    job = Job(answer.id, prompts, params, body.priority or 0, body.cache_salt or "")
    if body.stream:
        return EventStream(state, answer.id, _chunks(llm, job, answer, include_usage))
    return GeneratedAnswer(state, answer.id, _whole(llm, job, answer))


async def _whole(llm: AsyncLLM, job: Job, answer: _Answer) -> Completion:
    tally = Tally()
    choices = [_choice(gathered) for gathered in await gather(llm, job, tally)]
    return answer.part(choices, tally.usage())


def _choice(gathered: Gathered) -> CompletionChoice:
    return CompletionChoice(
        index=gathered.index,
        text=gathered.text,
        logprobs=None if gathered.logprobs is None else completion_logprobs(gathered.logprobs, TextOffsets()),
        finish_reason=gathered.finish_reason,
        stop_reason=UNSET if gathered.stop_reason is None else gathered.stop_reason,
    )


async def _chunks(
    llm: AsyncLLM, job: Job, answer: _Answer, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """The events: text as it comes, each choice's last with its end, then the usage if asked for."""
    tally = Tally()
    usage = None if include_usage else UNSET
    offsets: defaultdict[int, TextOffsets] = defaultdict(TextOffsets)
    async with aclosing(generate(llm, job, tally)) as news:
        async for outputs in news:
            choices = [_chunk_choice(output, offsets[output.index]) for output in outputs if _tells(output)]
            if choices:
                yield b"".join(event(encode(answer.part([choice], usage))) for choice in choices)
    if include_usage:
        yield event(encode(answer.part([], tally.usage()))) + DONE
    else:
        yield DONE


def _tells(output: CompletionOutput) -> bool:
    """Whether a piece of news is worth a chunk: text may still be held back."""
    return bool(output.text or output.logprobs or output.finish_reason)


def _chunk_choice(output: CompletionOutput, offsets: TextOffsets) -> CompletionChoice:
    return CompletionChoice(
        index=output.index,
        text=output.text,
        logprobs=None if output.logprobs is None else completion_logprobs(output.logprobs, offsets),
        finish_reason=output.finish_reason,
        stop_reason=UNSET if output.stop_reason is None else output.stop_reason,
    )
