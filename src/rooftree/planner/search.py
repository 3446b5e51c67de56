"""Which way to spread a model over devices, and how many devices it takes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from rooftree.planner.constants import choose_constants, load_constants
from rooftree.planner.deployment import (
    Deployment,
    can_be_linked,
    check_tensor_size,
    possible_tensor_sizes,
)
from rooftree.planner.estimate import Estimate, best_batch, estimate
from rooftree.planner.load import steady_state
from rooftree.planner.question import Question
from rooftree.planner.workload import Workload
from rooftree.roofline.parallel import Parallel
from rooftree.specs.device import DeviceSpec

MOST_DEVICES = 4096
CLOSE_CALLS = 3
"""How many of the most promising layouts are simulated; the others are judged by their steady state."""


def deployment_for(question: Question, device: DeviceSpec, parallel: Parallel) -> Deployment:
    """One layout, with the constants that fit it."""
    known = load_constants(question.constants_file)
    published = question.model.architecture.scheme.linear.name
    weight_dtype = published if question.weight_dtype == "as published" else question.weight_dtype
    return Deployment(
        model=question.model,
        device=device,
        parallel=parallel,
        weight_dtype=question.weight_dtype,
        kv_dtype=question.kv_dtype,
        constants=choose_constants(known, device, question.engine, weight_dtype),
        options=question.options,
    )


def layouts(question: Question, device: DeviceSpec, count: int) -> Iterator[Parallel]:
    """Ways to use up to ``count`` devices that the question allows."""
    if question.tensor is not None:
        check_tensor_size(question.model, question.tensor)
    sizes = (
        possible_tensor_sizes(question.model, device, count) if question.tensor is None else [question.tensor]
    )
    for tensor in sizes:
        for pipeline in _pipeline_sizes(question, device):
            replicas = question.replicas or count // (tensor * pipeline)
            fits = replicas >= 1 and tensor * pipeline * replicas <= count
            if fits and pipeline <= question.model.architecture.num_layers:
                yield Parallel(tensor=tensor, pipeline=pipeline, replicas=replicas)


def best_layout(question: Question, device: DeviceSpec, count: int) -> Estimate:
    """The best way to use ``count`` devices: one that keeps the promise, then the one that serves most.

    Where none can serve, the estimate of the one that comes nearest, whose verdict names the limit.
    """
    candidates = [deployment_for(question, device, parallel) for parallel in layouts(question, device, count)]
    longest = question.workload.longest()
    able = [d for d in candidates if d.is_linked and d.budget.fits and d.sequences(longest)]
    if not able:
        nearest = max(candidates, key=lambda d: d.budget.kv, default=None)
        if nearest is None:
            wanted = (question.tensor or 1) * (question.pipeline or 1) * (question.replicas or 1)
            nearest = deployment_for(
                question,
                device,
                Parallel(question.tensor or 1, question.pipeline or 1, replicas=question.replicas or 1),
            )
            refused = estimate(nearest, question.workload, question.promise, question.price)
            verdict = f"No plan: the layout asks for {wanted} devices and {count} are at hand."
            return replace(refused, fits=False, meets=False, binding="devices", verdict=verdict)
        return estimate(nearest, question.workload, question.promise, question.price)
    able = [d for d in able if not _needless_stages(d, able)]
    able.sort(key=lambda d: _promise(question, d), reverse=True)
    judged = [
        estimate(deployment, question.workload, question.promise, question.price)
        for deployment in able[:CLOSE_CALLS]
    ]
    return max(judged, key=_worth)


def fewest_devices(question: Question, device: DeviceSpec) -> Estimate | None:
    """The plan with the fewest devices that keeps the promise; None where none does.

    Whole replicas are added to each tensor size until the steady state carries the load, and then, simulated,
    until the promise holds.
    """
    best: Estimate | None = None
    for tensor in _tensor_sizes(question, device):
        for pipeline in _pipeline_sizes(question, device):
            if (tensor * pipeline, pipeline) >= (_size(best) if best else (MOST_DEVICES, 0)):
                continue
            if tensor * pipeline > 1 and not can_be_linked(device):
                continue
            found = _fewest_replicas(question, device, tensor, pipeline)
            if found is None:
                continue
            if best is None or _size(found) < _size(best):
                best = found
            break
    return best


def largest_concurrency(deployment: Deployment, workload: Workload, question: Question) -> int:
    """Clients that all replicas serve at once within the promise; 0 where not even one."""
    fit = deployment.sequences(workload.tokens_per_sequence)
    most = min(fit, deployment.options.max_sequences)
    batch = best_batch(deployment, workload, question.promise, max(1, most))
    low, high = 0, max(1, batch)
    # The steady state is the mean; the promise is about a percentile, so the answer may be below it.
    while low < high:
        middle = (low + high + 1) // 2
        trial = replace(workload, concurrency=middle, rate=None, requests=min(300, 100 + middle))
        single = replace(deployment, parallel=replace(deployment.parallel, replicas=1))
        if estimate(single, trial, question.promise).meets:
            low = middle
        else:
            high = middle - 1
    return low * deployment.parallel.replicas


def _needless_stages(deployment: Deployment, able: list[Deployment]) -> bool:
    """Fewer stages fit as well: what is split over more only waits more."""
    mine = deployment.parallel
    return any(
        other.parallel.tensor == mine.tensor and other.parallel.pipeline < mine.pipeline for other in able
    )


def _tensor_sizes(question: Question, device: DeviceSpec) -> list[int]:
    if question.tensor is not None:
        check_tensor_size(question.model, question.tensor)
        return [question.tensor]
    return possible_tensor_sizes(question.model, device, 16)


def _pipeline_sizes(question: Question, device: DeviceSpec) -> list[int]:
    if question.pipeline is not None:
        return [question.pipeline]
    return [1, 2, 4] if can_be_linked(device) else [1]


def _fewest_replicas(question: Question, device: DeviceSpec, tensor: int, pipeline: int) -> Estimate | None:
    single = deployment_for(question, device, Parallel(tensor, pipeline))
    if not single.budget.fits or not single.sequences(question.workload.longest()):
        return None
    replicas = question.replicas or _replicas_needed(single, question)
    for _ in range(4):
        if replicas * single.parallel.devices > MOST_DEVICES:
            return None
        deployment = replace(single, parallel=replace(single.parallel, replicas=replicas))
        found = estimate(deployment, question.workload, question.promise, question.price)
        if found.meets:
            return found
        if question.replicas or (replicas == 1 and _alone_too_slow(single, question)):
            return None
        replicas = math.ceil(replicas * 1.25 + 0.5)
    return None


def _replicas_needed(single: Deployment, question: Question) -> int:
    workload = question.workload
    most = max(1, min(single.sequences(workload.tokens_per_sequence), single.options.max_sequences))
    batch = best_batch(single, workload, question.promise, most)
    if workload.concurrency is not None:
        return math.ceil(workload.concurrency / batch)
    rate = steady_state(single, workload, batch).output_rate / workload.output.mean
    # Random arrivals need room: at nine tenths of what a replica can do, queues are long already.
    return math.ceil((workload.rate or 0.0) / (0.85 * rate))


def _alone_too_slow(single: Deployment, question: Question) -> bool:
    """Not even one client is served within the promise."""
    trial = replace(question.workload, concurrency=1, rate=None, requests=20)
    return not estimate(single, trial, question.promise).meets


def _promise(question: Question, deployment: Deployment) -> tuple[bool, float]:
    """A first judgement without simulation: is the TPOT kept at the load, and how much is served."""
    workload = question.workload
    fit = max(1, min(deployment.sequences(workload.tokens_per_sequence), deployment.options.max_sequences))
    if workload.concurrency is not None:
        fit = min(fit, max(1, math.ceil(workload.concurrency / deployment.parallel.replicas)))
    steady = steady_state(deployment, workload, fit)
    kept = question.promise.tpot is None or steady.tpot <= question.promise.tpot
    return kept, steady.output_rate * deployment.parallel.replicas


def _worth(found: Estimate) -> tuple[bool, bool, float, float]:
    rate = found.output_rate.value if found.output_rate else 0.0
    tpot = found.load.percentile("tpot", 0.5) if found.load else math.inf
    return found.fits, found.meets, round(rate, 3), -tpot


def _size(found: Estimate) -> tuple[int, int]:
    """Fewer devices first; among as many, fewer stages, which answer sooner."""
    return found.deployment.parallel.devices, found.deployment.parallel.pipeline
