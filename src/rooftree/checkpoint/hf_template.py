"""The chat template of a Hugging Face directory, wherever it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rooftree.checkpoint.json_file import read_json, read_text
from rooftree.errors import ModelError

TEMPLATE = "chat_template.jinja"
LEGACY = "chat_template.json"
FOLDER = "additional_chat_templates"


def chat_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The template's text, or None where the model has none.

    A file of its own comes before tokenizer_config.json, as in ``transformers``. Of several named templates
    it is the one called ``default``, or the only one.

    Raises:
        ModelError: a template that is no string, naming the file.
    """
    if (folder / TEMPLATE).exists():
        return read_text(folder / TEMPLATE)
    named = {path.stem: path for path in sorted((folder / FOLDER).glob("*.jinja"))}
    if "default" in named:
        return read_text(named["default"])
    if (folder / LEGACY).exists():
        return _choose(read_json(folder / LEGACY).get("chat_template"), folder / LEGACY)
    if tokenizer_config.get("chat_template") is not None:
        return _choose(tokenizer_config["chat_template"], folder / "tokenizer_config.json")
    return read_text(*named.values()) if len(named) == 1 else None


def _choose(value: Any, path: Path) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        pairs = [(item.get("name"), item.get("template")) for item in value if isinstance(item, Mapping)]
        value = dict(pairs)
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ModelError(f"{path}: chat_template must be a string or a list of named strings")
    if len(value) == 1:
        return str(*value.values())
    return value.get("default")
