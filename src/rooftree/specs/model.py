"""What a model is, as plain numbers: enough to run it, to size it and to price a step of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Family = Literal["llama", "mistral", "qwen2", "qwen3"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding, half-split pairing (element i turns with i + head_dim / 2).

    ``kind`` says how frequencies are scaled beyond the trained length:

    - ``default``: theta^(-2i/d), unscaled.
    - ``linear``: every frequency divided by ``factor``.
    - ``llama3``: low frequencies divided by ``factor``, a smooth ramp between ``low_freq_factor`` and
      ``high_freq_factor`` (Llama 3.1's published rule).
    - ``yarn``: NTK-by-parts between ``beta_fast`` and ``beta_slow`` turns (Peng et al., 2023), cos and sin
      multiplied by ``attention_factor``.

    ``freq_factors``, where not empty, holds head_dim / 2 numbers, and frequency i is divided by the i-th; it
    comes only with kind ``default`` (GGUF files spell Llama 3.1's rule this way).
    """

    theta: float = 10_000.0
    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    freq_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder of the Llama line, layer by layer where layers differ.

    ``windows[i]`` is the sliding window of layer i in tokens (a query sees itself and ``window - 1`` tokens
    before it), or None where the layer sees everything.
    """

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeSpec
    tie_word_embeddings: bool
    windows: tuple[int | None, ...]
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False

    @property
    def q_size(self) -> int:
        """Elements of all query heads of one token."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Elements of all key heads (or all value heads) of one token."""
        return self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Parameters stored once: a tied head is the embedding, not a second matrix."""
        h, q, kv, f = self.hidden_size, self.q_size, self.kv_size, self.intermediate_size
        layer = h * q + 2 * h * kv + q * h + 3 * h * f + 2 * h
        layer += (q + 2 * kv) * self.qkv_bias + h * self.o_bias + (2 * f + h) * self.mlp_bias
        layer += 2 * self.head_dim * self.qk_norm
        heads = 1 if self.tie_word_embeddings else 2
        return self.num_layers * layer + heads * self.vocab_size * h + h

    def kv_bytes_per_token(self, bytes_per_element: int) -> int:
        """Bytes of K and V that one token leaves in all layers (every layer keeps the whole context)."""
        return 2 * self.num_layers * self.kv_size * bytes_per_element
