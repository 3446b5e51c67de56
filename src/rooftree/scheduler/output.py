"""What passes between scheduler and executor: one step's plan, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rooftree.sampling.params import SamplingParams

Shortage = Literal["blocks", "seats", "tokens"]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one generated position, natural logarithm, of the model's own distribution.

    Attributes:
        logprob: of the chosen token.
        rank: 1 + number of tokens strictly more likely than the chosen one.
        top_ids, top_logprobs: the most likely tokens, best first (ties: lower id first); empty if none were
            asked.
    """

    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's part of a step: compute ``token_ids[start : start + num_tokens]``.

    The lists are the live ones of their owners (Request, KVCacheManager); an executor reads them during the
    step and keeps none.

    Attributes:
        token_ids: prompt and output so far.
        num_prompt_tokens: how many of ``token_ids`` are the prompt (penalties tell the two apart).
        start: tokens whose K and V are already in the cache.
        block_ids: the whole block table; position p lies in block ``block_ids[p // block_size]``.
        samples: whether the step reaches the last known token, so that a new one is chosen.
        seed: key of the request's random numbers; the counter is the number of output tokens so far.
        banned_token_ids: tokens that may not be chosen at this step (stop tokens while min_tokens holds).
    """

    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    start: int
    num_tokens: int
    block_ids: list[int]
    samples: bool
    params: SamplingParams
    seed: int
    banned_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """A step: requests in order, decodes first. ``num_scheduled_tokens`` maps request id to tokens.

    ``shortage``: why a request that has work got none of it, or gave way: KV blocks lack, ``max_num_seqs``
    requests run, or ``max_num_batched_tokens`` tokens are given out. None: all have their part.
    """

    requests: list[ScheduledRequest]
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    shortage: Shortage | None = None


@dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """Result of a step: the token chosen for each request with ``samples``, and logprobs where asked.

    ``errors`` holds requests whose logits were not finite; the engine ends them and no other.
    """

    sampled_token_ids: dict[str, int]
    logprobs: dict[str, TokenLogprobs] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
