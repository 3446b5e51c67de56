"""What of a device's published rates an engine reaches, and what it costs besides."""

from __future__ import annotations

from dataclasses import dataclass


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


PEAK = Efficiency()
"""The roofline itself: published rates and nothing else. No measured step can be faster."""
