"""How long prompts and answers are."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass
from typing import Literal

from rooftree.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts.

    Attributes:
        kind: ``fixed`` (all ``mean``), ``uniform`` (``low`` to ``high``), or ``lognormal`` (of that mean,
            ``sigma`` the standard deviation of the logarithm), cut at ``high`` where it is not 0.
    """

    kind: Literal["fixed", "uniform", "lognormal"]
    mean: float
    low: int = 0
    high: int = 0
    sigma: float = 0.0

    def draw(self, rng: random.Random) -> int:
        """One length, at least 1."""
        if self.kind == "uniform":
            return rng.randint(self.low, self.high)
        if self.kind == "lognormal":
            # mu such that exp(mu + sigma^2 / 2) is the mean.
            value = rng.lognormvariate(0.0, self.sigma) * self.mean / _lognormal_mean(self.sigma)
            length = max(1, round(value))
            return min(length, self.high) if self.high else length
        return max(1, round(self.mean))

    def quantile(self, fraction: float) -> int:
        """The length that this fraction of requests does not exceed."""
        if self.kind == "uniform":
            return round(self.low + fraction * (self.high - self.low))
        if self.kind == "lognormal":
            z = statistics.NormalDist().inv_cdf(min(max(fraction, 1e-9), 1 - 1e-9))
            value = self.mean / _lognormal_mean(self.sigma) * math.exp(self.sigma * z)
            return min(round(value), self.high) if self.high else round(value)
        return round(self.mean)

    def words(self) -> str:
        """For people."""
        if self.kind == "lognormal":
            most = f", at most {self.high:,}" if self.high else ""
            return f"{self.mean:,.0f} on average (log-normal, sigma {self.sigma:g}{most})"
        return f"{self.low:,} to {self.high:,}" if self.kind == "uniform" else f"{self.mean:,.0f}"

    def describe(self) -> str:
        """In words, as ``parse_lengths`` reads it."""
        if self.kind == "uniform":
            return f"{self.low}-{self.high}"
        if self.kind == "lognormal":
            tail = f":{self.high}" if self.high else ""
            return f"lognormal:{self.mean:g}:{self.sigma:g}{tail}"
        return f"{self.mean:g}"


def fixed(length: int) -> Lengths:
    """Every request the same."""
    return Lengths("fixed", length)


def uniform(low: int, high: int) -> Lengths:
    """Equally likely from ``low`` to ``high``."""
    return Lengths("uniform", (low + high) / 2, low, high)


def parse_lengths(text: str, option: str) -> Lengths:
    """Read ``1024``, ``512-2048`` or ``lognormal:MEAN:SIGMA[:MAX]``.

    Raises:
        ConfigError: it is none of them; ``option`` is named.
    """
    try:
        if text.startswith("lognormal:"):
            mean, sigma, *rest = text.removeprefix("lognormal:").split(":")
            high = int(rest[0]) if rest else 0
            lengths = Lengths("lognormal", float(mean), 0, high, float(sigma))
            if len(rest) > 1 or not (0 < lengths.sigma <= 3 and 1 <= lengths.mean <= 10**7 and high >= 0):
                raise ValueError(text)
            return lengths
        low, _, high_text = text.partition("-")
        if not high_text:
            length = int(low)
            if not 1 <= length <= 10**7:
                raise ValueError(text)
            return fixed(length)
        if not 1 <= int(low) <= int(high_text) <= 10**7:
            raise ValueError(text)
        return uniform(int(low), int(high_text))
    except ValueError:
        raise ConfigError(
            f"{option} is {text!r}: give a number of tokens (1024), a range (512-2048), or "
            "lognormal:MEAN:SIGMA[:MAX]"
        ) from None


def _lognormal_mean(sigma: float) -> float:
    return math.exp(sigma * sigma / 2)
