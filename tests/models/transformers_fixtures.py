"""The models and results that ``tests/fixtures/make_transformers.py`` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from rooftree.checkpoint.base import Checkpoint, TextAssets
from rooftree.checkpoint.hf_config import parse_config
from rooftree.checkpoint.json_file import read_json
from rooftree.checkpoint.safetensors import read_folder
from rooftree.checkpoint.validate import is_derived, validate_tensors

FOLDER = Path(__file__).parents[1] / "fixtures" / "transformers"
NAMES = tuple(sorted(path.name for path in FOLDER.iterdir()))


class Expected(NamedTuple):
    """What ``transformers`` computed; see the script."""

    token_ids: np.ndarray
    logits: np.ndarray
    inverse_frequencies: np.ndarray
    attention_factor: float


def open_fixture(name: str) -> Checkpoint:
    """The checkpoint of a fixture, which has no tokenizer."""
    folder = FOLDER / name
    spec = parse_config(read_json(folder / "config.json"), str(folder))
    tensors = validate_tensors(spec, read_folder(folder, is_derived), str(folder))
    return Checkpoint(name, str(folder), "safetensors", spec, tensors, TextAssets())


def expected_of(name: str) -> Expected:
    with np.load(FOLDER / name / "expected.npz") as file:
        arrays = {field: file[field] for field in Expected._fields}
    return Expected(**arrays | {"attention_factor": float(arrays["attention_factor"])})
