"""What of a device's published rates an engine reaches, and what it costs besides."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from rooftree.specs.weight_format import FORMATS


@dataclass(frozen=True, slots=True)
class ProductRates:
    """Measured products of weights in one format.

    Attributes:
        format: a name of ``specs.weight_format.FORMATS``.
        rows: numbers of rows (tokens), rising, that shared a pass over the weights.
        fractions: of the device's peak, reached with so many.
    """

    format: str
    rows: tuple[int, ...]
    fractions: tuple[float, ...]

    def equivalent_rows(self, rows: float) -> float:
        """Rows that the device would compute at its peak in the time that ``rows`` take.

        Between measured numbers time grows evenly, beyond the last one at its fraction; fewer rows than the
        first take as long as it does.
        """
        if rows <= 0:
            return 0.0
        if rows >= self.rows[-1]:
            return rows / self.fractions[-1]
        at = bisect_left(self.rows, rows)
        high = self.rows[at] / self.fractions[at]
        if at == 0:
            return high
        low = self.rows[at - 1] / self.fractions[at - 1]
        part = (rows - self.rows[at - 1]) / (self.rows[at] - self.rows[at - 1])
        return low + part * (high - low)


@dataclass(frozen=True, slots=True)
class ProductMix:
    """Products of one kind: a fraction of the peak, or measured rates, each with its share of the FLOP."""

    arithmetic: float
    rates: tuple[tuple[ProductRates, float], ...] = ()

    def equivalent_rows(self, rows: float) -> float:
        """Rows that the device would compute at its peak in the time that ``rows`` take."""
        if not self.rates:
            return rows / self.arithmetic
        return sum([part * rates.equivalent_rows(rows) for rates, part in self.rates])


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Fractions of published rates, and seconds that no rate explains.

    Attributes:
        weight_bandwidth, kv_bandwidth: fraction of memory bandwidth when reading weights, and KV and states.
        arithmetic, attention_arithmetic: fraction of peak in matrix products, and in attention.
        experts: fraction of both rates, on top of the above, in routed experts.
        link: fraction of the link's published rate in an all-reduce.
        layer_seconds, expert_layer_seconds: fixed cost of each layer, and of each layer's routing.
        all_reduce_seconds: latency of one all-reduce.
        step_seconds, request_seconds: fixed cost of a step, and of each request in it.
        launch_seconds: host time that launching a layer takes while the device works; a step is never shorter
            than that of all layers. Engines without graphs are bound by it.
        prefill_attention: fraction of the arithmetic rate, on top of ``attention_arithmetic``, where many
            queries of a request share a pass over K and V; above 1 where these do better than one query.
        activation_seconds: per byte of activations and logits, for all that is done to them between products
            (norms, rotation, rounding, gates, sampling) where that does not overlap with anything.
        products: measured matrix products, which then stand instead of ``arithmetic``; a format without
            measurement is taken as the nearest in bits.
    """

    weight_bandwidth: float = 1.0
    kv_bandwidth: float = 1.0
    arithmetic: float = 1.0
    attention_arithmetic: float = 1.0
    experts: float = 1.0
    link: float = 1.0
    layer_seconds: float = 0.0
    expert_layer_seconds: float = 0.0
    all_reduce_seconds: float = 0.0
    step_seconds: float = 0.0
    request_seconds: float = 0.0
    launch_seconds: float = 0.0
    prefill_attention: float = 1.0
    activation_seconds: float = 0.0
    products: tuple[ProductRates, ...] = ()

    def product_mix(self, formats: Sequence[tuple[str, float]], arithmetic: str) -> ProductMix:
        """What is known of products with weights of these formats, each with its share of the FLOP.

        ``arithmetic``: as in ``MatrixCosts``; what is packed is not compared with what is not.
        """
        kind = [rates for rates in self.products if _is_packed(rates.format) == (arithmetic == "packed")]
        if not kind:
            return ProductMix(self.arithmetic)
        return ProductMix(self.arithmetic, tuple((_nearest(kind, name), part) for name, part in formats))


def _nearest(known: Sequence[ProductRates], name: str) -> ProductRates:
    def distance(rates: ProductRates) -> float:
        return 0.0 if rates.format == name else 1.0 + abs(_bits(rates.format) - _bits(name))

    return min(known, key=distance)


def _is_packed(name: str) -> bool:
    stored = FORMATS.get(name, FORMATS["fp16"])
    return stored.bits < 16 and stored.arithmetic in ("bf16", "fp16", "fp32")


@lru_cache(maxsize=256)
def _bits(name: str) -> float:
    """Bits of a weight with its share of what is kept for its block; 16 of a format that is not listed."""
    stored = FORMATS.get(name, FORMATS["fp16"])
    return 8 * stored.bytes_of((1024, 4096)) / (1024 * 4096)


PEAK = Efficiency()
"""The roofline itself: published rates and nothing else. No measured step can be faster."""
