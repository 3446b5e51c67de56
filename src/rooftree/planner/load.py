"""How a deployment answers a load: in the steady state, and request by request."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rooftree.planner.deployment import Deployment
from rooftree.planner.simulation import Run, Segment, Simulation
from rooftree.planner.workload import Workload, draw_arrivals, draw_requests
from rooftree.roofline.batch import Batch, RequestTokens, Span, batch_of
from rooftree.roofline.time import StepTime, step_time
from rooftree.roofline.work import StepWork, step_work

MEASURED_REQUESTS = 150
MOST_REQUESTS = 1500
MOST_INSIDE = 512
FEWEST_REQUESTS = 3
MOST_CHUNKS = 4000
"""Steps with prompts in them that one simulation may take: long prompts are measured on fewer requests."""
MOST_WAITING = 64


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One scheduler (a tensor group of a replica) under load. Times in seconds; sorted lists, one entry per
    measured request.

    Attributes:
        output_rate, request_rate: tokens and requests per second.
        mean_batch: sequences in a step, over time; ``peak_batch`` the most.
    """

    ttft: tuple[float, ...]
    tpot: tuple[float, ...]
    latency: tuple[float, ...]
    output_rate: float
    request_rate: float
    mean_batch: float
    peak_batch: float

    def percentile(self, name: str, fraction: float) -> float:
        """Nearest-rank percentile of ``ttft``, ``tpot`` or ``latency``."""
        values: tuple[float, ...] = getattr(self, name)
        if not values:
            return 0.0
        return values[min(len(values) - 1, max(0, math.ceil(fraction * len(values)) - 1))]


def simulate(deployment: Deployment, workload: Workload) -> LoadResult:
    """One scheduler under its share of the load."""
    mine = share_of_scheduler(workload, deployment.parallel.schedulers)
    mine, waiting = _cut_queue(deployment, mine)
    clients = mine.concurrency
    inside = clients or min(MOST_INSIDE, round(requests_inside(deployment, mine)))
    warmup = 0 if mine.burst else inside * (1 if clients else 2)
    measured = mine.requests or min(MOST_REQUESTS, max(MEASURED_REQUESTS, inside))
    measured = max(FEWEST_REQUESTS, min(measured, round(MOST_CHUNKS / _chunks(deployment, mine))))
    # Arrivals go on behind those that are measured, or the last would find an empty server.
    behind = 0 if clients else inside
    requests = draw_requests(mine, warmup + measured + behind)
    if clients:
        # They are caught in the middle: their prompts were computed before, or all would come at once.
        requests[:warmup] = [replace(request, cached=request.input - 1) for request in requests[:warmup]]
    clock = deployment.clock
    delay = deployment.constants.constants["frontend_seconds"]

    def seconds(segment: Segment) -> float:
        return clock.seconds(segment.batch) * segment.steps

    simulation = Simulation(requests, deployment.limits, deployment.costs.windows, seconds)
    if clients is not None:
        run = simulation.run_closed(clients)
    else:
        run = simulation.run_open(draw_arrivals(mine, len(requests)))
    outputs = [request.output for request in requests]
    result = _result(run, outputs, range(warmup, warmup + measured), delay)
    return _later(result, waiting / result.request_rate) if waiting else result


def _cut_queue(deployment: Deployment, mine: Workload) -> tuple[Workload, int]:
    """The load with at most ``MOST_WAITING`` clients behind those that run, and how many were left out.

    A closed loop that is always full answers in order at one rate, so each further client only waits longer
    by one answer: that is added afterwards instead of being simulated.
    """
    if mine.concurrency is None or mine.burst:
        return mine, 0
    running = min(deployment.sequences(mine.tokens_per_sequence), deployment.options.max_sequences)
    most = max(1, running) + MOST_WAITING
    return replace(mine, concurrency=min(mine.concurrency, most)), max(0, mine.concurrency - most)


def _later(result: LoadResult, wait: float) -> LoadResult:
    """The same answers after a longer wait in the queue."""
    return replace(
        result,
        ttft=tuple(seconds + wait for seconds in result.ttft),
        latency=tuple(seconds + wait for seconds in result.latency),
    )


def _chunks(deployment: Deployment, workload: Workload) -> float:
    """Steps that the prompt of a request takes."""
    computed = workload.input.mean * (1 - workload.prefix_share)
    return 1 + computed / deployment.options.max_batched_tokens


def requests_inside(deployment: Deployment, workload: Workload) -> float:
    """Requests in the server at once under random arrivals, by Little's law at the steady TPOT."""
    inside = 1.0
    for _ in range(8):
        batch = max(1, min(round(inside), deployment.options.max_sequences))
        seconds = steady_state(deployment, workload, batch).tpot * workload.output.mean
        inside = max(1.0, (workload.rate or 0.0) * seconds)
    return inside


def share_of_scheduler(workload: Workload, schedulers: int) -> Workload:
    """The load of one of several equal ones, the one that has most."""
    if workload.concurrency is not None:
        return replace(workload, concurrency=math.ceil(workload.concurrency / schedulers))
    return replace(workload, rate=(workload.rate or 0.0) / schedulers)


def _result(run: Run, outputs: list[int], measured: range, delay: float) -> LoadResult:
    ttft = sorted(run.first[i] - run.arrival[i] + delay for i in measured)
    tpot = sorted((run.last[i] - run.first[i]) / (outputs[i] - 1) for i in measured if outputs[i] > 1)
    latency = sorted(run.last[i] - run.arrival[i] + delay for i in measured)
    begin, end = run.arrival[measured.start], run.arrival[-1]
    done = [index for index in range(len(outputs)) if begin < run.last[index] <= end]
    span = end - begin
    if len(done) < len(measured) // 2:
        # A burst, or far more than can be answered: next to nothing arrives while these are answered.
        done, span = [i for i in range(len(outputs)) if run.last[i] > begin], run.seconds - begin
    rate_reached = len(done) / max(span, 1e-9)
    # The warm-up's shortened answers leave more room than those that are measured.
    segments = run.segments[run.before[measured.start] : run.before[-1]] or run.segments
    steps = sum(segment.steps for segment in segments)
    sequences = sum(segment.batch.sequences * segment.steps for segment in segments)
    return LoadResult(
        ttft=tuple(ttft),
        tpot=tuple(tpot),
        latency=tuple(latency),
        output_rate=rate_reached * sum(outputs[i] for i in measured) / max(len(measured), 1),
        request_rate=rate_reached,
        mean_batch=sequences / max(steps, 1),
        peak_batch=max((segment.batch.sequences for segment in segments), default=0.0),
    )


@dataclass(frozen=True, slots=True)
class SteadyState:
    """A scheduler whose ``batch`` places are always taken.

    Attributes:
        tpot, output_rate: seconds per token of one request; tokens per second of all.
        prefill_tokens: computed in each step beside the decodes.
        work, time: of the mean step.
    """

    batch: int
    tpot: float
    output_rate: float
    prefill_tokens: float
    work: StepWork
    time: StepTime


def steady_state(deployment: Deployment, workload: Workload, batch: int) -> SteadyState:
    """The mean step of a full replica: its decodes, and the prompts that keep the places taken."""
    output = max(1.0, workload.output.mean)
    computed = workload.input.mean * (1 - workload.prefix_share)
    prompts = batch * computed / output
    budget = deployment.options.max_batched_tokens
    crowding = max(1.0, (batch + prompts) / budget)
    mean = mixed_batch(deployment, workload, batch / crowding, prompts / crowding)
    work = step_work(deployment.costs, mean)
    time = step_time(work, deployment.device, deployment.efficiency)
    tpot = time.seconds * crowding
    return SteadyState(batch, tpot, batch / tpot, prompts / crowding, work, time)


def mixed_batch(deployment: Deployment, workload: Workload, decodes: float, prefill: float) -> Batch:
    """A step of so many decodes at mean context and so many tokens of a prompt."""
    context = workload.input.mean + workload.output.mean / 2
    prompt = max(1.0, workload.input.mean)
    spans = []
    for window in deployment.costs.windows:
        size = math.inf if window.size is None else window.size
        first = prompt * workload.prefix_share
        seen = min((first + prompt) / 2, size)
        chunks = prefill / max(1.0, prompt - first)
        spans.append(
            Span(decodes * min(context, size), prefill * seen, min(chunks, 1.0) * min(prompt, size + prefill))
        )
    outputs = decodes + prefill / prompt
    sequences = decodes + (1.0 if prefill > 0 else 0.0)
    return Batch(decodes + prefill, outputs, sequences, tuple(spans))


def prefill_step(deployment: Deployment, tokens: int) -> tuple[StepWork, StepTime]:
    """One prompt of that length alone."""
    work = step_work(deployment.costs, batch_of([RequestTokens(tokens)], deployment.costs.windows))
    return work, step_time(work, deployment.device, deployment.efficiency)


def decode_step(deployment: Deployment, batch: int, context: int) -> tuple[StepWork, StepTime]:
    """So many sequences of that length, one token each."""
    requests = [RequestTokens(1, context, count=batch)]
    work = step_work(deployment.costs, batch_of(requests, deployment.costs.windows))
    return work, step_time(work, deployment.device, deployment.efficiency)


def share_by_limit(time: StepTime) -> dict[str, float]:
    """Share of a step's time under each limit that has any."""
    return {limit: seconds / time.seconds for limit, seconds in time.by_limit().items() if seconds}
