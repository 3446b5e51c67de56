"""What lies in a device's memory while serving, and how many sequences fit at once."""

from __future__ import annotations

from dataclasses import dataclass

from rooftree.roofline.parallel import ONE_DEVICE, Parallel
from rooftree.specs.architecture import Architecture
from rooftree.specs.device import DeviceSpec
from rooftree.specs.feed_forward import DenseFeedForward, ExpertFeedForward
from rooftree.specs.weight import share
from rooftree.specs.weight_scheme import WeightScheme

GIB = 2**30
LOGIT_COPIES_BYTES = 14
"""Bytes per logit at the peak: 2 as computed, 4 as fp32, and two more copies of 4 while sampling. With 1,024
rows it gives the activation memory that vLLM 0.19 reports for large vocabularies (docs/planner.md)."""

RUNTIME_BYTES = int(0.27 * GIB)
RUNTIME_BYTES_LINKED = int(2.10 * GIB)
"""Memory outside the framework's own pool on one device, and with collectives' buffers on several: vLLM 0.19
on H100 (measured points P0308 and P0309)."""


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """How the server is set up.

    Attributes:
        usable_fraction: of the device's total memory (vLLM's gpu_memory_utilization).
        max_batched_tokens, max_sequences: the largest step, which sets the peak of activations.
        runtime_bytes: context, graphs, buffers of collectives; None: the measured ones above.
        block_tokens: tokens per KV block; a sequence takes whole blocks.
        windowed: the engine frees KV that has left a sliding window. Rooftree's does not.
        kv_fraction: share of what weights, activations and runtime leave that the KV cache takes; the rest
            stays unused. Rooftree's engine leaves some to others on the machine.
        activation_bytes: peak of the largest step, as an engine itself tells; None: ``activation_bytes()``.
    """

    usable_fraction: float = 0.9
    max_batched_tokens: int = 8192
    max_sequences: int = 256
    runtime_bytes: int | None = None
    block_tokens: int = 16
    windowed: bool = False
    kv_fraction: float = 1.0
    activation_bytes: int | None = None


USUAL_MEMORY = MemoryOptions()


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes on the device that holds most. ``kv`` is what is left for KV and states; it may be negative."""

    total: int
    usable: int
    weights: int
    activations: int
    runtime: int

    @property
    def kv(self) -> int:
        """Capacity for KV and recurrent states."""
        return self.usable - self.weights - self.activations - self.runtime

    @property
    def fits(self) -> bool:
        """Anything is left for KV at all."""
        return self.kv > 0


def memory_budget(
    model: Architecture,
    device: DeviceSpec,
    parallel: Parallel = ONE_DEVICE,
    *,
    scheme: WeightScheme | None = None,
    options: MemoryOptions = USUAL_MEMORY,
    weights: int | None = None,
) -> MemoryBudget:
    """The budget of one device.

    ``scheme`` None: weights as published. ``weights``: their bytes, where ``stage_weight_bytes`` was asked
    before.
    """
    total = device.total_memory_bytes
    linked = parallel.devices_per_replica > 1
    runtime = options.runtime_bytes
    if runtime is None:
        runtime = RUNTIME_BYTES_LINKED if linked else RUNTIME_BYTES
    if weights is None:
        weights = stage_weight_bytes(model, parallel, scheme)
    activations = options.activation_bytes
    if activations is None:
        activations = activation_bytes(
            model, options.max_batched_tokens, options.max_sequences, tensor_parallel=parallel.tensor
        )
    usable = int(total * options.usable_fraction)
    taken = weights + activations + runtime
    if usable > taken:
        usable = taken + int((usable - taken) * options.kv_fraction)
    return MemoryBudget(total, usable, weights, activations, runtime)


def stage_weight_bytes(model: Architecture, parallel: Parallel, scheme: WeightScheme | None = None) -> int:
    """Weights on the device that holds most: its share of the heaviest stage.

    Stages take equal numbers of layers, the first also the embedding, the last also norm and head.
    """
    total = model.weight_bytes(scheme, tensor_parallel=parallel.tensor, expert_parallel=parallel.expert)
    if parallel.pipeline == 1:
        return total
    layers = model.layer_weight_bytes(
        scheme, tensor_parallel=parallel.tensor, expert_parallel=parallel.expert
    )
    outside = total - sum(layers)
    size = share(len(layers), parallel.pipeline)
    stages = [sum(layers[at : at + size]) for at in range(0, len(layers), size)]
    stages[0] += outside
    return max(stages)


def activation_bytes(
    model: Architecture, batched_tokens: int, sequences: int, *, tensor_parallel: int = 1
) -> int:
    """Peak of the largest step beside weights and KV: two residual streams, and the larger of one layer's
    intermediate results and the logits with their copies while sampling."""
    width = 4 if model.dtype == "fp32" else 2
    residual = 2 * model.hidden_size
    layer = max(_layer_elements(layer, tensor_parallel) for layer, _ in model.layer_groups())
    logits = min(sequences, batched_tokens) * model.vocab_size
    return batched_tokens * residual * width + max(
        batched_tokens * layer * width, LOGIT_COPIES_BYTES * logits
    )


def kv_bytes_per_sequence(
    model: Architecture,
    tokens: int,
    parallel: Parallel = ONE_DEVICE,
    *,
    kv_dtype: str = "bf16",
    options: MemoryOptions = USUAL_MEMORY,
) -> int:
    """KV (in whole blocks) and states of one sequence of that length, on one device."""
    blocks = share(tokens, options.block_tokens) * options.block_tokens
    kv = model.kv_bytes(blocks, kv_dtype, windowed=options.windowed, tensor_parallel=parallel.tensor)
    state = model.state_bytes_per_sequence(kv_dtype, tensor_parallel=parallel.tensor)
    return share(kv + state, parallel.pipeline)


def sequences_at_once(capacity: int, bytes_per_sequence: int) -> int:
    """Whole sequences that fit; 0 where nothing is left."""
    return max(0, capacity) // bytes_per_sequence


def _layer_elements(layer: object, tensor_parallel: int) -> int:
    """Elements per token of a layer's intermediate results on one device."""
    feed_forward = getattr(layer, "feed_forward", None)
    if isinstance(feed_forward, DenseFeedForward):
        return share((2 + feed_forward.gated) * feed_forward.intermediate, tensor_parallel)
    if isinstance(feed_forward, ExpertFeedForward):
        routed = feed_forward.active * feed_forward.intermediate + feed_forward.shared_intermediate
        return share((2 + feed_forward.gated) * routed, tensor_parallel)
    return 0
