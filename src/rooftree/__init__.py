"""Rooftree: an LLM serving system that always knows which physical limit binds it.

``rooftree.LLM`` runs a model in this process, ``rooftree.AsyncLLM`` in one of its own; both take
``rooftree.SamplingParams``. They are imported when first used, so that the command line starts at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rooftree.engine.async_llm import AsyncLLM
    from rooftree.engine.llm import LLM
    from rooftree.sampling.params import SamplingParams

__version__ = "0.1.0"
__all__ = ["LLM", "AsyncLLM", "SamplingParams", "__version__"]

_HOMES = {
    "LLM": "rooftree.engine.llm",
    "AsyncLLM": "rooftree.engine.async_llm",
    "SamplingParams": "rooftree.sampling.params",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
