"""A predicted number, never without its band and where it comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """Attributes:
    value, low, high: in ``unit``.
    origin: ``exact`` (counted), ``calibrated on n points``, or ``uncalibrated``.
    """

    value: float
    low: float
    high: float
    unit: str
    origin: str

    def scaled(self, factor: float, unit: str) -> Figure:
        """The figure in another unit."""
        return Figure(self.value * factor, self.low * factor, self.high * factor, unit, self.origin)

    def as_json(self) -> dict[str, Any]:
        """Numbers with six digits."""
        return {
            "value": rounded(self.value),
            "low": rounded(self.low),
            "high": rounded(self.high),
            "unit": self.unit,
            "origin": self.origin,
        }


def exact(value: float, unit: str) -> Figure:
    """A figure that is counted, not predicted."""
    return Figure(value, value, value, unit, "exact")


def rounded(value: float) -> float:
    """Six digits, so that the same plan reads the same everywhere."""
    return float(f"{value:.6g}")
