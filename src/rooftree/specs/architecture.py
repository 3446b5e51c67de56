"""A model of any family as plain numbers, layer by layer: enough to size it and to price a step of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rooftree.specs.attention import Attention, LatentAttention
from rooftree.specs.feed_forward import FeedForward
from rooftree.specs.recurrent import Recurrent
from rooftree.specs.weight import Weight

if TYPE_CHECKING:
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


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder, complete enough to count every tensor, every byte of KV and of state.

    Attributes:
        name: class or model_type that the checkpoint gives, or its GGUF architecture.
        tied_head: the head is the embedding; ``outside`` then holds it once, and a step reads it once more.
        layers: in order; equal layers are one shared instance.
        outside: tensors outside the layers: embedding(s), final norm, head (absent where tied).
        max_positions: longest context that the checkpoint states; None where it states none (Mamba, BLOOM).
        dtype: element type of unquantised tensors as published (``bf16``, ``fp16``, ``fp32``).
        scheme: how the published weights are stored.
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
    def num_parameters(self) -> int:
        """Parameters stored once: a tied head is the embedding, not a second matrix."""
        raise NotImplementedError

    @property
    def num_parameters_active(self) -> int:
        """Parameters that one token uses: of routed experts only the chosen ones."""
        raise NotImplementedError

    def parameters_by_role(self) -> dict[str, int]:
        """Parameters by part of the model (``Weight.role``); the sum is ``num_parameters``."""
        raise NotImplementedError

    def layer_groups(self) -> tuple[tuple[LayerSpec, int], ...]:
        """Each distinct layer with how often it occurs."""
        raise NotImplementedError

    def weight_bytes(self, scheme: WeightScheme | None = None, *, tensor_parallel: int = 1) -> int:
        """Bytes of all weights in a scheme (None: as published), on the device that holds most."""
        raise NotImplementedError

    def layer_weight_bytes(self, scheme: WeightScheme | None = None) -> tuple[int, ...]:
        """Bytes of each layer's weights."""
        raise NotImplementedError

    def kv_bytes_per_token(self, dtype: str = "bf16", *, tensor_parallel: int = 1) -> int:
        """Bytes of KV that one token adds in all layers while every window is still open, per device."""
        raise NotImplementedError

    def kv_bytes(
        self, tokens: int, dtype: str = "bf16", *, windowed: bool = False, tensor_parallel: int = 1
    ) -> int:
        """Bytes of KV of one sequence of that length, per device.

        ``windowed`` False: as an engine allocates it that keeps every token in every layer (this one does);
        True: as one that frees what has left the window (``min(tokens, window)`` in windowed layers).
        """
        raise NotImplementedError

    def state_bytes_per_sequence(
        self, dtype: str = "bf16", recurrent_dtype: str | None = None, *, tensor_parallel: int = 1
    ) -> int:
        """Constant bytes per sequence of all recurrent layers: convolution windows in ``dtype``, recurrent
        states in ``recurrent_dtype`` (None: the one that the model states)."""
        raise NotImplementedError
