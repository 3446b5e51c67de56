"""JSON files of a model directory, read with complaints that name the file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from rooftree.errors import ModelError


def read_json(path: Path) -> dict[str, Any]:
    """A file that holds one JSON object. Raises ModelError naming the file."""
    document = parse_json(read_bytes(path), str(path))
    if not isinstance(document, dict):
        raise ModelError(f"{path}: must be a JSON object")
    return document


def read_optional_json(path: Path) -> dict[str, Any]:
    """The same, and an empty object where there is no such file."""
    return read_json(path) if path.exists() else {}


def read_bytes(path: Path) -> bytes:
    """A whole small file. Raises ModelError naming the file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error


def read_text(path: Path) -> str:
    """A whole small UTF-8 file. Raises ModelError naming the file."""
    try:
        return read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: is not UTF-8 ({error.reason})") from error


def parse_json(raw: bytes, source: str) -> Any:
    """JSON in which a name appears once in its object. Raises ModelError naming ``source``."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        document = dict(pairs)
        if len(document) < len(pairs):
            (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
            raise ModelError(f"{source}: the name {twice!r} appears twice")
        return document

    try:
        return json.loads(raw.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{source}: is not valid JSON ({error})") from error
