"""A GGUF file of any known family as an Architecture, read from its head alone."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

from rooftree.checkpoint.architectures.gguf_config import gguf_config
from rooftree.checkpoint.architectures.gguf_tensors import counted, matrix_names
from rooftree.checkpoint.architectures.parse import parse_architecture
from rooftree.checkpoint.fields import Fields
from rooftree.checkpoint.gguf import GgufHeader, TensorRecord, read_gguf_header
from rooftree.errors import ModelError
from rooftree.specs.architecture import Architecture
from rooftree.specs.weight_format import FORMATS, WeightFormat
from rooftree.specs.weight_scheme import WeightScheme

_PLAIN = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}


def read_gguf_architecture(path: Path) -> Architecture:
    """The Architecture of a GGUF file; each matrix is stored as the file's tensor table says.

    Where its tensors do not add up to what the metadata describe, a note says by how much.

    Raises:
        ModelError: a damaged file, an architecture or tensor type that is not known, or a key that is missing
            or impossible. The message names the file and the key or tensor.
    """
    header = read_gguf_header(path)
    name = Fields(header.metadata, str(path)).text("general.architecture")
    fields = Fields(header.metadata, str(path), prefix=f"{name}.")
    records = {record.name: record for record in header.records}
    config = gguf_config(fields, {record.name: record.shape for record in header.records})
    architecture = replace(parse_architecture(config, str(path)), name=name)
    architecture = replace(architecture, scheme=_scheme(architecture, records, path))
    return replace(architecture, notes=(*architecture.notes, *_difference(architecture, header, path)))


def _scheme(architecture: Architecture, records: dict[str, TensorRecord], path: Path) -> WeightScheme:
    exact: dict[str, WeightFormat] = {}
    sizes: Counter[WeightFormat] = Counter()
    for tensor, stored_names in matrix_names(architecture):
        record = next((records[name] for name in stored_names if name in records), None)
        if record is not None:
            exact[tensor] = _format(record, path)
            sizes[exact[tensor]] += exact[tensor].bytes_of(record.shape)
    most = sizes.most_common(1)[0][0] if sizes else FORMATS["fp16"]
    return WeightScheme(most.name, most, FORMATS["fp32"], exact=exact)


def _format(record: TensorRecord, path: Path) -> WeightFormat:
    stored = FORMATS.get(_PLAIN.get(record.type_name, record.type_name.lower()))
    if stored is None:
        raise ModelError(
            f"{path}: tensor {record.name!r}: is stored as {record.type_name}, which is not known"
        )
    # Other formats keep numbers for each tensor beside it; in GGUF those would be tensors of their own.
    return replace(stored, tensor_bytes=0)


def _difference(architecture: Architecture, header: GgufHeader, path: Path) -> tuple[str, ...]:
    """A note where the file holds more or less than what is counted."""
    names = set(counted(record.name for record in header.records))
    records = [record for record in header.records if record.name in names]
    elements = sum(math.prod(record.shape) for record in records)
    num_bytes = sum(_format(record, path).bytes_of(record.shape) for record in records)
    parameters, counted_bytes = architecture.num_parameters, architecture.weight_bytes()
    if (elements, num_bytes) == (parameters, counted_bytes):
        return ()
    held, expected = f"{elements:,} numbers in {num_bytes:,} bytes", f"{parameters:,} in {counted_bytes:,}"
    return (f"the file's tensors hold {held}; counted are {expected}",)
