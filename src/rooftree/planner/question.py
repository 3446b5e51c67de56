"""What a user asks of the planner."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rooftree.errors import ConfigError
from rooftree.planner.deployment import PUBLISHED
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
        tensor, pipeline, replicas: fixed by the user; None: the planner chooses.
        engine: whose measured constants to use; None: those of no engine in particular.
        price: per device and hour.
        peak_factor: how many times the workload a peak is.
    """

    model: NamedModel
    workload: Workload
    device: DeviceSpec | None = None
    count: int | None = None
    promise: Promise = field(default_factory=Promise)
    weight_dtype: str = PUBLISHED
    kv_dtype: str = "bf16"
    tensor: int | None = None
    pipeline: int | None = None
    replicas: int | None = None
    engine: str | None = None
    price: float | None = None
    peak_factor: float = 1.0
    options: MemoryOptions = field(default_factory=MemoryOptions)
    devices: tuple[DeviceSpec, ...] = ()
    constants_file: Path | None = None

    def __post_init__(self) -> None:
        if self.count is not None and not 1 <= self.count <= 100_000:
            raise ConfigError(f"--count {self.count}: give 1 to 100,000 devices")
        if not self.peak_factor >= 1:
            raise ConfigError(f"--peak-factor {self.peak_factor}: a peak is at least 1 times the load")
        if self.price is not None and not self.price >= 0:
            raise ConfigError(f"--price {self.price}: it must not be below 0")
        for name in ("tensor", "pipeline", "replicas"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name} {value}: it must be at least 1")
