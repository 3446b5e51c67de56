"""How a model is spread over devices."""

from __future__ import annotations

from dataclasses import dataclass

from rooftree.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Parallel:
    """One replica on ``tensor * pipeline`` devices, and how many replicas.

    Attributes:
        tensor: devices that share every layer and add their results twice per layer.
        pipeline: groups of layers that a token passes one after the other.
        expert: devices over which whole experts are spread (1: experts are cut like every other matrix). They
            are devices of the tensor group, as vLLM spreads them.
        replicas: independent copies.
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    replicas: int = 1

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "expert", "replicas"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} parallel is {getattr(self, name)}: it must be at least 1")
        if self.expert not in (1, self.tensor):
            raise ConfigError(
                f"expert parallel is {self.expert}: it must be 1, or the {self.tensor} devices of the "
                "tensor group"
            )

    @property
    def devices_per_replica(self) -> int:
        """Devices that one copy of the model takes."""
        return self.tensor * self.pipeline

    @property
    def devices(self) -> int:
        """All devices."""
        return self.devices_per_replica * self.replicas


ONE_DEVICE = Parallel()
