"""What is asked of a server: requests, and what was promised about them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from rooftree.errors import ConfigError
from rooftree.planner.lengths import Lengths


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one deployment.

    Exactly one of ``concurrency`` (that many clients, each sending its next request as soon as the last is
    answered) and ``rate`` (requests per second, Poisson) is set.

    Attributes:
        prefix_share: share of each prompt that the prefix cache holds already.
        requests: how many a simulation measures after its warm-up; None: enough for percentiles.
        burst: all clients start at once and everything is measured (how benchmarks run); else a warm-up of
            one request per client is left out.
        seed: of the random numbers.
    """

    input: Lengths
    output: Lengths
    concurrency: int | None = None
    rate: float | None = None
    prefix_share: float = 0.0
    requests: int | None = None
    burst: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate is None):
            raise ConfigError("a workload has either a concurrency or a rate")
        if self.concurrency is not None and self.concurrency < 1:
            raise ConfigError(f"concurrency is {self.concurrency}: it must be at least 1")
        if self.rate is not None and not 0 < self.rate < 1e9:
            raise ConfigError(f"rate is {self.rate}: it must be above 0 requests per second")
        if not 0 <= self.prefix_share < 1:
            raise ConfigError(f"prefix share is {self.prefix_share}: it must be from 0 to below 1")

    @property
    def tokens_per_sequence(self) -> float:
        """Mean length of a sequence at its end."""
        return self.input.mean + self.output.mean

    def longest(self) -> int:
        """A sequence longer than 99 in 100."""
        return self.input.quantile(0.99) + self.output.quantile(0.99)


@dataclass(frozen=True, slots=True)
class Promise:
    """What users were promised, in seconds, at a percentile (0.95: 95 in 100 requests); None: nothing."""

    ttft: float | None = None
    tpot: float | None = None
    percentile: float = 0.95

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"--{name} is {value}: it must be above 0")
        if not 0 < self.percentile < 1:
            raise ConfigError(f"percentile is {self.percentile}: it must be between 0 and 1 (0.95)")


NO_PROMISE = Promise()


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request: tokens of its prompt, of them already cached, and tokens to generate (at least 1)."""

    input: int
    cached: int
    output: int


def draw_requests(workload: Workload, number: int) -> list[SimulatedRequest]:
    """That many requests, the same for the same workload.

    Where a warm-up is left out, the first one of each client is caught somewhere in the middle, so that
    clients don't march in step.
    """
    rng = random.Random(workload.seed)
    clients = 0 if workload.burst else workload.concurrency or 0
    requests = []
    for index in range(number):
        prompt, output = workload.input.draw(rng), workload.output.draw(rng)
        if index < clients:
            output = 1 + int(output * rng.random())
        cached = min(int(prompt * workload.prefix_share), prompt - 1)
        requests.append(SimulatedRequest(prompt, cached, output))
    return requests


def draw_arrivals(workload: Workload, number: int) -> Sequence[float]:
    """Times of a Poisson process of the workload's rate."""
    if workload.rate is None:
        raise ValueError("the workload has no rate")
    rng = random.Random(workload.seed + 1)
    at, times = 0.0, []
    for _ in range(number):
        at += rng.expovariate(workload.rate)
        times.append(at)
    return times
