"""The scheduler's limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rooftree.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits of a step and of a request.

    Attributes:
        max_num_seqs: requests running at once.
        max_num_batched_tokens: tokens of one step, at least ``max_num_seqs``: every decode must fit, and the
            request ranked first then always gets a token.
        max_model_len: longest prompt + answer in tokens.
        policy: ``fcfs``, or ``priority`` where requests may name a priority, lower first.

    Raises:
        ConfigError: a limit is not positive or the limits contradict each other.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: Literal["fcfs", "priority"] = "fcfs"

    def __post_init__(self) -> None:
        for flag in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, flag) < 1:
                raise ConfigError(f"--{flag.replace('_', '-')} must be at least 1, not {getattr(self, flag)}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens} is less than --max-num-seqs "
                f"{self.max_num_seqs}: a step must hold one token of every running request. "
                "Raise the first or lower the second."
            )
