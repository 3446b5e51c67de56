"""Speed of an engine alone: prefill and decode, step by step, without server or text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean, median

from rooftree.engine.core import EngineCore
from rooftree.engine.messages import EngineCoreRequest
from rooftree.engine.stats import StepRecord
from rooftree.errors import RooftreeError
from rooftree.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Workload:
    """``batch`` requests at once, all prompts different."""

    batch: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class EngineResult:
    """Medians over the runs; times in seconds.

    Attributes:
        prefill_tokens_per_s: prompt tokens over the time until each prompt has its first token.
        decode_tokens_per_s: tokens over time of the steps in which all requests decode.
        decode_step_s: median of such a step.
        python_share: of these steps' time, what was spent outside the kernels.
        predicted_step_s: mean of what the cost model gives such a step.
        bandwidth_fraction: bytes of these steps over what the memory could have moved in their time.
        bound: the limit that bound most of them.
    """

    batch: int
    prompt_tokens: int
    output_tokens: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    decode_step_s: float
    python_share: float
    predicted_step_s: float
    bandwidth_fraction: float
    bound: str


def measure(core: EngineCore, work: Workload, repeat: int) -> EngineResult:
    """Run a workload ``repeat`` times after a warm-up. ``core`` must be idle, its prefix cache off.

    Raises:
        RooftreeError: the KV cache is too small for all requests at once, so there is nothing to measure.
    """
    for _ in _steps(core, Workload(work.batch, min(work.prompt_tokens, 32), 2), "warm-up"):
        pass
    prefills, decodes, steps, shares, all_steps = [], [], [], [], []
    for run in range(repeat):
        alone = list(_steps(core, Workload(work.batch, work.prompt_tokens, 1), f"prefill-{run}"))
        prefills.append(work.batch * work.prompt_tokens / sum(step.seconds for step in alone))
        whole = [step for step in _steps(core, work, f"decode-{run}") if _all_decode(step, work)]
        if not whole:
            raise RooftreeError(
                f"{work.batch} requests of {work.prompt_tokens} + {work.output_tokens} tokens never decoded "
                f"all at once: raise --kv-cache-memory, or lower --batch or the token counts"
            )
        seconds = sum(step.seconds for step in whole)
        decodes.append(work.batch * len(whole) / seconds)
        steps.append(median(step.seconds for step in whole))
        all_steps += whole
        shares.append(1 - sum(step.native_seconds for step in whole) / seconds)
    return EngineResult(
        work.batch,
        work.prompt_tokens,
        work.output_tokens,
        median(prefills),
        median(decodes),
        median(steps),
        median(shares),
        mean(step.predicted_seconds for step in all_steps),
        mean(step.bandwidth_fraction for step in all_steps),
        Counter(step.bound for step in all_steps).most_common(1)[0][0],
    )


def _all_decode(step: StepRecord, work: Workload) -> bool:
    return step.num_requests == step.num_tokens == work.batch and (
        work.prompt_tokens > 1 or step.decode_context[0] > work.batch
    )


def _steps(core: EngineCore, work: Workload, name: str) -> Iterator[StepRecord]:
    """Run the requests to their end; a record of each step."""
    params = SamplingParams(temperature=0.0, max_tokens=work.output_tokens, ignore_eos=True)
    for index in range(work.batch):
        # Different from the first token on, and within any vocabulary.
        prompt = [(7 * index + 3 * position) % 256 for position in range(work.prompt_tokens)]
        core.add_request(EngineCoreRequest(f"{name}-{index}", prompt, params, work.output_tokens, index))
    while core.has_unfinished_requests:
        news = core.step()
        failed = next((output.error for output in news.outputs if output.error is not None), None)
        if failed is not None:
            raise RooftreeError(failed)
        if core.last_step is not None:
            yield core.last_step
