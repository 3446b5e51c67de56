"""All metrics by name, kind and meaning, and where each is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from rooftree.engine.messages import SchedulerStats
from rooftree.server.histogram import Histogram
from rooftree.server.metrics import Metrics

Number = int | float


@dataclass(frozen=True, slots=True)
class Family:
    """One metric.

    Attributes:
        read: where its value is: a number, a Histogram, or a mapping from values of ``labels`` to numbers.
        alias: whether vLLM has it too.
    """

    kind: Literal["gauge", "counter", "histogram"]
    name: str
    help: str
    read: Callable[[Metrics], Number | Histogram | Mapping[tuple[str, ...], Number]]
    labels: tuple[str, ...] = ()
    alias: bool = True


def _step(
    kind: Literal["gauge", "counter"],
    name: str,
    help: str,
    read: Callable[[Metrics], Number | Mapping[tuple[str, ...], Number]],
    labels: tuple[str, ...] = (),
) -> Family:
    """A metric of the steps, which is ours alone."""
    return Family(kind, name, help, read, labels, alias=False)


STEP_FAMILIES = (
    _step("counter", "engine_steps", "Steps of the engine.", lambda m: m.scheduler.steps.num_steps),
    _step(
        "counter",
        "engine_step_requests",
        "Requests in the steps, each counted once per step.",
        lambda m: m.scheduler.steps.num_requests,
    ),
    _step(
        "counter",
        "engine_step_tokens",
        "Tokens computed by the steps.",
        lambda m: m.scheduler.steps.num_tokens,
    ),
    _step("counter", "engine_step_seconds", "Time spent in steps.", lambda m: m.scheduler.steps.seconds),
    _step(
        "counter",
        "engine_step_predicted_seconds",
        "Time that the cost model gives the steps.",
        lambda m: m.scheduler.steps.predicted_seconds,
    ),
    _step(
        "counter",
        "engine_step_bytes",
        "Bytes that the steps move, by the cost model.",
        lambda m: m.scheduler.steps.num_bytes,
    ),
    _step(
        "counter",
        "engine_step_flop",
        "Operations of the steps, by the cost model.",
        lambda m: m.scheduler.steps.flop,
    ),
    _step(
        "counter",
        "bound",
        "Busy seconds that each limit bound.",
        lambda m: {(limit,): seconds for limit, seconds in m.scheduler.steps.by_limit().items()},
        ("limit",),
    ),
    _step(
        "gauge",
        "step_bandwidth_fraction",
        "Bytes of the last 10 s of steps over what the memory could have moved in their time.",
        lambda m: m.recent.totals().bandwidth_fraction,
    ),
    _step(
        "gauge",
        "step_arithmetic_fraction",
        "Operations of the last 10 s of steps over what the cores could have done in their time.",
        lambda m: m.recent.totals().arithmetic_fraction,
    ),
    _step(
        "gauge",
        "batch_size",
        "Requests of a step, mean of the last 10 s.",
        lambda m: m.recent.totals().batch_size,
    ),
    _step(
        "gauge",
        "predicted_step_seconds",
        "What the cost model gives a step, mean of the last 10 s.",
        lambda m: m.recent.totals().predicted_step_seconds,
    ),
)

FAMILIES = (
    Family(
        "gauge", "num_requests_running", "Requests in the running batch.", lambda m: m.scheduler.num_running
    ),
    Family("gauge", "num_requests_waiting", "Requests waiting to run.", lambda m: m.scheduler.num_waiting),
    Family(
        "gauge",
        "kv_cache_usage_perc",
        "Share of KV blocks owned by running requests, 0 to 1.",
        lambda m: m.scheduler.num_owned_blocks / max(1, m.scheduler.num_total_blocks),
    ),
    Family(
        "gauge",
        "cache_config_info",
        "The KV cache's make, in its labels.",
        lambda m: {(str(m.block_size), str(m.num_blocks)): 1},
        labels=("block_size", "num_gpu_blocks"),
    ),
    Family(
        "gauge",
        "kv_cache_blocks",
        "KV blocks: free, cached (an unreferenced prefix) or owned by running requests.",
        lambda m: _blocks(m.scheduler),
        labels=("state",),
        alias=False,
    ),
    Family(
        "counter",
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda m: m.scheduler.prefix_cache_queries,
    ),
    Family(
        "counter",
        "prefix_cache_hits",
        "Prompt tokens found in the prefix cache, or computed once for several requests.",
        lambda m: m.scheduler.prefix_cache_hits,
    ),
    Family("counter", "num_preemptions", "Preemptions.", lambda m: m.scheduler.num_preemptions),
    Family(
        "counter",
        "preempted_tokens",
        "Computed tokens lost to preemptions.",
        lambda m: m.scheduler.num_preempted_tokens,
        alias=False,
    ),
    Family(
        "counter",
        "prompt_tokens",
        "Prompt tokens of requests that began to answer.",
        lambda m: m.prompt_tokens,
    ),
    Family(
        "counter",
        "prompt_tokens_cached",
        "Those of them that came from the prefix cache.",
        lambda m: m.cached_tokens,
    ),
    Family("counter", "generation_tokens", "Generated tokens.", lambda m: m.generation_tokens),
    Family(
        "counter",
        "request_success",
        "Generations that ended, by reason; aborted ones are among them.",
        lambda m: {(reason,): count for reason, count in m.finished.items()},
        labels=("finished_reason",),
    ),
    Family(
        "counter",
        "admission_rejections",
        "Requests answered with an error, by its code.",
        lambda m: {(reason,): count for reason, count in m.refusals.items()},
        labels=("reason",),
    ),
    *STEP_FAMILIES,
    Family(
        "counter",
        "kv_conservation_failures",
        "Checks that found free + cached + owned blocks not to be all blocks.",
        lambda m: m.scheduler.conservation_failures,
        alias=False,
    ),
    Family("histogram", "time_to_first_token_seconds", "Arrival to first token.", lambda m: m.first_token),
    Family("histogram", "inter_token_latency_seconds", "One token to the next.", lambda m: m.inter_token),
    Family(
        "histogram",
        "request_time_per_output_token_seconds",
        "Mean time between tokens, by request.",
        lambda m: m.time_per_output_token,
    ),
    Family("histogram", "e2e_request_latency_seconds", "Arrival to end.", lambda m: m.e2e),
    Family(
        "histogram", "request_queue_time_seconds", "Arrival in the engine to first step.", lambda m: m.queue
    ),
    Family("histogram", "request_inference_time_seconds", "First step to last token.", lambda m: m.inference),
    Family("histogram", "request_prefill_time_seconds", "First step to first token.", lambda m: m.prefill),
    Family("histogram", "request_decode_time_seconds", "First token to last token.", lambda m: m.decode),
    Family(
        "histogram",
        "request_prompt_tokens",
        "Prompt tokens, by generation.",
        lambda m: m.request_prompt_tokens,
    ),
    Family(
        "histogram",
        "request_generation_tokens",
        "Generated tokens, by generation.",
        lambda m: m.request_generation_tokens,
    ),
    Family("histogram", "request_params_max_tokens", "max_tokens asked for.", lambda m: m.request_max_tokens),
    Family("histogram", "request_params_n", "n asked for.", lambda m: m.request_n),
    Family(
        "histogram", "request_num_preemptions", "Preemptions, by generation.", lambda m: m.request_preemptions
    ),
)


def _blocks(stats: SchedulerStats) -> dict[tuple[str, ...], Number]:
    return {
        ("free",): stats.num_free_blocks,
        ("cached",): stats.num_cached_blocks,
        ("owned",): stats.num_owned_blocks,
    }
