"""How text is split, by the names in GGUF files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from rooftree.text.pretokenizers import PRE_TOKENIZERS

SAMPLE = "Hello WORLD's it'LL 12345 x\n\n  y—z 漢字, ÉCOLE"


def pieces(name: str, text: str) -> list[str]:
    patterns = PRE_TOKENIZERS[name].patterns
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return [piece for piece, _ in pre_tokenizers.Sequence(splits).pre_tokenize_str(text)]


# Pieces of SAMPLE, a bar between them.
EXPECTED = {
    "gpt-2": "Hello| WORLD|'s| it|'|LL| 12345| x|\n\n | y|—|z| 漢字|,| ÉCOLE",
    "smollm": "Hello| WORLD|'s| it|'|LL| |1|2|3|4|5| x|\n\n | y|—|z| 漢字|,| ÉCOLE",
    "llama-bpe": "Hello| WORLD|'s| it|'LL| |123|45| x|\n\n| | y|—z| 漢字|,| ÉCOLE",
    "qwen2": "Hello| WORLD|'s| it|'LL| |1|2|3|4|5| x|\n\n| | y|—z| 漢字|,| ÉCOLE",
    "tekken": "Hello| WORLD|'s| it|'LL| |1|2|3|4|5| x|\n\n| | y|—z| 漢字|,| ÉCOLE",
    "gpt-4o": "Hello| WORLD's| it'LL| |123|45| x|\n\n| | y|—z| 漢字|,| ÉCOLE",
    "deepseek-v3": "Hello| WORLD|'s| it|'LL| |123|45| x|\n\n| | y|—|z| |漢字|,| ÉCOLE",
    "deepseek-coder": "Hello| WORLD|'|s| it|'|LL| |1|2|3|4|5| x|\n|\n| | y|—|z| |漢字|,| ÉCOLE",
    "default": "Hello| WORLD|'|s| it|'|LL| |123|45| x|\n\n | y|—|z| 漢字|,| ÉCOLE",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_splits(name: str) -> None:
    assert pieces(name, SAMPLE) == EXPECTED[name].split("|")


def test_tekken_splits_where_small_letters_turn_to_capitals() -> None:
    assert pieces("tekken", "camelCase HTTPServer") == ["camel", "Case", " HTTPServer"]
    assert pieces("qwen2", "camelCase HTTPServer") == ["camelCase", " HTTPServer"]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
@given(text=st.text(max_size=20))
def test_no_character_is_lost(name: str, text: str) -> None:
    assert "".join(pieces(name, text)) == text


@pytest.mark.parametrize("name", [*EXPECTED, "deepseek-llm"])
@pytest.mark.parametrize("unit", ["a", "A", " ", "\n ", "1", "'", "漢"])
def test_long_runs_are_split_without_an_error(name: str, unit: str) -> None:
    text = unit * 20_000 + "x"
    assert "".join(pieces(name, text)) == text
