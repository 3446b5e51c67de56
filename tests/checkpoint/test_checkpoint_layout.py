"""The tensors of a model, by name and shape."""

from __future__ import annotations

from rigs.models import tiny_spec
from rooftree.checkpoint.layout import tensor_shapes

LLAMA_LAYER = {
    "input_layernorm.weight": (64,),
    "self_attn.q_proj.weight": (64, 64),
    "self_attn.k_proj.weight": (32, 64),
    "self_attn.v_proj.weight": (32, 64),
    "self_attn.o_proj.weight": (64, 64),
    "post_attention_layernorm.weight": (64,),
    "mlp.gate_proj.weight": (96, 64),
    "mlp.up_proj.weight": (96, 64),
    "mlp.down_proj.weight": (64, 96),
}


def layer(spec, index=0):
    prefix = f"model.layers.{index}."
    return {
        name.removeprefix(prefix): shape
        for name, shape in tensor_shapes(spec).items()
        if name.startswith(prefix)
    }


def extra(spec):
    return {name: shape for name, shape in layer(spec).items() if name not in LLAMA_LAYER}


def test_a_llama():
    shapes = tensor_shapes(tiny_spec("llama"))
    assert len(shapes) == 3 + 2 * 9
    assert shapes["model.embed_tokens.weight"] == shapes["lm_head.weight"] == (512, 64)
    assert shapes["model.norm.weight"] == (64,)
    assert layer(tiny_spec("llama"), 0) == layer(tiny_spec("llama"), 1) == LLAMA_LAYER
    assert layer(tiny_spec("mistral")) == LLAMA_LAYER


def test_a_tied_model_has_no_head():
    assert "lm_head.weight" not in tensor_shapes(tiny_spec("llama", tie_word_embeddings=True))


def test_what_families_add():
    biases = {"self_attn.q_proj.bias": (64,), "self_attn.k_proj.bias": (32,), "self_attn.v_proj.bias": (32,)}
    assert extra(tiny_spec("qwen2")) == biases
    assert extra(tiny_spec("qwen3")) == {"self_attn.q_norm.weight": (16,), "self_attn.k_norm.weight": (16,)}
    assert extra(tiny_spec("llama", o_bias=True)) == {"self_attn.o_proj.bias": (64,)}
    assert extra(tiny_spec("llama", mlp_bias=True)) == {
        "mlp.gate_proj.bias": (96,),
        "mlp.up_proj.bias": (96,),
        "mlp.down_proj.bias": (64,),
    }


def test_heads_wider_than_the_model():
    shapes = layer(tiny_spec("qwen3", head_dim=48))
    assert shapes["self_attn.q_proj.weight"] == (192, 64)
    assert shapes["self_attn.k_proj.weight"] == (96, 64)
    assert shapes["self_attn.o_proj.weight"] == (64, 192)
