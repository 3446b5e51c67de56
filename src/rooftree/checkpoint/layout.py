"""Which tensors a model of a spec consists of, under their canonical names."""

from __future__ import annotations

from rooftree.specs.model import ModelSpec

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"

Shape = tuple[int, ...]


def tensor_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """Canonical name -> shape of every tensor that the spec requires; a tied model has no head of its own."""
    shapes: dict[str, Shape] = {EMBEDDING: (spec.vocab_size, spec.hidden_size)}
    layer = layer_shapes(spec)
    for index in range(spec.num_layers):
        shapes.update((f"model.layers.{index}.{name}", shape) for name, shape in layer.items())
    shapes[FINAL_NORM] = (spec.hidden_size,)
    if not spec.tie_word_embeddings:
        shapes[HEAD] = (spec.vocab_size, spec.hidden_size)
    return shapes


def layer_shapes(spec: ModelSpec) -> dict[str, Shape]:
    """The same for one decoder layer, names without the ``model.layers.N.`` prefix."""
    hidden, middle, query, key = spec.hidden_size, spec.intermediate_size, spec.q_size, spec.kv_size
    shapes: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (query, hidden),
        "self_attn.k_proj.weight": (key, hidden),
        "self_attn.v_proj.weight": (key, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (middle, hidden),
        "mlp.up_proj.weight": (middle, hidden),
        "mlp.down_proj.weight": (hidden, middle),
    }
    if spec.qkv_bias:
        shapes |= {
            f"self_attn.{name}_proj.bias": (rows,)
            for name, rows in zip("qkv", (query, key, key), strict=True)
        }
    if spec.o_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if spec.mlp_bias:
        shapes |= {
            "mlp.gate_proj.bias": (middle,),
            "mlp.up_proj.bias": (middle,),
            "mlp.down_proj.bias": (hidden,),
        }
    if spec.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (spec.head_dim,), "self_attn.k_norm.weight": (spec.head_dim,)}
    return shapes
