"""Plots as inline SVG: axes in decades, lines, points with labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 64, 18, 14, 46
UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis from ``low`` to ``high`` over ``pixels``, growing rightwards or upwards."""

    low: float
    high: float
    start: float
    pixels: float

    def at(self, value: float) -> float:
        """Pixel of a value, kept on the axis."""
        inside = min(max(value, self.low), self.high)
        share = math.log(inside / self.low) / math.log(self.high / self.low)
        return self.start + share * self.pixels

    def ticks(self) -> list[float]:
        """Powers of ten; where they are few, also twice and five times them."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        decades = [10.0**power for power in range(first, last + 1)]
        steps = (1,) if len(decades) > 4 else (1, 2, 5)
        ticks = [decade * step for decade in decades for step in steps]
        return [tick for tick in ticks if self.low * 0.999 <= tick <= self.high * 1.001]


@dataclass(slots=True)
class Plot:
    """One SVG figure under construction."""

    width: int
    height: int
    x: Axis
    y: Axis
    parts: list[str] = field(default_factory=list)

    def grid(self, x_title: str, y_title: str, x_unit: str = "", y_unit: str = "") -> None:
        """Grid lines, tick labels and titles."""
        left, right = self.x.start, self.x.start + self.x.pixels
        top, bottom = self.y.start + self.y.pixels, self.y.start
        for tick in self.x.ticks():
            at = self.x.at(tick)
            self.parts.append(f'<line class="grid" x1="{at:.1f}" y1="{top}" x2="{at:.1f}" y2="{bottom}"/>')
            self.text(at, bottom + 16, with_prefix(tick) + x_unit, "tick middle")
        for tick in self.y.ticks():
            at = self.y.at(tick)
            self.parts.append(f'<line class="grid" x1="{left}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}"/>')
            self.text(left - 8, at + 4, with_prefix(tick) + y_unit, "tick end")
        self.text((left + right) / 2, bottom + 38, x_title, "axis middle")
        middle = (top + bottom) / 2
        self.parts.append(
            f'<text class="axis middle" transform="translate(14 {middle:.1f}) rotate(-90)">'
            f"{escape(y_title)}</text>"
        )

    def line(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """A polyline through values."""
        path = " ".join(f"{self.x.at(x):.1f},{self.y.at(y):.1f}" for x, y in points)
        self.parts.append(f'<polyline class="{style}" points="{path}"/>')

    def area(self, lower: Sequence[tuple[float, float]], upper: Sequence[tuple[float, float]]) -> None:
        """A band between two lines."""
        points = [*lower, *reversed(upper)]
        path = " ".join(f"{self.x.at(x):.1f},{self.y.at(y):.1f}" for x, y in points)
        self.parts.append(f'<polygon class="band" points="{path}"/>')

    def point(self, x: float, y: float, style: str, tip: str, radius: float = 5.0) -> None:
        """A dot that tells more under the pointer."""
        self.parts.append(
            f'<circle class="{style}" cx="{self.x.at(x):.1f}" cy="{self.y.at(y):.1f}" r="{radius}">'
            f"<title>{escape(tip)}</title></circle>"
        )

    def text(self, x: float, y: float, text: str, style: str) -> None:
        """Text at pixels."""
        self.parts.append(f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>')

    def render(self, label: str) -> str:
        """The element."""
        body = "".join(self.parts)
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escape(label)}">'
            f"{body}</svg>"
        )


def plot(
    width: int, height: int, x: tuple[float, float], y: tuple[float, float], right: int = MARGIN_RIGHT
) -> Plot:
    """An empty plot over ranges of values."""
    wide = width - MARGIN_LEFT - right
    high = height - MARGIN_TOP - MARGIN_BOTTOM
    return Plot(
        width,
        height,
        Axis(*x, MARGIN_LEFT, wide),
        Axis(*y, height - MARGIN_BOTTOM, -high),
    )


def with_prefix(value: float) -> str:
    """``200G``, ``5``, ``0.1``."""
    for size, letter in UNITS:
        if value >= size * 0.9999:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def decades(values: Sequence[float]) -> tuple[float, float]:
    """A range around values with room on both sides."""
    low, high = min(values), max(values)
    return low / 1.6, max(high * 1.6, low * 4)
