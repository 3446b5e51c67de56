"""GGUF metadata under the key names of config.json, so that one reading of each family serves both.

What a key means follows llama.cpp's converter and loader. What the metadata do not say (tied head, biases,
norms on Q and K, the vocabulary's size) the tensor table does.
"""

from __future__ import annotations

from rooftree.checkpoint.architectures.gguf_families import ADDITIONS, Config
from rooftree.checkpoint.architectures.gguf_metadata import Metadata, Shapes
from rooftree.checkpoint.fields import Fields

# GGUF architecture -> model_type. A llama file with experts is Mixtral.
MODEL_TYPES = {
    "llama": "llama",
    "mistral3": "ministral3",
    "llama4": "llama4_text",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi3": "phi3",
    "phimoe": "phimoe",
    "falcon": "falcon",
    "gptneox": "gpt_neox",
    "bloom": "bloom",
    "smollm3": "smollm3",
    "deepseek2": "deepseek_v3",
    "gpt-oss": "gpt_oss",
    "glm4": "glm4",
    "glm4moe": "glm4_moe",
    "granite": "granite",
    "granitemoe": "granitemoeshared",
    "granitehybrid": "granitemoehybrid",
    "minimax-m2": "minimax_m2",
    "jamba": "jamba",
    "mamba": "mamba",
    "mamba2": "mamba2",
    "nemotron": "nemotron",
    "nemotron_h": "nemotron_h",
    "nemotron_h_moe": "nemotron_h",
}

# Config fields -> GGUF key; one key often has a name for each family.
_SAME: dict[str, tuple[str, ...]] = {
    "context_length": ("max_position_embeddings",),
    "attention.sliding_window": ("sliding_window",),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_shared_count": ("n_shared_experts",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": (
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
    ),
    "leading_dense_block_count": ("first_k_dense_replace",),
    "interleave_moe_layer_step": ("interleave_moe_layer_step",),
    "moe_latent_size": ("moe_latent_size",),
    "full_attention_interval": ("full_attention_interval",),
    "attention.kv_lora_rank": ("kv_lora_rank",),
    "attention.q_lora_rank": ("q_lora_rank",),
    "ssm.conv_kernel": ("conv_kernel", "mamba_d_conv", "linear_conv_kernel_dim"),
    "ssm.state_size": ("state_size", "ssm_state_size", "mamba_d_state", "linear_key_head_dim"),
    "ssm.group_count": ("n_groups", "mamba_n_groups", "linear_num_key_heads"),
}

# What a file says that holds no tensor of shared experts.
_NO_SHARED_EXPERTS: Config = {
    "n_shared_experts": 0,
    "shared_expert_intermediate_size": 0,
    "shared_intermediate_size": 0,
}


def gguf_config(fields: Fields, shapes: Shapes) -> Config:
    """The config of a GGUF file.

    Args:
        fields: its metadata, with the architecture as prefix.
        shapes: stored tensor name -> row-major shape.

    Raises:
        ModelError: an architecture that is not known, or a key that is missing or impossible.
    """
    architecture = fields.prefix.rstrip(".")
    if architecture not in MODEL_TYPES:
        known = ", ".join(MODEL_TYPES)
        Fields(fields.values, fields.source).fail(
            "general.architecture", f"{architecture!r} is not known; known are {known}"
        )
    metadata = Metadata(fields, shapes)
    config = _common(metadata) | {"model_type": MODEL_TYPES[architecture]}
    if architecture in ADDITIONS:
        config |= ADDITIONS[architecture](metadata, config)
    return {name: value for name, value in config.items() if value is not None}


def _common(metadata: Metadata) -> Config:
    config: Config = {
        name: metadata.number(key)
        for key, names in _SAME.items()
        for name in names
        if metadata.fields.get(key)
    }
    if not any(metadata.layers_with("ffn_up_shexp.weight")):
        config = _NO_SHARED_EXPERTS | config
    embedding = metadata.shapes.get("token_embd.weight")
    if embedding is None or len(embedding) != 2:
        metadata.fields.fail("embedding_length", "has no tensor 'token_embd.weight' to go with it")
    hidden, heads = metadata.fields.count("embedding_length"), metadata.number("attention.head_count")
    bias = metadata.has("blk.N.attn_q.bias") or metadata.has("blk.N.attn_qkv.bias")
    width = metadata.number("feed_forward_length")
    return config | {
        "vocab_size": embedding[0],
        "hidden_size": hidden,
        "num_hidden_layers": metadata.num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.number("attention.head_count_kv"),
        "head_dim": metadata.number("attention.key_length") or (hidden // heads if heads else None),
        "intermediate_size": width or metadata.number("expert_feed_forward_length"),
        "tie_word_embeddings": "output.weight" not in metadata.shapes,
        "attention_bias": bias,
        "mlp_bias": metadata.has("blk.N.ffn_up.bias"),
        "use_qk_norm": metadata.has("blk.N.attn_q_norm.weight"),
        "dtype": "float16",
    }
