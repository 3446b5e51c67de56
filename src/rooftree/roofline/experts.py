"""How many experts of a layer a step must read."""

from __future__ import annotations

import math
from functools import lru_cache


def experts_touched(experts: int, active: int, tokens: float, skew: float = 0.0) -> float:
    """Expected experts that ``tokens`` tokens use, each choosing ``active`` of ``experts``.

    Without skew every expert is as likely: N(1 - (1 - k/N)^T). With it, expert i (from 1) is chosen in
    proportion to i^-skew, capped at certainty, which touches fewer.
    """
    if tokens <= 0:
        return 0.0
    if skew == 0.0:
        missed: float = (1.0 - active / experts) ** tokens
        return experts * (1.0 - missed)
    shares = _shares(experts, active, skew)
    return float(sum(1.0 - (1.0 - share) ** tokens for share in shares))


@lru_cache(maxsize=64)
def _shares(experts: int, active: int, skew: float) -> tuple[float, ...]:
    """Chance that one token uses each expert; they add up to ``active``."""
    weights = [(i + 1) ** -skew for i in range(experts)]
    certain = 0
    while True:
        rest = (active - certain) / sum(weights[certain:])
        above = sum(1 for weight in weights[certain:] if weight * rest > 1.0)
        if not above:
            return (1.0,) * certain + tuple(weight * rest for weight in weights[certain:])
        certain += above


def busiest_share(tokens: float, active: int, devices: int) -> float:
    """Load of the busiest device over the mean, where whole experts lie on ``devices`` devices.

    Token-expert pairs fall on the devices as balls in bins: the largest bin exceeds the mean m by about
    sqrt(2 m ln d) (Raab and Steger, 1998), at most by all of them.
    """
    if devices == 1 or tokens <= 0:
        return 1.0
    mean = tokens * active / devices
    return min(float(devices), 1.0 + math.sqrt(2.0 * math.log(devices) / mean))
