"""Rooftree: an LLM serving system that always knows which physical limit binds it."""

__version__ = "0.1.0"
