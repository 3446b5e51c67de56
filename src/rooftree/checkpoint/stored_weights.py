"""Tensors of safetensors files as tensors of a model: what names, types and shapes beside a weight mean.

Quantised weights, by module (the layouts are those of ``float_formats``; every scale multiplies):

- FP8: ``weight`` F8_E4M3 (n, k) and one of ``weight_scale``, ``weight_scale_inv``: one number, (n) or (n, 1),
  or one for each block. It becomes F8_E4M3, the bytes as stored.
- NVFP4: ``weight_packed`` (compressed-tensors) or ``weight`` (modelopt), uint8 (n, k / 2); ``weight_scale``
  F8_E4M3 (n, k / 16); and one number, ``weight_scale_2`` (modelopt), which multiplies, or
  ``weight_global_scale`` (compressed-tensors), by which values are divided: the reciprocal, rounded to
  float32, is kept. (Those libraries first multiply the two scales, rounding there; the last bit may differ.)
- MXFP4: ``weight_packed`` uint8 (n, k / 2) and ``weight_scale`` (n, k / 32), uint8 or F8_E8M0
  (compressed-tensors); or ``*_blocks`` uint8 (..., k / 32, 16) and ``*_scales`` (..., k / 32) (gpt-oss).

In the files, byte i of a row of 4-bit elements holds elements 2i (low) and 2i + 1 (high); scales and elements
are joined into blocks each time a tensor's rows are asked for. Then their bytes are searched for NaN codes,
too, which no checkpoint holds on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rooftree.checkpoint.base import DType, Scales, Tensor
from rooftree.checkpoint.float_formats import MX_BLOCK, NV_BLOCK, e8m0_values, is_nan_e4m3, pair_halves
from rooftree.checkpoint.formats import dequantize_bytes
from rooftree.checkpoint.hf_quantization import Block, QuantizedStorage
from rooftree.checkpoint.lazy import LazyTensor
from rooftree.checkpoint.safetensors import StoredTensor
from rooftree.errors import ModelError

ByteArray = npt.NDArray[np.uint8]

_FLOATS: dict[str, DType] = {"F32": "F32", "F16": "F16", "BF16": "BF16"}

# Scales of activations and of the KV cache, which are not quantised here (see ``hf_quantization``).
_UNUSED = (
    *("input_scale", "input_global_scale", "activation_scale"),
    *("q_scale", "k_scale", "v_scale", "kv_scale", "output_scale"),
)
_CHUNK_BYTES = 1 << 18


def model_tensors(stored: Mapping[str, StoredTensor], storage: QuantizedStorage | None) -> dict[str, Tensor]:
    """The tensors that the stored ones stand for, under the names of the unquantised model.

    Args:
        storage: what the configuration announces; None: nothing but floats.

    Raises:
        ModelError: a type that is not supported, a quantised weight that is not announced or lacks a scale,
            or a scale that does not fit. The message names the file and the tensor.
    """
    if storage is None:
        return {name: _floats(tensor) for name, tensor in stored.items()}
    reader = _Reader(stored, storage)
    tensors: dict[str, Tensor] = {}
    for tensor in stored.values():
        made = reader.weight(tensor)
        if made is not None:
            tensors[made.name] = made
    for name, tensor in stored.items():
        if name in reader.used or name.rpartition(".")[2] in _UNUSED:
            continue
        if name in tensors:
            raise ModelError(f"{tensor.source}: the file has this weight in quantised form too")
        tensors[name] = _floats(tensor)
    return tensors


def _floats(stored: StoredTensor) -> Tensor:
    dtype = _FLOATS.get(stored.kind)
    if dtype is None:
        raise ModelError(
            f"{stored.source}: type {stored.kind!r} is not supported; supported are {', '.join(_FLOATS)}, "
            "and quantised weights where quantization_config announces them"
        )
    return Tensor(stored.name, stored.shape, dtype, stored.data, stored.source, file=stored.file)


class _Reader:
    """Puts quantised weights together; ``used`` are the names of all tensors that went into one."""

    def __init__(self, stored: Mapping[str, StoredTensor], storage: QuantizedStorage) -> None:
        self.used: set[str] = set()
        self._stored = stored
        self._storage = storage

    def weight(self, tensor: StoredTensor) -> Tensor | None:
        """The quantised weight whose elements ``tensor`` holds; None: it is something else."""
        base, _, part = tensor.name.rpartition(".")
        if part == "weight" and tensor.kind == "F8_E4M3":
            return self._fp8(tensor, base)
        if part == "weight_packed" or (part == "weight" and tensor.kind == "U8"):
            scale = self._beside(tensor, f"{base}.weight_scale")
            if scale.kind == "F8_E4M3":
                return self._nvfp4(tensor, base, scale)
            return self._mxfp4(tensor, f"{base}.weight", scale)
        if part.endswith("_blocks"):
            name = tensor.name.removesuffix("_blocks")
            return self._mxfp4_blocks(tensor, name, self._beside(tensor, f"{name}_scales"))
        return None

    def _fp8(self, weight: StoredTensor, base: str) -> Tensor:
        self._announced("F8_E4M3", weight)
        if len(weight.shape) != 2:
            raise ModelError(f"{weight.source}: is F8_E4M3 {list(weight.shape)}; only matrices may be")
        scale = self._beside(weight, f"{base}.weight_scale", f"{base}.weight_scale_inv")
        scales = _fp8_scales(weight, scale, self._storage.fp8_block)

        def checked(first: int, last: int) -> ByteArray:
            codes = weight.rows(first, last).copy()
            weight.give_back(first, last)
            _refuse_nan(codes, weight)
            return codes

        return LazyTensor(weight.name, weight.shape, "F8_E4M3", weight.source, checked, scales)

    def _nvfp4(self, packed: StoredTensor, base: str, scale: StoredTensor) -> Tensor:
        self._announced("NVFP4", packed)
        factor = self._beside(packed, f"{base}.weight_scale_2", f"{base}.weight_global_scale")
        value = _scale_values(factor)
        if value.size != 1:
            raise ModelError(f"{factor.source}: has the shape {list(factor.shape)}; it must be one number")
        if factor.name.endswith("weight_global_scale"):
            value = _reciprocal(value, factor)
        shape = _unpacked_shape(packed, scale, NV_BLOCK)

        def joined(first: int, last: int) -> ByteArray:
            _refuse_nan(scale.rows(first, last), scale)
            return _join(packed, scale, NV_BLOCK, first, last)

        scales = Scales(value.reshape(1, 1), (shape[0], shape[1]))
        return LazyTensor(f"{base}.weight", shape, "NVFP4", packed.source, joined, scales)

    def _mxfp4(self, packed: StoredTensor, name: str, scale: StoredTensor) -> Tensor:
        return self._mxfp4_of_shape(packed, name, scale, _unpacked_shape(packed, scale, MX_BLOCK))

    def _mxfp4_blocks(self, packed: StoredTensor, name: str, scale: StoredTensor) -> Tensor:
        *outer, size = packed.shape or (0,)
        if packed.kind != "U8" or size != MX_BLOCK // 2 or len(outer) < 2 or tuple(outer) != scale.shape:
            raise ModelError(
                f"{packed.source}: is {packed.kind} {list(packed.shape)} beside scales {list(scale.shape)}; "
                f"blocks of MXFP4 must be U8 (..., columns / {MX_BLOCK}, {MX_BLOCK // 2}), a scale for each"
            )
        return self._mxfp4_of_shape(packed, name, scale, (*outer[:-1], outer[-1] * MX_BLOCK))

    def _mxfp4_of_shape(
        self, packed: StoredTensor, name: str, scale: StoredTensor, shape: tuple[int, ...]
    ) -> Tensor:
        self._announced("MXFP4", packed)
        if scale.kind not in ("U8", "F8_E8M0"):
            raise ModelError(f"{scale.source}: is {scale.kind}; scales of MXFP4 must be U8 or F8_E8M0")

        def joined(first: int, last: int) -> ByteArray:
            if bool((scale.rows(first, last) == 0xFF).any()):
                raise ModelError(f"{scale.source}: holds NaN (code 0xFF)")
            return _join(packed, scale, MX_BLOCK, first, last)

        return LazyTensor(name, shape, "MXFP4", packed.source, joined)

    def _announced(self, dtype: DType, tensor: StoredTensor) -> None:
        if dtype not in self._storage.formats:
            announced = ", ".join(sorted(self._storage.formats)) or "no quantised weights"
            raise ModelError(
                f"{tensor.source}: is stored as {dtype}; the model's {self._storage.method} configuration "
                f"announces {announced}"
            )
        self.used.add(tensor.name)

    def _beside(self, tensor: StoredTensor, *names: str) -> StoredTensor:
        """The one tensor of these names that there must be."""
        found = [self._stored[name] for name in names if name in self._stored]
        if len(found) != 1:
            what = "more than one of its scales is there" if found else "its scale is missing"
            raise ModelError(f"{tensor.source}: {what} ({' or '.join(names)})")
        self.used.add(found[0].name)
        return found[0]


def _fp8_scales(weight: StoredTensor, scale: StoredTensor, block: Block | None) -> Scales:
    n, k = weight.shape
    values = _scale_values(scale)
    shape = scale.shape
    if len(shape) == 4 and shape[1] == shape[3] == 1:
        # modelopt keeps the axes of the rows and columns inside a block.
        shape = (shape[0], shape[2])
    if values.size == 1:
        return Scales(values.reshape(1, 1), (n, k))
    if shape in ((n,), (n, 1)):
        return Scales(values.reshape(n, 1), (1, k))
    if block is not None and shape == (-(-n // block[0]), -(-k // block[1])):
        return Scales(values.reshape(shape), block)
    blocks = f" or of one for each block of {list(block)}" if block else ""
    raise ModelError(
        f"{scale.source}: has the shape {list(scale.shape)}; for a weight of {[n, k]} it must be that of one "
        f"number, of one for each row{blocks}"
    )


def _scale_values(scale: StoredTensor) -> npt.NDArray[np.float32]:
    if scale.kind == "F8_E8M0":
        values = e8m0_values(scale.data)
    elif scale.kind in _FLOATS:
        values = dequantize_bytes(_FLOATS[scale.kind], scale.data)
    else:
        raise ModelError(f"{scale.source}: is {scale.kind}; scales must be {', '.join(_FLOATS)} or F8_E8M0")
    if not bool(np.isfinite(values).all()):
        raise ModelError(f"{scale.source}: holds a number that is not finite")
    return values


def _reciprocal(value: npt.NDArray[np.float32], scale: StoredTensor) -> npt.NDArray[np.float32]:
    with np.errstate(divide="ignore", over="ignore"):
        inverse: npt.NDArray[np.float32] = np.float32(1) / value
    if not bool(np.isfinite(inverse).all()):
        raise ModelError(f"{scale.source}: is {value.item()!r}, by which nothing can be divided")
    return inverse


def _unpacked_shape(packed: StoredTensor, scale: StoredTensor, block: int) -> tuple[int, int]:
    shape = packed.shape
    if packed.kind != "U8" or len(shape) != 2 or 2 * shape[1] % block:
        raise ModelError(
            f"{packed.source}: is {packed.kind} {list(shape)}; packed 4-bit weights must be U8 "
            f"(rows, columns / 2), the columns a multiple of {block}"
        )
    n, k = shape[0], 2 * shape[1]
    if scale.shape != (n, k // block):
        raise ModelError(
            f"{scale.source}: has the shape {list(scale.shape)}; a weight of {[n, k]} needs {[n, k // block]}"
        )
    return n, k


def _join(packed: StoredTensor, scale: StoredTensor, block: int, first: int, last: int) -> ByteArray:
    """Blocks of a scale byte and their nibbles, of some rows of tensors that keep the two apart."""
    nibbles = packed.rows(first, last).reshape(-1, block // 2)
    blocks = np.empty((len(nibbles), 1 + block // 2), np.uint8)
    blocks[:, 0] = scale.rows(first, last)
    at_once = _CHUNK_BYTES // block
    for begin in range(0, len(blocks), at_once):
        blocks[begin : begin + at_once, 1:] = pair_halves(nibbles[begin : begin + at_once])
    for tensor in (packed, scale):
        tensor.give_back(first, last)
    return blocks.reshape(-1)


def _refuse_nan(codes: ByteArray, tensor: StoredTensor) -> None:
    for first in range(0, len(codes), _CHUNK_BYTES):
        if is_nan_e4m3(codes[first : first + _CHUNK_BYTES]):
            raise ModelError(f"{tensor.source}: holds NaN (code 0x7F or 0xFF)")
