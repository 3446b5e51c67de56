"""Feed-forward parts: dense, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rooftree.specs.weight import Role, Weight, linear

GATED = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class DenseFeedForward:
    """Two matrices (up, down), or three where gated (gate, up, down).

    ``names`` are their modules, in that order; equal neighbours are one fused module.
    """

    intermediate: int
    gated: bool = True
    bias: bool = False
    names: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")

    def weights(self, hidden: int) -> tuple[Weight, ...]:
        """Its tensors in a model of that width."""
        return tuple(
            feed_forward(self.names, hidden, self.intermediate, "dense", gated=self.gated, bias=self.bias)
        )


@dataclass(frozen=True, slots=True)
class ExpertFeedForward:
    """A mixture of experts: each token uses ``active`` of ``experts`` routed ones, and every shared one.

    Attributes:
        experts, active: routed experts in all, and per token (top-k).
        intermediate: width of one routed expert.
        shared_intermediate: width of all shared experts together; 0: there are none.
        shared_gate: a gate of one output over the shared experts (Qwen2-MoE).
        gated: experts have three matrices (gate, up, down), not two.
        bias: experts have biases.
        router_bias: the router has a number per expert, in its logits or only to balance the choice.
        latent: width that routed experts work in, between two projections; 0: the model's (Nemotron 3).
        names: modules of a routed expert (see ``DenseFeedForward``), ``{}`` for its number; stacked experts
            have none.
        shared_names: the same for the shared experts.
        router, shared_gate_name, router_bias_name: the router's module, the shared gate's, the bias's tensor.
        latent_names: modules of the projections into the latent width and out of it.
    """

    experts: int
    active: int
    intermediate: int
    shared_intermediate: int = 0
    shared_gate: bool = False
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    latent: int = 0
    names: tuple[str, ...] = tuple(f"mlp.experts.{{}}.{name}" for name in GATED)
    shared_names: tuple[str, ...] = tuple(f"mlp.shared_experts.{name}" for name in GATED)
    router: str = "mlp.gate"
    shared_gate_name: str = "mlp.shared_expert_gate"
    router_bias_name: str = "mlp.gate.e_score_correction_bias"
    latent_names: tuple[str, str] = ("mixer.fc1_latent_proj", "mixer.fc2_latent_proj")

    def weights(self, hidden: int) -> tuple[Weight, ...]:
        """Its tensors in a model of that width."""
        return tuple(self._weights(hidden))

    def _weights(self, hidden: int) -> Iterator[Weight]:
        yield from linear(self.router, self.experts, hidden, "router")
        if self.router_bias:
            yield Weight(self.router_bias_name, (self.experts,), "router", "bias")
        if self.latent:
            into, out = self.latent_names
            yield from linear(into, self.latent, hidden, "shared")
            yield from linear(out, hidden, self.latent, "shared")
        yield from feed_forward(
            self.names,
            self.latent or hidden,
            self.intermediate,
            "experts",
            gated=self.gated,
            bias=self.bias,
            count=self.experts,
            active=self.active,
        )
        if self.shared_intermediate:
            yield from feed_forward(
                self.shared_names,
                hidden,
                self.shared_intermediate,
                "shared",
                gated=self.gated,
                bias=self.bias,
            )
        if self.shared_gate:
            yield from linear(self.shared_gate_name, 1, hidden, "router")


FeedForward = DenseFeedForward | ExpertFeedForward


def feed_forward(
    names: tuple[str, ...],
    hidden: int,
    intermediate: int,
    role: Role,
    *,
    gated: bool,
    bias: bool,
    count: int = 1,
    active: int = 1,
) -> Iterator[Weight]:
    """The tensors of one feed-forward network, or of ``count`` equal ones."""
    *up, down = names
    if len(up) != 1 + gated:
        raise ValueError(f"{names} do not name the matrices of a {'gated' if gated else 'plain'} network")
    before = ""
    for name in up:
        yield from linear(
            name,
            intermediate,
            hidden,
            role,
            units=intermediate,
            bias=bias,
            continues=name == before,
            count=count,
            active=active,
        )
        before = name
    yield from linear(
        down,
        hidden,
        intermediate,
        role,
        units=intermediate,
        bias=bias,
        split_input=True,
        count=count,
        active=active,
    )
