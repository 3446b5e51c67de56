"""What single families say in GGUF in their own way: an addition to the config for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rooftree.checkpoint.architectures.gguf_metadata import Metadata
from rooftree.checkpoint.architectures.hybrids import LINEAR
from rooftree.checkpoint.architectures.values import FULL

Config = dict[str, Any]


def _llama(metadata: Metadata, config: Config) -> Config:
    if config.get("num_local_experts"):
        return {"model_type": "mixtral"}
    return {"model_type": "mistral"} if config.get("sliding_window") else {}


def _llama4(metadata: Metadata, config: Config) -> Config:
    """Chunks of 8,192 tokens and every fourth layer without rotary embeddings are fixed in the loader."""
    return {
        "intermediate_size": config.get("moe_intermediate_size"),
        "intermediate_size_mlp": metadata.number("feed_forward_length"),
        "attention_chunk_size": 8192,
    }


def _expert_width(metadata: Metadata, config: Config) -> Config:
    return {"intermediate_size": config.get("moe_intermediate_size") or config["intermediate_size"]}


def _falcon(metadata: Metadata, config: Config) -> Config:
    new = metadata.has("blk.N.attn_norm_2.weight")
    kv_heads = config["num_key_value_heads"] or config["num_attention_heads"]
    return {
        "new_decoder_architecture": new,
        "multi_query": kv_heads == 1,
        "num_kv_heads": kv_heads,
        "ffn_hidden_size": config["intermediate_size"],
        "bias": config["attention_bias"],
        "num_key_value_heads": None,
    }


def _bloom(metadata: Metadata, config: Config) -> Config:
    return {"n_inner": config["intermediate_size"]}


def _deepseek(metadata: Metadata, config: Config) -> Config:
    """Heads have a rotary part and one without; newer files keep their sizes apart from the cache's."""
    fields, mla = metadata.fields, metadata.fields.get("attention.key_length_mla") is not None
    rope = fields.count("rope.dimension_count")
    key = fields.count("attention.key_length_mla" if mla else "attention.key_length")
    if key <= rope:
        fields.fail("attention.key_length", f"is {key}, not more than the {rope} of rope.dimension_count")
    return {
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": key - rope,
        "v_head_dim": fields.count("attention.value_length_mla" if mla else "attention.value_length"),
        "topk_method": "noaux_tc" if metadata.has("blk.N.exp_probs_b.bias") else "greedy",
        "first_k_dense_replace": config.get("first_k_dense_replace", 0),
        "head_dim": None,
        "num_key_value_heads": None,
        "attention_bias": False,
    }


def _glm4_moe(metadata: Metadata, config: Config) -> Config:
    return {"first_k_dense_replace": config.get("first_k_dense_replace", 0)}


def _delta(metadata: Metadata, config: Config) -> Config:
    """Keys of state-space layers are used for value heads and their width."""
    heads, inner = metadata.fields.count("ssm.time_step_rank"), metadata.fields.count("ssm.inner_size")
    return {"linear_num_value_heads": heads, "linear_value_head_dim": inner // heads}


def _mamba(metadata: Metadata, config: Config) -> Config:
    return {
        "intermediate_size": metadata.fields.count("ssm.inner_size"),
        "time_step_rank": metadata.fields.count("ssm.time_step_rank"),
    }


def _mamba2(metadata: Metadata, config: Config) -> Config:
    heads, inner = metadata.fields.count("ssm.time_step_rank"), metadata.fields.count("ssm.inner_size")
    return {"num_heads": heads, "head_dim": inner // heads, "expand": inner // config["hidden_size"]}


def _jamba(metadata: Metadata, config: Config) -> Config:
    """Layers with attention have KV heads, layers with experts a router; both at regular distances."""
    kv_heads = metadata.by_layer("attention.head_count_kv") or []
    attention = _regular(metadata, "attention.head_count_kv", [heads > 0 for heads in kv_heads])
    experts = _regular(metadata, "expert_count", metadata.layers_with("ffn_gate_inp.weight"))
    return {
        "attn_layer_period": attention[0],
        "attn_layer_offset": attention[1],
        "expert_layer_period": experts[0],
        "expert_layer_offset": experts[1],
        "num_experts": config.get("num_experts") or 1,
        "mamba_expand": metadata.fields.count("ssm.inner_size") // config["hidden_size"],
        "mamba_dt_rank": metadata.fields.count("ssm.time_step_rank"),
    }


def _regular(metadata: Metadata, name: str, flags: list[bool]) -> tuple[int, int]:
    """Distance and first of the layers for which a flag is set; none: beyond the last."""
    marked = [index for index, flag in enumerate(flags) if flag]
    if not marked:
        return len(flags) + 1, len(flags)
    period = marked[1] - marked[0] if len(marked) > 1 else len(flags)
    if marked != list(range(marked[0], len(flags), period)) or marked[0] >= period:
        metadata.fields.fail(name, "has no regular distance between layers, which is not supported")
    return period, marked[0]


def _recurrent_kinds(metadata: Metadata) -> list[str]:
    """By layer: recurrent where there is a convolution, attention where there are queries, else neither."""
    convolution = metadata.layers_with("ssm_conv1d.weight")
    query = metadata.layers_with("attn_q.weight")
    return [LINEAR if conv else FULL if q else "" for conv, q in zip(convolution, query, strict=True)]


def _mamba2_names(metadata: Metadata, config: Config) -> Config:
    heads, inner = metadata.fields.count("ssm.time_step_rank"), metadata.fields.count("ssm.inner_size")
    return {
        "mamba_n_heads": heads,
        "mamba_d_head": inner // heads,
        "mamba_expand": inner // config["hidden_size"],
        "mamba_num_heads": heads,
        "mamba_head_dim": inner // heads,
    }


def _nemotron_h(metadata: Metadata, config: Config) -> Config:
    routers = metadata.layers_with("ffn_gate_inp.weight")
    kinds = [
        kind or ("moe" if router else "mlp")
        for kind, router in zip(_recurrent_kinds(metadata), routers, strict=True)
    ]
    return _mamba2_names(metadata, config) | {"layers_block_type": kinds}


def _granite_hybrid(metadata: Metadata, config: Config) -> Config:
    experts = config.get("num_local_experts") or 0
    shared = config.get("shared_intermediate_size") or config["intermediate_size"]
    return _mamba2_names(metadata, config) | {
        "layer_types": _recurrent_kinds(metadata),
        "num_local_experts": experts,
        "shared_intermediate_size": shared,
        **_expert_width(metadata, config),
    }


ADDITIONS: dict[str, Callable[[Metadata, Config], Config]] = {
    "llama": _llama,
    "llama4": _llama4,
    "falcon": _falcon,
    "bloom": _bloom,
    "deepseek2": _deepseek,
    "glm4moe": _glm4_moe,
    "gpt-oss": _expert_width,
    "minimax-m2": _expert_width,
    "granitemoe": _expert_width,
    "granitehybrid": _granite_hybrid,
    "qwen3next": _delta,
    "qwen35": _delta,
    "qwen35moe": _delta,
    "mamba": _mamba,
    "mamba2": _mamba2,
    "jamba": _jamba,
    "nemotron_h": _nemotron_h,
    "nemotron_h_moe": _nemotron_h,
}
