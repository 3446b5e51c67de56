"""What one deployment does with a workload: the figures of a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rooftree.planner.deployment import Deployment
from rooftree.planner.figure import Figure
from rooftree.planner.load import (
    LoadResult,
    SteadyState,
    decode_step,
    prefill_step,
    simulate,
    steady_state,
)
from rooftree.planner.models import NamedModel
from rooftree.planner.workload import NO_PROMISE, Promise, Workload
from rooftree.roofline.time import StepTime
from rooftree.roofline.work import StepWork

# Power of a busy accelerator as a share of its limit, idle clocks to full load (measured GPUs: 0.43 to 0.86).
IDLE_POWER, BUSY_POWER = 0.43, 0.86
POWER_BAND = 0.25

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A step of one kind at one batch, for the roofline: its work, its seconds."""

    label: str
    batch: int
    work: StepWork
    time: StepTime


@dataclass(frozen=True, slots=True)
class Estimate:
    """One deployment under one workload.

    Attributes:
        verdict: what holds, or the limit that binds, in a sentence; ``fits`` memory, ``meets`` every promise.
        binding: ``memory``, ``kv_capacity``, ``context``, ``interconnect``, ``devices``, ``load``, ``ttft``,
            ``tpot``, or the limit of the mean step.
        sequences, sequences_longest: at once per tensor group, of mean and of 99th-percentile length, as
            memory and the server's own limit allow.
        best_batch: the largest batch per tensor group whose steady TPOT keeps the promise (or fills memory).
        decode, prefill: steps for the waterfall; ``steady`` at the workload's batch.
    """

    deployment: Deployment
    workload: Workload
    promise: Promise
    fits: bool
    meets: bool
    binding: str
    verdict: str
    sequences: int = 0
    sequences_longest: int = 0
    kv_bytes_per_sequence: int = 0
    best_batch: int = 0
    load: LoadResult | None = None
    steady: SteadyState | None = None
    decode: OperatingPoint | None = None
    prefill: OperatingPoint | None = None
    ttft: dict[str, Figure] | None = None
    tpot: dict[str, Figure] | None = None
    output_rate: Figure | None = None
    request_rate: Figure | None = None
    power_watts: Figure | None = None
    cost_per_million: Figure | None = None


def estimate(
    deployment: Deployment,
    workload: Workload,
    promise: Promise = NO_PROMISE,
    price: float | None = None,
) -> Estimate:
    """All figures of a deployment, or why it cannot serve.

    ``price``: per device and hour, where the device has none of its own.
    """
    longest = workload.longest()
    refused = _refusal(deployment, workload, promise, longest)
    if refused is not None:
        return refused
    load = simulate(deployment, workload)
    mean = workload.tokens_per_sequence
    sequences = max(1, min(deployment.sequences(mean), deployment.options.max_sequences))
    batch = max(1, min(round(load.peak_batch), sequences))
    figures = _latency_figures(deployment, load, promise)
    busy = busy_schedulers(deployment, workload)
    output = _figure(deployment, "throughput", load.output_rate * busy, "tok/s")
    steady = steady_state(deployment, workload, batch)
    meets, binding, verdict = _judge(deployment, workload, promise, load, steady, sequences)
    context = round(workload.input.mean + workload.output.mean / 2)
    return Estimate(
        deployment=deployment,
        workload=workload,
        promise=promise,
        fits=True,
        meets=meets,
        binding=binding if binding else steady.time.binding,
        verdict=verdict,
        sequences=sequences,
        sequences_longest=max(1, min(deployment.sequences(longest), sequences)),
        kv_bytes_per_sequence=deployment.sequence_bytes(mean),
        best_batch=best_batch(deployment, workload, promise, sequences),
        load=load,
        steady=steady,
        decode=_decode_point(deployment, batch, context),
        prefill=_prefill_point(deployment, round(workload.input.mean)),
        ttft=figures[0],
        tpot=figures[1],
        output_rate=output,
        request_rate=_figure(deployment, "throughput", load.request_rate * busy, "req/s"),
        power_watts=_power(deployment, steady),
        cost_per_million=_cost(deployment, output, price),
    )


def best_batch(deployment: Deployment, workload: Workload, promise: Promise, most: int) -> int:
    """The largest batch, up to ``most``, whose steady TPOT keeps the promise; at least 1."""
    if promise.tpot is None or _steady_tpot(deployment, workload, most) <= promise.tpot:
        return most
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        if _steady_tpot(deployment, workload, middle) <= promise.tpot:
            low = middle
        else:
            high = middle
    return low


def batch_curve(deployment: Deployment, workload: Workload, most: int) -> list[SteadyState]:
    """The steady state over batches up to what fits."""
    batches = [batch for batch in BATCHES if batch * 1.3 < most] + [most]
    return [steady_state(deployment, workload, batch) for batch in batches]


def operating_points(deployment: Deployment, workload: Workload, most: int) -> list[OperatingPoint]:
    """Prefill and decode steps for the roofline plot."""
    context = round(workload.input.mean + workload.output.mean / 2)
    batches = [batch for batch in (1, 8, 32, 128, 512) if batch * 1.5 < most] + [most]
    points = [_decode_point(deployment, batch, context) for batch in batches]
    prompt = min(round(workload.input.mean), deployment.options.max_batched_tokens)
    return [*points, _prefill_point(deployment, prompt)]


def context_refusal(model: NamedModel, workload: Workload) -> str:
    """Why the model cannot serve sequences as long as the workload's; empty where it can."""
    most, longest = model.architecture.max_positions, workload.longest()
    if most is None or longest <= most:
        return ""
    return (
        f"The binding limit is the context of the model: {model.name} has {most:,} positions, and 1 in 100 "
        f"requests takes {longest:,} tokens, input and output together, or more. Shorten --input or --output."
    )


def busy_schedulers(deployment: Deployment, workload: Workload) -> float:
    """How many of them the load keeps as busy as the one that was simulated."""
    schedulers = deployment.parallel.schedulers
    if workload.concurrency is None:
        return schedulers
    return workload.concurrency / math.ceil(workload.concurrency / schedulers)


def _refusal(deployment: Deployment, workload: Workload, promise: Promise, longest: int) -> Estimate | None:
    """The estimate of a deployment that cannot run at all; None where it can."""
    budget, name = deployment.budget, deployment.device.name
    too_long = context_refusal(deployment.model, workload)
    if too_long:
        return Estimate(deployment, workload, promise, False, False, "context", too_long)
    if not deployment.is_linked:
        verdict = (
            f"The binding limit is the interconnect. No link between devices of {name} is known; state link "
            "or pcie_bytes_per_second in your devices file."
        )
        return Estimate(deployment, workload, promise, False, False, "interconnect", verdict)
    if not budget.fits:
        need = budget.weights + budget.activations + budget.runtime
        verdict = (
            f"The binding limit is memory. Weights, activations and runtime take "
            f"{need / 2**30:,.1f} GiB per device; {budget.usable / 2**30:,.1f} GiB of {name} are usable."
        )
        return Estimate(deployment, workload, promise, False, False, "memory", verdict)
    if deployment.sequences(longest) < 1:
        verdict = (
            f"The binding limit is KV capacity. {deployment.kv_tokens or 0:,.0f} tokens fit beside the "
            f"weights on {name}, and one sequence of {longest:,} tokens needs more."
        )
        return Estimate(deployment, workload, promise, False, False, "kv_capacity", verdict)
    return None


def _judge(
    deployment: Deployment,
    workload: Workload,
    promise: Promise,
    load: LoadResult,
    steady: SteadyState,
    sequences: int,
) -> tuple[bool, str, str]:
    """Whether promises hold, the limit that breaks them, and a sentence."""
    share = f"P{promise.percentile * 100:g}"
    if workload.rate is not None:
        full = steady_state(deployment, workload, sequences)
        most = full.output_rate / workload.output.mean
        if workload.rate / deployment.parallel.schedulers > most:
            held = sequences < deployment.options.max_sequences
            limit = "KV capacity" if held else full.time.binding
            verdict = (
                f"The binding limit is {limit}. {workload.rate:,g} requests per second come and "
                f"{most * deployment.parallel.schedulers:,.3g} can be answered: waits grow without end."
            )
            return False, "load", verdict
    for name, limit_seconds in (("ttft", promise.ttft), ("tpot", promise.tpot)):
        reached = load.percentile(name, promise.percentile)
        if limit_seconds is not None and reached > limit_seconds:
            verdict = (
                f"The binding limit is the promised {name.upper()}. {share} is {reached * 1e3:,.1f} ms "
                f"against {limit_seconds * 1e3:,.1f} ms; the mean step is bound by {steady.time.binding}."
            )
            return False, name, verdict
    promised = promise.ttft is not None or promise.tpot is not None
    clients, running = workload.concurrency or 0, load.peak_batch * deployment.parallel.schedulers
    tail = f" {running:,.0f} sequences run at once; the other {clients - running:,.0f} clients wait."
    kept = "Fits and keeps the promise." if promised else "Fits."
    return True, "", kept + (tail if clients > running else "")


def _latency_figures(
    deployment: Deployment, load: LoadResult, promise: Promise
) -> tuple[dict[str, Figure], dict[str, Figure]]:
    fractions = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    fractions[f"p{promise.percentile * 100:g}"] = promise.percentile
    ordered = dict(sorted(fractions.items(), key=lambda item: item[1]))
    return (
        {
            name: _seconds(deployment, "ttft", load.percentile("ttft", fraction))
            for name, fraction in ordered.items()
        },
        {
            name: _seconds(deployment, "tpot", load.percentile("tpot", fraction))
            for name, fraction in ordered.items()
        },
    )


def _seconds(deployment: Deployment, kind: str, seconds: float) -> Figure:
    low, high = deployment.constants.band(kind, seconds)
    return Figure(seconds, low, high, "s", deployment.constants.origin)


def _figure(deployment: Deployment, kind: str, value: float, unit: str) -> Figure:
    low, high = deployment.constants.band(kind, value)
    return Figure(value, low, high, unit, deployment.constants.origin)


def _power(deployment: Deployment, steady: SteadyState) -> Figure | None:
    tdp = deployment.device.tdp_watts
    if tdp is None:
        return None
    load = min(1.0, max(steady.time.bandwidth_fraction, steady.time.arithmetic_fraction))
    watts = tdp * (IDLE_POWER + (BUSY_POWER - IDLE_POWER) * load) * deployment.parallel.devices
    return Figure(watts, watts * (1 - POWER_BAND), watts * (1 + POWER_BAND), "W", "uncalibrated")


def _cost(deployment: Deployment, output: Figure, price: float | None) -> Figure | None:
    hourly = deployment.device.price_per_hour
    hourly = price if hourly is None else hourly
    if hourly is None or output.value <= 0:
        return None
    per_hour = hourly * deployment.parallel.devices
    return Figure(
        per_hour / (3600 * output.value) * 1e6,
        per_hour / (3600 * output.high) * 1e6,
        per_hour / (3600 * output.low) * 1e6,
        "per million output tokens",
        output.origin,
    )


def _steady_tpot(deployment: Deployment, workload: Workload, batch: int) -> float:
    return steady_state(deployment, workload, batch).tpot


def _decode_point(deployment: Deployment, batch: int, context: int) -> OperatingPoint:
    work, time = decode_step(deployment, batch, context)
    return OperatingPoint(f"decode, batch {batch}", batch, work, time)


def _prefill_point(deployment: Deployment, tokens: int) -> OperatingPoint:
    tokens = max(1, min(tokens, deployment.options.max_batched_tokens))
    work, time = prefill_step(deployment, tokens)
    return OperatingPoint(f"prefill, {tokens:,} tokens", 1, work, time)
