"""What the load test says in the end."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from load_checks import grown_memory, leaked_files, wrong_answers, wrong_metrics
from load_client import Answer
from served import Metrics, ProcessState

_SHOWN_FAULTS = 10
_PERCENTILES = {"p50": 50, "p90": 90, "p99": 99, "max": 100}


@dataclass
class Run:
    """All that one run saw.

    Attributes:
        answers: of the clients, during the load.
        again: catalogue entries asked alone once more, after it.
        early, late: the processes a third into the load, and at its end; resting: before it and after it.
    """

    alone: dict[int, Answer]
    answers: list[Answer]
    again: list[Answer]
    seconds: float
    early: list[ProcessState]
    late: list[ProcessState]
    resting: tuple[list[ProcessState], list[ProcessState]]
    metrics: Metrics

    @property
    def everything(self) -> list[Answer]:
        """Answers of all requests that the server got."""
        return [*self.alone.values(), *self.answers, *self.again]

    def faults(self) -> list[str]:
        """What does not hold; empty if all is well."""
        return [
            *wrong_answers([*self.answers, *self.again], self.alone),
            *wrong_metrics(self.metrics, self.everything, self.alone),
            *grown_memory(self.early, self.late),
            *leaked_files(*self.resting),
        ]


def figures(run: Run) -> dict[str, Any]:
    """Throughput, latencies and counts."""
    whole = [answer for answer in run.answers if not answer.left and answer.error is None]
    first = [answer.times[1] - answer.times[0] for answer in run.answers if len(answer.times) > 1]
    gaps = [gap for answer in run.answers for gap in np.diff(answer.times[1:]).tolist()]
    tokens = sum(answer.completion_tokens or len(answer.times) - 1 for answer in run.answers)
    return {
        "seconds": round(run.seconds, 1),
        "requests": len(run.answers),
        "left_early": sum(answer.left for answer in run.answers),
        "requests_per_s": round(len(run.answers) / run.seconds, 2),
        "output_tokens_per_s": round(tokens / run.seconds, 1),
        "whole_answers": len(whole),
        "preemptions": int(run.metrics["rooftree:num_preemptions_total"]),
        "cached_prompt_tokens": int(run.metrics["rooftree:prompt_tokens_cached_total"]),
        "ttft_s": percentiles(first),
        "itl_s": percentiles(gaps),
        "processes_early": [asdict(state) for state in run.early],
        "processes_late": [asdict(state) for state in run.late],
    }


def percentiles(values: list[float]) -> dict[str, float]:
    """p50, p90, p99 and the largest; none of no values."""
    return {name: round(float(np.percentile(values, q)), 4) for name, q in _PERCENTILES.items() if values}


def show(result: dict[str, Any], faults: list[str], clients: int) -> None:
    """A table for people."""
    table = Table(title=f"{clients} clients", show_header=False)
    for name in ("seconds", "requests", "left_early", "requests_per_s", "output_tokens_per_s"):
        table.add_row(name.replace("_", " "), str(result[name]))
    for name in ("preemptions", "cached_prompt_tokens"):
        table.add_row(name.replace("_", " "), str(result[name]))
    for name in ("ttft_s", "itl_s"):
        row = ", ".join(f"{key} {1000 * value:.0f}" for key, value in result[name].items())
        table.add_row(f"{name[:-2].upper()}, ms", row)
    for early, late in zip(result["processes_early"], result["processes_late"], strict=False):
        sizes = f"{early['rss_mib']:.1f} MiB at a third, {late['rss_mib']:.1f} at the end"
        table.add_row(f"{early['role']} process", sizes)
    console = Console()
    console.print(table)
    for fault in faults[:_SHOWN_FAULTS]:
        console.print(f"WRONG: {fault[:2000]}", markup=False)
    console.print("all well" if not faults else f"{len(faults)} faults")
