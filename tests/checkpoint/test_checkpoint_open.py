"""Whole models through both formats, and models that are refused before anything is computed (case 15)."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest

from rigs.gguf_writer import GgufTensor, write_gguf
from rigs.hf_writer import Entry, write_safetensors
from rigs.models import (
    FAMILIES,
    gguf_metadata,
    gguf_tensors,
    path_successor,
    random_weights,
    stored,
    successor_weights,
    tiny_spec,
    write_gguf_model,
    write_hf_model,
)
from rigs.real_model import smollm2_path
from rigs.tokenizer import tiny_tokenizer
from rooftree.checkpoint.formats import dequantize, quantize
from rooftree.checkpoint.open import open_checkpoint
from rooftree.errors import ModelError
from rooftree.specs.model import RopeSpec

MIXED = {
    "model.embed_tokens.weight": "Q8_0",
    "lm_head.weight": "F16",
    "model.layers.0.self_attn.q_proj.weight": "Q4_0",
    "model.layers.0.self_attn.k_proj.weight": "Q8_0",
    "model.layers.1.self_attn.q_proj.weight": "Q4_1",
    "model.layers.1.self_attn.k_proj.weight": "BF16",
    "model.layers.1.mlp.down_proj.weight": "Q4_1",
}


def as_f32(spec):
    """The spec as a GGUF file gives it back: its numbers are single precision."""
    return dataclasses.replace(spec, rms_norm_eps=float(np.float32(spec.rms_norm_eps)))


def assert_same_tensors(checkpoint, expected):
    assert list(checkpoint.tensors) == list(expected)
    for name, tensor in checkpoint.tensors.items():
        assert tensor.name == name
        assert tensor.shape == expected[name].shape
        assert tensor.data.ndim == 1
        assert tensor.data.dtype == np.uint8
        assert tensor.num_bytes == tensor.data.nbytes
        np.testing.assert_array_equal(dequantize(tensor), expected[name], err_msg=name)
    assert checkpoint.weight_bytes == sum(tensor.data.nbytes for tensor in checkpoint.tensors.values())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "dtype", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", MIXED], ids=str
)
def test_gguf_gives_back_the_model(tmp_path, family, dtype):
    spec = tiny_spec(family)
    weights = random_weights(spec)
    path = write_gguf_model(tmp_path / "model.gguf", spec, weights, dtype=dtype)
    checkpoint = open_checkpoint(str(path))
    assert checkpoint.spec == as_f32(spec)
    assert (checkpoint.format, checkpoint.name, checkpoint.path) == ("gguf", "model", str(path))
    # llama.cpp keeps vectors in F32 whatever the matrices are.
    matrices = {name: value for name, value in weights.items() if value.ndim == 2}
    assert_same_tensors(checkpoint, weights | stored(matrices, dtype))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("dtype", ["Q4_K", "Q5_K", "Q6_K"])
def test_super_blocks_need_wide_models(tmp_path, family, dtype):
    spec = tiny_spec(family, hidden_size=256, intermediate_size=512, num_heads=16, num_kv_heads=4)
    weights = random_weights(spec)
    path = write_gguf_model(tmp_path / "model.gguf", spec, weights, dtype=dtype)
    matrices = {name: value for name, value in weights.items() if value.ndim == 2}
    assert_same_tensors(open_checkpoint(str(path)), weights | stored(matrices, dtype))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", {"model.embed_tokens.weight": "BF16"}], ids=str)
def test_safetensors_gives_back_the_model(tmp_path, family, shards, dtype):
    spec = tiny_spec(family)
    weights = random_weights(spec)
    folder = write_hf_model(tmp_path / "org-name", spec, weights, dtype=dtype, shards=shards)
    checkpoint = open_checkpoint(str(folder))
    assert checkpoint.spec == spec
    assert (checkpoint.format, checkpoint.name) == ("safetensors", "org-name")
    assert_same_tensors(checkpoint, stored(weights, dtype))


@pytest.mark.parametrize("bias", [True, False])
def test_biases_of_a_llama_follow_the_same_row_order(tmp_path, bias):
    spec = tiny_spec("llama", qkv_bias=bias, o_bias=bias, mlp_bias=bias)
    weights = random_weights(spec)
    gguf = open_checkpoint(str(write_gguf_model(tmp_path / "m.gguf", spec, weights)))
    folder = open_checkpoint(str(write_hf_model(tmp_path / "hf", spec, weights)))
    assert gguf.spec == as_f32(folder.spec) == as_f32(spec)
    assert_same_tensors(gguf, weights)
    assert_same_tensors(folder, weights)


def test_head_dim_need_not_follow_from_hidden_size(tmp_path):
    spec = tiny_spec("qwen3", head_dim=32, num_heads=4, num_kv_heads=1)
    weights = random_weights(spec)
    assert open_checkpoint(str(write_gguf_model(tmp_path / "m.gguf", spec, weights))).spec == as_f32(spec)
    assert open_checkpoint(str(write_hf_model(tmp_path / "hf", spec, weights))).spec == spec


def test_rows_of_a_quantised_tensor_move_whole(tmp_path):
    """Interleaving before quantising and after are the same bytes, because rows are quantised one by one."""
    spec = tiny_spec("llama")
    weights = random_weights(spec)
    path = write_gguf_model(tmp_path / "m.gguf", spec, weights, dtype="Q4_1")
    name = "model.layers.1.self_attn.q_proj.weight"
    tensor = open_checkpoint(str(path)).tensors[name]
    assert tensor.data.tobytes() == quantize("Q4_1", weights[name]).tobytes()
    assert tensor.data.tobytes() == tensor.data.tobytes()


def test_tensors_without_a_row_order_are_views_of_the_file(tmp_path):
    spec = tiny_spec("llama")
    checkpoint = open_checkpoint(str(write_gguf_model(tmp_path / "m.gguf", spec, random_weights(spec))))
    tensor = checkpoint.tensors["model.layers.0.mlp.up_proj.weight"]
    assert tensor.data.base is not None
    assert not tensor.data.flags.writeable


# Tied and untied heads


def without_head(weights):
    return {name: values for name, values in weights.items() if name != "lm_head.weight"}


def test_a_gguf_without_an_output_is_tied_and_with_one_is_not(tmp_path):
    spec = tiny_spec("llama")
    weights = random_weights(spec)
    tied = open_checkpoint(str(write_gguf_model(tmp_path / "tied.gguf", spec, without_head(weights))))
    assert tied.spec.tie_word_embeddings
    assert "lm_head.weight" not in tied.tensors
    untied = open_checkpoint(str(write_gguf_model(tmp_path / "untied.gguf", spec, weights)))
    assert not untied.spec.tie_word_embeddings
    assert "lm_head.weight" in untied.tensors


@pytest.mark.parametrize("shards", [1, 2])
def test_a_tied_directory_may_or_may_not_carry_a_head(tmp_path, shards):
    spec = tiny_spec("llama", tie_word_embeddings=True)
    weights = random_weights(dataclasses.replace(spec, tie_word_embeddings=False))
    for name, written in (("spare", weights), ("bare", without_head(weights))):
        checkpoint = open_checkpoint(str(write_hf_model(tmp_path / name, spec, written, shards=shards)))
        assert checkpoint.spec.tie_word_embeddings
        assert_same_tensors(checkpoint, without_head(weights))


@pytest.mark.parametrize("shards", [1, 2])
def test_an_untied_directory_without_a_head_is_refused(tmp_path, shards):
    spec = tiny_spec("llama")
    folder = write_hf_model(tmp_path / "m", spec, without_head(random_weights(spec)), shards=shards)
    with pytest.raises(ModelError, match=r"m: tensor 'lm_head.weight' .* missing.*tie_word_embeddings"):
        open_checkpoint(str(folder))


# Tensors that are missing, misshapen or too many


def open_changed(tmp_path, weights, spec=None, **kwargs):
    spec = spec or tiny_spec("llama")
    return open_checkpoint(str(write_hf_model(tmp_path / "changed", spec, weights, **kwargs)))


def test_a_missing_tensor_is_named_with_its_shape(tmp_path):
    weights = random_weights(tiny_spec("llama"))
    del weights["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(ModelError, match=r"changed: tensor 'model.layers.1.mlp.up_proj.weight' .*\[96, 64\]"):
        open_changed(tmp_path, weights)


def test_a_wrong_shape_is_named_with_both(tmp_path):
    weights = random_weights(tiny_spec("llama"))
    weights["model.layers.0.self_attn.k_proj.weight"] = np.zeros((64, 64), np.float32)
    with pytest.raises(
        ModelError, match=r"safetensors: tensor 'model.layers.0.self_attn.k_proj.weight'"
    ) as caught:
        open_changed(tmp_path, weights)
    assert "[64, 64]" in str(caught.value)
    assert "[32, 64]" in str(caught.value)


def test_a_wrong_shape_in_a_gguf_is_named_with_both(tmp_path):
    spec = tiny_spec("llama")
    weights = random_weights(spec)
    weights["model.layers.0.self_attn.q_proj.weight"] = np.zeros((32, 64), np.float32)
    path = write_gguf_model(tmp_path / "m.gguf", spec, weights)
    with pytest.raises(ModelError, match=r"m.gguf: tensor 'blk.0.attn_q.weight'") as caught:
        open_checkpoint(str(path))
    assert "[32, 64]" in str(caught.value)
    assert "[64, 64]" in str(caught.value)


def test_a_tensor_that_the_model_does_not_have_is_refused(tmp_path):
    weights = random_weights(tiny_spec("llama"))
    weights["model.layers.0.self_attn.q_norm.weight"] = np.ones(16, np.float32)
    with pytest.raises(ModelError, match=r"'model.layers.0.self_attn.q_norm.weight'.*no such tensor"):
        open_changed(tmp_path, weights)


def test_layers_beyond_the_configured_ones_are_refused(tmp_path):
    weights = random_weights(tiny_spec("llama", num_layers=3))
    with pytest.raises(ModelError, match=r"model.layers.2.*no such tensor"):
        open_changed(tmp_path, weights)


def test_tables_that_follow_from_the_configuration_are_ignored(tmp_path):
    spec = tiny_spec("llama")
    weights = random_weights(spec)
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32)}
    assert_same_tensors(open_changed(tmp_path, weights | extra), weights)
    tensors = [*gguf_tensors(spec, weights), GgufTensor("blk.0.attn_rot_embd.weight", (8,), 0, bytes(32))]
    metadata = gguf_metadata(spec) | tiny_tokenizer().gguf_metadata()
    checkpoint = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", metadata, tensors)))
    assert_same_tensors(checkpoint, weights)


def test_an_odd_type_does_not_matter_in_a_tensor_that_is_ignored(tmp_path):
    spec = tiny_spec("llama")
    folder = write_hf_model(tmp_path / "m", spec, random_weights(spec))
    entries = {
        name: Entry("F32", values.shape, values.tobytes()) for name, values in random_weights(spec).items()
    }
    entries["model.rotary_emb.inv_freq"] = Entry("F64", (8,), bytes(64))
    write_safetensors(folder, entries)
    assert open_checkpoint(str(folder)).spec == spec


def test_quantised_norms_are_refused(tmp_path):
    spec = tiny_spec("llama")
    weights = random_weights(spec)
    tensors = [tensor for tensor in gguf_tensors(spec, weights) if tensor.name != "output_norm.weight"]
    tensors.append(GgufTensor("output_norm.weight", (64,), 8, quantize("Q8_0", np.ones(64)).tobytes()))
    metadata = gguf_metadata(spec) | tiny_tokenizer().gguf_metadata()
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    with pytest.raises(ModelError, match=r"'output_norm.weight': is Q8_0; norms and biases"):
        open_checkpoint(str(path))


def test_a_tensor_under_two_names_is_refused(tmp_path):
    spec = tiny_spec("llama")
    tensors = gguf_tensors(spec, random_weights(spec))
    tensors.append(GgufTensor("model.norm.weight", (64,), 0, bytes(256)))
    metadata = gguf_metadata(spec) | tiny_tokenizer().gguf_metadata()
    path = write_gguf(tmp_path / "m.gguf", metadata, tensors)
    with pytest.raises(ModelError, match="under another name"):
        open_checkpoint(str(path))


# Naming a model


def test_a_directory_with_one_gguf_file_stands_for_it(tmp_path):
    spec = tiny_spec("llama")
    path = write_gguf_model(tmp_path / "only.gguf", spec, random_weights(spec))
    assert open_checkpoint(str(tmp_path)).path == str(path)
    shutil.copy(path, tmp_path / "other.gguf")
    with pytest.raises(ModelError, match=r"holds several models, name one: only.gguf, other.gguf"):
        open_checkpoint(str(tmp_path))


def test_a_hugging_face_directory_with_a_gguf_beside_is_itself(tmp_path):
    spec = tiny_spec("llama")
    folder = write_hf_model(tmp_path / "m", spec, random_weights(spec))
    write_gguf_model(folder / "copy.gguf", spec, random_weights(spec))
    assert open_checkpoint(str(folder)).format == "safetensors"
    (folder / "model.safetensors").unlink()
    assert open_checkpoint(str(folder)).format == "gguf"


def test_names_that_lead_nowhere(tmp_path):
    with pytest.raises(ModelError, match=r"no such file or directory; a model is smollm2, a .gguf file"):
        open_checkpoint(str(tmp_path / "absent"))
    with pytest.raises(ModelError, match=r"config.json: No such file"):
        open_checkpoint(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="give the directory"):
        open_checkpoint(str(tmp_path / "model.safetensors"))
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelError, match=r"notes.txt: header: not a GGUF file"):
        open_checkpoint(str(tmp_path / "notes.txt"))


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody-of-that-name/m", "", "a\0b", "hf:", "smollm3"])
def test_names_that_no_file_can_have(name):
    with pytest.raises(ModelError):
        open_checkpoint(name)


def test_a_known_name_is_pulled(tmp_path, monkeypatch):
    spec = tiny_spec("llama")
    path = write_gguf_model(tmp_path / "file.gguf", spec, random_weights(spec))
    asked = []

    def pull(name, progress, cache_dir):
        asked.append((name, progress, cache_dir))
        return path

    monkeypatch.setattr("rooftree.checkpoint.open.pull", pull)
    checkpoint = open_checkpoint("smollm2", progress=print, cache_dir=tmp_path)
    assert (checkpoint.name, checkpoint.path) == ("smollm2", str(path))
    assert asked == [("smollm2", print, tmp_path)]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b'"x"', b"\xff\xfe", b'{"a": 1, "a": 2}', b"[" * 100_000]
)
def test_a_broken_config_is_named(tmp_path, content):
    spec = tiny_spec("llama")
    folder = write_hf_model(tmp_path / "m", spec, random_weights(spec))
    (folder / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config.json: "):
        open_checkpoint(str(folder))


# The rigs themselves


def test_the_successor_model_walks_its_path(tmp_path):
    """R1: the head's best row for the (normalised) embedding of t is successor[t], by a wide margin."""
    spec = tiny_spec("llama", vocab_size=300)
    path = [5, 9, 17, 257, 3]
    successor = path_successor(300, path)
    folder = write_hf_model(tmp_path / "m", spec, successor_weights(spec, successor))
    tensors = open_checkpoint(str(folder)).tensors
    embedding = dequantize(tensors["model.embed_tokens.weight"])
    logits = embedding @ dequantize(tensors["lm_head.weight"]).T
    assert logits.argmax(axis=1).tolist() == successor
    best = np.sort(logits, axis=1)
    assert (best[:, -1] - best[:, -2]).min() > 10
    assert not dequantize(tensors["model.layers.0.self_attn.o_proj.weight"]).any()
    assert not dequantize(tensors["model.layers.1.mlp.down_proj.weight"]).any()
    assert [successor[token] for token in path] == [*path[1:], path[0]]


def test_the_config_of_the_rig_is_plain_json(tmp_path):
    spec = tiny_spec("qwen2", rope=RopeSpec(1e6, "yarn", 4.0, 128), windows=(None, 32))
    folder = write_hf_model(tmp_path / "m", spec, random_weights(spec), config={"extra": 1})
    assert json.loads((folder / "config.json").read_text())["extra"] == 1
    assert open_checkpoint(str(folder)).spec == spec


# The real file


@pytest.mark.model
def test_smollm2_is_what_its_card_says():
    checkpoint = open_checkpoint(str(smollm2_path()))
    spec = checkpoint.spec
    assert (spec.family, spec.num_layers, spec.hidden_size, spec.vocab_size) == ("llama", 30, 576, 49152)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (9, 3, 64)
    assert spec.tie_word_embeddings
    assert spec.num_parameters == 134_515_008
    assert spec.num_parameters == sum(tensor.num_elements for tensor in checkpoint.tensors.values())
    assert checkpoint.weight_bytes == sum(tensor.num_bytes for tensor in checkpoint.tensors.values())
    assert {tensor.dtype for tensor in checkpoint.tensors.values()} == {"Q4_1", "Q8_0", "F32"}
    assert len(checkpoint.text.gguf_vocab["tokens"]) == 49152
    assert len(checkpoint.text.gguf_vocab["merges"]) == 48900
    assert (checkpoint.text.bos_token_id, checkpoint.text.eos_token_ids) == (1, (2,))
    assert "<|im_start|>" in checkpoint.text.chat_template
