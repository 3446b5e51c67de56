"""What a user asks of the planner."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from rooftree.errors import ConfigError
from rooftree.planner.deployment import most_experts
from rooftree.planner.models import NamedModel
from rooftree.planner.workload import Promise, Workload
from rooftree.roofline.memory import MemoryOptions
from rooftree.specs.device import DeviceSpec


@dataclass(frozen=True, slots=True)
class Question:
    """A model, devices, a workload and what was promised.

    Attributes:
        device: None: rank all devices.
        count: devices at hand; None: as few as keep the promise.
        weight_dtype, kv_dtype: stated by the user; None: as published, or a smaller one where only that
            serves (``storage``).
        tensor, pipeline, expert, replicas: fixed by the user; None: the planner chooses.
        engine: whose measured constants to use; None: those of no engine in particular.
        price: per device and hour.
        peak_factor: how many times the workload a peak is.
        own_options: of Rooftree's own engine on the machine that was probed; None: ``options`` there too.
    """

    model: NamedModel
    workload: Workload
    device: DeviceSpec | None = None
    count: int | None = None
    promise: Promise = field(default_factory=Promise)
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    tensor: int | None = None
    pipeline: int | None = None
    expert: int | None = None
    replicas: int | None = None
    engine: str | None = None
    price: float | None = None
    peak_factor: float = 1.0
    options: MemoryOptions = field(default_factory=MemoryOptions)
    own_options: MemoryOptions | None = None
    devices: tuple[DeviceSpec, ...] = ()
    constants_file: Path | None = None
    machine_file: Path | None = None

    def __post_init__(self) -> None:
        if self.count is not None and not 1 <= self.count <= 100_000:
            raise ConfigError(f"--count {self.count}: give 1 to 100,000 devices")
        if not 1 <= self.peak_factor <= 1000:
            raise ConfigError(f"--peak-factor {self.peak_factor}: a peak is 1 to 1,000 times the load")
        if self.price is not None and not 0 <= self.price < math.inf:
            raise ConfigError(f"--price {self.price}: it must be a number and not below 0")
        for option, value, most in (
            ("--tp", self.tensor, 1024),
            ("--pp", self.pipeline, self.model.architecture.num_layers),
            ("--ep", self.expert, 1024),
            ("--replicas", self.replicas, 100_000),
        ):
            if value is not None and not 1 <= value <= most:
                raise ConfigError(f"{option} {value}: it must be 1 to {most:,}")
        if self.expert is not None and self.expert > 1:
            self._check_experts(self.expert)

    def _check_experts(self, expert: int) -> None:
        experts = most_experts(self.model.architecture)
        if expert > experts:
            kinds = f"has {experts} experts per layer" if experts else "has no routed experts"
            raise ConfigError(f"--ep {expert}: {self.model.name} {kinds}")
        if self.tensor is not None and expert % self.tensor:
            raise ConfigError(f"--ep {expert}: it must be a multiple of --tp {self.tensor}")
