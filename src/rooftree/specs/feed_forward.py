"""Feed-forward parts: dense, and mixtures of experts."""

from __future__ import annotations

from dataclasses import dataclass

from rooftree.specs.weight import Weight


@dataclass(frozen=True, slots=True)
class DenseFeedForward:
    """Two matrices, or three where gated (gate, up, down)."""

    intermediate: int
    gated: bool = True
    bias: bool = False

    def weights(self, hidden: int) -> tuple[Weight, ...]:
        """Its tensors in a model of that width."""
        raise NotImplementedError


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
        router_bias: the router has a bias per expert, used in its logits or only to balance the choice.
    """

    experts: int
    active: int
    intermediate: int
    shared_intermediate: int = 0
    shared_gate: bool = False
    gated: bool = True
    bias: bool = False
    router_bias: bool = False

    def weights(self, hidden: int) -> tuple[Weight, ...]:
        """Its tensors in a model of that width."""
        raise NotImplementedError


FeedForward = DenseFeedForward | ExpertFeedForward
