"""What one token contributes to decoded text, in bytes: the decoder of a tokenizer, applied token by token.

The rules are those of the ``tokenizers`` library's decoders. They are taken apart here because a stream needs
each token's bytes alone, while the library decodes whole sequences.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rooftree.errors import ModelError

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_SUPPORTED = "ByteLevel, Metaspace, or a Sequence of Replace, ByteFallback, Fuse and Strip"


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's stand-ins for the 256 bytes: printable Latin-1 for itself, the rest from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    alphabet = {chr(byte): byte for byte in plain}
    alphabet |= {chr(0x100 + index): byte for index, byte in enumerate(others)}
    return alphabet


BYTE_OF = _byte_alphabet()


@dataclass(frozen=True, slots=True)
class PieceRules:
    """How a token's text becomes bytes.

    Attributes:
        replacements: (old, new) texts replaced in every token, in order.
        byte_fallback: a token ``<0xNN>`` is the byte NN.
        byte_level: token texts are in GPT-2's byte alphabet; one that is not stands for its own characters.
        metaspace: the character that stands for a space, if a Metaspace decoder names one.
        drops_first_metaspace: that character vanishes from the first token of a text.
        separator: put between tokens.
        strip_byte, strip_left: how many times this byte is dropped where a text begins with it.
    """

    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    byte_level: bool = False
    metaspace: str | None = None
    drops_first_metaspace: bool = False
    separator: str = ""
    strip_byte: bytes = b" "
    strip_left: int = 0

    def piece(self, token: str, *, first: bool = False) -> bytes:
        """Bytes of a token, given its text in the vocabulary; ``first``: it begins a text."""
        text = token
        for old, new in self.replacements:
            text = text.replace(old, new)
        if self.byte_fallback and (match := _BYTE_TOKEN.fullmatch(text)):
            return bytes((int(match[1], 16),))
        if self.byte_level:
            return _from_byte_alphabet(text)
        if self.metaspace is not None:
            text = text.replace(self.metaspace, "" if first and self.drops_first_metaspace else " ")
        return (text if first else self.separator + text).encode()


def _from_byte_alphabet(text: str) -> bytes:
    try:
        return bytes([BYTE_OF[character] for character in text])
    except KeyError:
        return text.encode()


def rules_of_decoder(decoder: bytes | None) -> PieceRules:
    """Read the rules from a decoder's JSON, or the library's default (tokens joined by spaces) for None.

    Raises:
        ModelError: a decoder that cannot be applied token by token; the message names it.
    """
    if decoder is None:
        return PieceRules(separator=" ")
    steps = _flatten(json.loads(decoder))
    kinds = [step["type"] for step in steps]
    joined = [kind for kind in kinds if kind != "Fuse"]
    if joined == ["ByteLevel"]:
        return PieceRules(byte_level=True)
    if joined == ["Metaspace"]:
        return _metaspace_rules(steps[kinds.index("Metaspace")])
    return _sentencepiece_rules(steps)


def _flatten(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _flatten(inner)]


def _metaspace_rules(step: Mapping[str, Any]) -> PieceRules:
    scheme = step.get("prepend_scheme", "always")
    return PieceRules(metaspace=step["replacement"], drops_first_metaspace=scheme != "never")


def _sentencepiece_rules(steps: Sequence[Mapping[str, Any]]) -> PieceRules:
    """Replace, ByteFallback, Fuse, Strip, in this order: then each token's part can be told alone."""
    order = {"Replace": 0, "ByteFallback": 1, "Fuse": 2, "Strip": 3}
    stages = [order.get(step["type"], -1) for step in steps]
    fused = 2 in stages
    if -1 in stages or stages != sorted(stages) or (3 in stages and not fused):
        names = ", ".join(step["type"] for step in steps)
        raise ModelError(f"tokenizer: the decoder [{names}] is not supported; supported are {_SUPPORTED}")
    replacements = tuple(_replacement(step) for step in steps if step["type"] == "Replace")
    strips = [step for step in steps if step["type"] == "Strip"]
    strip_byte, strip_left = _strip(strips)
    return PieceRules(
        replacements=replacements,
        byte_fallback=1 in stages,
        strip_byte=strip_byte,
        strip_left=strip_left,
    )


def _replacement(step: Mapping[str, Any]) -> tuple[str, str]:
    pattern = step["pattern"]
    if "String" not in pattern:
        raise ModelError(
            f"tokenizer: the decoder Replace with the pattern {pattern} is not supported; a plain string is"
        )
    return pattern["String"], step["content"]


def _strip(steps: Sequence[Mapping[str, Any]]) -> tuple[bytes, int]:
    if not steps:
        return b" ", 0
    step = steps[0]
    content = step["content"].encode()
    if len(steps) > 1 or len(content) != 1 or step["stop"]:
        raise ModelError(
            f"tokenizer: the decoder Strip({step['content']!r}, start={step['start']}, stop={step['stop']}) "
            "is not supported; one ASCII character stripped from the beginning of a text is"
        )
    return content, step["start"]
