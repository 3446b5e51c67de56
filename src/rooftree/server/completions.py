"""POST /v1/completions: one or several prompts, continued as they are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec import UnsetType
from starlette.requests import Request

from rooftree.engine.outputs import CompletionOutput
from rooftree.server.answers import EventStream, GeneratedAnswer
from rooftree.server.fields import COMPLETION_OFF_VALUES
from rooftree.server.gathering import Gathered
from rooftree.server.generation_route import Asked, answer, read_generation
from rooftree.server.logprobs import TextOffsets, completion_logprobs
from rooftree.server.prompts import encode_prompts, split_prompts
from rooftree.server.protocol import Completion, CompletionChoice, CompletionRequest, Usage, if_any


async def completions(request: Request) -> EventStream | GeneratedAnswer:
    """The route."""
    asked, body = await read_generation(request, CompletionRequest, COMPLETION_OFF_VALUES, "cmpl")
    prompts = split_prompts(body.prompt)
    if len(prompts) > 1:
        asked.llm.check_room(len(prompts) * asked.params.n)
        prompts = await encode_prompts(asked.llm, prompts)
    return answer(asked, prompts, _CompletionShape(asked))


class _CompletionShape:
    """A choice is spelt the same whole and in pieces, and so is the answer."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._offsets: defaultdict[int, TextOffsets] = defaultdict(TextOffsets)

    def whole(self, choices: Sequence[Gathered], usage: Usage) -> Completion:
        return self.chunk([self._choice(gathered) for gathered in choices], usage)

    def parts(self, output: CompletionOutput) -> list[CompletionChoice]:
        tells = output.text or output.logprobs or output.finish_reason
        return [self._choice(output)] if tells else []

    def chunk(self, choices: list[CompletionChoice], usage: Usage | UnsetType | None) -> Completion:
        return Completion(self._asked.id, self._asked.created, self._asked.model, choices, usage)

    def _choice(self, news: Gathered | CompletionOutput) -> CompletionChoice:
        offsets = self._offsets[news.index]
        return CompletionChoice(
            index=news.index,
            text=news.text,
            logprobs=None if news.logprobs is None else completion_logprobs(news.logprobs, offsets),
            finish_reason=news.finish_reason,
            stop_reason=if_any(news.stop_reason),
        )
