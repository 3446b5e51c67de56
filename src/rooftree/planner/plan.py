"""The planner's answer: the plan, what it stands on, and what would change it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rooftree.planner.estimate import Estimate, estimate
from rooftree.planner.moves import Move, moves
from rooftree.planner.question import Question
from rooftree.planner.ranking import RankedDevice, rank
from rooftree.planner.search import best_layout, fewest_devices, largest_concurrency
from rooftree.planner.workload import Workload
from rooftree.specs.device import DeviceSpec


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
class Plan:
    """``chosen`` None: no device was named and none can serve."""

    question: Question
    chosen: Estimate | None
    verdict: str
    ranking: tuple[RankedDevice, ...]
    moves: tuple[Move, ...]
    answers: Answers


def make_plan(question: Question, *, with_ranking: bool = True) -> Plan:
    """Answer everything about a question. Never raises for a question that has no plan."""
    ranking = tuple(rank(question)) if with_ranking and question.devices else ()
    chosen = _choose(question, ranking)
    if chosen is None:
        verdict = "No plan fits: no device of the catalogue carries this workload; see the reasons below."
        return Plan(question, None, verdict, ranking, (), Answers())
    verdict = chosen.verdict if chosen.fits and chosen.meets else f"No plan fits. {chosen.verdict}"
    if not chosen.fits:
        return Plan(question, chosen, verdict, ranking, (), _answers_unfit(question, chosen, ranking))
    after = _next_device(question, chosen, ranking)
    return Plan(
        question=question,
        chosen=chosen,
        verdict=verdict,
        ranking=ranking,
        moves=tuple(moves(chosen, after)),
        answers=_answers(question, chosen, ranking),
    )


def scaled(workload: Workload, factor: float) -> Workload:
    """So many times the load."""
    if workload.concurrency is not None:
        return replace(workload, concurrency=max(1, math.ceil(workload.concurrency * factor)))
    return replace(workload, rate=(workload.rate or 0.0) * factor)


def _choose(question: Question, ranking: tuple[RankedDevice, ...]) -> Estimate | None:
    device = question.device
    if device is None:
        first = next((row for row in ranking if row.found), None)
        return best_layout(question, first.device, _count(first)) if first else None
    if question.count is not None:
        return best_layout(question, device, question.count)
    found = fewest_devices(question, device)
    return found or best_layout(question, device, 8)


def _count(row: RankedDevice) -> int:
    return row.found.deployment.parallel.devices if row.found else 1


def _next_device(
    question: Question, chosen: Estimate, ranking: tuple[RankedDevice, ...]
) -> DeviceSpec | None:
    """The device with the least more bandwidth than the chosen one."""
    have = chosen.deployment.device
    faster = [row.device for row in ranking if row.device.bandwidth > have.bandwidth * 1.05]
    return min(faster, key=lambda device: device.bandwidth, default=None)


def _answers_unfit(question: Question, chosen: Estimate, ranking: tuple[RankedDevice, ...]) -> Answers:
    found = fewest_devices(question, chosen.deployment.device)
    return Answers(
        fewest_devices=found.deployment.parallel.devices if found else None, best_device=_first(ranking)
    )


def _answers(question: Question, chosen: Estimate, ranking: tuple[RankedDevice, ...]) -> Answers:
    deployment, workload = chosen.deployment, question.workload
    fewest = fewest_devices(question, deployment.device)
    largest = largest_concurrency(deployment, workload, question)
    peak = peak_devices = without_one = None
    if question.peak_factor > 1:
        at_peak = scaled(workload, question.peak_factor)
        peak = estimate(deployment, at_peak, question.promise, question.price)
        needed = fewest_devices(replace(question, workload=at_peak), deployment.device)
        peak_devices = needed.deployment.parallel.devices if needed else None
    if deployment.parallel.replicas > 1:
        fewer = replace(deployment.parallel, replicas=deployment.parallel.replicas - 1)
        without_one = estimate(
            replace(deployment, parallel=fewer), workload, question.promise, question.price
        )
    return Answers(
        fewest_devices=fewest.deployment.parallel.devices if fewest else None,
        largest_concurrency=largest,
        headroom=_headroom(chosen, workload, largest),
        peak=peak,
        peak_devices=peak_devices,
        without_one=without_one,
        best_device=_first(ranking),
    )


def _headroom(chosen: Estimate, workload: Workload, largest: int) -> float:
    """Largest load over the stated one; an open load is turned into clients by Little's law."""
    if workload.concurrency is not None:
        return largest / workload.concurrency
    seconds = chosen.load.percentile("latency", 0.5) if chosen.load else 1.0
    return largest / max((workload.rate or 0.0) * seconds, 1e-9)


def _first(ranking: tuple[RankedDevice, ...]) -> str | None:
    return next((row.device.name for row in ranking if row.found), None)
