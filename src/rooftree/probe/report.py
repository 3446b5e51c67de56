"""A probe's findings as a table that says what each of them bounds."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from rooftree.probe.run import ProbeResult
from rooftree.roofline.efficiency import Efficiency, ProductRates

_FLOATS = {
    "fp16": "fp32 arithmetic",
    "bf16": "fp32 arithmetic (above 100% with bf16 instructions)",
}
"""What products of floats are held against."""


def print_probe(result: ProbeResult, console: Console) -> None:
    """Limits, what the engine reaches of them, its fixed costs, and how well this explains its steps."""
    setting, quality = result.machine.setting, result.machine.quality
    console.print(f"[bold]{setting.cpu}[/bold], {setting.threads} threads, {setting.isa}")
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("measured", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("what it means")
    for row in (*_limits(result), *_reached(result.machine.efficiency), *_costs(result.machine.efficiency)):
        table.add_row(*row)
    console.print(table)
    console.print(
        f"Over {quality.steps} kinds of steps the constants err by {quality.median:.1%} in the median; "
        f"nine in ten are within {quality.p90:.1%}."
    )
    if quality.p90 > 0.3:
        console.print(
            "That is much: something else was running, or the machine is shared. Probe again at rest."
        )


def _limits(result: ProbeResult) -> Iterator[tuple[str, str, str]]:
    for limits in result.limits:
        threads = f"{limits.threads} thread{'s' * (limits.threads > 1)}"
        yield f"memory read, {threads}", f"{limits.read / 1e9:.1f} GB/s", "decode of few requests"
        yield f"int8, {threads}", f"{limits.best_int8 / 1e9:.0f} GOPS", "prompts and batches, packed weights"
        yield f"fp32, {threads}", f"{limits.fp32 / 1e9:.0f} GFLOPS", "float weights, attention"
    most = result.limits[-1]
    ridge = most.best_int8 / most.read
    yield "ridge at int8", f"{ridge:.0f} OP/byte", "work per byte from which arithmetic binds"


def _reached(efficiency: Efficiency) -> Iterator[tuple[str, str, str]]:
    yield "weights read", f"{efficiency.weight_bandwidth:.0%}", "of the bandwidth, batch 1"
    for rates in efficiency.products:
        first, last = _fraction_at(rates, 8), rates.fractions[-1]
        unit = _FLOATS.get(rates.format, "int8 arithmetic")
        text = f"of {unit}, 8 and {rates.rows[-1]} rows at once"
        yield f"products, {rates.format}", f"{first:.0%}, {last:.0%}", text
    yield "attention, decode", f"{efficiency.attention_arithmetic:.0%}", "of fp32 arithmetic"
    prefill = efficiency.attention_arithmetic * efficiency.prefill_attention
    yield "attention, prompts", f"{prefill:.0%}", "of fp32 arithmetic"


def _costs(efficiency: Efficiency) -> Iterator[tuple[str, str, str]]:
    yield "a step", f"{efficiency.step_seconds * 1e6:.0f} us", "scheduling and bookkeeping"
    yield "a request", f"{efficiency.request_seconds * 1e6:.1f} us", "the same, for each in a step"
    yield "a layer", f"{efficiency.layer_seconds * 1e6:.1f} us", "threads waiting for each other"
    yield (
        "activations",
        f"{efficiency.activation_seconds * 1e9:.3f} ns/byte",
        "norms, rotation, rounding, gates, sampling",
    )


def _fraction_at(rates: ProductRates, rows: int) -> float:
    return rows / rates.equivalent_rows(rows)
