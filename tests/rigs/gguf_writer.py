"""Write GGUF files, good ones and, by way of its parts, bad ones."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

VALUE_TYPES = {
    "u8": (0, "<B"),
    "i8": (1, "<b"),
    "u16": (2, "<H"),
    "i16": (3, "<h"),
    "u32": (4, "<I"),
    "i32": (5, "<i"),
    "f32": (6, "<f"),
    "bool": (7, "<?"),
    "u64": (10, "<Q"),
    "i64": (11, "<q"),
    "f64": (12, "<d"),
}
TENSOR_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8}
TENSOR_TYPES |= {"Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "BF16": 30}


@dataclass(frozen=True)
class Typed:
    """A metadata value of a type chosen here: a kind of VALUE_TYPES, applied to lists item by item."""

    kind: str
    value: Any


@dataclass(frozen=True)
class GgufTensor:
    """A tensor to write; ``shape`` row-major. ``type_id`` may be any number and ``offset`` any place."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    data: bytes
    offset: int | None = None


def gguf_bytes(
    metadata: Mapping[str, Any],
    tensors: Sequence[GgufTensor],
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """The bytes of a GGUF file (versions 2 and 3 differ in the number only)."""
    entries = dict(metadata)
    if alignment != 32:
        entries["general.alignment"] = alignment
    head = bytearray(b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries)))
    for key, value in entries.items():
        head += string_bytes(key) + value_bytes(value)
    body = bytearray()
    for tensor in tensors:
        body += bytes(-len(body) % alignment)
        offset = len(body) if tensor.offset is None else tensor.offset
        head += string_bytes(tensor.name) + struct.pack("<I", len(tensor.shape))
        head += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        head += struct.pack("<IQ", tensor.type_id, offset)
        body += tensor.data
    return bytes(head + bytes(-len(head) % alignment) + body)


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any],
    tensors: Sequence[GgufTensor],
    *,
    version: int = 3,
    alignment: int = 32,
) -> Path:
    """Write such a file and give its path back."""
    path.write_bytes(gguf_bytes(metadata, tensors, version=version, alignment=alignment))
    return path


def string_bytes(text: str | bytes) -> bytes:
    """A length-prefixed string."""
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value_bytes(value: Any) -> bytes:
    """A typed metadata value; int means u32, float f32, and a list takes its first item's type."""
    type_id, payload = _encode(value)
    return struct.pack("<I", type_id) + payload


def _encode(value: Any) -> tuple[int, bytes]:
    if isinstance(value, Typed):
        if isinstance(value.value, list):
            return _encode_array([Typed(value.kind, item) for item in value.value])
        type_id, layout = VALUE_TYPES[value.kind]
        return type_id, struct.pack(layout, value.value)
    if isinstance(value, bool):
        return _encode(Typed("bool", value))
    if isinstance(value, int):
        return _encode(Typed("u32", value))
    if isinstance(value, float):
        return _encode(Typed("f32", value))
    if isinstance(value, str | bytes):
        return 8, string_bytes(value)
    return _encode_array(value)


def _encode_array(items: Sequence[Any]) -> tuple[int, bytes]:
    encoded = [_encode(item) for item in items]
    item_type = encoded[0][0] if encoded else 8
    return 9, struct.pack("<IQ", item_type, len(items)) + b"".join(payload for _, payload in encoded)


def interleave_rotary_rows(rows: np.ndarray, heads: int) -> np.ndarray:
    """Q or K rows from half-split rotary order to the pairwise order that GGUF's llama files store."""
    half = rows.shape[0] // heads // 2
    return rows.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(rows.shape)
