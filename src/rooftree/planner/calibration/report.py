"""The error tables of a validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from rooftree.planner.calibration.validate import Prediction, Split, Summary, Validation, summarise
from rooftree.planner.figure import rounded

SCHEMA = "rooftree-validation/1"
KINDS = ("tpot", "ttft", "throughput", "prefill")
SPLITS: tuple[Split, ...] = ("calibrated", "unseen")

GROUPS: dict[str, Callable[[Prediction], str]] = {
    "all": lambda prediction: "all",
    "load": lambda p: "one batch" if p.point.protocol == "batch" else "server under load",
    "device": lambda prediction: prediction.stack.split(" / ")[0],
    "engine": lambda prediction: prediction.point.engine,
    "model": lambda prediction: prediction.point.model,
    "stack": lambda prediction: prediction.stack,
}


def validation_json(result: Validation) -> dict[str, Any]:
    """Every table and every prediction."""
    return {
        "schema": SCHEMA,
        "summary": {split: {kind: _summary_json(result, split, kind) for kind in KINDS} for split in SPLITS},
        "groups": {
            split: {
                kind: {
                    name: [_rounded(row) for row in summarise(result.select(split, kind), group)]
                    for name, group in GROUPS.items()
                    if name != "all"
                }
                for kind in KINDS
            }
            for split in SPLITS
        },
        "memory": {
            "loads_that_ran": result.memory_points,
            "refused": [point.id for point in result.memory_refused],
        },
        "impossible": [
            {
                "id": item.point.id,
                "metric": item.point.metric,
                "measured_s": rounded(item.point.seconds),
                "fastest_possible_s": rounded(item.fastest),
            }
            for item in result.impossible
        ],
        "unusable": [asdict(item) for item in result.unusable],
        "predictions": [_prediction_json(prediction) for prediction in result.predictions],
    }


def print_validation(result: Validation, console: Console) -> None:
    """Tables for people: overall, then by load, device, engine and model."""
    table = _headed("All points, each predicted by constants that never saw it", "split and figure")
    for split in SPLITS:
        for kind in KINDS:
            for row in summarise(result.select(split, kind), GROUPS["all"]):
                _add(table, f"{split} {kind}", row)
    console.print(table, "")
    for name in ("load", "device", "engine", "model"):
        for split in SPLITS:
            table = _headed(f"TPOT by {name}, {split}", name)
            for row in summarise(result.select(split, "tpot"), GROUPS[name]):
                _add(table, row.group, row)
            console.print(table, "")
    table = _headed("TTFT by stack, calibrated (published load protocols)", "stack")
    for row in summarise(result.select("calibrated", "ttft"), GROUPS["stack"]):
        _add(table, row.group, row)
    console.print(table, "")
    refused = ", ".join(point.id for point in result.memory_refused) or "none"
    console.print(f"memory: {result.memory_points} loads ran; refused by the planner: {refused}")
    for item in result.impossible:
        console.print(
            f"impossible: {item.point.id} {item.point.metric} {item.point.value:g}: published rates allow "
            f"{item.fastest * 1e3:.3g} ms at the least, {item.point.seconds * 1e3:.3g} ms were stated"
        )
    reasons: dict[str, list[str]] = {}
    for unusable in result.unusable:
        reasons.setdefault(unusable.reason, []).append(unusable.id)
    for reason, ids in reasons.items():
        console.print(f"not used: {len(ids)} rows: {reason}", markup=False)


def _summary_json(result: Validation, split: Split, kind: str) -> dict[str, Any] | None:
    rows = summarise(result.select(split, kind), GROUPS["all"])
    return _rounded(rows[0]) if rows else None


def _rounded(row: Summary) -> dict[str, Any]:
    return {
        name: rounded(value) if isinstance(value, float) else value for name, value in asdict(row).items()
    }


def _prediction_json(prediction: Prediction) -> dict[str, Any]:
    return {
        "id": prediction.point.id,
        "metric": prediction.point.metric,
        "kind": prediction.kind,
        "split": prediction.split,
        "stack": prediction.stack,
        "measured_s": rounded(prediction.measured),
        "predicted_s": rounded(prediction.predicted),
        "low_s": rounded(prediction.low),
        "high_s": rounded(prediction.high),
        "error": rounded(prediction.error),
        "in_band": prediction.in_band,
    }


def _headed(title: str, first: str) -> Table:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", header_style="dim")
    table.add_column(first)
    for name in ("points", "median", "mean", "P90", "within 20 %", "bias", "in band"):
        table.add_column(name, justify="right")
    return table


def _add(table: Table, label: str, row: Summary) -> None:
    table.add_row(
        label,
        str(row.points),
        f"{row.median:.1%}",
        f"{row.mean:.1%}",
        f"{row.p90:.1%}",
        f"{row.within_20:.0%}",
        f"{row.bias:+.1%}",
        f"{row.in_band:.0%}",
    )
