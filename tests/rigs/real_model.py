"""R3: the real small model, for tests marked ``model``."""

from __future__ import annotations

from pathlib import Path

import pytest

from rooftree.checkpoint.pull import find_pulled


def smollm2_path() -> Path:
    """The cached SmolLM2 GGUF file; skips the test where nobody has pulled it yet."""
    path = find_pulled("smollm2")
    if path is None:
        pytest.skip("needs SmolLM2: run `rooftree pull` first")
    return path
