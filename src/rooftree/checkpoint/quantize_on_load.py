"""Weights quantised while a model is loaded, one tensor at a time.

Linear weights stored in floats or in FP8 are rounded to bf16, or to one of ggml's formats of 32-element
blocks, exactly as its reference code rounds. The embedding and the head become Q8_0 whatever the block
format: their errors go straight into the choice of a token. Norms, biases and weights that are quantised
already stay as they are.

Nothing is converted before it is asked for, then in pieces of some rows, and nothing is kept: the memory in
use is the result, the stored bytes of the rows asked for, and the pieces. The native kernels do not ask: they
round the stored rows themselves, to the same bits (native/rounding_loops.h).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rooftree.checkpoint.base import Checkpoint, DType, Tensor
from rooftree.checkpoint.formats import (
    FORMATS,
    apply_scales,
    dequantize_bytes,
    is_quantized,
    quantize,
    row_bytes,
)
from rooftree.checkpoint.layout import EMBEDDING, HEAD
from rooftree.checkpoint.lazy import LazyTensor
from rooftree.checkpoint.quantization import Quantization
from rooftree.errors import ConfigError

SCHEMES: dict[Quantization, DType] = {
    "bf16": "BF16",
    "q8_0": "Q8_0",
    "q5_1": "Q5_1",
    "q5_0": "Q5_0",
    "q4_1": "Q4_1",
    "q4_0": "Q4_0",
}

_PIECE = 1 << 18  # elements


class RoundedTensor(LazyTensor):
    """A matrix rounded to another format each time that its rows are asked for.

    Attributes:
        stored: what is rounded: floats or FP8, its scales included.
    """

    __slots__ = ("stored",)
    stored: Tensor

    def __init__(self, stored: Tensor, target: DType) -> None:
        super().__init__(stored.name, stored.shape, target, stored.source, self._round)
        object.__setattr__(self, "stored", stored)

    def _round(self, first: int, last: int) -> npt.NDArray[np.uint8]:
        stored, k = self.stored, self.shape[1]
        data = stored.rows(first, last).reshape(last - first, -1)
        result = np.empty((last - first, row_bytes(self.dtype, k)), np.uint8)
        rows = max(1, _PIECE // k)
        for begin in range(0, last - first, rows):
            piece = data[begin : begin + rows]
            values = dequantize_bytes(stored.dtype, piece.reshape(-1)).reshape(len(piece), k)
            if stored.scales is not None:
                apply_scales(values, stored.scales, first + begin)
            result[begin : begin + rows] = quantize(self.dtype, values).reshape(len(piece), -1)
        stored.give_back(first, last)
        return result.reshape(-1)


def quantized(checkpoint: Checkpoint, scheme: Quantization) -> Checkpoint:
    """The same model with its weights quantised each time they are asked for.

    What stays as it is although it is a matrix is told in the result's ``notices``.

    Raises:
        ConfigError: no weight of the model can be quantised.
    """
    tensors: dict[str, Tensor] = {}
    ragged: list[str] = []
    packed: list[str] = []
    possible = False
    for name, tensor in checkpoint.tensors.items():
        tensors[name] = tensor
        if len(tensor.shape) != 2:
            continue
        target = "Q8_0" if name in (EMBEDDING, HEAD) and scheme != "bf16" else SCHEMES[scheme]
        if is_quantized(tensor.dtype):
            packed.append(name)
        elif tensor.shape[1] % FORMATS[target].block:
            ragged.append(name)
        else:
            possible = True
            if tensor.dtype != target:
                tensors[name] = RoundedTensor(tensor, target)
    notices = (
        *_notice(checkpoint, ragged, scheme, "their rows do not fill blocks of 32"),
        *_notice(checkpoint, packed, scheme, "they are quantised already"),
    )
    if not possible:
        raise ConfigError(
            f"no weight of {checkpoint.name} can be quantised: {' '.join(notices)} "
            f"Leave --quantization out to run it as stored"
        )
    return replace(checkpoint, tensors=tensors, notices=(*checkpoint.notices, *notices))


def _notice(
    checkpoint: Checkpoint, names: Sequence[str], scheme: Quantization, reason: str
) -> tuple[str, ...]:
    if not names:
        return ()
    kinds = sorted({checkpoint.tensors[name].dtype for name in names})
    which = names[0] if len(names) == 1 else f"{len(names)} weights ({names[0]}, ...)"
    return (f"--quantization {scheme} leaves {which} as {', '.join(kinds)}: {reason}.",)
