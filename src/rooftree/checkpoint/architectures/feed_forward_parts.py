"""Feed-forward parts as the families' configs describe them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rooftree.checkpoint.architectures.attention_parts import Feature, has
from rooftree.checkpoint.architectures.family import FeedForwardOf
from rooftree.checkpoint.architectures.values import layer_indices, stated, whole
from rooftree.checkpoint.fields import Fields
from rooftree.specs.feed_forward import GATED, DenseFeedForward, ExpertFeedForward

MLP = tuple(f"mlp.{name}" for name in GATED)
FUSED_MLP = ("mlp.gate_up_proj", "mlp.gate_up_proj", "mlp.down_proj")
PLAIN_MLP = ("mlp.up_proj", "mlp.down_proj")
OLD_MLP = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
W123 = tuple(f"block_sparse_moe.experts.{{}}.w{number}" for number in (1, 3, 2))
GRANITE_EXPERTS = tuple(f"block_sparse_moe.{name}_linear" for name in ("input", "input", "output"))
GRANITE_SHARED = tuple(f"shared_mlp.{name}_linear" for name in ("input", "input", "output"))


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayers:
    """The same dense network in every layer."""

    names: tuple[str, ...] = MLP
    bias: Feature = False
    width: str = "intermediate_size"
    default_width: Callable[[Fields], int] | None = None

    def __call__(self, fields: Fields) -> FeedForwardOf:
        """The network of each layer."""
        default = self.default_width(fields) if self.default_width else None
        dense = DenseFeedForward(
            fields.count(self.width, default),
            gated=len(self.names) == 3,
            bias=has(fields, self.bias),
            names=self.names,
        )
        return lambda index: dense


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLayers:
    """Experts in every layer for which ``sparse`` holds, a dense network in the others.

    ``experts``, ``width``, ``shared``, ``dense_width``: fields with the number of routed experts, the width
    of one, the width of the shared ones, and that of a dense layer. ``shared_count``: field with the number
    of shared experts, each as wide as a routed one (instead of ``shared``). Both must be stated, or weights
    would go uncounted; ``shared_optional``: where left out means none.
    """

    experts: str = "num_local_experts"
    width: str = "intermediate_size"
    shared: str | None = None
    shared_count: str | None = None
    shared_optional: bool = False
    shared_gate: bool = False
    dense_width: str = "intermediate_size"
    dense_names: tuple[str, ...] = MLP
    sparse: Callable[[Fields], Callable[[int], bool]] = lambda fields: lambda index: True
    bias: bool = False
    router_bias: Callable[[Fields], bool] = lambda fields: False
    names: tuple[str, ...] = tuple(f"mlp.experts.{{}}.{name}" for name in GATED)
    shared_names: tuple[str, ...] = tuple(f"mlp.shared_experts.{name}" for name in GATED)
    router: str = "mlp.gate"
    router_bias_name: str = "mlp.gate.e_score_correction_bias"

    def __call__(self, fields: Fields) -> FeedForwardOf:
        """The network of each layer."""
        experts, sparse = self._experts(fields), self.sparse(fields)
        kinds = [sparse(index) for index in range(fields.layers("num_hidden_layers"))]
        if all(kinds):
            return lambda index: experts
        dense = DenseFeedForward(
            fields.count(self.dense_width), gated=len(self.dense_names) == 3, names=self.dense_names
        )
        return lambda index: experts if kinds[index] else dense

    def _experts(self, fields: Fields) -> ExpertFeedForward:
        total, active = fields.count(self.experts), fields.count("num_experts_per_tok")
        if active > total:
            fields.fail("num_experts_per_tok", f"is {active}, more than the {total} of {self.experts}")
        width = fields.count(self.width)
        shared = 0
        if self.shared:
            shared = whole(fields, self.shared, 0) if self.shared_optional else stated(fields, self.shared)
        if self.shared_count:
            shared = stated(fields, self.shared_count) * width
        return ExpertFeedForward(
            experts=total,
            active=active,
            intermediate=width,
            shared_intermediate=shared,
            shared_gate=self.shared_gate and shared > 0,
            gated=len(self.names) == 3,
            bias=self.bias,
            router_bias=self.router_bias(fields),
            names=self.names,
            shared_names=self.shared_names,
            router=self.router,
            router_bias_name=self.router_bias_name,
        )


def every_step(fields: Fields) -> Callable[[int], bool]:
    """Qwen's rule: every decoder_sparse_step-th layer, except those of mlp_only_layers."""
    step, dense = fields.count("decoder_sparse_step", 1), layer_indices(fields, "mlp_only_layers")
    return lambda index: index not in dense and (index + 1) % step == 0


def after_dense(fields: Fields) -> Callable[[int], bool]:
    """DeepSeek's rule: from layer first_k_dense_replace on, every moe_layer_freq-th."""
    first, step = whole(fields, "first_k_dense_replace"), fields.count("moe_layer_freq", 1)
    return lambda index: index >= first and index % step == 0


def llama4_sparse(fields: Fields) -> Callable[[int], bool]:
    """moe_layers where given, else the last of every interleave_moe_layer_step layers."""
    if fields.get("moe_layers") is not None:
        listed = layer_indices(fields, "moe_layers")
        return lambda index: index in listed
    step = fields.count("interleave_moe_layer_step", 1)
    return lambda index: (index + 1) % step == 0


def always(fields: Fields) -> bool:
    """A feature of every model of a family."""
    return True


def no_aux_loss(fields: Fields) -> bool:
    """DeepSeek-V3 balances experts by a bias on the choice; V2 does not."""
    return fields.text("topk_method", "noaux_tc") == "noaux_tc"
