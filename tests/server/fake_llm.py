"""An AsyncLLM without an engine: the same face, and an answer that a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rooftree.engine.outputs import CompletionOutput, Logprob, PositionLogprobs, RequestOutput
from rooftree.errors import EngineDeadError, RequestError
from rooftree.sampling.params import SamplingParams
from rooftree.sampling.validate import resolve_max_tokens, validate_prompt, validate_sampling_params
from rooftree.text.chat_template import ChatTemplate
from rooftree.text.length_bound import LengthBound

VOCAB_SIZE = 300
LONG = "The quick brown fox jumps over the lazy dog. "


class FakeTokenizer:
    """A token is a byte; 256 stands before every text that asks for special tokens.

    ``encoded`` counts the texts that were tokenized.
    """

    length_bound = LengthBound(1)
    encoded = 0

    def encode(self, text: str, *, add_special_tokens: bool, param: str = "prompt") -> list[int]:
        self.encoded += 1
        return [256] * add_special_tokens + list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def check_ids(self, ids: Sequence[int], *, param: str = "prompt") -> None:
        if any(not 0 <= token < VOCAB_SIZE for token in ids):
            raise RequestError("an id of tokens does not exist", param=param)


TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'forbidden' %}{{ raise_exception('messages must not be forbidden') }}{% endif %}"
    "{{ message.role }}:{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass
class FakeLLM:
    """Answers every prompt with ``pieces``, one a token, again and again until max_tokens.

    ``dies_after``: tokens after which the engine dies. ``room``: generations at once.
    """

    pieces: list[str] = field(default_factory=lambda: ["Hel", "lo", " wor", "ld", "!", " é", "😀"])
    end_after: int | None = None
    max_model_len: int = 256
    delay: float = 0.0
    state: str = "READY"
    seconds_since_heartbeat: float = 0.0
    generation_defaults: dict[str, float | int] = field(default_factory=dict)
    dies_after: int | None = None
    room: int = 1000
    tokenizer: FakeTokenizer = field(default_factory=FakeTokenizer)
    chat_template: ChatTemplate | None = field(default_factory=lambda: ChatTemplate(TEMPLATE, {}))
    seen: list[SamplingParams] = field(default_factory=list)
    prompts: list[list[int]] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    aborted: list[str] = field(default_factory=list)

    def check_room(self, num_choices: int) -> None:
        if num_choices > self.room:
            raise RequestError(f"no room for {num_choices}", param="n")

    async def generate(
        self,
        request_id: str,
        prompt: str | Sequence[int],
        params: SamplingParams,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        prompt_ids = (
            self.tokenizer.encode(prompt, add_special_tokens=True)
            if isinstance(prompt, str)
            else list(prompt)
        )
        validate_prompt(prompt_ids, VOCAB_SIZE)
        validate_sampling_params(params, VOCAB_SIZE)
        max_tokens = resolve_max_tokens(len(prompt_ids), params, self.max_model_len)
        self.seen.append(params)
        self.prompts.append(prompt_ids)
        self.running.add(request_id)
        texts = [""] * params.n
        ended = False
        try:
            for step in range(max_tokens):
                await asyncio.sleep(self.delay)
                if self.dies_after == step:
                    raise EngineDeadError("it was shot")
                last = step + 1 == max_tokens or step + 1 == self.end_after
                reason = ("stop" if step + 1 == self.end_after else "length") if last else None
                outputs = [self._output(index, step, params, reason) for index in range(params.n)]
                for output in outputs:
                    texts[output.index] += output.text
                ended = reason is not None
                yield RequestOutput(
                    request_id, prompt_ids, outputs, ended, num_cached_tokens=len(prompt_ids) // 2
                )
                if ended:
                    return
        finally:
            self.running.discard(request_id)
            if not ended:
                self.aborted.append(request_id)

    def _output(self, index: int, step: int, params: SamplingParams, reason: Any) -> CompletionOutput:
        piece = self.pieces[step % len(self.pieces)]
        logprobs = None
        if params.logprobs is not None:
            chosen = Logprob(step, piece, piece.encode(), -0.5, 1)
            others = [
                Logprob(i, chr(97 + i), bytes([97 + i]), -1.0 - i, i + 2) for i in range(params.logprobs)
            ]
            logprobs = [PositionLogprobs(chosen, others)]
        return CompletionOutput(index, piece, [step % VOCAB_SIZE], logprobs, reason)
