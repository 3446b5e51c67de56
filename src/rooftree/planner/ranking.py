"""All devices for one workload, best first."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rooftree.planner.deployment import possible_tensor_sizes
from rooftree.planner.estimate import Estimate, estimate
from rooftree.planner.question import Question
from rooftree.planner.search import deployment_for, fewest_devices
from rooftree.roofline.parallel import Parallel
from rooftree.specs.device import DeviceSpec


@dataclass(frozen=True, slots=True)
class RankedDevice:
    """The smallest plan on one device, or why there is none.

    ``hourly``: price of all its devices; None where the price is not known.
    """

    device: DeviceSpec
    found: Estimate | None
    hourly: float | None
    reason: str = ""


def rank(question: Question) -> list[RankedDevice]:
    """Plans first: cheapest where all prices are known, else by devices, then by watts; then the others."""
    rows = [_row(question, device) for device in question.devices]
    priced = all(row.hourly is not None for row in rows if row.found)

    def key(row: RankedDevice) -> tuple[bool, float, float, float, str]:
        if row.found is None:
            return True, 0.0, 0.0, 0.0, row.device.name
        watts = row.found.power_watts.value if row.found.power_watts else float("inf")
        devices = float(row.found.deployment.parallel.devices)
        cost = row.hourly if priced and row.hourly is not None else 0.0
        return False, cost, devices, watts, row.device.name

    return sorted(rows, key=key)


def _row(question: Question, device: DeviceSpec) -> RankedDevice:
    found = fewest_devices(question, device)
    if found is None:
        return RankedDevice(device, None, None, _reason(question, device))
    price = device.price_per_hour
    hourly = price * found.deployment.parallel.devices if price is not None else None
    return RankedDevice(device, found, hourly)


def _reason(question: Question, device: DeviceSpec) -> str:
    """The verdict of the largest replica that the device allows."""
    sizes = possible_tensor_sizes(question.model, device, 16) or [1]
    deployment = deployment_for(question, device, Parallel(tensor=question.tensor or sizes[-1]))
    alone = replace(question.workload, concurrency=1, rate=None, requests=10)
    verdict = estimate(deployment, alone, question.promise).verdict
    return verdict if not verdict.startswith("Fits") else "No plan within 4,096 devices keeps the promise."
