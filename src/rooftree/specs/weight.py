"""One kind of stored tensor: what parameters, bytes and arithmetic are counted from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

WeightKind = Literal["linear", "embedding", "norm", "bias", "conv", "other"]
Role = Literal["embedding", "head", "attention", "recurrent", "dense", "router", "experts", "shared", "norm"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class Weight:
    """``count`` tensors of one shape, all with the same use.

    Attributes:
        name: the tensor as the published checkpoint names it below its layer (``self_attn.q_proj.weight``);
            ignore lists of quantised checkpoints match its module. Among experts, ``{}`` stands for a number.
        shape: row-major; a linear weight is (out_features, in_features).
        role: the part of the model that it belongs to.
        kind: ``linear`` is a matrix product per token (2 FLOP per element), ``embedding`` a row looked up;
            the others are small.
        units: into how many equal parts tensor parallelism can cut it (heads, KV heads, columns); 1: every
            device holds all of it.
        count: tensors of this shape (more than 1 only for routed experts).
        active: how many of them one token uses.
        continues: further rows of the tensor before it, which has the same name (fused projections).
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    kind: WeightKind = "linear"
    units: int = 1
    count: int = 1
    active: int = 1
    continues: bool = False

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

    @property
    def module(self) -> str:
        """The module that holds it: its name without the last part where that is the tensor's own."""
        head, _, last = self.name.rpartition(".")
        return head if last in ("weight", "bias") else self.name


def share(units: int, devices: int) -> int:
    """Units on the device that holds most of them: at least one."""
    return -(-units // devices)


def linear(
    module: str,
    out_features: int,
    in_features: int,
    role: Role,
    *,
    units: int = 1,
    bias: bool = False,
    split_input: bool = False,
    continues: bool = False,
    count: int = 1,
    active: int = 1,
) -> tuple[Weight, ...]:
    """A linear module's weight and, where it has one, its bias.

    ``split_input``: tensor parallelism cuts the input side (row parallel), so the bias is not cut.
    """
    weight = Weight(
        name=f"{module}.weight",
        shape=(out_features, in_features),
        role=role,
        units=units,
        count=count,
        active=active,
        continues=continues,
    )
    if not bias:
        return (weight,)
    rows = Weight(
        name=f"{module}.bias",
        shape=(out_features,),
        role=role,
        kind="bias",
        units=1 if split_input else units,
        count=count,
        active=active,
        continues=continues,
    )
    return (weight, rows)


def norm(module: str, size: int, *, bias: bool = False, role: Role = "norm") -> tuple[Weight, ...]:
    """A norm's weight and, where it has one, its bias."""
    names = ("weight", "bias") if bias else ("weight",)
    return tuple(Weight(f"{module}.{name}", (size,), role, kind="norm") for name in names)
