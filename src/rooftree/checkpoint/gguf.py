"""GGUF files, versions 2 and 3, little-endian: metadata and tensors, checked against the file before use.

Layout (ggml's ``docs/gguf.md``): magic, version, number of tensors, number of key-value pairs; the pairs; a
record per tensor (name, dimensions innermost first, type, offset); padding to ``general.alignment``; data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from rooftree.checkpoint.base import DType, Tensor
from rooftree.checkpoint.formats import tensor_bytes
from rooftree.checkpoint.mapped import MappedFile, map_file
from rooftree.errors import ModelError

VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4

TENSOR_TYPES: dict[int, DType] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    30: "BF16",
}

# Names of the other ids, for messages only.
TYPE_NAMES = dict(
    enumerate(
        (
            *("Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"),
            *("IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS"),
            *("I8", "I16", "I32", "I64", "F64", "IQ1_M"),
        ),
        start=6,
    )
) | {34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0"}

_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    _BOOL: np.dtype("<u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
# The least that one record can take: an empty name or key, and what must follow it.
_MIN_PAIR_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """An opened GGUF file.

    Attributes:
        metadata: key -> bool, int, float, str or list of one of them.
        tensors: stored name -> tensor under that name, in the order of the file.
    """

    path: Path
    version: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


class TensorRecord(NamedTuple):
    """A line of the tensor table: ``offset`` counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int

    @property
    def type_name(self) -> str:
        """ggml's name of the type, or its id."""
        known: str | None = TENSOR_TYPES.get(self.type_id)
        return known or TYPE_NAMES.get(self.type_id, f"type {self.type_id}")


class GgufHeader(NamedTuple):
    """What stands before the data: metadata, tensor table, and where the data begins."""

    version: int
    metadata: dict[str, Any]
    records: tuple[TensorRecord, ...]
    alignment: int
    start: int


def read_gguf_header(path: Path) -> GgufHeader:
    """Metadata and tensor table of a GGUF file, whatever its tensors are stored as.

    Raises:
        ModelError: the file is damaged, or of another version or byte order.
    """
    return _header(map_file(path))


def read_gguf(path: Path) -> GgufFile:
    """Open a GGUF file: metadata decoded, tensors as views of the map.

    Raises:
        ModelError: the file is damaged, of another version or byte order, or holds a tensor type that is not
            supported. The message names the file and the key or tensor.
    """
    file = map_file(path)
    header = _header(file)
    return GgufFile(path, header.version, header.metadata, _map_tensors(file, header))


def _header(file: MappedFile) -> GgufHeader:
    cursor = _Cursor(file)
    version, num_tensors, num_pairs = _read_header(cursor)
    metadata = dict(_read_pairs(cursor, num_pairs))
    alignment = _alignment(cursor, metadata)
    records = tuple(_read_tensor_record(cursor) for _ in range(num_tensors))
    start = -(-cursor.position // alignment) * alignment
    return GgufHeader(version, metadata, records, alignment, start)


class _Cursor:
    """Reads forward through the metadata; every read is checked against the end of the file first."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.position = 0
        self.what = "header"

    def fail(self, problem: str) -> NoReturn:
        raise ModelError(f"{self.file.path}: {self.what}: {problem}")

    def need(self, num_bytes: int) -> int:
        """Move past bytes that must exist; gives the position of the first."""
        position = self.position
        left = self.file.size - position
        if num_bytes > left:
            self.fail(
                f"the file is cut short: {num_bytes} bytes are needed at byte {position}, and {left} are left"
            )
        self.position = position + num_bytes
        return position

    def u32(self) -> int:
        return int(_U32.unpack_from(self.file.buffer, self.need(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack_from(self.file.buffer, self.need(8))[0])

    def string(self) -> str:
        length = self.u64()
        start = self.need(length)
        return self.text(self.file.buffer[start : start + length])

    def text(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            self.fail(f"the string {raw[:40]!r} is not UTF-8 ({error.reason})")

    def strings(self, count: int) -> list[str]:
        """An array of strings. A vocabulary has 100,000 of them, so this loop does no more than it must."""
        if count * 8 > self.file.size - self.position:
            self.need(count * 8)
        buffer, size, length_at = self.file.buffer, self.file.size, _U64.unpack_from
        position = self.position
        last_length = size - 8
        texts = []
        try:
            for _ in range(count):
                if position > last_length:
                    break
                start = position + 8
                position = start + length_at(buffer, position)[0]
                if position > size:
                    break
                texts.append(buffer[start:position].decode())
        except UnicodeDecodeError as error:
            self.fail(f"string {len(texts)} of the array is not UTF-8 ({error.reason})")
        if len(texts) < count:
            self.fail(f"the file is cut short or a length is wrong at string {len(texts)} of {count}")
        self.position = position
        return texts


def _read_header(cursor: _Cursor) -> tuple[int, int, int]:
    magic = cursor.need(4)
    if cursor.file.buffer[magic : magic + 4] != b"GGUF":
        cursor.fail("not a GGUF file: it does not begin with 'GGUF'")
    version = cursor.u32()
    if version not in VERSIONS:
        _refuse_version(cursor, version)
    num_tensors, num_pairs = cursor.u64(), cursor.u64()
    left = cursor.file.size - cursor.position
    if num_pairs * _MIN_PAIR_BYTES + num_tensors * _MIN_TENSOR_BYTES > left:
        cursor.fail(
            f"the file is cut short or damaged: {num_pairs} metadata keys and {num_tensors} tensors cannot "
            f"fit in the {left} bytes that follow"
        )
    return version, num_tensors, num_pairs


def _refuse_version(cursor: _Cursor, version: int) -> NoReturn:
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in (1, *VERSIONS):
        cursor.fail(
            f"a big-endian GGUF file (version {swapped}) is not supported; convert it to little-endian "
            "with gguf-convert-endian of the gguf package"
        )
    cursor.fail(
        f"GGUF version {version} is not supported (2 and 3 are); convert the model again with a current "
        "llama.cpp"
    )


def _read_pairs(cursor: _Cursor, count: int) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    for index in range(count):
        cursor.what = f"metadata key {index}"
        key = cursor.string()
        if key in seen:
            cursor.fail(f"the key {key!r} appears twice")
        seen.add(key)
        cursor.what = f"metadata key {key!r}"
        yield key, _read_value(cursor, cursor.u32())


def _read_value(cursor: _Cursor, kind: int) -> Any:
    if kind == _STRING:
        return cursor.string()
    if kind == _ARRAY:
        return _read_array(cursor)
    return _read_numbers(cursor, kind, 1)[0]


def _read_array(cursor: _Cursor) -> list[Any]:
    kind, count = cursor.u32(), cursor.u64()
    if kind == _ARRAY:
        cursor.fail("an array of arrays is not supported")
    return cursor.strings(count) if kind == _STRING else _read_numbers(cursor, kind, count)


def _read_numbers(cursor: _Cursor, kind: int, count: int) -> list[Any]:
    dtype = _NUMBERS.get(kind)
    if dtype is None:
        cursor.fail(f"value type {kind} does not exist")
    start = cursor.need(count * dtype.itemsize)
    values: list[Any] = np.frombuffer(cursor.file.buffer, dtype, count, start).tolist()
    if kind != _BOOL:
        return values
    if any(value > 1 for value in values):
        cursor.fail("a truth value must be 0 or 1")
    return [value == 1 for value in values]


def _alignment(cursor: _Cursor, metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        cursor.what = "metadata key 'general.alignment'"
        cursor.fail(f"must be a power of two, not {alignment!r}")
    return alignment


def _read_tensor_record(cursor: _Cursor) -> TensorRecord:
    cursor.what = "tensor table"
    name = cursor.string()
    cursor.what = f"tensor {name!r}"
    num_dimensions = cursor.u32()
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        cursor.fail(f"has {num_dimensions} dimensions; 1 to {MAX_DIMENSIONS} are possible")
    shape = tuple(reversed([cursor.u64() for _ in range(num_dimensions)]))
    type_id, offset = cursor.u32(), cursor.u64()
    if 0 in shape:
        cursor.fail(f"has the empty shape {list(shape)}")
    return TensorRecord(name, shape, type_id, offset)


def _supported_type(record: TensorRecord, source: str) -> DType:
    dtype = TENSOR_TYPES.get(record.type_id)
    if dtype is None:
        known = TYPE_NAMES.get(record.type_id, "an unknown type")
        raise ModelError(
            f"{source}: is stored as {known} (type id {record.type_id}), which is not supported; supported "
            f"are {', '.join(TENSOR_TYPES.values())}"
        )
    return dtype


def _map_tensors(file: MappedFile, header: GgufHeader) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    spans: list[tuple[int, int, str]] = []
    for record in header.records:
        source = f"{file.path}: tensor {record.name!r}"
        if record.name in tensors:
            raise ModelError(f"{source}: appears twice")
        if record.offset % header.alignment:
            raise ModelError(f"{source}: its offset {record.offset} is not a multiple of {header.alignment}")
        dtype = _supported_type(record, source)
        try:
            num_bytes = tensor_bytes(dtype, record.shape)
        except ValueError as error:
            raise ModelError(f"{source}: {error}") from error
        first = header.start + record.offset
        if first + num_bytes > file.size:
            raise ModelError(
                f"{source}: the file is cut short: the tensor ends at byte {first + num_bytes}, "
                f"the file at {file.size}"
            )
        spans.append((first, first + num_bytes, record.name))
        data = file.data[first : first + num_bytes]
        tensors[record.name] = Tensor(record.name, record.shape, dtype, data, source, file=file)
    _refuse_overlap(file, spans)
    return tensors


def _refuse_overlap(file: MappedFile, spans: list[tuple[int, int, str]]) -> None:
    spans.sort()
    for (_, end, name), (begin, _, following) in pairwise(spans):
        if begin < end:
            raise ModelError(f"{file.path}: tensors {name!r} and {following!r} overlap")
