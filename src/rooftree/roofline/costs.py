"""What a model costs per token, per cached token and per step on one device: the cost model's constants."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rooftree.roofline.batch import Window
from rooftree.roofline.parallel import ONE_DEVICE, Parallel
from rooftree.specs.architecture import Architecture, StoredWeight, layer_kv_bytes
from rooftree.specs.attention import Attention, LatentAttention
from rooftree.specs.feed_forward import ExpertFeedForward
from rooftree.specs.weight import share
from rooftree.specs.weight_scheme import WeightScheme

LOGIT_BYTES = 4
STATE_PASSES = 2
"""A recurrent state is read and written in every step."""

MatrixName = Literal["linear", "experts", "head"]


@dataclass(frozen=True, slots=True)
class MatrixCosts:
    """Matrix products of one kind and one arithmetic, in all layers together.

    Attributes:
        arithmetic: a dtype, or ``packed`` (weights of fewer bits, unpacked to what the device has).
        weight_bytes: read by a step (of experts, when all are touched).
        token_flop, activation_bytes: per token; activations are inputs and outputs, cut like the weights.
        experts, active: of routed experts; 0 for all else.
        formats: storage formats of the weights, each with its share of ``token_flop``.
    """

    name: MatrixName
    arithmetic: str
    weight_bytes: float
    token_flop: float
    activation_bytes: float
    experts: int = 0
    active: int = 0
    formats: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class AttentionCosts:
    """Attention in all layers that share a window.

    Attributes:
        kv_bytes: K and V of one cached token, read.
        pair_flop, prefill_pair_flop: one query meeting one cached token; they differ in latent attention.
    """

    window: Window
    kv_bytes: float
    pair_flop: float
    prefill_pair_flop: float


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """A model in a storage format under a parallel plan, on the device that does most.

    Attributes:
        matrices, attention: see above; ``windows`` are those of ``attention``.
        kv_write_bytes: K and V that one new token leaves.
        state_bytes, state_flop: recurrent state moved per sequence and step; FLOP of recurrences per token.
        layers, expert_layers, all_reduces: how many, per step; all_reduces is 0 on one device.
        all_to_alls: exchanges of tokens with the devices that hold their experts, per step; exchange_bytes:
            what one token sends in each.
        hidden_bytes: one token's activation between layers; logits_bytes: one row of logits.
    """

    matrices: tuple[MatrixCosts, ...]
    attention: tuple[AttentionCosts, ...]
    kv_write_bytes: float
    state_bytes: float
    state_flop: float
    layers: int
    expert_layers: int
    all_reduces: int
    all_to_alls: int
    exchange_bytes: float
    hidden_bytes: float
    logits_bytes: float
    parallel: Parallel = ONE_DEVICE

    @property
    def windows(self) -> tuple[Window, ...]:
        """What ``batch_of`` must sum over."""
        return tuple(costs.window for costs in self.attention)


def model_costs(
    model: Architecture,
    parallel: Parallel = ONE_DEVICE,
    *,
    scheme: WeightScheme | None = None,
    kv_dtype: str = "bf16",
) -> ModelCosts:
    """The constants of a model. ``scheme`` None: as published.

    Raises:
        ConfigError: no such KV dtype.
    """
    tensor = parallel.tensor
    width = 4 if model.dtype == "fp32" else 2
    groups = model.layer_groups()
    experts = [
        layer.feed_forward for layer in model.layers if isinstance(layer.feed_forward, ExpertFeedForward)
    ]
    return ModelCosts(
        matrices=tuple(_matrices(model, scheme, parallel, width)),
        attention=tuple(_attention(model, kv_dtype, tensor)),
        kv_write_bytes=model.kv_bytes_per_token(kv_dtype, tensor_parallel=tensor),
        state_bytes=STATE_PASSES * model.state_bytes_per_sequence(kv_dtype, tensor_parallel=tensor),
        state_flop=sum(
            layer.mixer.token_flop * times
            for layer, times in groups
            if layer.mixer is not None and not isinstance(layer.mixer, Attention | LatentAttention)
        )
        / tensor,
        layers=model.num_layers,
        expert_layers=len(experts),
        all_reduces=0
        if tensor == 1
        else sum(
            ((layer.mixer is not None) + (layer.feed_forward is not None)) * times for layer, times in groups
        ),
        all_to_alls=0 if parallel.groups == 1 else 2 * len(experts),
        exchange_bytes=_exchange_bytes(experts, parallel, model.hidden_size * width),
        hidden_bytes=model.hidden_size * width,
        logits_bytes=share(model.vocab_size, tensor) * LOGIT_BYTES,
        parallel=parallel,
    )


def _exchange_bytes(experts: list[ExpertFeedForward], parallel: Parallel, hidden_bytes: float) -> float:
    """What a device sends for one token of its group: a copy to each other device that has experts of it.

    A token's k experts lie on d(1 - (1 - 1/d)^k) of d devices, one of d of them at home; the devices of a
    tensor group share the sending. 0 without data-parallel attention.
    """
    if parallel.groups == 1 or not experts:
        return 0.0
    d, k = parallel.expert, max(layer.active for layer in experts)
    copies = d * (1 - (1 - 1 / d) ** k) * (1 - 1 / d)
    return copies * hidden_bytes / parallel.tensor


def _matrices(
    model: Architecture, scheme: WeightScheme | None, parallel: Parallel, width: int
) -> Iterator[MatrixCosts]:
    sums: dict[tuple[MatrixName, str, int, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    flop_by_format: dict[tuple[MatrixName, str, int, int], dict[str, float]] = defaultdict(dict)
    for stored in model.stored(scheme):
        name = _matrix_name(model, stored)
        if name is None:
            continue
        weight = stored.weight
        experts, active = (weight.count, weight.active) if name == "experts" else (0, 0)
        key = (name, _arithmetic(stored), experts, active)
        total = sums[key]
        total[0] += stored.device_bytes(parallel.tensor, parallel.expert)
        if weight.kind in ("linear", "embedding"):
            part = _part(stored, parallel) * weight.active
            total[1] += 2 * weight.elements * part
            total[2] += sum(weight.shape) * part * width
            by_format, form = flop_by_format[key], stored.format.name
            by_format[form] = by_format.get(form, 0.0) + 2 * weight.elements * part
    for key, (num_bytes, flop, moved) in sums.items():
        name, arithmetic, experts, active = key
        formats = tuple((form, of_it / flop) for form, of_it in flop_by_format[key].items())
        yield MatrixCosts(name, arithmetic, num_bytes, flop, moved, experts, active, formats)


def _matrix_name(model: Architecture, stored: StoredWeight) -> MatrixName | None:
    """Which matrix product a tensor belongs to; None where a step only looks rows up."""
    if stored.weight.role == "head":
        return "head"
    if stored.weight.role == "embedding":
        return "head" if model.tied_head and stored.weight is model.outside[0] else None
    return "experts" if stored.weight.count > 1 else "linear"


def _arithmetic(stored: StoredWeight) -> str:
    """``packed`` for weight-only formats: what they are unpacked to depends on the device."""
    wide = stored.format.arithmetic in ("bf16", "fp16", "fp32")
    return "packed" if wide and stored.format.bits < 16 else stored.format.arithmetic


def _part(stored: StoredWeight, parallel: Parallel) -> float:
    """Share of a matrix product for its own group's tokens that falls on one device."""
    weight = stored.weight
    if weight.count > 1 and parallel.expert > 1:
        return parallel.groups / parallel.expert
    return share(weight.units, parallel.tensor) / weight.units


def _attention(model: Architecture, kv_dtype: str, tensor: int) -> Iterator[AttentionCosts]:
    sums: dict[Window, list[float]] = {}
    for layer, times in model.layer_groups():
        mixer = layer.mixer
        if not isinstance(mixer, Attention | LatentAttention):
            continue
        window = Window() if isinstance(mixer, LatentAttention) else Window(mixer.window, mixer.window_kind)
        part = share(mixer.num_heads, tensor) / mixer.num_heads
        prefill = mixer.pair_flop_expanded if isinstance(mixer, LatentAttention) else mixer.pair_flop
        total = sums.setdefault(window, [0.0, 0.0, 0.0])
        total[0] += times * layer_kv_bytes(layer, 1, kv_dtype, tensor_parallel=tensor)
        total[1] += times * part * mixer.pair_flop
        total[2] += times * part * prefill
    for window, (kv_bytes, flop, prefill_flop) in sums.items():
        yield AttentionCosts(window, kv_bytes, flop, prefill_flop)
