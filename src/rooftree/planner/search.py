"""Which way to spread a model over devices, and how many devices it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from rooftree.planner.constants import OWN_ENGINE, choose_constants, load_constants
from rooftree.planner.deployment import (
    PUBLISHED,
    Deployment,
    can_be_linked,
    check_tensor_size,
    possible_expert_sizes,
    possible_tensor_sizes,
    weight_bytes,
)
from rooftree.planner.estimate import Estimate, best_batch, context_refusal, estimate
from rooftree.planner.load import share_of_scheduler, steady_state
from rooftree.planner.question import Question
from rooftree.planner.storage import WIDE_KV, storages
from rooftree.planner.workload import NO_PROMISE, Promise, Workload
from rooftree.roofline.parallel import Parallel
from rooftree.specs.catalogue import THIS_MACHINE
from rooftree.specs.device import DeviceSpec
from rooftree.specs.weight_format import own_cache_dtype

Trial = Callable[[int], Estimate | None]
MOST_DEVICES = 4096
CLOSE_CALLS = 3
"""How many of the most promising layouts are simulated; the others are judged by their steady state."""


def deployment_for(question: Question, device: DeviceSpec, parallel: Parallel) -> Deployment:
    """One layout, with the constants that fit it. Dtypes that the question leaves open are the published."""
    known = load_constants(question.constants_file, question.machine_file)
    weight_dtype = question.weight_dtype or PUBLISHED
    published = question.model.architecture.scheme.linear.name
    measured = published if weight_dtype == PUBLISHED else weight_dtype
    constants = choose_constants(known, device, question.engine, measured)
    is_own = constants.is_own_engine or (question.engine == OWN_ENGINE and THIS_MACHINE in device.aliases)
    own = question.own_options if is_own else None
    kv_dtype = question.kv_dtype or WIDE_KV
    return Deployment(
        model=question.model,
        device=device,
        parallel=parallel,
        weight_dtype=weight_dtype,
        kv_dtype=own_cache_dtype(kv_dtype) if is_own else kv_dtype,
        constants=constants,
        options=own or question.options,
    )


def best_plan(question: Question, device: DeviceSpec, count: int) -> Estimate:
    """The best way to use ``count`` devices, in the dtypes that cost least quality and keep the promise.

    Where none does: the first that fits, else that which comes nearest, whose verdict names the limit.
    """
    best: Estimate | None = None
    for settled in storages(question, device):
        found = best_layout(settled, device, count)
        if found.fits and found.meets:
            return found
        if best is None or (found.fits and not best.fits):
            best = found
    if best is None:
        raise ValueError("a question always has a storage")
    return best


def smallest_plan(question: Question, device: DeviceSpec) -> Estimate | None:
    """The fewest devices that keep the promise, in the dtypes that cost least quality; or None."""
    found = (fewest_devices(settled, device) for settled in storages(question, device))
    return next((estimate for estimate in found if estimate is not None), None)


def layouts(question: Question, device: DeviceSpec, count: int) -> Iterator[Parallel]:
    """Ways to use up to ``count`` devices that the question allows."""
    for shape in shapes(question, device, count):
        replicas = question.replicas or count // shape.devices_per_replica
        if replicas >= 1 and shape.devices_per_replica * replicas <= count:
            yield replace(shape, replicas=replicas)


def shapes(question: Question, device: DeviceSpec, most: int) -> list[Parallel]:
    """Layouts of one replica, small ones first; among as many devices, fewer stages and groups first."""
    tensors = possible_tensor_sizes(question.model, device, most)
    if question.tensor is not None:
        check_tensor_size(question.model, question.tensor)
        tensors = [question.tensor]
    stages = [1, 2, 4] if can_be_linked(device) else [1]
    if question.pipeline is not None:
        stages = [question.pipeline]
    found = []
    for tensor in tensors:
        experts = possible_expert_sizes(question.model, device, tensor, most)
        if question.expert is not None:
            experts = [] if question.expert % tensor and question.expert != 1 else [question.expert]
        for expert in experts:
            found += [Parallel(tensor, pipeline, expert) for pipeline in stages]
    layers = question.model.architecture.num_layers
    return sorted((p for p in found if p.pipeline <= layers), key=_shape_size)


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
            return _layout_too_large(question, device, count)
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

    Whole replicas are added to each shape until the steady state carries the load, and then, simulated, until
    the promise holds.
    """
    best: Estimate | None = None
    roomy: set[tuple[int, int]] = set()
    if context_refusal(question.model, question.workload):
        return None
    for shape in shapes(question, device, MOST_DEVICES):
        if best is not None and _size(best.deployment.parallel) <= _size(shape):
            continue
        if _cannot_hold(question, device, shape):
            continue
        if shape.devices_per_replica > 1 and not can_be_linked(device):
            continue
        kind = (shape.tensor, shape.expert)
        if kind in roomy:
            continue
        if _is_roomy(question, device, shape):
            roomy.add(kind)
        known = best.deployment.parallel.devices if best else None
        best = _fewest_replicas(question, device, shape, known) or best
    return best


def largest_concurrency(deployment: Deployment, workload: Workload, question: Question) -> int:
    """Clients that all replicas serve at once within the promise; 0 where not even one."""
    fit = deployment.sequences(workload.tokens_per_sequence)
    schedulers = deployment.parallel.schedulers
    low, high = 0, max(1, min(fit, deployment.options.max_sequences))
    while low < high:
        middle = (low + high + 1) // 2
        load = middle * schedulers
        trial = replace(workload, concurrency=load, rate=None, requests=min(300, 100 + middle))
        if estimate(deployment, trial, question.promise).meets:
            low = middle
        else:
            high = middle - 1
    return low * schedulers


def devices_needed(question: Question, device: DeviceSpec) -> int | None:
    """Devices of the shape that needs fewest in the steady state, however many; None where none serves."""
    needed = []
    for shape in shapes(question, device, MOST_DEVICES):
        if _cannot_hold(question, device, shape):
            continue
        single = deployment_for(question, device, shape)
        if _can_serve(single, question):
            replicas = _replicas_needed(single, question, question.promise)
            needed.append(replicas * shape.devices_per_replica)
    return min(needed, default=None)


def _layout_too_large(question: Question, device: DeviceSpec, count: int) -> Estimate:
    """The refusal of a layout that the user fixed and that takes more devices than there are."""
    tensor = question.tensor or 1
    expert = question.expert or 1
    asked = Parallel(
        tensor, question.pipeline or 1, expert if expert % tensor == 0 else 1, question.replicas or 1
    )
    refused = estimate(
        deployment_for(question, device, asked), question.workload, question.promise, question.price
    )
    verdict = (
        f"The binding limit is the number of devices: the layout asks for {asked.devices:,} and {count:,} "
        "are at hand."
    )
    return replace(refused, fits=False, meets=False, binding="devices", verdict=verdict)


def _needless_stages(deployment: Deployment, able: list[Deployment]) -> bool:
    """Fewer stages fit as well: what is split over more only waits more."""
    mine = deployment.parallel
    return any(
        (other.parallel.tensor, other.parallel.expert) == (mine.tensor, mine.expert)
        and other.parallel.pipeline < mine.pipeline
        for other in able
    )


def _cannot_hold(question: Question, device: DeviceSpec, shape: Parallel) -> bool:
    """The weights alone are more than all devices of a replica can hold: no closer look is needed."""
    weights = weight_bytes(question.model, question.weight_dtype or PUBLISHED)
    usable = device.total_memory_bytes * question.options.usable_fraction
    return weights > usable * shape.devices_per_replica


def _is_roomy(question: Question, device: DeviceSpec, shape: Parallel) -> bool:
    """Its memory holds all sequences that the server runs at once: more stages would bring nothing."""
    single = deployment_for(question, device, shape)
    fit = single.sequences(question.workload.tokens_per_sequence) if single.budget.fits else 0
    return fit >= single.options.max_sequences


def _can_serve(single: Deployment, question: Question) -> bool:
    return single.is_linked and single.budget.fits and single.sequences(question.workload.longest()) > 0


def _fewest_replicas(
    question: Question, device: DeviceSpec, shape: Parallel, known: int | None
) -> Estimate | None:
    """As many replicas of a shape as keep the promise, on fewer devices than the ``known`` that do."""
    single = deployment_for(question, device, shape)
    if not _can_serve(single, question):
        return None

    def tried(replicas: int) -> Estimate | None:
        """The estimate of so many, where it keeps the promise."""
        deployment = replace(single, parallel=replace(shape, replicas=replicas))
        found = estimate(deployment, question.workload, question.promise, question.price)
        return found if found.meets else None

    most = (known - 1 if known else MOST_DEVICES) // shape.devices_per_replica
    if question.replicas is not None:
        return tried(question.replicas) if question.replicas <= most else None
    fewest = _replicas_needed(single, question, NO_PROMISE)
    if fewest > most:
        return None
    if known:
        # Fewer devices than are known to do are enough, or no closer look is needed.
        enough, found = most, tried(most)
    else:
        enough, found = fewest, tried(fewest)
        if found is None and not _never(single, question, fewest):
            wanted = max(fewest + 1, _replicas_needed(single, question, question.promise))
            enough, found = _enough_replicas(tried, wanted, most)
    return _reduced(tried, fewest - 1, enough, found)


def _enough_replicas(tried: Trial, wanted: int, most: int) -> tuple[int, Estimate | None]:
    """From what the steady state wants upwards: that is a mean, and the promise is about a percentile."""
    for _ in range(4):
        enough = min(wanted, most)
        found = tried(enough)
        if found is not None or enough == most:
            break
        wanted = math.ceil(enough * 1.25 + 0.5)
    return enough, found


def _reduced(tried: Trial, too_few: int, enough: int, found: Estimate | None) -> Estimate | None:
    """The smallest number between one that fails and one that does, which ``found`` is of."""
    while found is not None and enough - too_few > 1:
        middle = (too_few + enough) // 2
        better = tried(middle)
        too_few, enough = (too_few, middle) if better else (middle, enough)
        found = better or found
    return found


def _never(single: Deployment, question: Question, replicas: int) -> bool:
    """More replicas keep the promise no better: not even one client alone is served within it, or each has
    one already."""
    mine = share_of_scheduler(question.workload, single.parallel.groups * replicas)
    if mine.concurrency == 1:
        return True
    alone = replace(question.workload, concurrency=1, rate=None, requests=20)
    return not estimate(single, alone, question.promise).meets


def _replicas_needed(single: Deployment, question: Question, promise: Promise) -> int:
    """By the steady state: replicas that keep all clients running, or the arrivals answered."""
    workload, groups = question.workload, single.parallel.groups
    most = max(1, min(single.sequences(workload.tokens_per_sequence), single.options.max_sequences))
    batch = best_batch(single, workload, promise, most)
    if workload.concurrency is not None:
        return math.ceil(workload.concurrency / (batch * groups))
    rate = steady_state(single, workload, batch).output_rate / workload.output.mean * groups
    # Random arrivals need room: at nine tenths of what a replica can do, queues are long already.
    return math.ceil((workload.rate or 0.0) / (0.85 * rate))


def _promise(question: Question, deployment: Deployment) -> tuple[bool, float]:
    """A first judgement without simulation: is the TPOT kept at the load, and how much is served."""
    workload, schedulers = question.workload, deployment.parallel.schedulers
    fit = max(1, min(deployment.sequences(workload.tokens_per_sequence), deployment.options.max_sequences))
    if workload.concurrency is not None:
        fit = min(fit, max(1, math.ceil(workload.concurrency / schedulers)))
    steady = steady_state(deployment, workload, fit)
    kept = question.promise.tpot is None or steady.tpot <= question.promise.tpot
    busy = schedulers if workload.concurrency is None else min(schedulers, workload.concurrency)
    return kept, steady.output_rate * busy


def _worth(found: Estimate) -> tuple[bool, bool, float, float]:
    rate = found.output_rate.value if found.output_rate else 0.0
    tpot = found.load.percentile("tpot", 0.5) if found.load else math.inf
    return found.fits, found.meets, round(rate, 3), -tpot


def _size(parallel: Parallel) -> tuple[int, int]:
    """Fewer devices first; among as many, fewer stages, which answer sooner."""
    return parallel.devices, parallel.pipeline


def _shape_size(shape: Parallel) -> tuple[int, int, int]:
    return shape.devices_per_replica, shape.pipeline, shape.groups
