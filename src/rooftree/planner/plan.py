"""The planner's answer: the plan, what it stands on, and what would change it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

from rooftree.planner.estimate import Estimate, context_refusal, estimate
from rooftree.planner.moves import Move, moves
from rooftree.planner.question import Question
from rooftree.planner.ranking import RankedDevice, rank
from rooftree.planner.search import (
    best_layout,
    best_plan,
    fewest_devices,
    largest_concurrency,
    smallest_plan,
)
from rooftree.planner.storage import change_words, price_words, storages
from rooftree.planner.workload import Workload
from rooftree.specs.device import DeviceSpec

DEVICES_TRIED = 8
"""Devices of the layout that is shown where no number of devices keeps the promise."""
MOST_HEADROOM = 1024


@dataclass(frozen=True, slots=True)
class Answers:
    """The inverse questions. None: not asked, or no answer exists.

    Attributes:
        fewest_devices: that keep the promise on this device.
        largest_concurrency: clients that the plan serves within the promise.
        headroom: how many times the workload the plan carries within the promise.
        peak: the plan under ``peak_factor`` times the load; ``peak_devices`` those that a peak needs.
        without_one: the plan after the loss of one replica.
        best_device: the device that leads the ranking.
    """

    fewest_devices: int | None = None
    largest_concurrency: int | None = None
    headroom: float | None = None
    peak: Estimate | None = None
    peak_devices: int | None = None
    without_one: Estimate | None = None
    best_device: str | None = None


@dataclass(frozen=True, slots=True)
class StorageOption:
    """Dtypes that the question allows, and the fewest devices that keep the promise in them.

    ``smallest`` None: no number of devices does. ``price``: what they cost in quality against the published
    dtypes; empty where nothing is changed.
    """

    weight_dtype: str
    kv_dtype: str
    price: str
    smallest: Estimate | None


@dataclass(frozen=True, slots=True)
class Plan:
    """``chosen`` None: nothing serves, on any device or at that length; ``binding`` names the limit then."""

    question: Question
    chosen: Estimate | None
    verdict: str
    binding: str
    ranking: tuple[RankedDevice, ...] = ()
    moves: tuple[Move, ...] = ()
    answers: Answers = Answers()
    options: tuple[StorageOption, ...] = ()


def make_plan(question: Question, *, with_ranking: bool = True) -> Plan:
    """Answer everything about a question. Never raises for a question that has no plan."""
    too_long = context_refusal(question.model, question.workload)
    if too_long:
        return Plan(question, None, _no_plan(too_long), "context")
    ranking = tuple(rank(question)) if with_ranking and question.devices else ()
    chosen = _choose(question, ranking)
    if chosen is None:
        return Plan(question, None, *_nobody(ranking), ranking)
    options = _options(question, chosen.deployment.device)
    if not chosen.fits:
        answers = Answers(fewest_devices=_fewest(question, chosen), best_device=_first(ranking))
        return Plan(
            question, chosen, _verdict(question, chosen), chosen.binding, ranking, (), answers, options
        )
    return Plan(
        question=question,
        chosen=chosen,
        verdict=_verdict(question, chosen),
        binding=chosen.binding,
        ranking=ranking,
        moves=tuple(moves(chosen, _next_device(chosen, ranking))),
        answers=_answers(question, chosen, ranking),
        options=options,
    )


def scaled(workload: Workload, factor: float) -> Workload:
    """So many times the load."""
    if workload.concurrency is not None:
        return replace(workload, concurrency=max(1, math.ceil(workload.concurrency * factor)))
    return replace(workload, rate=(workload.rate or 0.0) * factor)


def _verdict(question: Question, chosen: Estimate) -> str:
    """The sentence on top: what holds, what was changed for it without being asked, or what binds."""
    changed = change_words(chosen.deployment)
    stated = question.weight_dtype is not None and question.kv_dtype is not None
    if not (chosen.fits and chosen.meets):
        tail = f" That is with {changed}." if changed else " Smaller dtypes do not change that."
        return _no_plan(chosen.verdict) + ("" if stated else tail)
    if not changed or stated:
        return chosen.verdict
    return f"{chosen.verdict} Not as published, but with {changed}."


def _no_plan(verdict: str) -> str:
    return f"No plan fits: {verdict[0].lower()}{verdict[1:]}"


def _nobody(ranking: tuple[RankedDevice, ...]) -> tuple[str, str]:
    """Verdict and limit where no device serves: those of the device that comes nearest."""
    last = {"memory": 3, "interconnect": 2, "kv_capacity": 1}
    nearest = min(
        ranking, key=lambda row: (last.get(row.binding, 0), -row.device.total_memory_bytes), default=None
    )
    if nearest is None:
        return "No plan fits: no device was named, and there is none to rank.", "devices"
    counts = Counter(row.binding for row in ranking).most_common()
    shares = ", ".join(f"{limit} binds {number}" for limit, number in counts)
    verdict = f"{_no_plan(nearest.reason)} That is {nearest.device.name}, which comes nearest; of all "
    return f"{verdict}{len(ranking)} devices {shares}.", nearest.binding


def _choose(question: Question, ranking: tuple[RankedDevice, ...]) -> Estimate | None:
    device = question.device
    if device is None:
        first = next((row.found for row in ranking if row.found), None)
        if first is None:
            return None
        settled, parallel = _settled(question, first), first.deployment.parallel
        return best_layout(settled, first.deployment.device, question.count or parallel.devices)
    if question.count is not None:
        return best_plan(question, device, question.count)
    return smallest_plan(question, device) or best_plan(question, device, DEVICES_TRIED)


def _settled(question: Question, found: Estimate) -> Question:
    """The question in the dtypes of a plan."""
    deployment = found.deployment
    return replace(question, weight_dtype=deployment.weight_dtype, kv_dtype=deployment.kv_dtype)


def _options(question: Question, device: DeviceSpec) -> tuple[StorageOption, ...]:
    """Every storage that the question allows, where it leaves a choice."""
    if question.weight_dtype is not None and question.kv_dtype is not None:
        return ()
    found = []
    for settled in storages(question, device):
        smallest = fewest_devices(settled, device)
        price = price_words(smallest.deployment) if smallest else ""
        found.append(StorageOption(settled.weight_dtype or "", settled.kv_dtype or "", price, smallest))
    return tuple(found)


def _next_device(chosen: Estimate, ranking: tuple[RankedDevice, ...]) -> DeviceSpec | None:
    """The device with the least more bandwidth than the chosen one and no less arithmetic, of the same maker
    where there is one."""
    have = chosen.deployment.device
    most = max(have.peak_flops.values())
    faster = [
        row.device
        for row in ranking
        if row.device.bandwidth > have.bandwidth * 1.05 and max(row.device.peak_flops.values()) > most * 0.95
    ]
    same = [device for device in faster if device.name.split()[0] == have.name.split()[0]]
    return min(same or faster, key=lambda device: device.bandwidth, default=None)


def _fewest(question: Question, chosen: Estimate) -> int | None:
    found = fewest_devices(_settled(question, chosen), chosen.deployment.device)
    return found.deployment.parallel.devices if found else None


def _answers(question: Question, chosen: Estimate, ranking: tuple[RankedDevice, ...]) -> Answers:
    deployment, workload = chosen.deployment, question.workload
    settled = _settled(question, chosen)
    largest = largest_concurrency(deployment, workload, settled)
    peak = peak_devices = without_one = None
    if question.peak_factor > 1:
        at_peak = scaled(workload, question.peak_factor)
        peak = estimate(deployment, at_peak, question.promise, question.price)
        needed = fewest_devices(replace(settled, workload=at_peak), deployment.device)
        peak_devices = needed.deployment.parallel.devices if needed else None
    if deployment.parallel.replicas > 1:
        fewer = replace(deployment.parallel, replicas=deployment.parallel.replicas - 1)
        without_one = estimate(
            replace(deployment, parallel=fewer), workload, question.promise, question.price
        )
    return Answers(
        fewest_devices=_fewest(question, chosen),
        largest_concurrency=largest,
        headroom=_headroom(settled, chosen, largest),
        peak=peak,
        peak_devices=peak_devices,
        without_one=without_one,
        best_device=_first(ranking),
    )


def _headroom(question: Question, chosen: Estimate, largest: int) -> float:
    """How many times the load is carried within the promise: of arrivals, by trying larger ones."""
    workload = question.workload
    if workload.concurrency is not None:
        return largest / workload.concurrency
    carried, too_much = (1.0, 2.0) if chosen.meets else (0.0, 1.0)
    while chosen.meets and too_much < MOST_HEADROOM and _carries(question, chosen, too_much):
        carried, too_much = too_much, too_much * 2
    for _ in range(6):
        middle = (carried + too_much) / 2
        carried, too_much = (middle, too_much) if _carries(question, chosen, middle) else (carried, middle)
    return carried


def _carries(question: Question, chosen: Estimate, factor: float) -> bool:
    load = scaled(question.workload, factor)
    return estimate(chosen.deployment, load, question.promise).meets


def _first(ranking: tuple[RankedDevice, ...]) -> str | None:
    return next((row.device.name for row in ranking if row.found), None)
