"""One kind of stored tensor: what parameters, bytes and arithmetic are counted from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

WeightKind = Literal["linear", "embedding", "norm", "bias", "conv", "other"]
Role = Literal["embedding", "head", "attention", "recurrent", "dense", "router", "experts", "shared", "norm"]


@dataclass(frozen=True, slots=True)
class Weight:
    """``count`` tensors of one shape, all with the same use.

    Attributes:
        name: module and tensor, as the published checkpoint names them below its layer
            (``self_attn.q_proj.weight``); ignore lists of quantised checkpoints match against it. Among several
            experts, ``{}`` stands for the expert's number.
        shape: row-major; a linear weight is (out_features, in_features).
        role: the part of the model that it belongs to.
        kind: ``linear`` is a matrix product per token (2 FLOP per element), ``embedding`` a row looked up;
            the others are small.
        units: into how many equal parts tensor parallelism can cut it (heads, KV heads, columns); 1: every
            device holds all of it.
        count: tensors of this shape (more than 1 only for routed experts).
        active: how many of them one token uses.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    kind: WeightKind = "linear"
    units: int = 1
    count: int = 1
    active: int = 1

    @property
    def elements(self) -> int:
        """Elements of one tensor."""
        return math.prod(self.shape)

    @property
    def parameters(self) -> int:
        """Elements of all ``count`` tensors."""
        return self.elements * self.count

    @property
    def parameters_active(self) -> int:
        """Elements that one token uses."""
        return self.elements * self.active

    def largest_share(self, tensor_parallel: int) -> float:
        """Part of one tensor on the device that holds most: ceil(units / n) / units, never below one unit."""
        return -(-self.units // tensor_parallel) / self.units
