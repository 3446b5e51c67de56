"""An opened checkpoint as an Architecture: every tensor in the format in which the engine multiplies it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from rooftree.checkpoint.base import Checkpoint, DType, Tensor
from rooftree.checkpoint.formats import is_quantized
from rooftree.checkpoint.layout import EMBEDDING
from rooftree.specs.architecture import Architecture
from rooftree.specs.model_architecture import architecture_of
from rooftree.specs.weight_format import FORMATS, WeightFormat
from rooftree.specs.weight_scheme import WeightScheme

_PLAIN = {"F32": "fp32", "F16": "fp16", "BF16": "bf16", "F8_E4M3": "fp8"}


def stored_architecture(checkpoint: Checkpoint) -> Architecture:
    """The planner's view of a model that is about to run."""
    exact = {name: _format(tensor) for name, tensor in checkpoint.tensors.items()}
    sizes: Counter[DType] = Counter()
    for tensor in checkpoint.tensors.values():
        sizes[tensor.dtype] += tensor.num_bytes
    most = FORMATS[_name(sizes.most_common(1)[0][0])] if sizes else FORMATS["fp16"]
    rest = exact.get(EMBEDDING, most)
    return architecture_of(
        checkpoint.spec, scheme=WeightScheme(most.name, most, FORMATS["fp32"], embedding=rest, exact=exact)
    )


def _name(dtype: DType) -> str:
    return _PLAIN.get(dtype, dtype.lower())


def _format(tensor: Tensor) -> WeightFormat:
    """Blocks of few bits meet int8 inputs, whatever other devices do with the format."""
    stored = FORMATS[_name(tensor.dtype)]
    return replace(stored, arithmetic="bf16") if is_quantized(tensor.dtype) else stored
