"""A model on devices, set up in one way: what it holds, and what a step of it takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

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
)
from rooftree.roofline.parallel import Parallel
from rooftree.specs.attention import Attention, LatentAttention
from rooftree.specs.device import DeviceSpec
from rooftree.specs.weight_scheme import WeightScheme, named_scheme

PUBLISHED = "as published"


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
    def scheme(self) -> WeightScheme | None:
        """How weights are stored; None: as published."""
        return None if self.weight_dtype == PUBLISHED else named_scheme(self.weight_dtype)

    @cached_property
    def costs(self) -> ModelCosts:
        """Constants of the model's work."""
        return model_costs(self.model.architecture, self.parallel, scheme=self.scheme, kv_dtype=self.kv_dtype)

    @cached_property
    def budget(self) -> MemoryBudget:
        """Memory of the device that holds most."""
        return memory_budget(
            self.model.architecture, self.device, self.parallel, scheme=self.scheme, options=self.options
        )

    @cached_property
    def efficiency(self) -> Efficiency:
        """The fitted constants for this device and storage."""
        weights = sum(matrix.weight_bytes for matrix in self.costs.matrices)
        elements = sum(
            _stored_elements(matrix.token_flop, matrix.experts, matrix.active)
            for matrix in self.costs.matrices
        )
        arithmetic = max(self.costs.matrices, key=lambda matrix: matrix.token_flop).arithmetic
        return efficiency_of(
            self.constants.constants,
            self.device,
            width_of(8 * weights / max(elements, 1.0)),
            arithmetic_width(arithmetic),
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
        """Tokens that the KV cache of a replica holds; None where a model keeps no KV."""
        return self.budget.kv / self.kv_bytes_per_token if self.kv_bytes_per_token else None

    @cached_property
    def limits(self) -> ServerLimits:
        """What the simulation must respect."""
        architecture = self.model.architecture
        state = architecture.state_bytes_per_sequence(self.kv_dtype, tensor_parallel=self.parallel.tensor)
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

    def sequences(self, tokens: float) -> int:
        """Sequences of that length that one replica holds at once."""
        size = kv_bytes_per_sequence(
            self.model.architecture,
            max(1, round(tokens)),
            self.parallel,
            kv_dtype=self.kv_dtype,
            options=self.options,
        )
        return sequences_at_once(self.budget.kv, size) if size else self.options.max_sequences


def _stored_elements(token_flop: float, experts: int, active: int) -> float:
    """Weights behind a matrix product of that many FLOP per token."""
    return token_flop / 2 * (experts / active if active else 1.0)


def possible_tensor_sizes(model: NamedModel, device: DeviceSpec, most: int) -> list[int]:
    """Sizes of a tensor group, powers of two, that divide the heads and stay among linked devices."""
    heads = [
        layer.mixer.num_heads
        for layer, _ in model.architecture.layer_groups()
        if isinstance(layer.mixer, Attention | LatentAttention)
    ]
    linked = 8
    if device.link is not None and device.link.max_devices is not None:
        linked = max(linked, min(device.link.max_devices, 16))
    if device.link is None and device.pcie_bytes_per_second is None:
        linked = 1
    sizes, size = [], 1
    while size <= min(most, linked):
        if all(count % size == 0 for count in heads):
            sizes.append(size)
        size *= 2
    return sizes


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
