"""Messages between the API process and the engine process. Token ids only; text never crosses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.request import FinishReason


class EngineCoreRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One generation to run (a request with n choices is n of these).

    Attributes:
        eos_token_ids: ids that end the answer unless ``params.ignore_eos``.
        seed: in [0, 2^64): the caller's, or drawn by the front end; already distinct for each of n choices.
        max_tokens: resolved against the context window, so never None.
        cache_salt: requests share cached prefixes only with the same salt.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    seed: int
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0
    cache_salt: str = ""


class AddRequest(msgspec.Struct, frozen=True, tag="add", omit_defaults=True):
    """A request's choices. They differ in ``request_id`` and ``seed`` alone, so their prompt crosses once.

    Attributes:
        others: id and seed of every choice but the first.
    """

    first: EngineCoreRequest
    others: list[tuple[str, int]] = []

    @classmethod
    def of(cls, choices: Sequence[EngineCoreRequest]) -> AddRequest:
        """The message for these choices of one request, of which there is at least one."""
        first, *others = choices
        return cls(first, [(choice.request_id, choice.seed) for choice in others])

    def choices(self) -> Iterator[EngineCoreRequest]:
        """The choices again, in order."""
        yield self.first
        for request_id, seed in self.others:
            yield replace(self.first, request_id=request_id, seed=seed)


class AbortRequests(msgspec.Struct, frozen=True, tag="abort"):
    """Stop these generations; unknown ids are ignored (they may just have ended)."""

    request_ids: list[str]


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End the engine process after the current step."""


EngineInput = AddRequest | AbortRequests | Shutdown


class TopLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Wire form of ``rooftree.scheduler.output.TokenLogprobs``."""

    logprob: float
    rank: int
    top_ids: list[int]
    top_logprobs: list[float]


class EngineCoreOutput(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """News of one request after a step.

    Attributes:
        new_token_ids: usually one; empty where the request ended without a token (abort, error).
        stop_reason: the stop token id that ended it, None for end-of-sequence and everything else.
        num_cached_tokens: prompt tokens that came from the prefix cache when it was first scheduled.
        queued_seconds, prefill_seconds: set with the first token, measured on the engine's own clock: arrival
            in the engine to first scheduling, and first scheduling to first token.
    """

    request_id: str
    new_token_ids: list[int]
    logprobs: list[TopLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    queued_seconds: float | None = None
    prefill_seconds: float | None = None
    error: str | None = None


class StepTotals(msgspec.Struct, array_like=True, omit_defaults=True):
    """Sums over all steps since start; none ever falls. See ``rooftree.engine.telemetry``.

    Attributes:
        num_steps, num_requests, num_tokens, num_prefill_tokens, num_outputs: as in ``StepRecord``.
        seconds, native_seconds, predicted_seconds, num_bytes, flop: as there.
        bandwidth_seconds, arithmetic_seconds: what the steps' bytes and FLOP take at the machine's rates.
        by_bandwidth, by_arithmetic, by_kv_capacity, by_queue, by_host: busy seconds that each limit bound;
            they add up to ``busy_seconds``.
    """

    num_steps: int = 0
    num_requests: int = 0
    num_tokens: int = 0
    num_prefill_tokens: int = 0
    num_outputs: int = 0
    seconds: float = 0.0
    native_seconds: float = 0.0
    predicted_seconds: float = 0.0
    num_bytes: float = 0.0
    flop: float = 0.0
    bandwidth_seconds: float = 0.0
    arithmetic_seconds: float = 0.0
    by_bandwidth: float = 0.0
    by_arithmetic: float = 0.0
    by_kv_capacity: float = 0.0
    by_queue: float = 0.0
    by_host: float = 0.0

    @property
    def busy_seconds(self) -> float:
        """Seconds with work at hand: those of the steps, and the gaps between steps that did not wait."""
        return sum(self.by_limit().values())

    @property
    def batch_size(self) -> float:
        """Requests of a step, on average."""
        return self.num_requests / max(1, self.num_steps)

    @property
    def predicted_step_seconds(self) -> float:
        """What the cost model gives a step, on average."""
        return self.predicted_seconds / max(1, self.num_steps)

    @property
    def bandwidth_fraction(self) -> float:
        """Share of the steps' time that the machine's bandwidth alone would have needed; 0 without steps."""
        return self.bandwidth_seconds / self.seconds if self.seconds else 0.0

    @property
    def arithmetic_fraction(self) -> float:
        """Share of the steps' time that the machine's arithmetic alone would have needed."""
        return self.arithmetic_seconds / self.seconds if self.seconds else 0.0

    def by_limit(self) -> dict[str, float]:
        """Busy seconds that each limit bound."""
        return {
            "bandwidth": self.by_bandwidth,
            "arithmetic": self.by_arithmetic,
            "kv_capacity": self.by_kv_capacity,
            "queue": self.by_queue,
            "host": self.by_host,
        }

    def since(self, earlier: StepTotals) -> StepTotals:
        """What was added after ``earlier``."""
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(earlier), strict=True)
        return StepTotals(*(now - before for now, before in pairs))


class SchedulerStats(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """State after a step. Counters are totals since start and never fall.

    ``free + cached + owned = total`` blocks: free hold nothing, cached hold an unreferenced prefix, owned
    belong to running requests.
    """

    num_running: int = 0
    num_waiting: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    num_owned_blocks: int = 0
    num_total_blocks: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_preemptions: int = 0
    num_preempted_tokens: int = 0
    conservation_failures: int = 0
    steps: StepTotals = msgspec.field(default_factory=StepTotals)


class EngineCoreOutputs(msgspec.Struct, frozen=True, tag="outputs", omit_defaults=True):
    """All news of one step; its arrival is a sign of life, idle or not."""

    outputs: list[EngineCoreOutput] = []
    stats: SchedulerStats | None = None


class EngineProgress(msgspec.Struct, frozen=True, tag="progress"):
    """Start-up has come to this phase (one of the keys of ``EngineReady.phase_seconds``)."""

    phase: str


class EngineReady(msgspec.Struct, frozen=True, tag="ready", omit_defaults=True):
    """Sent once, when the first real token has been computed.

    ``memory_table`` is what start-up prints: (what, bytes, how it was chosen) rows; ``notices`` are sentences
    to show besides, such as a context length that had to be lowered.
    """

    num_blocks: int
    block_size: int
    max_model_len: int
    phase_seconds: dict[str, float]
    memory_table: list[tuple[str, str, str]]
    notices: list[str] = []


class EngineBeat(msgspec.Struct, frozen=True, tag="beat"):
    """A step that takes long is getting on."""


class EngineFailed(msgspec.Struct, frozen=True, tag="failed"):
    """Start-up or the loop ended with an error; nothing follows."""

    kind: str
    message: str


EngineOutput = EngineCoreOutputs | EngineBeat | EngineProgress | EngineReady | EngineFailed
