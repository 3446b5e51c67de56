"""A model on devices, set up in one way: what it holds, and what a step of it takes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from rooftree.errors import ConfigError
from rooftree.planner.calibration.vector import arithmetic_width, efficiency_of, width_of
from rooftree.planner.constants import StackConstants
from rooftree.planner.models import NamedModel
from rooftree.planner.simulation import ServerLimits
from rooftree.roofline.clock import StepClock, step_clock
from rooftree.roofline.costs import ModelCosts, model_costs
from rooftree.roofline.efficiency import Efficiency
from rooftree.roofline.memory import (
    MemoryBudget,
    MemoryOptions,
    kv_bytes_per_sequence,
    memory_budget,
    sequences_at_once,
    stage_weight_bytes,
)
from rooftree.roofline.parallel import Parallel
from rooftree.specs.architecture import Architecture
from rooftree.specs.attention import Attention, LatentAttention
from rooftree.specs.device import DeviceSpec
from rooftree.specs.feed_forward import ExpertFeedForward
from rooftree.specs.weight import share
from rooftree.specs.weight_scheme import WeightScheme, named_scheme

PUBLISHED = "as published"
_POWERS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Deployment:
    """One way to serve a model.

    Attributes:
        weight_dtype: a name of ``named_scheme``, or ``PUBLISHED``.
        constants: of the step model.
        options: of the server.
    """

    model: NamedModel
    device: DeviceSpec
    parallel: Parallel
    weight_dtype: str
    kv_dtype: str
    constants: StackConstants
    options: MemoryOptions = field(default_factory=MemoryOptions)

    @cached_property
    def _sizing(self) -> Sizing:
        single = replace(self.parallel, replicas=1)
        return sizing(self.model, single, self.weight_dtype, self.kv_dtype)

    @property
    def scheme(self) -> WeightScheme | None:
        """How weights are stored; None: as published."""
        return self._sizing.scheme

    @property
    def costs(self) -> ModelCosts:
        """Constants of the model's work."""
        return self._sizing.costs

    @cached_property
    def budget(self) -> MemoryBudget:
        """Memory of the device that holds most."""
        return memory_budget(
            self.model.architecture,
            self.device,
            self.parallel,
            options=self.options,
            weights=self._sizing.weights,
        )

    @cached_property
    def efficiency(self) -> Efficiency:
        """The fitted constants for this device and storage."""
        if self.constants.efficiency is not None:
            return self.constants.efficiency
        return efficiency_of(
            self.constants.constants,
            self.device,
            width_of(self._sizing.bits),
            arithmetic_width(self._sizing.arithmetic),
        )

    @cached_property
    def clock(self) -> StepClock:
        """Seconds of a step."""
        return step_clock(self.costs, self.device, self.efficiency)

    @cached_property
    def kv_bytes_per_token(self) -> float:
        """K and V of one token on one device."""
        return self.costs.kv_write_bytes / self.parallel.pipeline

    @cached_property
    def kv_tokens(self) -> float | None:
        """Tokens that the KV cache of a tensor group holds; None where a model keeps no KV."""
        return self.budget.kv / self.kv_bytes_per_token if self.kv_bytes_per_token else None

    @cached_property
    def limits(self) -> ServerLimits:
        """What the simulation must respect."""
        state = self._sizing.state_bytes
        per_token = self.costs.kv_write_bytes
        sequences = self.options.max_sequences
        if not per_token and state:
            sequences = min(sequences, max(1, int(self.budget.kv / state)))
        return ServerLimits(
            max_batched_tokens=self.options.max_batched_tokens,
            max_sequences=sequences,
            kv_tokens=self.kv_tokens,
            sequence_tokens=state / per_token if per_token else 0.0,
        )

    @property
    def is_linked(self) -> bool:
        """The devices of a replica reach each other in a way that is known."""
        return self.parallel.devices_per_replica == 1 or can_be_linked(self.device)

    def sequences(self, tokens: float) -> int:
        """Sequences of that length that one tensor group (of all stages) holds at once."""
        size = self.sequence_bytes(tokens)
        return sequences_at_once(self.budget.kv, size) if size else self.options.max_sequences

    def sequence_bytes(self, tokens: float) -> int:
        """KV and states of one sequence of that length on one device."""
        whole = max(1, round(tokens))
        if self.options.windowed:
            return kv_bytes_per_sequence(
                self.model.architecture, whole, self.parallel, kv_dtype=self.kv_dtype, options=self.options
            )
        blocks = share(whole, self.options.block_tokens) * self.options.block_tokens
        kept = blocks * self.costs.kv_write_bytes + self._sizing.state_bytes
        return share(int(kept), self.parallel.pipeline)


@dataclass(frozen=True, slots=True)
class Sizing:
    """What does not depend on the device. ``bits``: mean bits of a stored weight."""

    scheme: WeightScheme | None
    costs: ModelCosts
    weights: int
    state_bytes: int
    bits: float
    arithmetic: str


@lru_cache(maxsize=512)
def sizing(model: NamedModel, parallel: Parallel, weight_dtype: str, kv_dtype: str) -> Sizing:
    """Count a model in a storage format under a parallel plan of one replica."""
    architecture = model.architecture
    scheme = _scheme(weight_dtype)
    costs = model_costs(architecture, parallel, scheme=scheme, kv_dtype=kv_dtype)
    return Sizing(
        scheme=scheme,
        costs=costs,
        weights=stage_weight_bytes(architecture, parallel, scheme),
        state_bytes=architecture.state_bytes_per_sequence(kv_dtype, tensor_parallel=parallel.tensor),
        bits=8 * weight_bytes(model, weight_dtype) / architecture.num_parameters,
        arithmetic=max(costs.matrices, key=lambda matrix: matrix.token_flop).arithmetic,
    )


@lru_cache(maxsize=256)
def weight_bytes(model: NamedModel, weight_dtype: str) -> int:
    """Bytes of all weights of a model in a storage format."""
    return model.architecture.weight_bytes(_scheme(weight_dtype))


def _scheme(weight_dtype: str) -> WeightScheme | None:
    return None if weight_dtype == PUBLISHED else named_scheme(weight_dtype)


def can_be_linked(device: DeviceSpec) -> bool:
    """Whether any way between two of these devices is known."""
    return device.link is not None or device.pcie_bytes_per_second is not None


def possible_tensor_sizes(model: NamedModel, device: DeviceSpec, most: int) -> list[int]:
    """Sizes of a tensor group, powers of two, that divide the heads and stay among linked devices."""
    heads = [
        layer.mixer.num_heads
        for layer, _ in model.architecture.layer_groups()
        if isinstance(layer.mixer, Attention | LatentAttention)
    ]
    linked = min(most, linked_devices(device))
    return [size for size in _POWERS if size <= linked and all(count % size == 0 for count in heads)]


def possible_expert_sizes(model: NamedModel, device: DeviceSpec, tensor: int, most: int) -> list[int]:
    """Devices over which whole experts may be spread beside data-parallel attention, and 1: cut as all else.

    A tensor group that spreads its own experts does the same work as one that cuts them, and several groups
    of more than one device lie between the two ends: both are left to those who ask for them.
    """
    if tensor > 1:
        return [1]
    linked = min(most, linked_devices(device), most_experts(model.architecture))
    return [1, *(size for size in _POWERS if 1 < size <= linked)]


def linked_devices(device: DeviceSpec) -> int:
    """Devices that one replica may take: those of a node, or of a larger domain of direct links up to 16."""
    if not can_be_linked(device):
        return 1
    direct = device.link.max_devices if device.link is not None else None
    return max(8, min(direct or 8, 16))


def most_experts(architecture: Architecture) -> int:
    """Routed experts of the layer that has most; 0 in a dense model."""
    layers = (layer.feed_forward for layer, _ in architecture.layer_groups())
    return max((part.experts for part in layers if isinstance(part, ExpertFeedForward)), default=0)


def check_tensor_size(model: NamedModel, tensor: int) -> None:
    """Refuse a tensor group that cannot cut the heads evenly.

    Raises:
        ConfigError: it cannot; the message says what can.
    """
    for layer, _ in model.architecture.layer_groups():
        mixer = layer.mixer
        if isinstance(mixer, Attention | LatentAttention) and mixer.num_heads % tensor:
            good = [n for n in (1, 2, 4, 8, 16) if mixer.num_heads % n == 0]
            raise ConfigError(
                f"--tp {tensor} does not divide the {mixer.num_heads} heads of {model.name}; "
                f"{', '.join(map(str, good))} do"
            )
