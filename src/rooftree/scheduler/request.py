"""One generation on its way through the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

from rooftree.sampling.params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


class RequestStatus(IntEnum):
    """Where a request stands; from ``FINISHED_STOPPED`` on it has ended."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED_STOPPED = 3
    FINISHED_LENGTH_CAPPED = 4
    FINISHED_ABORTED = 5
    FINISHED_ERROR = 6

    @property
    def finish_reason(self) -> FinishReason | None:
        """What the client is told; None while the request has not ended."""
        return _FINISH_REASONS.get(self)


_FINISH_REASONS: dict[RequestStatus, FinishReason] = {
    RequestStatus.FINISHED_STOPPED: "stop",
    RequestStatus.FINISHED_LENGTH_CAPPED: "length",
    RequestStatus.FINISHED_ABORTED: "abort",
    RequestStatus.FINISHED_ERROR: "error",
}


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A request's tokens and state. Only the scheduler changes it once it has been added.

    Attributes:
        token_ids: prompt and output so far; only ever appended to, and owned by this request.
        num_computed_tokens: how many of ``token_ids`` have their K and V in the request's blocks. It chases
            ``len(token_ids)``: one short is a decode, further behind is a prompt or a request that resumes.
        num_cached_tokens: prompt tokens that the prefix cache held when the request was first scheduled.
        block_hashes: hashes of its leading full blocks, kept by the KVCacheManager.
        rank: (priority, order of arrival): the lower, the sooner and the longer it may run. Set when added.
        arrived, first_scheduled, first_token: seconds of the scheduler's clock.
        ending_token_ids: tokens that end the answer once ``min_tokens`` have been generated.
    """

    request_id: str
    token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    seed: int
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0
    cache_salt: str = ""

    num_prompt_tokens: int = field(init=False)
    ending_token_ids: frozenset[int] = field(init=False)
    status: RequestStatus = field(init=False, default=RequestStatus.WAITING)
    rank: tuple[int, int] = field(init=False, default=(0, 0))
    num_computed_tokens: int = field(init=False, default=0)
    num_cached_tokens: int = field(init=False, default=0)
    num_preemptions: int = field(init=False, default=0)
    block_hashes: list[bytes] = field(init=False, default_factory=list)
    arrived: float = field(init=False, default=0.0)
    first_scheduled: float | None = field(init=False, default=None)
    first_token: float | None = field(init=False, default=None)
    _banned_early: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.token_ids)
        eos = () if self.params.ignore_eos else self.eos_token_ids
        self.ending_token_ids = frozenset((*eos, *self.params.stop_token_ids))
        self._banned_early = tuple(sorted(self.ending_token_ids))

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        """Whether the request has ended, in whatever way."""
        return self.status >= RequestStatus.FINISHED_STOPPED

    @property
    def banned_token_ids(self) -> tuple[int, ...]:
        """Tokens that must not be chosen next: all that could end the answer, until it has ``min_tokens``."""
        return self._banned_early if self.num_output_tokens < self.params.min_tokens else ()
