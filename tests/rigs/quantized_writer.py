"""Hugging Face directories with FP8 and FP4 weights, stored as the libraries that publish them do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rigs.hf_writer import Entry, write_safetensors
from rigs.models import Weights, write_hf_model
from rooftree.checkpoint.formats import quantize
from rooftree.specs.model import ModelSpec

Entries = dict[str, Entry]


def float_entry(values: np.ndarray, kind: str = "F32") -> Entry:
    """Numbers as F32, F16, BF16 or F8_E8M0 (powers of two)."""
    if kind == "F8_E8M0":
        return Entry(kind, values.shape, (np.frexp(values)[1] + 126).astype(np.uint8).tobytes())
    return Entry(kind, values.shape, quantize(kind, values).tobytes())


def fp8_weight(
    base: str,
    values: np.ndarray,
    block: tuple[int, int],
    shape: Callable[[int, int], tuple[int, ...]],
    *,
    scale: str = "weight_scale",
    kind: str = "BF16",
) -> Entries:
    """E4M3 with a scale for each block; ``shape`` makes the scales' shape from the numbers of blocks."""
    n, k = values.shape
    rows, columns = -(-n // block[0]), -(-k // block[1])
    padded = np.zeros((rows * block[0], columns * block[1]), np.float32)
    padded[:n, :k] = values
    tiles = padded.reshape(rows, block[0], columns, block[1])
    scales = np.abs(tiles).max(axis=(1, 3)) / np.float32(448)
    if kind == "F8_E8M0":
        scales = np.exp2(np.ceil(np.log2(scales))).astype(np.float32)
    scaled = (tiles / scales[:, None, :, None]).reshape(padded.shape)[:n, :k]
    return {
        f"{base}.weight": Entry("F8_E4M3", (n, k), quantize("F8_E4M3", scaled).tobytes()),
        f"{base}.{scale}": float_entry(scales.reshape(shape(rows, columns)), kind),
    }


def neighbours(blocks: np.ndarray) -> np.ndarray:
    """Nibbles of (blocks, b / 2) bytes from the halves of ggml's order to neighbours in one byte."""
    elements = np.concatenate((blocks & 15, blocks >> 4), axis=1)
    return elements[:, ::2] | elements[:, 1::2] << 4


def nvfp4_parts(values: np.ndarray, factor: np.float32) -> tuple[Entry, Entry]:
    """Packed elements (n, k / 2) and E4M3 scales (n, k / 16) of values / factor."""
    n, k = values.shape
    blocks = quantize("NVFP4", values / factor).reshape(-1, 9)
    packed = Entry("U8", (n, k // 2), neighbours(blocks[:, 1:]).tobytes())
    return packed, Entry("F8_E4M3", (n, k // 16), blocks[:, 0].tobytes())


def nvfp4_modelopt(base: str, values: np.ndarray) -> Entries:
    """weight, weight_scale, weight_scale_2, and the scale of inputs that nobody here uses."""
    factor = np.abs(values).max() / np.float32(6 * 448)
    packed, scales = nvfp4_parts(values, factor)
    return {
        f"{base}.weight": packed,
        f"{base}.weight_scale": scales,
        f"{base}.weight_scale_2": float_entry(np.array(factor)),
        f"{base}.input_scale": float_entry(np.array(0.01)),
    }


def nvfp4_compressed(base: str, values: np.ndarray) -> Entries:
    """weight_packed, weight_scale, weight_global_scale (the reciprocal), input_global_scale."""
    reciprocal = np.float32(6 * 448) / np.abs(values).max()
    packed, scales = nvfp4_parts(values, 1 / reciprocal)
    return {
        f"{base}.weight_packed": packed,
        f"{base}.weight_scale": scales,
        f"{base}.weight_global_scale": float_entry(np.array([reciprocal])),
        f"{base}.input_global_scale": float_entry(np.array([100.0])),
    }


def mxfp4_parts(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Packed elements (blocks, 16) and E8M0 scales (blocks)."""
    blocks = quantize("MXFP4", values).reshape(-1, 17)
    return neighbours(blocks[:, 1:]), blocks[:, 0]


def mxfp4_compressed(base: str, values: np.ndarray) -> Entries:
    """weight_packed and weight_scale."""
    (n, k), (packed, scales) = values.shape, mxfp4_parts(values)
    return {
        f"{base}.weight_packed": Entry("U8", (n, k // 2), packed.tobytes()),
        f"{base}.weight_scale": Entry("U8", (n, k // 32), scales.tobytes()),
    }


def mxfp4_blocks(base: str, values: np.ndarray) -> Entries:
    """weight_blocks and weight_scales."""
    (n, k), (packed, scales) = values.shape, mxfp4_parts(values)
    return {
        f"{base}.weight_blocks": Entry("U8", (n, k // 32, 16), packed.tobytes()),
        f"{base}.weight_scales": Entry("U8", (n, k // 32), scales.tobytes()),
    }


def compressed_config(format_name: str, weights: Mapping[str, Any], **other: Any) -> dict[str, Any]:
    """A compressed-tensors quantization_config with one group, as its releases write them."""
    group = {"targets": ["Linear"], "weights": dict(weights), "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": format_name,
        "config_groups": {"group_0": group | {"output_activations": None}},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
        "quantization_status": "compressed",
        "sparsity_config": {},
        "transform_config": {},
        "version": "0.11.0",
    } | other


def float_weights(bits: int, strategy: str, **other: Any) -> dict[str, Any]:
    """compressed-tensors' arguments of float weights."""
    return {
        "num_bits": bits,
        "type": "float",
        "strategy": strategy,
        "symmetric": True,
        "dynamic": False,
        "group_size": None,
        "block_structure": None,
        "actorder": None,
        "observer": "minmax",
        "observer_kwargs": {},
    } | other


class Scheme(NamedTuple):
    """How one module's weight becomes entries, and the configuration that announces it."""

    entries: Callable[[str, np.ndarray], Entries]
    config: dict[str, Any]


def _whole(base: str, values: np.ndarray, scale: str = "weight_scale", kind: str = "F32") -> Entries:
    return fp8_weight(base, values, values.shape, lambda rows, columns: (), scale=scale, kind=kind)


def _by_row(base: str, values: np.ndarray) -> Entries:
    return fp8_weight(base, values, (1, values.shape[1]), lambda rows, columns: (rows, columns))


def _by_tile(scale: str, kind: str, four_axes: bool = False) -> Callable[[str, np.ndarray], Entries]:
    def shape(rows: int, columns: int) -> tuple[int, ...]:
        return (rows, 1, columns, 1) if four_axes else (rows, columns)

    return lambda base, values: fp8_weight(base, values, (128, 128), shape, scale=scale, kind=kind)


_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}
_MODELOPT = {"quant_method": "modelopt", "producer": {"name": "modelopt", "version": "0.40"}}
_MODELOPT |= {"ignore": ["lm_head"], "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}

SCHEMES: dict[str, Scheme] = {
    "ct-tensor": Scheme(
        lambda base, values: fp8_weight(base, values, values.shape, lambda rows, columns: (1,)),
        compressed_config("float-quantized", float_weights(8, "tensor")),
    ),
    "ct-channel": Scheme(_by_row, compressed_config("float-quantized", float_weights(8, "channel"))),
    "ct-weight-only": Scheme(_by_row, compressed_config("naive-quantized", float_weights(8, "channel"))),
    "ct-block": Scheme(
        _by_tile("weight_scale", "BF16"),
        compressed_config("float-quantized", float_weights(8, "block", block_structure=[128, 128])),
    ),
    "ct-nvfp4": Scheme(
        nvfp4_compressed,
        compressed_config("nvfp4-pack-quantized", float_weights(4, "tensor_group", group_size=16)),
    ),
    "ct-mxfp4": Scheme(
        mxfp4_compressed,
        compressed_config("mxfp4-pack-quantized", float_weights(4, "group", group_size=32)),
    ),
    "fp8-block": Scheme(
        _by_tile("weight_scale_inv", "F32"), _FP8 | {"fmt": "e4m3", "weight_block_size": [128, 128]}
    ),
    "fp8-block-ue8m0": Scheme(
        _by_tile("weight_scale_inv", "F8_E8M0"),
        _FP8 | {"fmt": "e4m3", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
    ),
    "fp8-static": Scheme(
        lambda base, values: _whole(base, values) | {f"{base}.input_scale": float_entry(np.array([0.5]))},
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
    ),
    "fp8-tensor": Scheme(
        lambda base, values: _whole(base, values, "weight_scale_inv", "BF16"),
        _FP8 | {"weight_block_size": None, "activation_scheme": "static"},
    ),
    "modelopt-fp8": Scheme(
        lambda base, values: _whole(base, values) | {f"{base}.input_scale": float_entry(np.array(0.5))},
        _MODELOPT | {"quant_algo": "FP8"},
    ),
    "modelopt-channel": Scheme(
        lambda base, values: fp8_weight(
            base, values, (1, values.shape[1]), lambda rows, columns: (rows,), kind="F32"
        ),
        _MODELOPT | {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
    ),
    "modelopt-block": Scheme(
        _by_tile("weight_scale", "F32", four_axes=True), _MODELOPT | {"quant_algo": "FP8_PB_WO"}
    ),
    "modelopt-nvfp4": Scheme(nvfp4_modelopt, _MODELOPT | {"quant_algo": "NVFP4", "group_size": 16}),
    "mxfp4": Scheme(mxfp4_blocks, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}),
}


def quantized_entries(weights: Weights, scheme: str, ignore: Sequence[str] = ()) -> Entries:
    """Matrices inside the layers in a scheme; embedding, head, vectors and modules of ``ignore`` in BF16."""
    entries: Entries = {}
    for name, values in weights.items():
        base = name.removesuffix(".weight")
        if values.ndim == 2 and ".layers." in name and base not in ignore:
            entries |= SCHEMES[scheme].entries(base, values)
        else:
            entries[name] = float_entry(values, "BF16")
    return entries


def write_quantized_model(
    folder: Path,
    spec: ModelSpec,
    entries: Mapping[str, Entry],
    config: Mapping[str, Any] | None,
    *,
    shards: int = 1,
) -> Path:
    """A directory with these tensors and this quantization_config (None: without one)."""
    extra = {} if config is None else {"quantization_config": dict(config)}
    write_hf_model(folder, spec, {}, config=extra)
    (folder / "model.safetensors").unlink()
    write_safetensors(folder, entries, shards)
    return folder
