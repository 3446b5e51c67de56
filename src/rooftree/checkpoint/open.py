"""Open a model, however it is named and stored."""

from __future__ import annotations

from pathlib import Path

from rooftree.checkpoint.base import Checkpoint
from rooftree.checkpoint.gguf import read_gguf
from rooftree.checkpoint.gguf_model import gguf_spec, gguf_tensors
from rooftree.checkpoint.gguf_text import gguf_text
from rooftree.checkpoint.hf_config import parse_config
from rooftree.checkpoint.hf_quantization import quantized_storage
from rooftree.checkpoint.hf_text import hf_text
from rooftree.checkpoint.hub import PREFIX, fetch_snapshot, parse_hub_name
from rooftree.checkpoint.json_file import read_json
from rooftree.checkpoint.pull import KNOWN, Progress, pull
from rooftree.checkpoint.safetensors import INDEX, SINGLE, read_folder
from rooftree.checkpoint.stored_weights import model_tensors
from rooftree.checkpoint.validate import is_derived, validate_tensors
from rooftree.errors import ModelError

CONFIG = "config.json"


def open_checkpoint(
    model: str,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    hub_endpoint: str | None = None,
    hub_cache_dir: Path | None = None,
) -> Checkpoint:
    """Open a model and check it against its own configuration, reading no weights.

    Args:
        model: ``smollm2`` (any name of ``pull.KNOWN``), a .gguf file, a directory that holds a Hugging Face
            model or one .gguf file, or ``hf:org/name`` with or without ``@revision``.
        cache_dir: where pulled models are kept; None: the user's cache folder.
        progress: called with bytes done and in all while a model is pulled.
        hub_endpoint, hub_cache_dir: for ``hf:``; None: huggingface_hub's own.

    Raises:
        ModelError: there is no such model, it is damaged, or it is not supported. The message names the file
            and the tensor, key or field.
    """
    if model in KNOWN:
        return open_gguf(pull(model, progress, cache_dir), name=model)
    if model.startswith(PREFIX):
        hub_model = parse_hub_name(model)
        folder = fetch_snapshot(hub_model, cache_dir=hub_cache_dir, endpoint=hub_endpoint)
        return open_folder(folder, name=hub_model.repo)
    try:
        path = Path(model).expanduser()
        is_folder, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{model}: {error}") from error
    if is_folder:
        return open_folder(path)
    if not exists:
        raise ModelError(
            f"{model}: there is no such file or directory; a model is {' or '.join(KNOWN)}, a .gguf file, a "
            "Hugging Face directory or hf:org/name"
        )
    if path.suffix == ".safetensors":
        raise ModelError(f"{model}: give the directory that holds this file and its {CONFIG}")
    return open_gguf(path)


def open_folder(folder: Path, name: str | None = None) -> Checkpoint:
    """A Hugging Face directory, or the one GGUF file in a directory that is none."""
    ggufs = sorted(folder.glob("*.gguf"))
    has_tensors = (folder / SINGLE).exists() or (folder / INDEX).exists()
    if not ggufs or ((folder / CONFIG).exists() and has_tensors):
        return open_hf(folder, name)
    if len(ggufs) > 1:
        raise ModelError(
            f"{folder}: holds several models, name one: {', '.join(path.name for path in ggufs)}"
        )
    return open_gguf(ggufs[0], name)


def open_gguf(path: Path, name: str | None = None) -> Checkpoint:
    """A GGUF file."""
    file = read_gguf(path)
    spec = gguf_spec(file)
    return Checkpoint(
        name=name or path.stem,
        path=str(path),
        format="gguf",
        spec=spec,
        tensors=validate_tensors(spec, gguf_tensors(file, spec), str(path)),
        text=gguf_text(file, spec.vocab_size),
    )


def open_hf(folder: Path, name: str | None = None) -> Checkpoint:
    """A directory with config.json, tokenizer.json and safetensors files, plain or quantised."""
    config = read_json(folder / CONFIG)
    spec = parse_config(config, str(folder / CONFIG))
    storage = quantized_storage(config, folder / CONFIG)
    tensors = model_tensors(read_folder(folder, is_derived), storage)
    return Checkpoint(
        name=name or folder.resolve().name,
        path=str(folder),
        format="safetensors",
        spec=spec,
        tensors=validate_tensors(spec, tensors, str(folder)),
        text=hf_text(folder, config, spec.vocab_size),
    )
