"""One streamed completion, read as a client reads it, with the time of every piece."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import httpx

from load_requests import Ask


@dataclass
class Answer:
    """What came back.

    Attributes:
        times: seconds on this process' clock: when the request was sent, then each piece of text.
        left: the client went away before the end; what follows is what it had by then.
    """

    ask: Ask
    left: bool = False
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    completion_tokens: int | None = None
    prompt_tokens: int | None = None
    times: list[float] = field(default_factory=list)
    error: str | None = None

    @property
    def content(self) -> tuple[Any, ...]:
        """All that depends on the request alone."""
        usage = (self.prompt_tokens, self.completion_tokens)
        return (self.text, self.logprobs, self.finish_reason, usage)


async def stream(client: httpx.AsyncClient, ask: Ask, leave_after: int | None = None) -> Answer:
    """Send a request and read its answer, or the first ``leave_after`` pieces of it."""
    answer = Answer(ask, times=[perf_counter()])
    try:
        async with client.stream("POST", "/v1/completions", json=ask.body) as response:
            if response.status_code != 200:
                answer.error = f"HTTP {response.status_code}: {(await response.aread()).decode()}"
                return answer
            if not await _read(response, answer, leave_after) and not answer.left:
                answer.error = answer.error or "the stream ended without [DONE]"
    except httpx.HTTPError as error:
        answer.error = f"{type(error).__name__}: {error}"
    return answer


async def _read(response: httpx.Response, answer: Answer, leave_after: int | None) -> bool:
    """Whether the stream came to its end."""
    pieces = 0
    if leave_after == 0:
        answer.left = True
        return False
    async for line in response.aiter_lines():
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            return True
        chunk = json.loads(line[6:])
        if "error" in chunk:
            answer.error = json.dumps(chunk["error"])
            return False
        _take(chunk, answer)
        pieces += 1
        if pieces == leave_after:
            answer.left = True
            return False
    return False


def _take(chunk: dict[str, Any], answer: Answer) -> None:
    if chunk.get("usage"):
        answer.completion_tokens = chunk["usage"]["completion_tokens"]
        answer.prompt_tokens = chunk["usage"]["prompt_tokens"]
    for choice in chunk["choices"]:
        answer.times.append(perf_counter())
        answer.text += choice["text"]
        answer.finish_reason = choice["finish_reason"] or answer.finish_reason
        if choice["logprobs"] is not None:
            answer.logprobs += choice["logprobs"]["token_logprobs"]
