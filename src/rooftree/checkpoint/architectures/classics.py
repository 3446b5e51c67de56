"""Families with LayerNorms, biases and key names of their own: Falcon, GPT-NeoX, OPT, BLOOM."""

from __future__ import annotations

from rooftree.checkpoint.architectures.attention_parts import AttentionLayers
from rooftree.checkpoint.architectures.family import Family, MixerOf, named_norms
from rooftree.checkpoint.architectures.feed_forward_parts import OLD_MLP, DenseLayers
from rooftree.checkpoint.architectures.values import heads, optional_count
from rooftree.checkpoint.fields import Fields
from rooftree.specs.attention import Attention
from rooftree.specs.outside import embedding
from rooftree.specs.weight import Weight, linear, norm

_FUSED = ("self_attention.query_key_value",) * 3
_FALCON_NAMES = (*_FUSED, "self_attention.dense")


def _four_times(fields: Fields) -> int:
    return 4 * fields.count("hidden_size")


def _falcon_attention(fields: Fields) -> MixerOf:
    """The new decoder has grouped heads; the old one a single KV head unless multi_query is off."""
    num_heads, _, head_dim = heads(fields)
    if fields.flag("new_decoder_architecture", False):
        kv_heads = fields.count("num_kv_heads", num_heads)
    else:
        kv_heads = 1 if fields.flag("multi_query", True) else num_heads
    if num_heads % kv_heads:
        fields.fail("num_kv_heads", f"is {kv_heads}, which does not divide {num_heads} attention heads")
    bias = fields.flag("bias", False)
    attention = Attention(num_heads, kv_heads, head_dim, qkv_bias=bias, o_bias=bias, names=_FALCON_NAMES)
    return lambda index: attention


def _falcon_norms(fields: Fields) -> tuple[Weight, ...]:
    """Two norms where attention and network follow one another, or the new decoder has one for each."""
    new = fields.flag("new_decoder_architecture", False)
    if not (new or fields.flag("parallel_attn", True)):
        return named_norms("input_layernorm", "post_attention_layernorm", bias=True)(fields)
    if fields.count("num_ln_in_parallel_attn", 2 if new else 1) == 2:
        return named_norms("ln_attn", "ln_mlp", bias=True)(fields)
    return named_norms("input_layernorm", bias=True)(fields)


def _bloom_extra(fields: Fields) -> tuple[Weight, ...]:
    return norm("transformer.word_embeddings_layernorm", fields.count("hidden_size"), bias=True)


def _opt_width(fields: Fields) -> int:
    return optional_count(fields, "word_embed_proj_dim") or fields.count("hidden_size")


def _opt_extra(fields: Fields) -> tuple[Weight, ...]:
    """Learned positions (two rows are never used), and projections where the embedding is narrower."""
    hidden, width = fields.count("hidden_size"), _opt_width(fields)
    positions = embedding(
        "model.decoder.embed_positions", fields.count("max_position_embeddings") + 2, hidden
    )
    if width == hidden:
        return positions
    into = linear("model.decoder.project_in", hidden, width, "embedding")
    return (*positions, *into, *linear("model.decoder.project_out", width, hidden, "head"))


def _opt_final_norm(fields: Fields) -> str | None:
    removed = fields.flag("_remove_final_layer_norm", False)
    return (
        "model.decoder.final_layer_norm"
        if fields.flag("do_layer_norm_before", True) and not removed
        else None
    )


def _opt_names() -> tuple[str, str, str, str]:
    return ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj")


def _neox_attention(fields: Fields) -> MixerOf:
    fused = ("attention.query_key_value",) * 3
    bias = fields.flag("attention_bias", True)
    attention = Attention(*heads(fields), qkv_bias=bias, o_bias=bias, names=(*fused, "attention.dense"))
    return lambda index: attention


def _opt_attention(fields: Fields) -> MixerOf:
    bias = fields.flag("enable_bias", True)
    attention = Attention(*heads(fields), qkv_bias=bias, o_bias=bias, names=_opt_names())
    return lambda index: attention


CLASSICS: dict[str, Family] = {
    "falcon": Family(
        mixers=_falcon_attention,
        feed_forwards=DenseLayers(
            names=OLD_MLP, bias="bias", width="ffn_hidden_size", default_width=_four_times
        ),
        norms=_falcon_norms,
        tied=True,
        layer_prefix="transformer.h.",
        embed_name="transformer.word_embeddings",
        norm_name="transformer.ln_f",
        norm_bias=True,
        aliases=(
            ("hidden_size", "n_embed"),
            ("num_hidden_layers", "n_layer"),
            ("num_attention_heads", "n_head"),
            ("num_kv_heads", "n_head_kv"),
        ),
        defaults=(("max_position_embeddings", 2048),),
    ),
    "gpt_neox": Family(
        mixers=_neox_attention,
        feed_forwards=DenseLayers(names=OLD_MLP, bias=True),
        norms=named_norms("input_layernorm", "post_attention_layernorm", bias=True),
        layer_prefix="gpt_neox.layers.",
        embed_name="gpt_neox.embed_in",
        norm_name="gpt_neox.final_layer_norm",
        norm_bias=True,
        head_name="embed_out",
    ),
    "opt": Family(
        mixers=_opt_attention,
        feed_forwards=DenseLayers(names=("fc1", "fc2"), bias=True, width="ffn_dim"),
        norms=named_norms("self_attn_layer_norm", "final_layer_norm", bias=True),
        extra=_opt_extra,
        tied=True,
        layer_prefix="model.decoder.layers.",
        embed_name="model.decoder.embed_tokens",
        norm_name=_opt_final_norm,
        norm_bias=True,
        embed_width="word_embed_proj_dim",
    ),
    "bloom": Family(
        mixers=AttentionLayers(qkv_bias=True, o_bias=True, names=_FALCON_NAMES),
        feed_forwards=DenseLayers(names=OLD_MLP, bias=True, width="n_inner", default_width=_four_times),
        norms=named_norms("input_layernorm", "post_attention_layernorm", bias=True),
        extra=_bloom_extra,
        tied=True,
        layer_prefix="transformer.h.",
        embed_name="transformer.word_embeddings",
        norm_name="transformer.ln_f",
        norm_bias=True,
        positions=None,
        aliases=(
            ("hidden_size", "n_embed"),
            ("num_hidden_layers", "n_layer"),
            ("num_attention_heads", "n_head"),
        ),
    ),
}
