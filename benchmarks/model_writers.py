"""Writers of the files that benchmarks make: GGUF and safetensors, one tensor in memory at a time."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from rooftree.checkpoint.base import DType
from rooftree.checkpoint.formats import tensor_bytes
from rooftree.checkpoint.gguf import DEFAULT_ALIGNMENT, TENSOR_TYPES
from rooftree.specs.model import ModelSpec
from rooftree.text.gguf_vocab import rebuild_gguf

_TYPE_IDS = {dtype: number for number, dtype in TENSOR_TYPES.items()}
_TORCH_NAMES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
_U32, _F32, _BOOL, _STRING, _ARRAY, _I32 = 4, 6, 7, 8, 9, 5


@dataclass(frozen=True)
class NewTensor:
    """A tensor to write: ``make`` gives its bytes when their turn comes, so one is in memory at a time."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    make: Callable[[], npt.NDArray[np.uint8]]

    @property
    def num_bytes(self) -> int:
        return tensor_bytes(self.dtype, self.shape)


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Sequence[NewTensor]) -> None:
    """Version 3. Values: bool, int (as u32), float (as f32), str, lists of str or of int (as i32)."""
    head = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        head += _text(key) + _value(value)
    offset = 0
    for tensor in tensors:
        dimensions = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        head += _text(tensor.name) + dimensions + struct.pack("<IQ", _TYPE_IDS[tensor.dtype], offset)
        offset += tensor.num_bytes + _padding(tensor.num_bytes)
    with path.open("wb") as file:
        file.write(head + bytes(_padding(len(head))))
        for tensor in tensors:
            _write(file, tensor)
            file.write(bytes(_padding(tensor.num_bytes)))


def write_safetensors(path: Path, tensors: Sequence[NewTensor]) -> None:
    """One file of float tensors."""
    header: dict[str, Any] = {}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.num_bytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": tensor.shape,
            "data_offsets": (offset, end),
        }
        offset = end
    head = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for tensor in tensors:
            _write(file, tensor)


def write_folder(
    folder: Path, spec: ModelSpec, dtype: DType, tensors: Sequence[NewTensor], vocabulary: Mapping[str, Any]
) -> None:
    """A Hugging Face directory of family llama, rotary embeddings unscaled; the tensors under its names.

    Args:
        vocabulary: GGUF's metadata of it, keys without ``tokenizer.ggml.``.
    """
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", tensors)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope.theta,
        "vocab_size": spec.vocab_size,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "torch_dtype": _TORCH_NAMES[dtype],
        "bos_token_id": vocabulary["bos_token_id"],
        "eos_token_id": vocabulary["eos_token_id"],
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "tokenizer.json").write_text(rebuild_gguf(vocabulary).tokenizer.to_str())


def _write(file: BinaryIO, tensor: NewTensor) -> None:
    data = tensor.make()
    if data.nbytes != tensor.num_bytes:
        raise ValueError(f"{tensor.name}: {data.nbytes} bytes instead of {tensor.num_bytes}")
    file.write(data.data)


def _padding(size: int) -> int:
    return -size % DEFAULT_ALIGNMENT


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _U32, value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value[0], str):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_text, value))
    return struct.pack("<IIQ", _ARRAY, _I32, len(value)) + np.asarray(value, "<i4").tobytes()
