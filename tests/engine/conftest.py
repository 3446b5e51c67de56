"""Tiny random models for tests of the engine with its real executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rigs.models import random_weights, tiny_spec, write_gguf_model, write_hf_model
from rooftree.engine.llm import LLM


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], str]:
    """Path of a tiny random model: by family, and by dtype as safetensors (floats) or GGUF stores it."""
    made: dict[tuple[str, str], str] = {}

    def path_of(family: str, dtype: str) -> str:
        if (family, dtype) not in made:
            folder = tmp_path_factory.mktemp(f"{family}-{dtype}")
            spec = tiny_spec(family)
            if dtype.startswith("Q"):
                path: Path = write_gguf_model(folder / "m.gguf", spec, random_weights(spec), dtype=dtype)
            else:
                path = write_hf_model(folder / "m", spec, random_weights(spec), dtype=dtype)
            made[family, dtype] = str(path)
        return made[family, dtype]

    return path_of


@pytest.fixture
def make_tiny_llm(tiny_model: Callable[[str, str], str]) -> Iterator[Callable[..., LLM]]:
    """An LLM on such a model: one thread and a small pool, unless ``options`` say otherwise."""
    with ExitStack() as stack:

        def make(family: str = "llama", dtype: str = "F32", **options: Any) -> LLM:
            chosen = {"threads": 1, "max_num_seqs": 16, "kv_cache_memory": 4 << 20} | options
            return stack.enter_context(LLM(tiny_model(family, dtype), **chosen))

        yield make
