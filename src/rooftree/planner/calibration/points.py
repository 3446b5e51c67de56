"""Measured points: one row of a CSV each, as published, and what they say once read."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Literal

from rooftree.errors import ConfigError

COLUMNS = (
    "id",
    "source",
    "model",
    "params_b",
    "gpu",
    "n_gpus",
    "tp",
    "weight_dtype",
    "kv_dtype",
    "batch_or_concurrency",
    "isl",
    "osl",
    "metric",
    "value",
    "unit",
    "notes",
)

Protocol = Literal["sweep", "closed", "batch", "max-load"]
"""How a point was measured.

``sweep``: C clients start at once, 10 C requests, lengths uniform between 80 and 100 % (InferenceX);
``closed``: C clients, the rest not published; ``batch``: one batch of equal requests; ``max-load``: more
requests than the server can hold.
"""

PROTOCOLS: Mapping[str, Protocol] = {
    "sweep": "sweep",
    "closed": "closed",
    "batch": "batch",
    "max-load": "max-load",
}

# Metric -> kind of figure that the model predicts, and its seconds for a value in the column's unit.
KINDS: Mapping[str, str] = {
    "mean_tpot": "tpot",
    "mean_itl": "tpot",
    "decode_throughput": "tpot",
    "mean_ttft": "ttft",
    "prefill_latency": "prefill",
    "prefill_throughput": "prefill",
    "output_throughput_total": "throughput",
}

_PROTOCOL = re.compile(r"protocol[= ](sweep|closed|batch|max-load)")
_SWEEP = re.compile(r"20\d\d[-_]\d\d[-_]\d\d")
_ENGINE = re.compile(
    r"^\s*(vllm|trtllm|sglang|rooftree|llama\.cpp|lmdeploy|tgi)\b[ =]*([^;,]*)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Point:
    """A row as read.

    Attributes:
        kind: ``tpot``, ``ttft``, ``prefill`` (seconds) or ``throughput`` (seconds per output token).
        seconds: the value in that kind's unit.
        batch: concurrency, or requests of the batch; 0 under ``max-load``.
        protocol: see ``Protocol``; ``published`` tells whether the load protocol is known.
    """

    id: str
    model: str
    parameters: float | None
    device: str
    devices: int
    tensor: int
    weight_dtype: str
    kv_dtype: str
    batch: int
    input: int
    output: int
    metric: str
    kind: str
    value: float
    seconds: float
    engine: str
    version: str
    protocol: Protocol
    published: bool


@dataclass(frozen=True, slots=True)
class Unusable:
    """A row that says nothing about a step, and why."""

    id: str
    metric: str
    reason: str


def read_points(path: Path | None = None) -> tuple[list[Point], list[Unusable]]:
    """All rows of a file (None: the points that come with Rooftree), in its order.

    Raises:
        ConfigError: not readable, or columns missing. A row that can't be read is returned as unusable.
    """
    if path is None:
        text = files("rooftree.planner").joinpath("data", "measured_points.csv").read_text()
        return parse_points(text, "measured_points.csv")
    try:
        return parse_points(path.read_text(), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_points(text: str, source: str) -> tuple[list[Point], list[Unusable]]:
    """``read_points`` of a file's text."""
    reader = csv.DictReader(StringIO(text))
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise ConfigError(f"{source}: no column {', '.join(missing)}; the columns are {', '.join(COLUMNS)}")
    points: list[Point] = []
    unusable: list[Unusable] = []
    for number, row in enumerate(reader, start=2):
        cells = {name: (row.get(name) or "").strip() for name in COLUMNS}
        reason = _why_unusable(cells)
        if reason is not None:
            unusable.append(Unusable(cells["id"] or f"line {number}", cells["metric"], reason))
            continue
        try:
            points.append(_point(cells))
        except ValueError as error:
            unusable.append(Unusable(cells["id"] or f"line {number}", cells["metric"], str(error)))
    return points, unusable


def _why_unusable(cells: Mapping[str, str]) -> str | None:
    metric = cells["metric"]
    if metric not in KINDS:
        return f"{metric or 'no metric'}: not the time of a step"
    for name in ("isl", "osl", "batch_or_concurrency", "n_gpus"):
        if not cells[name]:
            return f"{name} is not stated"
        if not cells[name].isdigit() and cells[name] != "max-load":
            return f"{name} is {cells[name]!r}, not a number of tokens or requests"
    if re.search(r"disagg", f"{cells['source']} {cells['notes']}", re.IGNORECASE):
        return "prefill and decode on different devices: not one server's steps"
    return None


def _point(cells: Mapping[str, str]) -> Point:
    kind = KINDS[cells["metric"]]
    value = _number(cells, "value")
    max_load = cells["batch_or_concurrency"] == "max-load"
    batch = 0 if max_load else int(cells["batch_or_concurrency"])
    prompt, output = int(cells["isl"]), int(cells["osl"])
    engine, version = _engine(cells)
    devices = int(cells["n_gpus"])
    protocol, published = _protocol(cells, max_load)
    return Point(
        id=cells["id"],
        model=cells["model"],
        parameters=_number(cells, "params_b") * 1e9 if cells["params_b"] else None,
        device=cells["gpu"],
        devices=devices,
        tensor=int(cells["tp"] or devices),
        weight_dtype=cells["weight_dtype"],
        kv_dtype=cells["kv_dtype"],
        batch=batch,
        input=prompt,
        output=output,
        metric=cells["metric"],
        kind=kind,
        value=value,
        seconds=_seconds(cells["metric"], value, prompt),
        engine=engine,
        version=version,
        protocol=protocol,
        published=published,
    )


def _number(cells: Mapping[str, str], name: str) -> float:
    try:
        value = float(cells[name])
    except ValueError:
        raise ValueError(f"{name} is {cells[name]!r}, not a number") from None
    if not 0 < value < 1e12:
        raise ValueError(f"{name} is {cells[name]}: it must be above 0")
    return value


def _seconds(metric: str, value: float, prompt: int) -> float:
    if metric == "prefill_throughput":
        return prompt / value
    if metric in ("decode_throughput", "output_throughput_total"):
        return 1.0 / value
    return value / 1e3


def _engine(cells: Mapping[str, str]) -> tuple[str, str]:
    """Engine and version: from the start of the notes, else from the source."""
    found = _ENGINE.match(cells["notes"])
    if found:
        version = found[2].strip().strip("()")
        return found[1].lower(), "" if version.startswith("version not") else version
    text = f"{cells['source']} {cells['notes']}".lower()
    known = {
        "nim": "docs.nvidia.com/nim",
        "trtllm": "tensorrt-llm",
        "gpt-fast": "gpt-fast",
        "splitwise": "splitwise",
    }
    stated = re.search(r"\(v([\d.]+)\)", cells["source"])
    version = stated[1] if stated else ""
    return next((engine for engine, mark in known.items() if mark in text), "unknown"), version


def _protocol(cells: Mapping[str, str], max_load: bool) -> tuple[Protocol, bool]:
    stated = _PROTOCOL.search(cells["notes"])
    if stated:
        return PROTOCOLS[stated[1]], True
    if max_load:
        return "max-load", True
    if cells["metric"] in ("prefill_latency", "prefill_throughput", "decode_throughput"):
        return "batch", True
    text = f"{cells['source']} {cells['notes']}".lower()
    if "splitwise" in text:
        return "batch", True
    if _SWEEP.search(cells["source"]) and "closed loop" in text:
        return "sweep", True
    return "closed", "docs.nvidia.com/nim" in text


def stack_of(point: Point, device: str) -> str:
    """Points of one stack share constants: device, engine with its version, weight dtype."""
    return " / ".join((device, f"{point.engine} {point.version}".strip(), point.weight_dtype))
