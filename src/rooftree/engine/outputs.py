"""What callers of ``LLM`` and ``AsyncLLM`` receive."""

from __future__ import annotations

from dataclasses import dataclass, field

from rooftree.scheduler.request import FinishReason


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token with its log-probability and exact bytes (a token may be part of a character)."""

    token_id: int
    token: str
    bytes: bytes
    logprob: float
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """The chosen token at one position, and the most likely ones, best first."""

    chosen: Logprob
    top: list[Logprob]


@dataclass(slots=True)
class CompletionOutput:
    """One choice. In a stream every field but ``finish_reason`` and ``stop_reason`` is a delta.

    Attributes:
        stop_reason: the stop string or stop token id that matched; None for end-of-sequence and length.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(slots=True)
class RequestOutput:
    """News of one request: its choices that moved. ``finished`` when every choice has ended."""

    request_id: str
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    num_cached_tokens: int = 0
    error: str | None = None
