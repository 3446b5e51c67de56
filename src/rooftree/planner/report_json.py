"""The plan as JSON: a stable, documented schema (docs/planner.md). Keys are only ever added."""

from __future__ import annotations

from typing import Any

from rooftree.planner.deployment import Deployment
from rooftree.planner.estimate import Estimate, OperatingPoint, batch_curve
from rooftree.planner.figure import Figure, rounded
from rooftree.planner.load import SteadyState, share_by_limit
from rooftree.planner.moves import published_dtype
from rooftree.planner.plan import Answers, Plan, StorageOption
from rooftree.planner.ranking import RankedDevice
from rooftree.planner.storage import changes
from rooftree.planner.workload import Promise, Workload
from rooftree.roofline.time import StepTime

SCHEMA = "rooftree-plan/1"


def plan_json(plan: Plan) -> dict[str, Any]:
    """Everything about a plan; numbers have six digits."""
    question, chosen = plan.question, plan.chosen
    model = question.model.architecture
    return {
        "schema": SCHEMA,
        "verdict": plan.verdict,
        "fits": bool(chosen and chosen.fits),
        "meets_promise": bool(chosen and chosen.fits and chosen.meets),
        "binding": plan.binding,
        "model": {
            "name": question.model.name,
            "architecture": model.name,
            "parameters": model.num_parameters,
            "parameters_active": model.num_parameters_active,
            "layers": model.num_layers,
            "context": model.max_positions,
            "notes": list(model.notes),
        },
        "workload": workload_json(question.workload),
        "promise": promise_json(question.promise),
        "plan": estimate_json(chosen) if chosen else None,
        "moves": [
            {
                "change": move.change,
                "tpot_factor": rounded(move.tpot),
                "throughput_per_device_factor": rounded(move.rate_per_device),
                "sequences_per_device_factor": rounded(move.sequences),
                "note": move.note,
            }
            for move in plan.moves
        ],
        "answers": answers_json(plan.answers),
        "options": [option_json(option) for option in plan.options],
        "ranking": [ranked_json(row) for row in plan.ranking],
    }


def workload_json(workload: Workload) -> dict[str, Any]:
    """What was asked of the server, random numbers included."""
    return {
        "input": workload.input.describe(),
        "output": workload.output.describe(),
        "arrivals": "closed loop" if workload.concurrency is not None else "Poisson",
        "concurrency": workload.concurrency,
        "rate_per_second": workload.rate,
        "prefix_share": workload.prefix_share,
        "seed": workload.seed,
    }


def promise_json(promise: Promise) -> dict[str, Any]:
    """Seconds, at a percentile."""
    return {"ttft_s": promise.ttft, "tpot_s": promise.tpot, "percentile": promise.percentile}


def estimate_json(found: Estimate) -> dict[str, Any]:
    """One deployment under the workload."""
    result: dict[str, Any] = {
        "verdict": found.verdict,
        "fits": found.fits,
        "meets_promise": found.meets,
        "binding": found.binding,
        **deployment_json(found.deployment),
        "memory": memory_json(found.deployment),
    }
    if not found.fits or found.load is None or found.steady is None:
        return result
    groups = found.deployment.parallel.groups
    return {
        **result,
        "sequences_at_once": {
            "per_replica_mean_length": found.sequences * groups,
            "per_replica_longest": found.sequences_longest * groups,
            "kv_bytes_per_sequence_per_device": found.kv_bytes_per_sequence,
        },
        "batch": {
            "mean": rounded(found.load.mean_batch),
            "peak": rounded(found.load.peak_batch),
            "best": found.best_batch,
        },
        "ttft": {name: figure.as_json() for name, figure in (found.ttft or {}).items()},
        "tpot": {name: figure.as_json() for name, figure in (found.tpot or {}).items()},
        "throughput": {
            "output_tokens": _figure(found.output_rate),
            "requests": _figure(found.request_rate),
        },
        "utilisation": utilisation_json(found.steady),
        "power": _figure(found.power_watts),
        "cost": _figure(found.cost_per_million),
        "decode_step": _point(found.decode),
        "prefill_step": _point(found.prefill),
        "batch_curve": [
            {
                "batch": state.batch,
                "tpot_s": rounded(state.tpot),
                "output_tokens_per_s": rounded(state.output_rate),
                "binding": state.time.binding,
            }
            for state in batch_curve(found.deployment, found.workload, found.sequences)
        ],
    }


def deployment_json(deployment: Deployment) -> dict[str, Any]:
    """Devices, layout, storage, and the constants behind the figures."""
    parallel = deployment.parallel
    return {
        "device": deployment.device.name,
        "devices": parallel.devices,
        "tensor_parallel": parallel.tensor,
        "pipeline_parallel": parallel.pipeline,
        "expert_parallel": parallel.expert,
        "attention_groups": parallel.groups,
        "replicas": parallel.replicas,
        "weight_dtype": published_dtype(deployment),
        "kv_dtype": deployment.kv_dtype,
        "changes": [
            {"what": found.what, "before": found.before, "after": found.after, "quality": found.quality}
            for found in changes(deployment)
        ],
        "step_model": {
            "stack": deployment.constants.stack or "general",
            "origin": deployment.constants.origin,
            "points": deployment.constants.points,
        },
    }


def memory_json(deployment: Deployment) -> dict[str, Any]:
    """Bytes on the device that holds most."""
    budget = deployment.budget
    return {
        "unit": "bytes per device",
        "total": budget.total,
        "usable": budget.usable,
        "weights": budget.weights,
        "activations": budget.activations,
        "runtime": budget.runtime,
        "kv": budget.kv,
        "kv_bytes_per_token": rounded(deployment.kv_bytes_per_token),
        "kv_tokens_per_replica": max(0, int((deployment.kv_tokens or 0) * deployment.parallel.groups)),
    }


def utilisation_json(steady: SteadyState) -> dict[str, Any]:
    """Of the mean step: share of time under each limit, and of the published rates."""
    return {
        "batch": steady.batch,
        "prefill_tokens_per_step": rounded(steady.prefill_tokens),
        "share_of_time": {name: rounded(share) for name, share in share_by_limit(steady.time).items()},
        "bandwidth_fraction": rounded(steady.time.bandwidth_fraction),
        "arithmetic_fraction": rounded(steady.time.arithmetic_fraction),
        "pipeline_idle": rounded(steady.time.pipeline_idle),
    }


def answers_json(answers: Answers) -> dict[str, Any]:
    """The inverse questions."""
    return {
        "fewest_devices": answers.fewest_devices,
        "largest_concurrency": answers.largest_concurrency,
        "headroom_factor": rounded(answers.headroom) if answers.headroom is not None else None,
        "at_peak": _outcome(answers.peak),
        "devices_for_peak": answers.peak_devices,
        "without_one_replica": _outcome(answers.without_one),
        "best_device": answers.best_device,
    }


def option_json(option: StorageOption) -> dict[str, Any]:
    """Dtypes that the question left open, and what they need; ``devices`` null: no number is enough."""
    found = option.smallest
    return {
        "weight_dtype": option.weight_dtype,
        "kv_dtype": option.kv_dtype,
        "quality": option.price,
        "devices": found.deployment.parallel.devices if found else None,
    }


def ranked_json(row: RankedDevice) -> dict[str, Any]:
    """One line of the ranking."""
    found = row.found
    if found is None or found.tpot is None or found.ttft is None:
        return {
            "device": row.device.name,
            "fits": False,
            "binding": row.binding,
            "reason": row.reason,
        }
    parallel = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "replicas")
    layout = ("devices", *parallel, "weight_dtype", "kv_dtype")
    return {
        "device": row.device.name,
        "fits": True,
        **{name: value for name, value in deployment_json(found.deployment).items() if name in layout},
        "ttft_p50_s": rounded(found.ttft["p50"].value),
        "tpot_p50_s": rounded(found.tpot["p50"].value),
        "output_tokens": _figure(found.output_rate),
        "power": _figure(found.power_watts),
        "price_per_hour": row.hourly,
        "origin": found.deployment.constants.origin,
    }


def waterfall(time: StepTime) -> list[dict[str, Any]]:
    """A step's parts, the longest first.

    What one part takes in several storage formats is one entry, with the limit of the longest of them.
    """
    merged: dict[str, tuple[float, str]] = {}
    for part in sorted(time.parts, key=lambda part: -part.seconds):
        seconds, limit = merged.get(part.name, (0.0, part.limit))
        merged[part.name] = (seconds + part.seconds, limit)
    return [
        {"part": name, "seconds": rounded(seconds), "limit": limit}
        for name, (seconds, limit) in sorted(merged.items(), key=lambda item: -item[1][0])
        if seconds > 1e-6
    ]


def _point(point: OperatingPoint | None) -> dict[str, Any] | None:
    if point is None:
        return None
    return {
        "label": point.label,
        "seconds": rounded(point.time.seconds),
        "binding": point.time.binding,
        "flop": rounded(point.work.flop),
        "bytes": rounded(point.work.bytes),
        "flop_by_kind": {name: rounded(value) for name, value in point.work.flop_by_kind().items()},
        "bytes_by_kind": {name: rounded(value) for name, value in point.work.bytes_by_kind().items()},
        "intensity_flop_per_byte": rounded(point.work.intensity),
        "waterfall": waterfall(point.time),
    }


def _outcome(found: Estimate | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"meets_promise": found.fits and found.meets, "binding": found.binding, "verdict": found.verdict}


def _figure(figure: Figure | None) -> dict[str, Any] | None:
    return figure.as_json() if figure is not None else None
