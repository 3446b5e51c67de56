"""The models and results that ``tests/fixtures/make_transformers.py`` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from rooftree.checkpoint.base import Checkpoint
from rooftree.checkpoint.open import open_checkpoint

FOLDER = Path(__file__).parents[1] / "fixtures" / "transformers"
NAMES = tuple(sorted(path.name for path in FOLDER.iterdir()))


class Expected(NamedTuple):
    """What ``transformers`` computed; see the script."""

    token_ids: np.ndarray
    logits: np.ndarray
    inverse_frequencies: np.ndarray
    attention_factor: float


def open_fixture(name: str) -> Checkpoint:
    """The checkpoint of a fixture, whose tokenizer is empty."""
    return open_checkpoint(str(FOLDER / name))


def expected_of(name: str) -> Expected:
    with np.load(FOLDER / name / "expected.npz") as file:
        arrays = {field: file[field] for field in Expected._fields}
    return Expected(**arrays | {"attention_factor": float(arrays["attention_factor"])})
