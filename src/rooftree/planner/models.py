"""MODEL on the command line, as an Architecture: a file, a folder, or the name of a published model."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from rooftree.checkpoint.architectures.parse import parse_architecture, read_architecture
from rooftree.checkpoint.pull import KNOWN, find_pulled
from rooftree.errors import ModelError
from rooftree.specs.architecture import Architecture

# Words that a name may have beside the model's own: tuning, and the format that is asked for apart from it.
_ADDED = re.compile(
    r"(?:instruct|chat|base|hf|it|fp8|fp4|nvfp4|mxfp4|bf16|fp16|int4|int8|awq|gptq|dynamic|v0\.\d)"
)


@dataclass(frozen=True, eq=False)
class NamedModel:
    """A model and the name to show for it. Two are equal only if they are one, so that it keys caches."""

    name: str
    architecture: Architecture


def resolve_model(text: str) -> NamedModel:
    """A .gguf file, a config.json, a folder that holds one, or a published model by name.

    A name that ``rooftree serve`` takes is the file that it serves, where that has been fetched.

    Raises:
        ModelError: none of them; the message lists near names.
    """
    if not text.strip():
        raise ModelError(
            "MODEL is empty: give a config.json, a model folder, a .gguf file or a published name"
        )
    path = Path(text)
    if path.suffix == ".gguf" or path.exists():
        return NamedModel(path.name, _read_file(path))
    pulled = find_pulled(text) if text in KNOWN else None
    return published_model(text) if pulled is None else NamedModel(text, _read_file(pulled))


def published_model(name: str) -> NamedModel:
    """A model of the catalogue by name, alias, or either with a word such as Instruct or FP8 behind it.

    Raises:
        ModelError: not known.
    """
    entry = _by_name().get(_key(name))
    if entry is None:
        keys = {_key(known): known for known in published_names()}
        near = difflib.get_close_matches(_key(name), keys, n=4, cutoff=0.5)
        names = [keys[key] for key in near]
        hint = f"; near it are {', '.join(names)}" if names else ""
        raise ModelError(
            f"{name}: no such file, and no published model of that name is known{hint}. Give a config.json, "
            "a model folder or a .gguf file"
        )
    return _parse(entry["name"])


def published_names() -> tuple[str, ...]:
    """Every model of the catalogue."""
    return tuple(entry["name"] for entry in _catalogue())


def _read_file(path: Path) -> Architecture:
    if path.is_dir():
        weights = sorted(path.glob("*.gguf"))
        if not (path / "config.json").exists() and len(weights) == 1:
            return _read_file(weights[0])
        return read_architecture(path)
    if path.suffix == ".gguf":
        from rooftree.checkpoint.gguf_architecture import read_gguf_architecture

        return read_gguf_architecture(path)
    return read_architecture(path)


@lru_cache(maxsize=1)
def _catalogue() -> tuple[Mapping[str, Any], ...]:
    text = files("rooftree.planner").joinpath("data", "models.json").read_text()
    return tuple(json.loads(text)["models"])


@lru_cache(maxsize=1)
def _by_name() -> dict[str, Mapping[str, Any]]:
    return {_key(name): entry for entry in _catalogue() for name in (entry["name"], *entry["aliases"])}


@lru_cache(maxsize=64)
def _parse(name: str) -> NamedModel:
    entry = next(entry for entry in _catalogue() if entry["name"] == name)
    return NamedModel(name, parse_architecture(entry["config"], name))


def _key(name: str) -> str:
    """Owner, case, punctuation and added words aside."""
    words = re.split(r"[-_ ]+", name.rsplit("/", 1)[-1].lower().strip())
    kept = [word for word in words if not _ADDED.fullmatch(word)]
    return re.sub(r"[^a-z0-9]", "", "".join(kept or words))
