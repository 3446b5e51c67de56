"""How a model is spread over devices."""

from __future__ import annotations

from dataclasses import dataclass

from rooftree.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Parallel:
    """How one replica takes its devices, and how many replicas there are.

    Attributes:
        tensor: devices that share every layer and add their results twice per layer.
        pipeline: groups of layers that a token passes one after the other.
        expert: devices over which whole experts are spread. 1: experts are cut like every other matrix. As
            many as ``tensor``: the tensor group's own, whose all-reduce adds up what the experts gave. More,
            a multiple of it: as many tensor groups attend, each for its own sequences (data-parallel
            attention), and tokens travel to their experts and back in every expert layer.
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
        if self.expert != 1 and self.expert % self.tensor:
            raise ConfigError(
                f"expert parallel is {self.expert}: it must be 1 or a multiple of the {self.tensor} devices "
                "of a tensor group"
            )

    @property
    def groups(self) -> int:
        """Tensor groups of a replica that attend, each for sequences of its own."""
        return max(1, self.expert // self.tensor)

    @property
    def stage_devices(self) -> int:
        """Devices that hold the same layers."""
        return self.tensor * self.groups

    @property
    def devices_per_replica(self) -> int:
        """Devices that one copy of the model takes."""
        return self.stage_devices * self.pipeline

    @property
    def schedulers(self) -> int:
        """Places where requests queue: each tensor group of each replica batches its own."""
        return self.groups * self.replicas

    @property
    def devices(self) -> int:
        """All devices."""
        return self.devices_per_replica * self.replicas


ONE_DEVICE = Parallel()
