"""A small byte-level BPE tokenizer that knows every byte, as tokenizer.json and as GGUF metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rigs.gguf_writer import Typed

SPECIALS = ("<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>")
LETTERS = "etaoinshrdlcumwf"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in for each of the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(spare)) for byte in range(256)]


ALPHABET = byte_alphabet()


def spell(text: str | bytes) -> str:
    """A text or byte string in the byte-level alphabet."""
    raw = text if isinstance(text, bytes) else text.encode()
    return "".join(ALPHABET[byte] for byte in raw)


@dataclass(frozen=True)
class TinyTokenizer:
    """Ids: 0-255 the bytes, then SPECIALS from 256, then the extra tokens, then pairs of letters as filler.

    Only the filler pairs have merges: an extra token is decoded but never encoded, so prompts stay plain.
    """

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    add_bos: bool = False
    chat_template: str | None = CHATML

    bos_token_id = 256
    eos_token_id = 257
    im_start_id = 258
    im_end_id = 259

    def id_of(self, text: str | bytes) -> int:
        """Id of the token that spells exactly this text."""
        return self.tokens.index(spell(text))

    def hf_json(self) -> bytes:
        """The tokenizer.json of it."""
        post = None
        if self.add_bos:
            bos = {"SpecialToken": {"id": SPECIALS[0], "type_id": 0}}
            ids = {SPECIALS[0]: {"id": SPECIALS[0], "ids": [self.bos_token_id], "tokens": [SPECIALS[0]]}}
            post = {
                "type": "TemplateProcessing",
                "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [
                    bos,
                    {"Sequence": {"id": "A", "type_id": 0}},
                    {"Sequence": {"id": "B", "type_id": 1}},
                ],
                "special_tokens": ids,
            }
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        model = {
            "type": "BPE",
            "vocab": {token: index for index, token in enumerate(self.tokens)},
            "merges": [list(pair) for pair in self.merges],
            "dropout": None,
            "unk_token": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
        }
        added = [{"id": 256 + index, "content": text, **flags} for index, text in enumerate(SPECIALS)]
        document = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": post,
            "decoder": byte_level,
            "model": model,
        }
        return json.dumps(document).encode()

    def hf_config(self) -> dict[str, Any]:
        """The tokenizer_config.json of it."""
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIALS[0],
            "eos_token": SPECIALS[1],
            "add_bos_token": self.add_bos,
            "clean_up_tokenization_spaces": False,
        }
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template
        return config

    def gguf_metadata(self) -> dict[str, Any]:
        """The same as ``tokenizer.*`` metadata."""
        special_ids = range(256, 256 + len(SPECIALS))
        metadata = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": list(self.tokens),
            "tokenizer.ggml.token_type": Typed(
                "i32", [3 if i in special_ids else 1 for i in range(len(self.tokens))]
            ),
            "tokenizer.ggml.merges": [" ".join(pair) for pair in self.merges],
            "tokenizer.ggml.bos_token_id": self.bos_token_id,
            "tokenizer.ggml.eos_token_id": self.eos_token_id,
            "tokenizer.ggml.add_bos_token": self.add_bos,
        }
        if self.chat_template is not None:
            metadata["tokenizer.chat_template"] = self.chat_template
        return metadata


def tiny_tokenizer(
    vocab_size: int = 512,
    extra: Sequence[str | bytes] = (),
    *,
    add_bos: bool = False,
    chat_template: str | None = CHATML,
) -> TinyTokenizer:
    """A tokenizer of exactly ``vocab_size`` tokens, at least 260 + len(extra)."""
    tokens = [*ALPHABET, *SPECIALS, *(spell(text) for text in extra)]
    merges = []
    for pair in ((a, b) for a in LETTERS for b in LETTERS):
        if len(tokens) == vocab_size:
            break
        if "".join(pair) not in tokens:
            merges.append(pair)
            tokens.append("".join(pair))
    tokens += [f"<filler {index}>".replace(" ", ALPHABET[32]) for index in range(len(tokens), vocab_size)]
    if len(tokens) != vocab_size or len(set(tokens)) != vocab_size:
        raise ValueError(
            f"no vocabulary of {vocab_size} different tokens holds these {len(extra)} extra ones"
        )
    return TinyTokenizer(tuple(tokens), tuple(merges), add_bos, chat_template)
