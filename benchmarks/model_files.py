"""The model files that benchmarks read: the real model, and its requantised forms."""

from __future__ import annotations

import ctypes
from pathlib import Path

from rooftree.checkpoint.cache import default_cache_dir
from rooftree.checkpoint.pull import pull

# llama.cpp's own names of its mixtures (enum llama_ftype).
MIXTURES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18}

FILE_HELP = (
    "a .gguf file; smollm2: SmolLM2-135M-Instruct as pulled, Q4_1; or one of "
    f"{', '.join(MIXTURES)}: its weights requantised by llama.cpp's own quantiser"
)


def model_file(name: str) -> Path:
    """The file that a command-line argument names (see ``FILE_HELP``), made or fetched if need be."""
    if name == "smollm2":
        return pull()
    if name in MIXTURES:
        return requantised(pull(), name)
    path = Path(name).expanduser()
    if not path.is_file():
        raise SystemExit(f"{name}: there is no such file; give {FILE_HELP}")
    return path


def requantised(source: Path, mixture: str) -> Path:
    """``source`` in another mixture, kept in the cache folder; the quality loss of both roundings adds up."""
    target = default_cache_dir() / "benchmarks" / f"{source.stem}.{mixture}.gguf"
    if target.exists():
        return target
    import llama_cpp

    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".tmp")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = MIXTURES[mixture]
    params.allow_requantize = True
    status = llama_cpp.llama_model_quantize(bytes(source), bytes(unfinished), ctypes.byref(params))
    if status != 0:
        raise SystemExit(f"{source}: llama.cpp could not make {mixture} of it (status {status})")
    return unfinished.replace(target)
