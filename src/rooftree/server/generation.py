"""A request's generation, whatever route it came by: one stream of news for all its prompts, and a tally."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rooftree.engine.outputs import CompletionOutput, RequestOutput
from rooftree.errors import RequestError
from rooftree.sampling.params import SamplingParams
from rooftree.server.protocol import PromptTokensDetails, Usage

if TYPE_CHECKING:
    from rooftree.engine.async_llm import AsyncLLM


@dataclass(frozen=True, slots=True)
class Job:
    """What one HTTP request asks the engine for. Choices of prompt p are numbered from ``p * params.n``.

    Attributes:
        starting: held while several prompts are handed over one by one. Shared by all jobs, it keeps large
            ones that come together from taking each other's room, until all of them are refused.
    """

    request_id: str
    prompts: Sequence[str | list[int]]
    params: SamplingParams
    priority: int = 0
    cache_salt: str = ""
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)


class Tally:
    """Counts a job's tokens as they come."""

    def __init__(self) -> None:
        self._prompts: dict[int, tuple[int, int]] = {}
        self._completion_tokens = 0

    def add(self, prompt: int, output: RequestOutput) -> None:
        """Count one piece of news of prompt number ``prompt``."""
        if prompt not in self._prompts or output.num_cached_tokens:
            self._prompts[prompt] = (len(output.prompt_token_ids), output.num_cached_tokens)
        for choice in output.outputs:
            self._completion_tokens += len(choice.token_ids)

    def usage(self) -> Usage:
        """The tally in the API's shape."""
        prompt_tokens = sum(tokens for tokens, _ in self._prompts.values())
        cached = sum(cached for _, cached in self._prompts.values())
        total = prompt_tokens + self._completion_tokens
        return Usage(prompt_tokens, self._completion_tokens, total, PromptTokensDetails(cached))


async def generate(llm: AsyncLLM, job: Job, tally: Tally) -> AsyncGenerator[list[CompletionOutput], None]:
    """News of the job's choices, numbered through, until all have ended.

    Raises:
        RequestError: the engine refuses the job (before anything is yielded, if there is one prompt), or
            gives a choice up.
        EngineDeadError: the engine died.
    """
    async with aclosing(_merged(llm, job)) as news:
        async for prompt, output in news:
            tally.add(prompt, output)
            if output.error is not None:
                raise RequestError(output.error, status=500, code="generation_failed")
            for choice in output.outputs:
                # An answer that the engine gave up is an error, not a text that ends somewhere.
                if choice.finish_reason == "abort":
                    raise RequestError("the engine gave this request up", status=503, code="aborted")
                choice.index += prompt * job.params.n
            yield output.outputs


def _merged(llm: AsyncLLM, job: Job) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    return _one(llm, job) if len(job.prompts) == 1 else _several(llm, job)


def _start(llm: AsyncLLM, job: Job, prompt: int) -> AsyncGenerator[RequestOutput, None]:
    request_id = job.request_id if len(job.prompts) == 1 else f"{job.request_id}-{prompt}"
    return llm.generate(request_id, job.prompts[prompt], job.params, job.priority, job.cache_salt)


async def _one(llm: AsyncLLM, job: Job) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    async with aclosing(_start(llm, job, 0)) as outputs:
        async for output in outputs:
            yield 0, output


async def _several(llm: AsyncLLM, job: Job) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    news: asyncio.Queue[tuple[int, RequestOutput] | Exception | None] = asyncio.Queue()
    errors: list[Exception] = []

    async def forward(prompt: int) -> None:
        try:
            async with aclosing(_start(llm, job, prompt)) as outputs:
                async for output in outputs:
                    news.put_nowait((prompt, output))
            news.put_nowait(None)
        except Exception as error:
            errors.append(error)
            news.put_nowait(error)

    tasks: list[asyncio.Task[None]] = []
    try:
        async with job.starting:
            llm.check_room(len(job.prompts) * job.params.n)
            for prompt in range(len(job.prompts)):
                tasks.append(asyncio.create_task(forward(prompt)))
                await asyncio.sleep(0)  # let it start now, and others have their turn: a thousand take long
        if errors:
            raise errors[0]  # a refusal comes before all news of prompts that started earlier
        async for item in _until_all_ended(news, len(tasks)):
            yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until_all_ended(
    news: asyncio.Queue[tuple[int, RequestOutput] | Exception | None], running: int
) -> AsyncIterator[tuple[int, RequestOutput]]:
    while running:
        item = await news.get()
        if item is None:
            running -= 1
        elif isinstance(item, Exception):
            raise item
        else:
            yield item
