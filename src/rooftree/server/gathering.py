"""Whole answers from news, for requests that did not ask for a stream."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rooftree.engine.outputs import CompletionOutput, PositionLogprobs
from rooftree.scheduler.request import FinishReason
from rooftree.server.generation import Job, Tally, generate

if TYPE_CHECKING:
    from rooftree.engine.async_llm import AsyncLLM


@dataclass(slots=True)
class Gathered:
    """One choice, growing."""

    index: int
    pieces: list[str] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self.pieces)

    def add(self, output: CompletionOutput) -> None:
        """Take in one piece of news."""
        self.pieces.append(output.text)
        if output.logprobs is not None:
            if self.logprobs is None:
                self.logprobs = []
            self.logprobs += output.logprobs
        if output.finish_reason is not None:
            self.finish_reason = output.finish_reason
            self.stop_reason = output.stop_reason


async def gather(llm: AsyncLLM, job: Job, tally: Tally) -> list[Gathered]:
    """Run the job to its end: all its choices, in order."""
    choices: dict[int, Gathered] = {}
    async with aclosing(generate(llm, job, tally)) as news:
        async for outputs in news:
            for output in outputs:
                if output.index not in choices:
                    choices[output.index] = Gathered(output.index)
                choices[output.index].add(output)
    return [choices[index] for index in sorted(choices)]
