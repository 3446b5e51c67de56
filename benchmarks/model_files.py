"""The model files that benchmarks read: the real model, its weights in other formats, and random ones."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from model_writers import NewTensor, write_folder
from rooftree.checkpoint.base import DType, Tensor
from rooftree.checkpoint.cache import default_cache_dir
from rooftree.checkpoint.formats import dequantize, quantize
from rooftree.checkpoint.open import open_checkpoint
from rooftree.checkpoint.pull import pull
from shaped_model import llama_1b, write_floats, write_q4_0

# llama.cpp's own names of its mixtures (enum llama_ftype).
MIXTURES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18}
FLOATS: Mapping[str, DType] = {"F16": "F16", "BF16": "BF16"}
# 25 layers of that size take 1.00 GB.
RANDOM = {"llama-1b": llama_1b(), "llama-1gb": llama_1b(layers=25)}
RANDOM_F16 = "llama-1b-F16"

FILE_HELP = (
    "a .gguf file or a Hugging Face directory; smollm2: SmolLM2-135M-Instruct as pulled, Q4_1; "
    f"{', '.join(MIXTURES)}: its weights requantised by llama.cpp's own quantiser; {', '.join(FLOATS)}: its "
    f"weights dequantised, in safetensors; {', '.join(RANDOM)}: random weights in the shape of Llama-3.2-1B, "
    f"Q4_0 (1gb: with 25 layers, 1 GB); {RANDOM_F16}: the same in F16 safetensors"
)


def model_file(name: str) -> Path:
    """The file or folder that a command-line argument names (see ``FILE_HELP``), made if need be."""
    if name == "smollm2":
        return pull()
    if name in MIXTURES:
        return requantised(pull(), name)
    if name in FLOATS:
        source = pull()
        return _made(f"{source.stem}.{name}", lambda path: _write_floats(source, path, FLOATS[name]))
    if name in RANDOM:
        return _made(f"{name}.Q4_0.gguf", lambda path: write_q4_0(path, RANDOM[name]))
    if name == RANDOM_F16:
        return _made(name, lambda path: write_floats(path, llama_1b(), "F16"))
    path = Path(name).expanduser()
    if not path.exists():
        raise SystemExit(f"{name}: there is no such file; give {FILE_HELP}")
    return path


def requantised(source: Path, mixture: str) -> Path:
    """``source`` in another mixture, kept in the cache folder; the quality loss of both roundings adds up."""

    def write(path: Path) -> None:
        import llama_cpp

        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = MIXTURES[mixture]
        params.allow_requantize = True
        status = llama_cpp.llama_model_quantize(bytes(source), bytes(path), ctypes.byref(params))
        if status != 0:
            raise SystemExit(f"{source}: llama.cpp could not make {mixture} of it (status {status})")

    return _made(f"{source.stem}.{mixture}.gguf", write)


def _made(name: str, write: Callable[[Path], None]) -> Path:
    """A file or folder of the cache folder, written once and under its name only when it is whole."""
    target = default_cache_dir() / "benchmarks" / name
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f"{name}.tmp")
    if unfinished.is_dir():
        shutil.rmtree(unfinished)
    write(unfinished)
    return unfinished.replace(target)


def _write_floats(source: Path, folder: Path, dtype: DType) -> None:
    """A Hugging Face directory of a GGUF model's dequantised weights."""
    checkpoint = open_checkpoint(str(source))
    if checkpoint.text.gguf_vocab is None:
        raise SystemExit(f"{source}: is no GGUF file")

    def converted(tensor: Tensor) -> NewTensor:
        return NewTensor(tensor.name, tensor.shape, dtype, lambda: quantize(dtype, dequantize(tensor)))

    tensors = [converted(tensor) for tensor in checkpoint.tensors.values()]
    write_folder(folder, checkpoint.spec, dtype, tensors, checkpoint.text.gguf_vocab)
