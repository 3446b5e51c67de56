"""Encoding: what is put before a text, what is special, what is refused (case 13)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_rigs import (
    BYTE_LEVEL,
    added,
    bos_template,
    byte_level,
    byte_level_document,
    document,
    id_of,
    library,
    load,
    spm_document,
)

from rigs.tokenizer import ALPHABET, TinyTokenizer, tiny_tokenizer
from rooftree.checkpoint.base import TextAssets
from rooftree.errors import ModelError, RequestError
from rooftree.text.chat_template import ChatTemplate
from rooftree.text.tokenizer import Tokenizer

WITHOUT_BOS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
WITH_BOS = "{{ bos_token }}" + WITHOUT_BOS
HELLO = [{"role": "user", "content": "hello"}]


def from_json(tiny: TinyTokenizer) -> Tokenizer:
    assets = TextAssets(tokenizer_json=tiny.hf_json(), tokenizer_config=tiny.hf_config())
    return Tokenizer.from_assets(assets, len(tiny.tokens))


def from_gguf(tiny: TinyTokenizer) -> Tokenizer:
    metadata = {key.removeprefix("tokenizer.ggml."): value for key, value in tiny.gguf_metadata().items()}
    metadata["token_type"] = list(metadata["token_type"].value)
    return Tokenizer.from_assets(TextAssets(gguf_vocab=metadata), len(tiny.tokens))


@pytest.mark.parametrize("build", [from_json, from_gguf])
@pytest.mark.parametrize(
    ("template", "add_bos", "in_chat", "in_completion"),
    [(WITH_BOS, True, 1, 1), (WITHOUT_BOS, True, 0, 1), (WITHOUT_BOS, False, 0, 0)],
    ids=["template and tokenizer", "tokenizer only", "neither"],
)
def test_bos_is_there_exactly_as_often_as_it_should_be(
    build: Any, template: str, add_bos: bool, in_chat: int, in_completion: int
) -> None:
    tiny = tiny_tokenizer(add_bos=add_bos)
    tokenizer = build(tiny)
    bos = tokenizer.bos_token_id
    rendered = ChatTemplate(template, tokenizer.template_variables).render(HELLO)
    chat = tokenizer.encode(rendered, add_special_tokens=False)
    reference = library(tiny.hf_json())
    assert chat == reference.encode(rendered, add_special_tokens=False).ids
    assert chat.count(bos) == in_chat
    raw = tokenizer.encode("hello", add_special_tokens=True)
    assert raw == reference.encode("hello", add_special_tokens=True).ids
    assert raw.count(bos) == in_completion
    assert tiny.eos_token_id not in chat + raw


def test_a_model_without_bos_has_none() -> None:
    tokenizer = load(byte_level_document(specials=["<|end|>"]), tokenizer_config={"bos_token": None})
    assert tokenizer.bos_token_id is None
    assert tokenizer.template_variables == {}
    assert tokenizer.encode("a", add_special_tokens=True) == [ALPHABET.index("a")]


SPECIALS = ("<s>", "</s>")


def processed(post_processor: dict[str, Any], **config: Any) -> list[int]:
    """Ids of the raw prompt "a"."""
    source = byte_level_document(specials=SPECIALS, post_processor=post_processor)
    return load(source, tokenizer_config=config).encode("a", add_special_tokens=True)


A, BOS, EOS = ALPHABET.index("a"), 256, 257


def test_eos_is_never_appended_even_where_the_tokenizer_would() -> None:
    post = bos_template("<s>", BOS, eos=("</s>", EOS))
    source = byte_level_document(specials=SPECIALS, post_processor=post)
    assert library(source).encode("a").ids == [BOS, A, EOS]
    assert load(source).encode("a", add_special_tokens=True) == [BOS, A]
    assert load(source).encode("", add_special_tokens=True) == [BOS]


def test_the_prefix_is_read_from_every_kind_of_post_processor() -> None:
    template = bos_template("<s>", BOS)
    pair = {"sep": ["</s>", EOS], "cls": ["<s>", BOS]}
    assert processed(template) == [BOS, A]
    assert processed({"type": "Sequence", "processors": [BYTE_LEVEL, template]}) == [BOS, A]
    assert processed(BYTE_LEVEL) == [A]
    assert processed({"type": "BertProcessing", **pair}) == [BOS, A]
    roberta = {"type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": False}
    assert processed(roberta | pair) == [BOS, A]


def test_add_bos_token_in_the_config_overrules_the_post_processor() -> None:
    assert processed(BYTE_LEVEL, bos_token="<s>", add_bos_token=True) == [BOS, A]
    assert processed(BYTE_LEVEL, bos_token={"content": "<s>"}, add_bos_token=True) == [BOS, A]
    assert processed(bos_template("<s>", BOS), bos_token="<s>", add_bos_token=True) == [BOS, A]
    assert processed(bos_template("<s>", BOS), bos_token="<s>", add_bos_token=False) == [A]
    assert processed(bos_template("<s>", BOS), bos_token="<s>") == [BOS, A]
    assert processed(BYTE_LEVEL, add_bos_token=True) == [A]


def test_special_tokens_in_a_text_are_parsed() -> None:
    tokenizer = load(byte_level_document(specials=SPECIALS))
    assert tokenizer.encode("a</s>a", add_special_tokens=False) == [A, EOS, A]
    assert tokenizer.special_token_ids == {"<s>": BOS, "</s>": EOS}
    assert [tokenizer.is_special(token_id) for token_id in (A, BOS, EOS)] == [False, True, True]


def test_truncation_and_padding_of_the_file_are_off() -> None:
    truncation = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    padding = {
        "strategy": {"Fixed": 9},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "!",
    }
    tokenizer = load(byte_level_document(truncation=truncation, padding=padding))
    assert tokenizer.encode("aaaa", add_special_tokens=True) == [A] * 4


def test_tokens_that_only_the_config_declares_are_added() -> None:
    declared = {
        "257": {"content": "<tool>", "special": False},
        "256": {"content": "<|end|>", "special": True},
        "9": {"content": "elsewhere", "special": True},
    }
    config = {"added_tokens_decoder": declared, "eos_token": "Ġ", "pad_token": "not there"}
    tokenizer = load(byte_level_document(), tokenizer_config=config)
    assert tokenizer.encode("<tool><|end|>", add_special_tokens=False) == [257, 256]
    assert tokenizer.special_token_ids == {"<|end|>": 256, "Ġ": ALPHABET.index("Ġ")}
    assert tokenizer.decode([257, 256]) == "<tool>"
    assert tokenizer.vocab_size == 258


def test_template_variables_without_a_config_come_from_the_ids() -> None:
    tokenizer = load(byte_level_document(specials=SPECIALS), bos_token_id=BOS, eos_token_ids=(EOS,))
    assert tokenizer.template_variables == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (BOS, (EOS,))


def test_padding_ids_have_no_text() -> None:
    tokenizer = load(byte_level_document(), 300)
    assert tokenizer.vocab_size == 300
    assert (tokenizer.token_bytes(299), tokenizer.id_to_token(299)) == (b"", "")
    assert tokenizer.is_padding(299)
    assert not tokenizer.is_padding(255)
    for outside in (-1, 300):
        with pytest.raises(IndexError):
            tokenizer.token_bytes(outside)
        with pytest.raises(RequestError, match="0 to 299") as refusal:
            tokenizer.check_ids([0, outside], param="tokens")
        assert refusal.value.param == "tokens"
        with pytest.raises(RequestError, match="0 to 299"):
            tokenizer.decode([0, outside])
    tokenizer.check_ids([0, 299])


def test_a_token_that_the_model_has_no_row_for_is_refused() -> None:
    tokenizer = load(byte_level_document(specials=SPECIALS), 257)
    assert tokenizer.encode("<s>", add_special_tokens=False) == [256]
    with pytest.raises(RequestError, match=r"'</s>' \(id 257\).*below 257"):
        tokenizer.encode("</s>", add_special_tokens=False)


def test_half_a_surrogate_pair_is_refused_not_a_crash() -> None:
    with pytest.raises(RequestError, match=r"character 2 is U\+D83D") as refusal:
        byte_level().encode("ab\ud83dc", add_special_tokens=True, param="input")
    assert (refusal.value.status, refusal.value.param) == (400, "input")


@given(st.text(max_size=30))
def test_every_text_survives_the_way_there_and_back(text: str) -> None:
    tokenizer = byte_level(["th", "e "])
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=True)) == text


def test_tokens_are_spelled_as_the_vocabulary_spells_them() -> None:
    tokenizer = byte_level([" the"])
    assert tokenizer.id_to_token(id_of(tokenizer, " the")) == "Ġthe"
    assert load(spm_document(["▁the"])).token_bytes(259) == b" the"
    assert load(spm_document([])).token_bytes(3 + 0x0A) == b"\n"


@pytest.mark.parametrize("source", [b"", b"{", b"[]", b"\xff", b'{"model": {}}', b"null"])
def test_a_damaged_file_is_refused(source: bytes) -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load(source)


@pytest.mark.parametrize(
    "declared",
    [[1], "x", {"x": {"content": "a"}}, {"-1": {"content": "a"}}, {"1": "a"}, {"1": {"content": 1}}],
)
def test_a_damaged_config_is_refused(declared: Any) -> None:
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: added_tokens_decoder"):
        load(byte_level_document(), tokenizer_config={"added_tokens_decoder": declared})


def test_an_unknown_post_processor_and_no_tokenizer_at_all_are_refused() -> None:
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        load(document(["a"], post_processor={"type": "Nonsense"}))
    with pytest.raises(ModelError, match="no tokenizer"):
        Tokenizer.from_assets(TextAssets())


def test_an_added_token_that_is_not_special_is_text() -> None:
    tokenizer = load(document([*ALPHABET, "<think>"], added_tokens=[added(256, "<think>", special=False)]))
    ids = tokenizer.encode("a<think>", add_special_tokens=False)
    assert ids == [A, 256]
    assert tokenizer.decode(ids) == "a<think>"
