"""R3: the real small model, for tests marked ``model``."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from rooftree.checkpoint.pull import pull
from rooftree.errors import ModelError


@cache
def smollm2_path() -> Path:
    """The cached SmolLM2 GGUF file, fetched the first time; where that is not possible the test is skipped.

    Under CI nothing is skipped: there the model must come.
    """
    try:
        return pull("smollm2")
    except ModelError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"needs SmolLM2: {error}")
