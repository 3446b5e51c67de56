"""safetensors files: a JSON header of names, types and byte ranges, then the bytes; checked before use.

Layout: length of the header (8 bytes, little-endian), header, data. As in the format's own library, the
ranges must tile the data exactly, without hole, overlap or rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from rooftree.checkpoint.json_file import parse_json, read_json
from rooftree.checkpoint.mapped import MappedFile, map_file
from rooftree.checkpoint.rows import StoredRows
from rooftree.errors import ModelError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

# Bytes of an element of each of the format's types, those with less than a byte left out.
ELEMENT_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}

_MAX_HEADER_BYTES = 100_000_000
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor(StoredRows):
    """A tensor as its file has it, whatever its type; what it means is for ``stored_weights`` to say.

    Attributes:
        name: as stored.
        kind: the file's own name of the element type, one of ``ELEMENT_BYTES``.
        data: uint8, one-dimensional, exactly the tensor's bytes; a view of the map.
        source: file and name, for messages.
        file: the map.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    data: npt.NDArray[np.uint8]
    source: str
    file: MappedFile | None = None


def read_folder(folder: Path, skip: Callable[[str], bool]) -> dict[str, StoredTensor]:
    """All tensors of a model directory: one model.safetensors, or the shards that its index names.

    ``skip(name)`` says which tensors to leave out, whatever their type.

    Raises:
        ModelError: no such files, a damaged one, a missing shard, or index and shards that disagree.
    """
    single, index = folder / SINGLE, folder / INDEX
    if single.exists():
        return read_safetensors(single, skip)
    if index.exists():
        return _read_shards(index, skip)
    others = sorted(path.name for path in folder.glob("*.bin"))
    instead = f" ({', '.join(others)} must be converted to safetensors)" if others else ""
    raise ModelError(f"{folder}: holds neither {SINGLE} nor {INDEX}{instead}")


def read_safetensors(path: Path, skip: Callable[[str], bool]) -> dict[str, StoredTensor]:
    """The tensors of one file as views of its map, in the order of the header.

    Raises:
        ModelError: the file is damaged or holds an unknown type. The message names the file and the tensor.
    """
    file = map_file(path)
    header, start = _read_header(file)
    spans: list[tuple[int, int, str]] = []
    tensors: dict[str, StoredTensor] = {}
    for name, entry in header.items():
        if name == _METADATA:
            continue
        begin, end = _span(file, name, entry)
        spans.append((begin, end, name))
        if not skip(name):
            tensors[name] = _tensor(file, name, entry, start + begin, start + end)
    _check_tiling(file, spans, file.size - start)
    return tensors


def _read_header(file: MappedFile) -> tuple[Mapping[str, Any], int]:
    if file.size < 8:
        _fail(file, f"the file is cut short: {file.size} bytes cannot hold the header's length")
    length = int.from_bytes(file.buffer[:8], "little")
    if length > _MAX_HEADER_BYTES:
        _fail(file, f"not a safetensors file: its header would be {length} bytes long")
    if length > file.size - 8:
        _fail(file, f"the file is cut short: the header is {length} bytes long, and {file.size - 8} are left")
    header = parse_json(file.buffer[8 : 8 + length], f"{file.path}: header")
    if not isinstance(header, dict):
        _fail(file, "the header must be a JSON object")
    return header, 8 + length


def _span(file: MappedFile, name: str, entry: Any) -> tuple[int, int]:
    """The byte range of a tensor within the data; that it lies inside follows from the tiling."""
    span = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(span, list) or len(span) != 2 or not all(_is_size(place) for place in span):
        _fail(file, f"tensor {name!r}: data_offsets must be two numbers, not {span!r}")
    begin, end = span
    if begin > end:
        _fail(file, f"tensor {name!r}: ends at byte {end}, before it begins at {begin}")
    if end > file.size:
        _fail(file, f"tensor {name!r}: the file is cut short: the tensor ends {end} bytes into the data")
    return begin, end


def _tensor(file: MappedFile, name: str, entry: Mapping[str, Any], first: int, end: int) -> StoredTensor:
    kind, shape = entry.get("dtype"), entry.get("shape")
    if not isinstance(kind, str) or kind not in ELEMENT_BYTES:
        _fail(file, f"tensor {name!r}: type {kind!r} is not known; known are {', '.join(ELEMENT_BYTES)}")
    if not isinstance(shape, list) or not all(_is_size(size) for size in shape):
        _fail(file, f"tensor {name!r}: the shape must be a list of sizes, not {shape!r}")
    needed = math.prod(shape) * ELEMENT_BYTES[kind]
    if needed != end - first:
        _fail(file, f"tensor {name!r}: {kind} {shape} takes {needed} bytes, its range holds {end - first}")
    source = f"{file.path}: tensor {name!r}"
    return StoredTensor(name, tuple(shape), kind, file.data[first:end], source, file)


def _check_tiling(file: MappedFile, spans: list[tuple[int, int, str]], num_bytes: int) -> None:
    reached = 0
    for begin, end, name in sorted(spans):
        if begin < reached:
            _fail(file, f"tensor {name!r}: overlaps the tensor before it")
        if begin > reached:
            _fail(file, f"tensor {name!r}: {begin - reached} bytes before it belong to no tensor")
        reached = end
    if reached > num_bytes:
        _fail(file, f"the file is cut short: its tensors take {reached} bytes, and {num_bytes} are there")
    if reached < num_bytes:
        _fail(file, f"{num_bytes - reached} bytes after the last tensor belong to no tensor")


def _is_size(value: Any) -> bool:
    return type(value) is int and value >= 0


def _fail(file: MappedFile, problem: str) -> NoReturn:
    raise ModelError(f"{file.path}: {problem}")


def _read_shards(index: Path, skip: Callable[[str], bool]) -> dict[str, StoredTensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(_is_file_name(shard) for shard in weight_map.values()):
        raise ModelError(f"{index}: weight_map must give the file name of every tensor")
    tensors: dict[str, StoredTensor] = {}
    homes: dict[str, str] = {}
    for shard in sorted(set(weight_map.values())):
        path = index.with_name(shard)
        if not path.exists():
            raise ModelError(f"{index}: the shard {shard} that it names is missing")
        for name, tensor in read_safetensors(path, skip).items():
            if name in homes:
                raise ModelError(f"{path}: tensor {name!r} is in the shard {homes[name]} too")
            homes[name] = shard
            tensors[name] = tensor
    for name, shard in weight_map.items():
        if not skip(name) and homes.get(name) != shard:
            raise ModelError(f"{index.with_name(shard)}: tensor {name!r} is missing; {INDEX} puts it there")
    return tensors


def _is_file_name(value: Any) -> bool:
    """A plain name: an index must not reach out of its directory."""
    return isinstance(value, str) and value not in ("", ".", "..") and Path(value).name == value
