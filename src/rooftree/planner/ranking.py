"""All devices for one workload, best first."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rooftree.planner.estimate import Estimate, estimate
from rooftree.planner.question import Question
from rooftree.planner.search import MOST_DEVICES, deployment_for, devices_needed, shapes, smallest_plan
from rooftree.planner.storage import storages
from rooftree.specs.device import DeviceSpec


@dataclass(frozen=True, slots=True)
class RankedDevice:
    """The smallest plan on one device, or why there is none.

    Attributes:
        hourly: price of all its devices; None where the price is not known.
        reason: the verdict of the largest replica in the smallest dtypes; ``binding``: the limit in it.
    """

    device: DeviceSpec
    found: Estimate | None
    hourly: float | None
    reason: str = ""
    binding: str = ""


def rank(question: Question) -> list[RankedDevice]:
    """Plans first: those of known price, cheapest first, then by devices and watts; then the others."""
    return sorted((_row(question, device) for device in question.devices), key=_order)


def _order(row: RankedDevice) -> tuple[bool, float, float, float, str]:
    if row.found is None:
        return True, 0.0, 0.0, 0.0, row.device.name
    watts = row.found.power_watts.value if row.found.power_watts else math.inf
    cost = row.hourly if row.hourly is not None else math.inf
    return False, cost, float(row.found.deployment.parallel.devices), watts, row.device.name


def _row(question: Question, device: DeviceSpec) -> RankedDevice:
    found = smallest_plan(question, device)
    if found is None:
        reason, binding = _reason(question, device)
        return RankedDevice(device, None, None, reason, binding)
    # A price for the device asked about says nothing about others.
    meant = question.device is None or question.device.name == device.name
    price = question.price if device.price_per_hour is None and meant else device.price_per_hour
    hourly = price * found.deployment.parallel.devices if price is not None else None
    return RankedDevice(device, found, hourly)


def _reason(question: Question, device: DeviceSpec) -> tuple[str, str]:
    """Why no number of devices serves, in the smallest dtypes that the question allows; and the limit."""
    smallest = list(storages(question, device))[-1]
    largest = shapes(smallest, device, MOST_DEVICES)[-1:]
    if not largest:
        return "The binding limit is the number of devices that one replica can take.", "devices"
    deployment = deployment_for(smallest, device, largest[0])
    alone = replace(question.workload, concurrency=1, rate=None, requests=10)
    found = estimate(deployment, alone, question.promise)
    if not found.meets:
        return found.verdict, found.binding
    needed = devices_needed(smallest, device)
    reason = "The binding limit is the number of devices. "
    if needed is not None and needed > MOST_DEVICES:
        return (
            f"{reason}About {needed:,} are needed; {MOST_DEVICES:,} are the most that is planned.",
            "devices",
        )
    return f"{reason}No number that was tried keeps the promise at its percentile.", "devices"
