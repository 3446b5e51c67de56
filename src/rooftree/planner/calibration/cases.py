"""Points as observations: the model, the device, the storage and the load that each row stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from rooftree.errors import RooftreeError
from rooftree.planner.calibration.observation import (
    StepSum,
    StepTable,
    rate_weights,
    step_sum,
    step_table,
    tpot_weights,
    ttft_weights,
)
from rooftree.planner.calibration.points import Point, Unusable, stack_of
from rooftree.planner.lengths import Lengths, fixed, uniform
from rooftree.planner.models import published_model
from rooftree.planner.simulation import Run, Segment, ServerLimits, Simulation
from rooftree.planner.workload import Workload, draw_requests
from rooftree.roofline.costs import ModelCosts, model_costs
from rooftree.roofline.memory import MemoryBudget, MemoryOptions, memory_budget
from rooftree.roofline.parallel import Parallel
from rooftree.specs.architecture import Architecture
from rooftree.specs.device import DeviceSpec
from rooftree.specs.weight_format import CACHE_DTYPES, FORMATS
from rooftree.specs.weight_scheme import WeightScheme, named_scheme

FindDevice = Callable[[str], DeviceSpec]

# Spellings of weight dtypes in measured points -> ours.
_SCHEMES = {
    "fp8_block": "fp8-block",
    "int4_wo": "awq",
    "int4-g32": "q4_0",
    "fp4": "nvfp4",
    "int8_wo": "q8_0",
    "w4a16": "awq",
    "w8a8": "fp8",
    "fp8_e4m3": "fp8",
}
MAX_LOAD_SEQUENCES = 2048
SWEEP_REQUESTS_PER_CLIENT = 10
REUSED = (0.5, 0.8, 0.95)
"""Shares of prompts that an unpublished protocol may have found in the prefix cache."""


@dataclass(frozen=True, slots=True)
class Case:
    """A point, what it was measured on, and the sum of step times that stands for it.

    Attributes:
        stack: points of one stack share constants.
        observation: the measured time.
        reused: the same if the prefix cache held ``REUSED`` of every prompt; only where the protocol is not
            published (benchmarks that draw from few prompts do so, and say nothing).
        bound_seconds: what the roofline alone allows (``StepSum.fastest``); no measurement can be below.
        budget: memory of one device, for the verdict.
    """

    point: Point
    stack: str
    device: DeviceSpec
    is_expert_model: bool
    observation: StepSum
    reused: tuple[StepSum, ...]
    bound_seconds: float
    budget: MemoryBudget


def build_cases(points: Iterable[Point], find_device: FindDevice) -> tuple[list[Case], list[Unusable]]:
    """Every point whose model and device are known; the others, with the reason."""
    cases: list[Case] = []
    unusable: list[Unusable] = []
    for point in points:
        try:
            cases.append(build_case(point, find_device))
        except RooftreeError as error:
            unusable.append(Unusable(point.id, point.metric, str(error)))
    return cases, unusable


def build_case(point: Point, find_device: FindDevice) -> Case:
    """One point.

    Raises:
        RooftreeError: its model, device or dtype is not known.
    """
    load = replace(point, id="", metric="", kind="", value=0.0, seconds=0.0)
    setting = _setting(load, find_device, 0.0)
    observation = _observe(point, setting)
    shares = REUSED if point.protocol == "closed" and not point.published else ()
    return Case(
        point=point,
        stack=stack_of(point, setting.device.name),
        device=setting.device,
        is_expert_model=setting.costs.expert_layers > 0,
        observation=observation,
        reused=tuple(_observe(point, _setting(load, find_device, share)) for share in shares),
        # A row that doesn't state its KV dtype may have had the smaller one.
        bound_seconds=observation.fastest(1.0 if point.kv_dtype else 0.5),
        budget=setting.budget,
    )


@dataclass(frozen=True, slots=True)
class _Setting:
    """What points share that differ in their metric alone."""

    device: DeviceSpec
    costs: ModelCosts
    budget: MemoryBudget
    workload: Workload
    outputs: tuple[int, ...]
    run: Run
    table: StepTable


@lru_cache(maxsize=1024)
def _setting(load: Point, find_device: FindDevice, prefix_share: float) -> _Setting:
    device = find_device(load.device)
    key = (load.model, load.weight_dtype, point_kv_dtype(load), point_parallel(load))
    storage = _storage(*key)
    budget = _budget(*key, load.device, find_device, _memory_options(load))
    per_token = storage.costs.kv_write_bytes
    kv_tokens = budget.kv / per_token if budget.kv > 0 and per_token else None
    workload = replace(_workload(load, kv_tokens), prefix_share=prefix_share)
    requests = draw_requests(workload, workload.requests or 0)
    simulation = Simulation(requests, _limits(load, kv_tokens), storage.costs.windows, _count)
    run = simulation.run_closed(workload.concurrency or 1)
    return _Setting(
        device,
        storage.costs,
        budget,
        workload,
        tuple(request.output for request in requests),
        run,
        step_table(run.segments, storage.costs, device, storage.bits),
    )


@dataclass(frozen=True, slots=True)
class _Storage:
    model: Architecture
    scheme: WeightScheme | None
    costs: ModelCosts
    bits: float


@lru_cache(maxsize=256)
def _storage(name: str, weight_dtype: str, kv_dtype: str, parallel: Parallel) -> _Storage:
    model = published_model(name).architecture
    scheme = point_scheme(weight_dtype, model)
    costs = model_costs(model, parallel, scheme=scheme, kv_dtype=kv_dtype)
    return _Storage(model, scheme, costs, 8 * model.weight_bytes(scheme) / model.num_parameters)


def point_scheme(weight_dtype: str, model: Architecture) -> WeightScheme | None:
    """The scheme of a row's weight dtype; None, as published, where the model is published in that width."""
    if weight_dtype == "q4_k_m":
        return _q4_k_m()
    name = _SCHEMES.get(weight_dtype, weight_dtype)
    published = model.scheme.linear
    wanted = named_scheme(name)
    same_width = published.bits == wanted.linear.bits and published.bits < 16
    return None if same_width or _experts_width(model) == wanted.linear.bits else wanted


def _q4_k_m() -> WeightScheme:
    """llama.cpp's mixture: q6_k in the value and down projections of half of the layers."""
    pattern = r".*\.\d*[02468]\..*(?:v_proj|down_proj)"
    return replace(named_scheme("q4_k"), name="q4_k_m", overrides=((pattern, FORMATS["q6_k"]),))


def _experts_width(model: Architecture) -> int | None:
    """Bits of routed experts where the published checkpoint quantises them."""
    bits = {stored.format.bits for stored in model.stored() if stored.weight.count > 1}
    quantised = {width for width in bits if width < 16}
    return quantised.pop() if len(quantised) == 1 else None


def point_kv_dtype(point: Point) -> str:
    """As stated; else fp8 where engine or checkpoint bring it with quantised weights, else bf16."""
    stated = "fp8" if point.kv_dtype.startswith("fp8") else point.kv_dtype
    if stated in CACHE_DTYPES:
        return stated
    quantised = point.weight_dtype not in ("bf16", "fp16", "fp32")
    brings = point.engine in ("trtllm", "nim") or point.model.startswith("nvidia/")
    return "fp8" if quantised and brings else "bf16"


def point_parallel(point: Point) -> Parallel:
    """Tensor parallel as stated; other devices hold further layers (llama.cpp) or further copies."""
    others = max(1, point.devices // point.tensor)
    if point.engine == "llama.cpp":
        return Parallel(tensor=point.tensor, pipeline=others)
    return Parallel(tensor=point.tensor, replicas=others)


def _observe(point: Point, setting: _Setting) -> StepSum:
    run, seconds = setting.run, point.seconds
    if point.kind == "tpot":
        weights = tpot_weights(run, setting.outputs)
    elif point.kind == "throughput":
        weights = rate_weights(run, *_steady(run, setting.workload))
        seconds *= setting.costs.parallel.replicas
    else:
        weights = ttft_weights(run)
    return step_sum(seconds, setting.table, weights, frontend=point.kind == "ttft")


@lru_cache(maxsize=1024)
def _budget(
    name: str,
    weight_dtype: str,
    kv_dtype: str,
    parallel: Parallel,
    device: str,
    find_device: FindDevice,
    options: MemoryOptions,
) -> MemoryBudget:
    storage = _storage(name, weight_dtype, kv_dtype, parallel)
    return memory_budget(storage.model, find_device(device), parallel, scheme=storage.scheme, options=options)


def _memory_options(load: Point) -> MemoryOptions:
    """A server's usual settings; a bare batch is given all memory."""
    if load.protocol == "batch":
        return MemoryOptions(
            usable_fraction=1.0, max_batched_tokens=512, max_sequences=load.batch, runtime_bytes=0
        )
    return MemoryOptions(max_sequences=1024)


def _limits(point: Point, kv_tokens: float | None) -> ServerLimits:
    if point.protocol == "batch":
        # One batch is computed at once, whatever its size.
        return ServerLimits(max_batched_tokens=10**9, max_sequences=10**9)
    sequences = MAX_LOAD_SEQUENCES if point.protocol == "max-load" else 1024
    on_demand = point.engine in ("vllm", "sglang")
    return ServerLimits(
        max_sequences=sequences, kv_tokens=kv_tokens, reserved_output=0.5 if on_demand else 1.0
    )


def _workload(point: Point, kv_tokens: float | None) -> Workload:
    prompt, output = max(1, point.input), max(1, point.output)
    if point.protocol == "batch":
        return Workload(fixed(prompt), fixed(output), point.batch, requests=point.batch, burst=True)
    if point.protocol == "max-load":
        fit = (kv_tokens or 1e9) / (prompt + output)
        clients = max(1, min(MAX_LOAD_SEQUENCES, int(fit)))
        return Workload(fixed(prompt), fixed(output), clients, requests=2 * clients)
    lengths = _spread if point.protocol == "sweep" else fixed
    number = SWEEP_REQUESTS_PER_CLIENT * point.batch
    return Workload(lengths(prompt), lengths(output), point.batch, requests=number, burst=True)


def _spread(length: int) -> Lengths:
    return uniform(max(1, round(0.8 * length)), length)


def _steady(run: Run, workload: Workload) -> tuple[int, int]:
    """Segments from when a quarter of the clients have sent again to the last arrival: all are busy."""
    clients = workload.concurrency or 1
    begin = round(run.arrival[min(clients + clients // 4, len(run.arrival) - 1)])
    end = round(run.arrival[-1])
    return (begin, end) if end > begin else (0, len(run.segments))


def _count(segment: Segment) -> float:
    return 1.0
