"""What a checkpoint gives to the text floor, from every place where it may be kept."""

from __future__ import annotations

import json

import pytest

from rigs.gguf_writer import Typed
from rigs.models import random_weights, tiny_spec, write_gguf_model, write_hf_model
from rigs.tokenizer import CHATML, tiny_tokenizer
from rooftree.checkpoint.gguf import read_gguf
from rooftree.checkpoint.gguf_text import gguf_text
from rooftree.checkpoint.hf_template import chat_template
from rooftree.checkpoint.hf_text import hf_text
from rooftree.checkpoint.open import open_checkpoint
from rooftree.errors import ModelError

SPEC = tiny_spec("llama", vocab_size=300, num_layers=1)


@pytest.fixture
def folder(tmp_path):
    return write_hf_model(tmp_path / "m", SPEC, random_weights(SPEC), tokenizer=tiny_tokenizer(300))


def text_of(folder, config=None, **files):
    """hf_text with some JSON files of the directory replaced (merged into what is there)."""
    for name, content in files.items():
        path = folder / f"{name}.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(before | content))
    return hf_text(folder, config or {}, 300)


# Hugging Face directories


def test_a_plain_directory(folder):
    text = open_checkpoint(str(folder)).text
    assert text.tokenizer_json == tiny_tokenizer(300).hf_json()
    assert text.gguf_vocab is None
    assert text.tokenizer_config["add_bos_token"] is False
    assert text.chat_template == CHATML
    assert (text.bos_token_id, text.eos_token_ids) == (256, (257,))
    assert text.generation_defaults == {}


def test_end_tokens_are_the_union_of_all_three_files(folder):
    text = text_of(folder, {"eos_token_id": 5}, generation_config={"eos_token_id": [259, 5]})
    assert text.eos_token_ids == (259, 5, 257)
    assert text_of(
        folder, {"eos_token_id": [7, 257]}, generation_config={"eos_token_id": 7}
    ).eos_token_ids == (7, 257)


def test_the_tokenizers_end_token_may_be_an_object_unknown_or_absent(folder):
    named = {"eos_token": {"content": "<|im_end|>", "special": True}}
    assert text_of(folder, tokenizer_config=named).eos_token_ids == (259,)
    assert text_of(folder, tokenizer_config={"eos_token": "</s>"}).eos_token_ids == ()
    assert text_of(folder, tokenizer_config={"eos_token": None}).eos_token_ids == ()


def test_the_tokenizer_decides_about_the_begin_token(folder):
    assert text_of(folder, {"bos_token_id": 3}).bos_token_id == 256
    assert text_of(folder, {"bos_token_id": 3}, tokenizer_config={"bos_token": None}).bos_token_id is None
    (folder / "tokenizer_config.json").unlink()
    assert text_of(folder, {"bos_token_id": 3}).bos_token_id == 3
    assert text_of(folder, {}).bos_token_id is None


@pytest.mark.parametrize("value", [300, -1, "5", 2.0, [1, 300], [[1]], True])
def test_ids_outside_the_vocabulary_are_refused(folder, value):
    with pytest.raises(ModelError, match=r"generation_config.json: eos_token_id must be token ids below 300"):
        text_of(folder, generation_config={"eos_token_id": value})
    (folder / "generation_config.json").unlink()
    with pytest.raises(ModelError, match=r"config.json: eos_token_id"):
        text_of(folder, {"eos_token_id": value})


def test_sampling_defaults_unless_the_model_wants_greedy(folder):
    values = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05}
    wanted = values | {"min_p": 0.0}
    others = {"max_length": 99, "do_sample": True, "num_beams": 1}
    assert text_of(folder, generation_config=values | others).generation_defaults == wanted
    assert type(text_of(folder).generation_defaults["top_k"]) is int
    assert text_of(folder, generation_config={"do_sample": None}).generation_defaults == wanted
    assert text_of(folder, generation_config={"do_sample": False}).generation_defaults == {}


def test_sampling_defaults_of_null_are_none(folder):
    given = {"temperature": None, "top_p": 0.5}
    assert text_of(folder, generation_config=given).generation_defaults == {"top_p": 0.5}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", "warm"),
        ("temperature", True),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", 2.5),
        ("top_k", -2),
        ("min_p", 2),
        ("repetition_penalty", 0),
    ],
)
def test_impossible_sampling_defaults_are_named(folder, name, value):
    with pytest.raises(ModelError, match=rf"generation_config.json: {name} must be"):
        text_of(folder, generation_config={name: value})


def test_a_directory_without_a_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer.json: is missing; save the model's fast tokenizer"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"added_tokens": [{"id": "x"}]}', b'"\xff"'])
def test_a_broken_tokenizer(folder, content):
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"tokenizer.json: is not a tokenizer.json"):
        open_checkpoint(str(folder))


@pytest.mark.parametrize("name", ["tokenizer_config", "generation_config"])
def test_a_broken_json_file_is_named(folder, name):
    (folder / f"{name}.json").write_text("{]")
    with pytest.raises(ModelError, match=rf"{name}.json: is not valid JSON"):
        open_checkpoint(str(folder))


# Chat templates


def test_a_model_without_a_template(tmp_path):
    assert chat_template(tmp_path, {}) is None
    assert chat_template(tmp_path, {"chat_template": None}) is None


def test_templates_in_the_tokenizer_config(tmp_path):
    assert chat_template(tmp_path, {"chat_template": "plain"}) == "plain"
    two = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert chat_template(tmp_path, {"chat_template": two}) == "D"
    assert chat_template(tmp_path, {"chat_template": two[:1]}) == "T"
    assert chat_template(tmp_path, {"chat_template": [two[0], two[0] | {"name": "rag"}]}) is None
    for bad in (5, [{"name": "default"}], [{"template": 3, "name": "x"}]):
        with pytest.raises(ModelError, match=r"tokenizer_config.json: chat_template must be"):
            chat_template(tmp_path, {"chat_template": bad})


def test_a_file_of_its_own_comes_first(tmp_path):
    config = {"chat_template": "config"}
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert chat_template(tmp_path, {}) == "tools"
    assert chat_template(tmp_path, config) == "config"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "legacy"}))
    assert chat_template(tmp_path, config) == "legacy"
    (tmp_path / "additional_chat_templates" / "default.jinja").write_text("named")
    assert chat_template(tmp_path, config) == "named"
    (tmp_path / "chat_template.jinja").write_text("grüße\n")
    assert chat_template(tmp_path, config) == "grüße\n"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelError, match=r"chat_template.jinja: is not UTF-8"):
        chat_template(tmp_path, config)


# GGUF


@pytest.fixture
def text_with(tmp_path):
    def read(**changes):
        metadata = {key.replace("__", "."): value for key, value in changes.items()}
        tokenizer = tiny_tokenizer(300)
        path = write_gguf_model(tmp_path / "m.gguf", SPEC, random_weights(SPEC), tokenizer=tokenizer)
        file = read_gguf(path)
        file.metadata.update(metadata)
        return gguf_text(file, 300)

    return read


def test_a_plain_gguf(text_with):
    text = text_with()
    tokenizer = tiny_tokenizer(300)
    assert text.tokenizer_json is None
    assert text.gguf_vocab["tokens"] == list(tokenizer.tokens)
    assert text.gguf_vocab["merges"] == [" ".join(pair) for pair in tokenizer.merges]
    assert text.gguf_vocab["model"] == "gpt2"
    assert text.gguf_vocab["add_bos_token"] is False
    assert text.chat_template == CHATML
    assert (text.bos_token_id, text.eos_token_ids) == (256, (257,))


def test_all_end_tokens_of_a_gguf(text_with):
    ends = {"tokenizer__ggml__eot_token_id": 259, "tokenizer__ggml__eom_token_id": 257}
    assert text_with(**ends).eos_token_ids == (257, 259)


def test_a_gguf_without_special_tokens_or_template(text_with):
    absent = ("ggml__bos_token_id", "ggml__eos_token_id", "chat_template")
    text = text_with(**{f"tokenizer__{name}": None for name in absent})
    assert (text.bos_token_id, text.eos_token_ids, text.chat_template) == (None, (), None)


@pytest.mark.parametrize(
    ("key", "value"),
    [("eos_token_id", 300), ("bos_token_id", -1), ("eot_token_id", "5"), ("tokens", None), ("model", None)],
)
def test_a_vocabulary_that_cannot_be_is_refused_by_key(text_with, key, value):
    with pytest.raises(ModelError, match=rf"m.gguf: tokenizer.ggml.{key}"):
        text_with(**{f"tokenizer__ggml__{key}": value})


def test_tokens_that_are_no_strings(tmp_path):
    numbers = {"tokenizer.ggml.tokens": Typed("i32", list(range(300)))}
    path = write_gguf_model(tmp_path / "m.gguf", SPEC, random_weights(SPEC), metadata=numbers)
    with pytest.raises(ModelError, match=r"tokenizer.ggml.tokens must be the list"):
        open_checkpoint(str(path))
