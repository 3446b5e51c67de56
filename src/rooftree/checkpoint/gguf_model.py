"""The model in a GGUF file: its spec, and its tensors under canonical names.

What a key means, and its value where it is absent, follows llama.cpp's loader; a key that would change the
result and is not supported is refused by name.
"""

from __future__ import annotations

import dataclasses

from rooftree.checkpoint.base import Tensor
from rooftree.checkpoint.fields import Fields
from rooftree.checkpoint.formats import dequantize
from rooftree.checkpoint.gguf import GgufFile
from rooftree.checkpoint.gguf_rope import gguf_rope
from rooftree.checkpoint.rotary import half_split
from rooftree.errors import ModelError
from rooftree.specs.model import Family, ModelSpec

# Mistral's files are of architecture llama.
ARCHITECTURES: dict[str, Family] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}

ROPE_FREQS = "rope_freqs.weight"

_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

# Keys (after the architecture) that mean a computation not done here, unless they have one of these values.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "expert_shared_count": (0,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "attention.output_scale": (1.0,),
    "attention.temperature_scale": (0.0,),
    "attention.sliding_window_pattern": (),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "logit_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "nextn_predict_layers": (0,),
    "use_parallel_residual": (False,),
    "rope.freq_base_swa": (),
    "rope.dimension_sections": (),
}


def gguf_spec(file: GgufFile) -> ModelSpec:
    """The spec of the model in a file.

    Raises:
        ModelError: an architecture or feature that is not supported, or a number that is missing or
            impossible. The message names the file and the key.
    """
    fields = _architecture_fields(file)
    architecture = fields.prefix.rstrip(".")
    _refuse_unsupported(file, fields)
    num_layers, hidden, heads = (
        fields.layers("block_count"),
        fields.count("embedding_length"),
        _uniform(fields, "attention.head_count"),
    )
    kv_heads = _uniform(fields, "attention.head_count_kv", heads)
    if heads % kv_heads:
        fields.fail(
            "attention.head_count_kv", f"is {kv_heads}, which does not divide {heads} attention heads"
        )
    head_dim = _head_dim(fields, hidden, heads)
    max_position = fields.count("context_length")
    window = fields.count("attention.sliding_window") if fields.get("attention.sliding_window") else None
    family = ARCHITECTURES[architecture]
    first = "blk.0."
    return ModelSpec(
        family="mistral" if family == "llama" and window is not None else family,
        vocab_size=_vocab_size(file),
        hidden_size=hidden,
        intermediate_size=_uniform(fields, "feed_forward_length"),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_position,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=gguf_rope(fields, max_position, _freq_factors(file, head_dim)),
        tie_word_embeddings="output.weight" not in file.tensors,
        windows=(window,) * num_layers,
        qkv_bias=family == "qwen2" or f"{first}attn_q.bias" in file.tensors,
        o_bias=f"{first}attn_output.bias" in file.tensors,
        mlp_bias=f"{first}ffn_down.bias" in file.tensors,
        qk_norm=family == "qwen3",
    )


def gguf_tensors(file: GgufFile, spec: ModelSpec) -> dict[str, Tensor]:
    """The file's tensors under canonical names, Q and K of architecture llama in half-split order.

    A tensor without a canonical name keeps its own; rope_freqs, which is part of the spec, is left out.
    """
    interleaved = spec.family in ("llama", "mistral")
    heads = {"self_attn.q_proj": spec.num_heads, "self_attn.k_proj": spec.num_kv_heads}
    tensors: dict[str, Tensor] = {}
    for stored_name, stored in file.tensors.items():
        if stored_name == ROPE_FREQS:
            continue
        name = canonical_name(stored_name)
        if name in tensors:
            raise ModelError(f"{stored.source}: the file has this tensor under another name too")
        tensor = dataclasses.replace(stored, name=name)
        rotated = next((heads[part] for part in heads if f".{part}." in name), None)
        if interleaved and rotated and stored.shape[0] == rotated * spec.head_dim:
            tensor = half_split(tensor, rotated)
        tensors[name] = tensor
    return tensors


def canonical_name(stored: str) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``; an unknown name stays."""
    base, _, suffix = stored.rpartition(".")
    if base in _TOP_NAMES:
        return f"{_TOP_NAMES[base]}.{suffix}"
    block, _, rest = base.partition(".")
    layer, _, part = rest.partition(".")
    if block == "blk" and part in _LAYER_NAMES:
        return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{suffix}"
    return stored


def _architecture_fields(file: GgufFile) -> Fields:
    general = Fields(file.metadata, str(file.path))
    split = general.get("split.count")
    if split is not None and split != 1:
        general.fail(
            "split.count", f"is {split}: one part of a split model; merge it with llama-gguf-split --merge"
        )
    architecture = general.text("general.architecture")
    if architecture not in ARCHITECTURES:
        general.fail(
            "general.architecture",
            f"{architecture!r} is not supported; supported are {', '.join(ARCHITECTURES)}",
        )
    return Fields(file.metadata, str(file.path), prefix=f"{architecture}.")


def _refuse_unsupported(file: GgufFile, fields: Fields) -> None:
    for name, neutral in _NEUTRAL.items():
        value = fields.get(name)
        if value is not None and value not in neutral:
            fields.fail(name, f"is {value!r}: this feature is not supported")
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        Fields(file.metadata, str(file.path)).fail("general.type", f"is {kind!r}: not a whole model")


def _uniform(fields: Fields, name: str, default: int | None = None) -> int:
    """A count that some architectures give layer by layer; here all layers must agree."""
    value = fields.get(name)
    if not isinstance(value, list):
        return fields.count(name, default)
    if len(set(value)) != 1:
        fields.fail(name, "differs from layer to layer, which is not supported")
    return Fields({name: value[0]}, fields.source, within=fields.prefix).count(name)


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    if fields.get("attention.key_length") is None and hidden % heads:
        fields.fail("attention.head_count", f"is {heads}, which does not divide embedding_length {hidden}")
    head_dim = fields.count("attention.key_length", hidden // heads)
    if head_dim % 2:
        fields.fail("attention.key_length", f"is {head_dim}; rotary embeddings need an even number")
    for name in ("attention.value_length", "rope.dimension_count"):
        other = fields.count(name, head_dim if name.startswith("rope") else hidden // heads)
        if other != head_dim:
            fields.fail(name, f"is {other}; only that of the key heads, {head_dim}, is supported")
    return head_dim


def _vocab_size(file: GgufFile) -> int:
    """Rows of the embedding: the vocabulary's list must have as many."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{file.path}: tensor 'token_embd.weight' is missing")
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) != embedding.shape[0]:
        raise ModelError(
            f"{embedding.source}: has {embedding.shape[0]} rows for {len(tokens)} tokenizer.ggml.tokens"
        )
    return embedding.shape[0]


def _freq_factors(file: GgufFile, head_dim: int) -> tuple[float, ...]:
    tensor: Tensor | None = file.tensors.get(ROPE_FREQS)
    if tensor is None:
        return ()
    if tensor.shape != (head_dim // 2,) or tensor.dtype != "F32":
        raise ModelError(
            f"{tensor.source}: is {tensor.dtype} {list(tensor.shape)}; it must be F32 [{head_dim // 2}]"
        )
    factors = dequantize(tensor)
    if not bool(((factors > 0) & (factors < float("inf"))).all()):
        raise ModelError(f"{tensor.source}: every factor must be a positive number")
    return tuple(factors.tolist())
