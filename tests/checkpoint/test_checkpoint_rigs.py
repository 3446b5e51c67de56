"""The makers of test models keep their promises."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from rigs.models import path_successor, random_weights, successor_weights, tiny_spec
from rigs.tokenizer import SPECIALS, tiny_tokenizer


@pytest.mark.parametrize(
    "text", ["hello there", "tea  at\n\tnoon", "grüße 🌳 日本", "\x00\x7f", "it's <|x|>"]
)
def test_any_text_survives_the_tiny_tokenizer(text):
    tokenizer = Tokenizer.from_str(tiny_tokenizer().hf_json().decode())
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_pairs_are_merged_and_extra_tokens_are_only_decoded():
    rig = tiny_tokenizer(400, ["pha E", b"\xf0\x9f"])
    tokenizer = Tokenizer.from_str(rig.hf_json().decode())
    assert tokenizer.get_vocab_size() == len(rig.tokens) == 400
    assert (rig.id_of("pha E"), rig.id_of(b"\xf0\x9f"), rig.id_of("a")) == (260, 261, ord("a"))
    assert tokenizer.encode("et").ids == [rig.id_of("et")]
    assert 260 not in tokenizer.encode("alpha Eta").ids
    assert tokenizer.decode([rig.id_of("al") if "al" in rig.tokens else rig.id_of("a"), 260]).endswith(
        "pha E"
    )
    assert tokenizer.decode([261, rig.id_of(b"\x8c"), rig.id_of(b"\xb3")]) == "🌳"


def test_special_tokens():
    rig = tiny_tokenizer(add_bos=True)
    tokenizer = Tokenizer.from_str(rig.hf_json().decode())
    assert tokenizer.encode("<|im_end|>").ids == [rig.bos_token_id, rig.im_end_id]
    assert tokenizer.encode("a", add_special_tokens=False).ids == [ord("a")]
    assert [tokenizer.token_to_id(text) for text in SPECIALS] == [256, 257, 258, 259]


def test_the_gguf_vocabulary_is_the_same():
    rig = tiny_tokenizer(300, add_bos=True)
    metadata = rig.gguf_metadata()
    assert metadata["tokenizer.ggml.tokens"] == list(rig.tokens)
    assert metadata["tokenizer.ggml.add_bos_token"] is True
    assert [i for i, kind in enumerate(metadata["tokenizer.ggml.token_type"].value) if kind == 3] == [
        256,
        257,
        258,
        259,
    ]


def test_impossible_wishes_are_refused():
    with pytest.raises(ValueError, match="no vocabulary of 260"):
        tiny_tokenizer(260, ["one too many"])
    with pytest.raises(ValueError, match="repeats"):
        path_successor(10, [1, 2, 1])
    with pytest.raises(ValueError, match="permutation"):
        successor_weights(tiny_spec(vocab_size=3), [1, 1, 2])


def test_weights_depend_on_the_seed_alone():
    spec = tiny_spec("qwen3")
    one, same, other = random_weights(spec, 1), random_weights(spec, 1), random_weights(spec, 2)
    assert all((one[name] == same[name]).all() for name in one)
    assert all((one[name] != other[name]).any() for name in one)
