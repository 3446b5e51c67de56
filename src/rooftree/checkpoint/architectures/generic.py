"""Models of unknown name with the usual keys: counted as a Llama-like decoder, and said to be so."""

from __future__ import annotations

import re

from rooftree.checkpoint.architectures.attention_parts import AttentionLayers, listed_windows, one_window
from rooftree.checkpoint.architectures.family import Family
from rooftree.checkpoint.architectures.feed_forward_parts import DenseLayers, ExpertLayers
from rooftree.checkpoint.fields import Fields

_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")

# Keys that change what is stored in ways that this reading does not know.
_STRANGE = re.compile(
    r"lora|moe|expert|mamba|ssm|conv_|_conv|recurren|linear_(num|key|value)|lightning|latent|index_|kv_shar"
    r"|per_layer|cross_attention|block_type|hybrid|attn_type|attn_layer|nope_head|v_head|mlp_only|multi_query"
    r"|laurel|altup|chunk_size|^n_head|state_size"
)
_MIXTRAL = {"num_local_experts", "num_experts_per_tok", "output_router_logits", "router_aux_loss_coef"}
_MIXTRAL |= {"router_jitter_noise"}


def is_llama_like(fields: Fields) -> bool:
    """Whether the keys needed are there and none that this reading cannot count."""
    return all(fields.get(name) is not None for name in _NEEDED) and not strange_keys(fields)


def strange_keys(fields: Fields) -> list[str]:
    """Keys that keep a config from being read in this way."""
    known = _MIXTRAL if fields.get("num_local_experts") is not None else set()
    return [
        key
        for key, value in fields.values.items()
        if _STRANGE.search(key) and key not in known and value not in (None, 0, False, [], "")
    ]


def llama_like(fields: Fields) -> Family:
    """Attention and a gated network, or Mixtral's experts; biases and norms as flags say."""
    window = listed_windows if fields.get("layer_types") is not None else one_window
    attention = AttentionLayers(windows=window, qkv_bias="attention_bias", o_bias="attention_bias")
    if fields.get("num_local_experts") is not None:
        return Family(mixers=attention, feed_forwards=ExpertLayers())
    return Family(mixers=attention, feed_forwards=DenseLayers(bias="mlp_bias"))
