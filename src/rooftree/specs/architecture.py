"""A model of any family as plain numbers, layer by layer: enough to size it and to price a step of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rooftree.specs.attention import Attention, LatentAttention
from rooftree.specs.feed_forward import FeedForward
from rooftree.specs.recurrent import Recurrent
from rooftree.specs.weight import ROLES, Role, Weight, share
from rooftree.specs.weight_format import WeightFormat, cache_bytes
from rooftree.specs.weight_scheme import WeightScheme

Mixer = Attention | LatentAttention | Recurrent


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer: what mixes tokens, what follows it, and its norms. Equal layers share one instance.

    ``mixer`` None: the layer is a feed-forward part alone; ``feed_forward`` None: a mixer alone (Mamba).
    """

    mixer: Mixer | None
    feed_forward: FeedForward | None
    norms: tuple[Weight, ...]

    def weights(self, hidden: int) -> tuple[Weight, ...]:
        """Its tensors in a model of that width."""
        mixer = () if self.mixer is None else self.mixer.weights(hidden)
        after = () if self.feed_forward is None else self.feed_forward.weights(hidden)
        return (*mixer, *after, *self.norms)


class StoredWeight(NamedTuple):
    """A kind of tensor as stored.

    Attributes:
        layer: its layer; None: outside the layers.
        weight: its shape, use and number.
        format: how its elements are stored.
        num_bytes: bytes of ONE of its ``weight.count`` tensors.
    """

    layer: int | None
    weight: Weight
    format: WeightFormat
    num_bytes: int

    def device_bytes(self, tensor_parallel: int = 1, expert_parallel: int = 1) -> int:
        """Bytes of all ``count`` tensors on the device that holds most.

        Under expert parallelism whole experts are dealt to devices; all else is cut by tensor parallelism,
        and what has fewer units than devices is replicated.
        """
        weight, num_bytes = self.weight, self.num_bytes
        if weight.count > 1 and expert_parallel > 1:
            return num_bytes * share(weight.count, expert_parallel)
        part = -(-num_bytes * share(weight.units, tensor_parallel) // weight.units)
        return part * weight.count


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder, complete enough to count every tensor, every byte of KV and of state.

    Attributes:
        name: class or model_type that the checkpoint gives, or its GGUF architecture.
        tied_head: the head is the embedding; ``outside`` then holds it once, and a step reads it as the head.
        layers: in order; equal layers are one shared instance.
        outside: tensors outside the layers, with their full names: embeddings, final norm, head (absent where
            tied).
        max_positions: longest context that the checkpoint states; None where it states none.
        dtype: element type of unquantised tensors as published (``bf16``, ``fp16``, ``fp32``).
        scheme: how the published weights are stored.
        layer_prefix: what the checkpoint puts before a layer's number.
        recurrent_dtype: dtype in which recurrent states are kept.
        notes: what is not counted, or was accepted with a reservation; show them to the user.
    """

    name: str
    vocab_size: int
    hidden_size: int
    tied_head: bool
    layers: tuple[LayerSpec, ...]
    outside: tuple[Weight, ...]
    max_positions: int | None
    dtype: str
    scheme: WeightScheme
    layer_prefix: str = "model.layers."
    recurrent_dtype: str = "fp32"
    notes: tuple[str, ...] = ()

    @property
    def num_layers(self) -> int:
        """Decoder layers, those without attention included."""
        return len(self.layers)

    @property
    def num_parameters(self) -> int:
        """Parameters stored once: a tied head is the embedding, not a second matrix."""
        return sum(self.parameters_by_role().values())

    @property
    def num_parameters_active(self) -> int:
        """Parameters that one token uses: of routed experts the chosen ones, embedding and head whole."""
        inside = sum(
            weight.parameters_active * times
            for layer, times in self.layer_groups()
            for weight in layer.weights(self.hidden_size)
        )
        return inside + sum(weight.parameters_active for weight in self.outside)

    def parameters_by_role(self) -> dict[Role, int]:
        """Parameters by part of the model; the sum is ``num_parameters``. Parts that it lacks are absent."""
        counts: Counter[Role] = Counter()
        for layer, times in self.layer_groups():
            for weight in layer.weights(self.hidden_size):
                counts[weight.role] += weight.parameters * times
        for weight in self.outside:
            counts[weight.role] += weight.parameters
        return {role: counts[role] for role in ROLES if role in counts}

    def layer_groups(self) -> tuple[tuple[LayerSpec, int], ...]:
        """Each distinct layer, in the order of its first occurrence, with how often it occurs."""
        return tuple(Counter(self.layers).items())

    def stored(self, scheme: WeightScheme | None = None) -> Iterator[StoredWeight]:
        """Every kind of tensor as a scheme stores it (None: as published), layer by layer, then the rest."""
        scheme = scheme or self.scheme
        weights = {layer: layer.weights(self.hidden_size) for layer in set(self.layers)}
        for index, layer in enumerate(self.layers):
            for weight in weights[layer]:
                yield _store(scheme, f"{self.layer_prefix}{index}.", index, weight)
        for weight in self.outside:
            yield _store(scheme, "", None, weight)

    def weight_bytes(
        self,
        scheme: WeightScheme | None = None,
        *,
        tensor_parallel: int = 1,
        expert_parallel: int = 1,
    ) -> int:
        """Bytes of all weights, on the device that holds most."""
        return sum(stored.device_bytes(tensor_parallel, expert_parallel) for stored in self.stored(scheme))

    def weight_bytes_by_role(self, scheme: WeightScheme | None = None) -> dict[Role, int]:
        """Bytes of all weights by part of the model. Parts that it lacks are absent."""
        counts: Counter[Role] = Counter()
        for stored in self.stored(scheme):
            counts[stored.weight.role] += stored.device_bytes()
        return {role: counts[role] for role in ROLES if role in counts}

    def layer_weight_bytes(
        self,
        scheme: WeightScheme | None = None,
        *,
        tensor_parallel: int = 1,
        expert_parallel: int = 1,
    ) -> tuple[int, ...]:
        """Bytes of each layer's weights, on the device that holds most: what pipeline stages are cut by."""
        counts = [0] * self.num_layers
        for stored in self.stored(scheme):
            if stored.layer is not None:
                counts[stored.layer] += stored.device_bytes(tensor_parallel, expert_parallel)
        return tuple(counts)

    def kv_bytes_per_token(self, dtype: str = "bf16", *, tensor_parallel: int = 1) -> int:
        """Bytes of KV that one token adds in all layers while every window is still open, per device."""
        return self.kv_bytes(1, dtype, tensor_parallel=tensor_parallel)

    def kv_bytes(
        self, tokens: int, dtype: str = "bf16", *, windowed: bool = False, tensor_parallel: int = 1
    ) -> int:
        """Bytes of KV of one sequence of that length, per device.

        Args:
            tokens: length of the sequence.
            dtype: one of ``weight_format.CACHE_DTYPES``.
            windowed: False: as an engine allocates it that keeps every token in every layer (Rooftree's
                does); True: as one that frees what has left the window (at most the window in those layers).
            tensor_parallel: devices of the group; KV heads are cut, never below one, latents are not.

        Raises:
            ConfigError: there is no such dtype.
        """
        return sum(
            times * layer_kv_bytes(layer, tokens, dtype, windowed=windowed, tensor_parallel=tensor_parallel)
            for layer, times in self.layer_groups()
        )

    def state_bytes_per_sequence(
        self, dtype: str = "bf16", recurrent_dtype: str | None = None, *, tensor_parallel: int = 1
    ) -> int:
        """Constant bytes per sequence of all recurrent layers, per device.

        Args:
            dtype: that of the convolutions' windows.
            recurrent_dtype: that of the recurrent states; None: the model's own.
            tensor_parallel: devices of the group.
        """
        recurrent = recurrent_dtype or self.recurrent_dtype
        return sum(
            times * layer_state_bytes(layer, dtype, recurrent, tensor_parallel=tensor_parallel)
            for layer, times in self.layer_groups()
        )


def layer_kv_bytes(
    layer: LayerSpec, tokens: int, dtype: str, *, windowed: bool = False, tensor_parallel: int = 1
) -> int:
    """``Architecture.kv_bytes`` of one layer; 0 where it keeps no KV."""
    if not isinstance(layer.mixer, Attention | LatentAttention):
        return 0
    elements = layer.mixer.kv_elements_per_device(tensor_parallel)
    vectors = layer.mixer.kv_vectors_per_device(tensor_parallel)
    return layer.mixer.kv_tokens(tokens, windowed=windowed) * cache_bytes(elements, dtype, vectors)


def layer_state_bytes(layer: LayerSpec, dtype: str, recurrent_dtype: str, *, tensor_parallel: int = 1) -> int:
    """``Architecture.state_bytes_per_sequence`` of one layer; 0 where it keeps no state."""
    if layer.mixer is None or isinstance(layer.mixer, Attention | LatentAttention):
        return 0
    conv, recurrent = layer.mixer.state_elements(tensor_parallel)
    return cache_bytes(conv, dtype) + cache_bytes(recurrent, recurrent_dtype)


def _store(scheme: WeightScheme, prefix: str, layer: int | None, weight: Weight) -> StoredWeight:
    stored = scheme.format_of(prefix, weight)
    return StoredWeight(layer, weight, stored, stored.bytes_of(weight.shape, continues=weight.continues))
