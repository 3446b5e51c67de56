"""The verdict of the load test: what must hold of answers, metrics and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from load_client import Answer
from served import Metrics, ProcessState

# Memory counts as flat if it grew by no more than this after the first third of the time.
FLAT_MIB, FLAT_SHARE = 5.0, 0.03


def wrong_answers(answers: Sequence[Answer], alone: Mapping[int, Answer]) -> Iterator[str]:
    """Answers that failed or differ from the same request's answer alone."""
    for answer in answers:
        expected = alone[answer.ask.index]
        name = f"request {answer.ask.index}"
        if answer.error is not None:
            yield f"{name}: {answer.error}"
        elif answer.left:
            if not expected.text.startswith(answer.text):
                yield f"{name}: a client that left had got {answer.text!r}, alone it was {expected.text!r}"
        elif answer.content != expected.content:
            yield f"{name}: under load {answer.content!r}, alone {expected.content!r}"


def wrong_metrics(metrics: Metrics, answers: Sequence[Answer], alone: Mapping[int, Answer]) -> Iterator[str]:
    """Metrics at rest that do not add up to what the clients saw. ``answers``: all ever asked for."""
    whole = [answer for answer in answers if not answer.left and answer.error is None]
    left = [answer for answer in answers if answer.left]
    blocks = {state: metrics[f"rooftree:kv_cache_blocks{{{state}}}"] for state in ("free", "cached", "owned")}
    total = next(key for key in metrics if key.startswith("rooftree:cache_config_info"))
    num_blocks = int(total.rstrip("}").rpartition(",")[2])
    if blocks["owned"] != 0 or sum(blocks.values()) != num_blocks:
        yield f"KV blocks are not all back: {blocks} of {num_blocks}"
    for name in ("num_requests_running", "num_requests_waiting", "kv_conservation_failures_total"):
        if metrics[f"rooftree:{name}"] != 0:
            yield f"{name} is {metrics[f'rooftree:{name}']} at rest"
    ended = {
        key.partition("{")[2].rstrip("}"): value
        for key, value in metrics.items()
        if key.startswith("rooftree:request_success_total")
    }
    yield from _bounds("ended requests", sum(ended.values()), len(answers), len(answers))
    yield from _bounds("aborted requests", ended.get("abort", 0), 0, len(left))
    yield from _bounds("failed requests", ended.get("error", 0), 0, 0)
    yield from _bounds(
        "generation tokens",
        metrics["rooftree:generation_tokens_total"],
        sum(answer.completion_tokens or 0 for answer in whole),
        sum(alone[answer.ask.index].completion_tokens or 0 for answer in answers),
    )
    yield from _bounds(
        "prompt tokens",
        metrics["rooftree:prompt_tokens_total"],
        sum(answer.ask.num_prompt_tokens for answer in whole),
        sum(answer.ask.num_prompt_tokens for answer in answers),
    )
    yield from _bounds(
        "latencies counted", metrics["rooftree:e2e_request_latency_seconds_count"], len(answers), len(answers)
    )


def _bounds(what: str, value: float, low: float, high: float) -> Iterator[str]:
    if not low <= value <= high:
        yield f"{what}: the metrics say {value:.0f}, the clients {low:.0f} to {high:.0f}"


def grown_memory(early: Sequence[ProcessState], late: Sequence[ProcessState]) -> Iterator[str]:
    """Processes whose memory grew, or that appeared or went."""
    if [state.role for state in early] != [state.role for state in late]:
        yield f"processes changed: {early} became {late}"
    for before, after in zip(early, late, strict=False):
        if after.rss_mib - before.rss_mib > max(FLAT_MIB, FLAT_SHARE * before.rss_mib):
            yield f"the {after.role} process grew from {before.rss_mib:.1f} to {after.rss_mib:.1f} MiB"


def leaked_files(before: Sequence[ProcessState], after: Sequence[ProcessState]) -> Iterator[str]:
    """Processes with more open files at rest after the load than before it."""
    for first, last in zip(before, after, strict=False):
        if last.files > first.files:
            yield f"the {last.role} process has {last.files} open files, {first.files} before the load"
