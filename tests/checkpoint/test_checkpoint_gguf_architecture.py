"""Heads of GGUF files of every family: the tensors that llama.cpp stores add up to what is counted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rigs.gguf_writer import GgufTensor, write_gguf
from rigs.real_model import smollm2_path
from rooftree.checkpoint.architectures.gguf_config import MODEL_TYPES
from rooftree.checkpoint.gguf import read_gguf_header
from rooftree.checkpoint.gguf_architecture import read_gguf_architecture
from rooftree.checkpoint.open import open_checkpoint
from rooftree.errors import ModelError
from rooftree.specs.architecture import Architecture
from rooftree.specs.attention import Attention, LatentAttention

H, V, F = 64, 320, 96
# Type ids, with bytes for so many elements.
F32, Q8_0, MXFP4, IQ4_NL = 0, 8, 39, 20
_BYTES = {F32: (4, 1), Q8_0: (34, 32), MXFP4: (17, 32), IQ4_NL: (18, 32), 99: (4, 1)}

Table = dict[str, tuple[int, ...]]


def attention(
    heads: int = 4, kv: int = 2, dim: int = 16, *, bias: str = "", norms: int = 0, gate: int = 1
) -> Table:
    sizes = {"q": heads * dim * gate, "k": kv * dim, "v": kv * dim}
    table: Table = {f"attn_{name}.weight": (size, H) for name, size in sizes.items()}
    table["attn_output.weight"] = (H, heads * dim)
    table |= {f"attn_{name}.bias": (sizes[name],) for name in bias if name in sizes}
    if "o" in bias:
        table["attn_output.bias"] = (H,)
    if norms:
        table |= {
            "attn_q_norm.weight": (norms,),
            "attn_k_norm.weight": (norms if norms == dim else kv * dim,),
        }
    return table


def fused(rows: int, *, bias: bool = False) -> Table:
    table: Table = {"attn_qkv.weight": (rows, H), "attn_output.weight": (H, H)}
    return table | ({"attn_qkv.bias": (rows,), "attn_output.bias": (H,)} if bias else {})


def network(width: int = F, suffix: str = "", *, gated: bool = True, bias: bool = False) -> Table:
    names = ("gate", "up") if gated else ("up",)
    table: Table = {f"ffn_{name}{suffix}.weight": (width, H) for name in names}
    table[f"ffn_down{suffix}.weight"] = (H, width)
    if bias:
        table |= {f"ffn_{name}{suffix}.bias": (width,) for name in names} | {f"ffn_down{suffix}.bias": (H,)}
    return table


def experts(count: int = 4, width: int = 32, *, gated: bool = True, bias: bool = False) -> Table:
    table = {name: (count, *shape) for name, shape in network(width, "_exps", gated=gated, bias=bias).items()}
    return table | {"ffn_gate_inp.weight": (count, H)} | ({"ffn_gate_inp.bias": (count,)} if bias else {})


def norms(*names: str, bias: bool = False, size: int = H) -> Table:
    table: Table = {f"{name}.weight": (size,) for name in names}
    return table | ({f"{name}.bias": (size,) for name in names} if bias else {})


TWO = norms("attn_norm", "ffn_norm")
TWO_BIASED = norms("attn_norm", "ffn_norm", bias=True)
MAMBA: Table = {
    "ssm_in.weight": (256, H),
    "ssm_conv1d.weight": (128, 4),
    "ssm_conv1d.bias": (128,),
    "ssm_x.weight": (8 + 2 * 16, 128),
    "ssm_dt.weight": (128, 8),
    "ssm_dt.bias": (128,),
    "ssm_a": (128, 16),
    "ssm_d": (128,),
    "ssm_out.weight": (H, 128),
}
JAMBA_NORMS = norms("ssm_dt_norm", size=8) | norms("ssm_b_norm", "ssm_c_norm", size=16)
MAMBA2: Table = {
    "ssm_in.weight": (2 * 128 + 2 * 2 * 16 + 8, H),
    "ssm_conv1d.weight": (128 + 2 * 2 * 16, 4),
    "ssm_conv1d.bias": (128 + 2 * 2 * 16,),
    "ssm_dt.bias": (8,),
    "ssm_a": (8, 1),
    "ssm_d": (8, 1),
    "ssm_norm.weight": (2, 64),
    "ssm_out.weight": (H, 128),
}
DELTA: Table = {
    "attn_qkv.weight": (2 * 32 + 64, H),
    "attn_gate.weight": (64, H),
    "ssm_ba.weight": (8, H),
    "ssm_conv1d.weight": (2 * 32 + 64, 4),
    "ssm_dt.bias": (4,),
    "ssm_a": (4,),
    "ssm_norm.weight": (16,),
    "ssm_out.weight": (H, 64),
}
LATENT: Table = {
    "attn_q_a.weight": (32, H),
    "attn_q_a_norm.weight": (32,),
    "attn_q_b.weight": (4 * 40, 32),
    "attn_kv_a_mqa.weight": (32 + 8, H),
    "attn_kv_a_norm.weight": (32,),
    "attn_k_b.weight": (4, 32, 32),
    "attn_v_b.weight": (4, 32, 32),
    "attn_output.weight": (H, 4 * 32),
}
SHARED = network(32, "_shexp")
HEADS = {"attention.head_count": 4, "attention.head_count_kv": 2}
SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 128, "ssm.state_size": 16, "ssm.time_step_rank": 8}
MOE = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
LATENT_KEYS = {
    "attention.head_count": 4,
    "attention.head_count_kv": 1,
    "attention.kv_lora_rank": 32,
    "attention.q_lora_rank": 32,
    "rope.dimension_count": 8,
}
GEMMA = norms("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
DIM = {"attention.key_length": 16, "attention.value_length": 16}

# Architecture -> keys beside the usual ones, layers, tensors outside them.
FILES: dict[str, tuple[dict[str, Any], list[Table], Table]] = {
    "llama": ({}, [TWO | attention() | network()] * 2, {}),
    "llama+experts": (
        {"expert_count": 4, "expert_used_count": 2, "feed_forward_length": 32},
        [TWO | attention() | experts()] * 2,
        norms("output", size=V * H),
    ),
    "llama4": (
        MOE | {"interleave_moe_layer_step": 2},
        [TWO | attention() | network(), TWO | attention() | experts() | SHARED],
        {},
    ),
    "qwen2": ({}, [TWO | attention(bias="qkv") | network()] * 2, {}),
    "qwen2moe": (
        MOE | {"expert_shared_feed_forward_length": 32},
        [TWO | attention(bias="qkv") | experts() | SHARED | {"ffn_gate_inp_shexp.weight": (H,)}] * 2,
        {},
    ),
    "qwen3": (DIM, [TWO | attention(norms=16) | network()] * 2, {}),
    "qwen3moe": (MOE | DIM, [TWO | attention(norms=16) | experts()] * 2, {}),
    "gemma": (DIM, [TWO | attention() | network()] * 2, {}),
    "gemma2": (DIM | {"attention.sliding_window": 8}, [GEMMA | attention() | network()] * 2, {}),
    "gemma3": (DIM | {"attention.sliding_window": 8}, [GEMMA | attention(norms=16) | network()] * 7, {}),
    "phi3": (
        {},
        [TWO | fused(128) | {"ffn_up.weight": (2 * F, H), "ffn_down.weight": (H, F)}] * 2,
        {"rope_factors_long.weight": (8,)},
    ),
    "falcon": (
        {"attention.head_count_kv": 1},
        [norms("attn_norm", bias=True) | fused(96) | network(gated=False)] * 2,
        {"output_norm.bias": (H,)},
    ),
    "falcon+new": (
        {},
        [norms("attn_norm", "attn_norm_2", bias=True) | fused(128) | network(gated=False)] * 2,
        {"output_norm.bias": (H,)},
    ),
    "gptneox": (
        {"attention.head_count_kv": 4},
        [TWO_BIASED | fused(192, bias=True) | network(gated=False, bias=True)] * 2,
        {"output_norm.bias": (H,)},
    ),
    "bloom": (
        {"attention.head_count_kv": 4},
        [TWO_BIASED | fused(192, bias=True) | network(gated=False, bias=True)] * 2,
        {"output_norm.bias": (H,), "token_embd_norm.weight": (H,), "token_embd_norm.bias": (H,)},
    ),
    "smollm3": ({}, [TWO | attention() | network()] * 2, {}),
    "deepseek2": (
        MOE
        | LATENT_KEYS
        | {"attention.key_length": 40, "attention.value_length": 32, "expert_shared_count": 1}
        | {"attention.key_length_mla": 40, "attention.value_length_mla": 32, "leading_dense_block_count": 1},
        [TWO | LATENT | network(), TWO | LATENT | experts() | SHARED | {"exp_probs_b.bias": (4,)}],
        {},
    ),
    "deepseek2+old": (
        MOE
        | {key: value for key, value in LATENT_KEYS.items() if "q_lora" not in key}
        | {"attention.key_length": 40, "attention.value_length": 32, "leading_dense_block_count": 1},
        [
            TWO
            | {name: shape for name, shape in LATENT.items() if name[5:8] not in ("q_a", "q_b", "k_b", "v_b")}
            | {"attn_q.weight": (4 * 40, H), "attn_kv_b.weight": (4 * 64, 32)}
            | network()
        ],
        {},
    ),
    "gpt-oss": (
        MOE | {"attention.key_length": 64, "attention.sliding_window": 128},
        [
            norms("attn_norm", "post_attention_norm")
            | attention(dim=64, bias="qkvo")
            | {"attn_sinks.weight": (4,)}
            | experts(bias=True)
        ]
        * 2,
        {},
    ),
    "glm4moe": (
        MOE | DIM | {"expert_shared_count": 1, "leading_dense_block_count": 1, "nextn_predict_layers": 1},
        [
            norms("attn_norm", "post_attention_norm") | attention(bias="qkv") | part
            for part in (
                network(),
                experts() | SHARED | {"exp_probs_b.bias": (4,)},
                experts() | SHARED | {"nextn.eh_proj.weight": (H, 2 * H)},
            )
        ],
        {},
    ),
    "granite": ({}, [TWO | attention() | network()] * 2, {}),
    "granitemoe": (
        MOE | {"expert_shared_feed_forward_length": 32},
        [TWO | attention() | experts() | SHARED] * 2,
        {},
    ),
    "minimax-m2": (
        MOE | DIM,
        [TWO | attention(norms=64) | experts() | {"exp_probs_b.bias": (4,)}] * 2,
        {},
    ),
    "nemotron": (
        DIM,
        [TWO_BIASED | attention() | network(gated=False)] * 2,
        {"output_norm.bias": (H,)},
    ),
    "mamba": (SSM, [norms("attn_norm") | MAMBA] * 2, {}),
    "mamba2": (SSM | {"ssm.group_count": 2}, [norms("attn_norm") | MAMBA2] * 2, {}),
    "jamba": (
        SSM | {"expert_count": 4, "expert_used_count": 2, "feed_forward_length": 32}
        | {"attention.head_count_kv": [0, 2, 0, 2]},
        [
            TWO | MAMBA | JAMBA_NORMS | network(32),
            TWO | attention() | experts(),
        ]
        * 2,
        {},
    ),
    "nemotron_h": (
        SSM | DIM | {"ssm.group_count": 2} | {"attention.head_count_kv": [0, 2, 0]},
        [norms("attn_norm") | part for part in (MAMBA2, attention(), network(gated=False))],
        {},
    ),
    "nemotron_h_moe": (
        SSM | DIM | MOE
        | {"ssm.group_count": 2, "attention.head_count_kv": [0, 2, 0]}
        | {"expert_shared_feed_forward_length": 32},
        [
            norms("attn_norm") | MAMBA2,
            norms("attn_norm") | attention(),
            norms("attn_norm")
            | experts(gated=False)
            | network(32, "_shexp", gated=False)
            | {"exp_probs_b.bias": (4,)},
        ],
        {},
    ),
    "granitehybrid": (
        SSM | {"ssm.group_count": 2, "attention.head_count_kv": [0, 2]},
        [TWO | part | network() for part in (MAMBA2, attention())],
        {},
    ),
    "granitehybrid+experts": (
        SSM | MOE
        | {"ssm.group_count": 2, "attention.head_count_kv": [0, 2], "expert_shared_feed_forward_length": 32},
        [TWO | part | experts() | SHARED for part in (MAMBA2, attention())],
        {},
    ),
    "qwen3next": (
        MOE | DIM | SSM
        | {"ssm.inner_size": 64, "ssm.time_step_rank": 4, "ssm.group_count": 2, "ssm.state_size": 16}
        | {"full_attention_interval": 2, "expert_shared_feed_forward_length": 32},
        [
            norms("attn_norm", "post_attention_norm") | part | experts() | SHARED
            | {"ffn_gate_inp_shexp.weight": (H,)}
            for part in (DELTA, attention(norms=16, gate=2))
        ],
        {},
    ),
    "qwen35": (
        DIM | SSM
        | {"ssm.inner_size": 64, "ssm.time_step_rank": 4, "ssm.group_count": 2, "ssm.state_size": 16}
        | {"full_attention_interval": 2},
        [
            norms("attn_norm", "post_attention_norm") | part | network()
            for part in (
                {name: shape for name, shape in DELTA.items() if name != "ssm_ba.weight"}
                | {"ssm_alpha.weight": (4, H), "ssm_beta.weight": (4, H)},
                attention(norms=16, gate=2),
            )
        ],
        {},
    ),
}  # fmt: skip


def write(
    tmp_path: Path, name: str, *, matrix: int = Q8_0, tensors: Table | None = None, **over: Any
) -> Path:
    keys, layers, outside = FILES[name]
    architecture = name.partition("+")[0]
    usual = {
        "block_count": len(layers),
        "embedding_length": H,
        "context_length": 128,
        "feed_forward_length": F,
    }
    metadata = usual | HEADS | keys | over
    table: Table = {"token_embd.weight": (V, H), "output_norm.weight": (H,)}
    table |= {f"blk.{i}.{n}": shape for i, layer in enumerate(layers) for n, shape in layer.items()}
    # A head of its own, spelt as a vector above so that it needs no helper.
    table |= {n: (V, H) if shape == (V * H,) else shape for n, shape in outside.items()}
    table |= tensors or {}
    written = []
    for tensor, shape in table.items():
        small = len(shape) < 2 or any(
            part in tensor for part in ("norm", "bias", "ssm_a", "ssm_d", "conv1d", "inp")
        )
        kind = F32 if small or shape[-1] % 32 else matrix
        size, block = _BYTES[kind]
        written.append(GgufTensor(tensor, shape, kind, bytes(math.prod(shape) // block * size)))
    head = {"general.architecture": architecture}
    head |= {f"{architecture}.{key}": value for key, value in metadata.items() if value is not None}
    return write_gguf(tmp_path / "model.gguf", head, written)


def read(tmp_path: Path, name: str, **over: Any) -> Architecture:
    return read_gguf_architecture(write(tmp_path, name, **over))


def test_every_architecture_has_a_file():
    rare = {"mistral3", "phimoe", "glm4", "qwen35moe"}
    assert {name.partition("+")[0] for name in FILES} == set(MODEL_TYPES) - rare


@pytest.mark.parametrize("name", FILES)
def test_tensors_add_up(tmp_path: Path, name: str):
    architecture = read(tmp_path, name)
    assert architecture.name == name.partition("+")[0]
    if name == "qwen35":
        # Its alpha and beta are one matrix in the safetensors, of the type of beta here.
        return
    assert architecture.notes == ()


def refuses(tmp_path: Path, name: str, *words: str, **over: Any) -> None:
    with pytest.raises(ModelError) as error:
        read(tmp_path, name, **over)
    for word in ("model.gguf", *words):
        assert word in str(error.value)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("key", ["block_count", "embedding_length"])
@pytest.mark.parametrize("bad", [None, 0, 1.5, "two", [1, 2]])
def test_needed_keys_are_named(tmp_path: Path, name: str, key: str, bad: Any):
    refuses(tmp_path, name, f"{name.partition('+')[0]}.{key}", **{key: bad})


@pytest.mark.parametrize(
    ("name", "key", "word"),
    [
        ("llama", "feed_forward_length", "intermediate_size"),
        ("llama", "attention.head_count", "num_attention_heads"),
        ("llama+experts", "expert_used_count", "num_experts_per_tok"),
        ("deepseek2", "rope.dimension_count", "deepseek2.rope.dimension_count"),
        ("deepseek2", "attention.kv_lora_rank", "kv_lora_rank"),
        ("deepseek2", "expert_shared_count", "n_shared_experts"),
        ("mamba", "ssm.state_size", "state_size"),
        ("mamba", "ssm.inner_size", "mamba.ssm.inner_size"),
        ("jamba", "ssm.time_step_rank", "jamba.ssm.time_step_rank"),
        ("gemma2", "attention.sliding_window", "sliding_window"),
    ],
)
def test_needed_keys_of_families(tmp_path: Path, name: str, key: str, word: str):
    refuses(tmp_path, name, word, **{key: None})


def test_impossible_values(tmp_path: Path):
    refuses(tmp_path, "llama", "llama.feed_forward_length", "differs", feed_forward_length=[96, 64])
    refuses(tmp_path, "deepseek2", "attention.key_length", **{"rope.dimension_count": 40})
    refuses(tmp_path, "jamba", "regular", **{"attention.head_count_kv": [2, 2, 0, 2]})
    refuses(tmp_path, "llama", "num_key_value_heads", **{"attention.head_count_kv": 3})


def test_unknown_architectures_and_types(tmp_path: Path):
    file = write_gguf(tmp_path / "model.gguf", {"general.architecture": "marvel"}, [])
    with pytest.raises(ModelError, match=r"general\.architecture 'marvel' is not known.*deepseek2"):
        read_gguf_architecture(file)
    file = write_gguf(tmp_path / "model.gguf", {}, [])
    with pytest.raises(ModelError, match=r"general\.architecture is missing"):
        read_gguf_architecture(file)
    refuses(tmp_path, "llama", "attn_q.weight", "type 99", matrix=99)


@pytest.mark.parametrize(("kind", "scheme"), [(MXFP4, "mxfp4"), (IQ4_NL, "iq4_nl")])
def test_types_that_no_kernel_has_are_counted(tmp_path: Path, kind: int, scheme: str):
    architecture = read(tmp_path, "llama", matrix=kind)
    assert architecture.scheme.name == scheme
    assert architecture.notes == ()
    first, *_ = read_gguf_header(tmp_path / "model.gguf").records
    assert first.type_name == scheme.upper()


def test_what_the_tensors_tell(tmp_path: Path):
    mixtral = read(tmp_path, "llama+experts")
    assert not mixtral.tied_head
    assert mixtral.num_parameters_active < mixtral.num_parameters
    assert read(tmp_path, "llama").tied_head
    falcon = read(tmp_path, "falcon").layers[0].mixer
    assert isinstance(falcon, Attention)
    assert (falcon.num_heads, falcon.num_kv_heads) == (4, 1)
    new = read(tmp_path, "falcon+new").layers[0].mixer
    assert isinstance(new, Attention)
    assert new.num_kv_heads == 2
    latent = read(tmp_path, "deepseek2").layers[0].mixer
    assert isinstance(latent, LatentAttention)
    assert latent.kv_elements_per_token == 40
    assert latent == LatentAttention(4, 32, 32, 8, 32, q_lora_rank=32)
    # Two layers with attention of four: what is stored per token is theirs alone.
    assert read(tmp_path, "jamba").kv_bytes_per_token("fp16") == 2 * 2 * 2 * 16 * 2


def test_more_than_is_counted_is_said(tmp_path: Path):
    extra = {"blk.0.attn_gate.weight": (H,)}
    file = write(tmp_path, "llama", tensors=extra)
    (note,) = read_gguf_architecture(file).notes
    assert "the file's tensors hold" in note


@pytest.mark.model
def test_the_real_file():
    path = smollm2_path()
    architecture, checkpoint = read_gguf_architecture(path), open_checkpoint(str(path))
    assert architecture.num_parameters == 134_515_008
    assert architecture.weight_bytes() == checkpoint.weight_bytes
    assert architecture.kv_bytes_per_token("fp16") == 23_040
    assert architecture.notes == ()
