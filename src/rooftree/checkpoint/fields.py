"""Typed access to what a model's files say, with complaints that name the file and the field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from rooftree.errors import ModelError

T = TypeVar("T")

# Beyond any model; keeps a damaged number from becoming an allocation.
MAX_LAYERS = 10_000
_MAX_COUNT = 2**31 - 1


class Fields:
    """The entries of one mapping. ``null`` means absent; a default of None makes an entry required.

    ``prefix`` is put before every name, both to look it up and in messages; ``within`` in messages only.
    """

    def __init__(self, values: Mapping[str, Any], source: str, *, prefix: str = "", within: str = "") -> None:
        self.values = values
        self.source = source
        self.prefix = prefix
        self.within = within

    def get(self, name: str) -> Any:
        """The raw value, or None."""
        return self.values.get(self.prefix + name)

    def fail(self, name: str, problem: str) -> NoReturn:
        """Raise the ModelError for a field."""
        raise ModelError(f"{self.source}: {self.within}{self.prefix}{name} {problem}")

    def count(self, name: str, default: int | None = None) -> int:
        """A positive integer."""
        return self._typed(name, default, _is_count, "a positive integer")

    def number(self, name: str, default: float | None = None) -> float:
        """A positive, finite number."""
        return float(self._typed(name, default, _is_positive, "a positive number"))

    def flag(self, name: str, default: bool | None = None) -> bool:
        """A truth value."""
        return self._typed(name, default, _is_bool, "true or false")

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        return self._typed(name, default, _is_text, "a string")

    def layers(self, name: str) -> int:
        """The number of layers, within reason."""
        value = self.count(name)
        if value > MAX_LAYERS:
            self.fail(name, f"is {value}, more layers than any model has")
        return value

    def token_id(self, name: str, vocab_size: int) -> int | None:
        """A token of the vocabulary, or None."""
        value = self.get(name)
        if value is not None and not _is_token(value, vocab_size):
            self.fail(name, f"must be a token id below {vocab_size}, not {value!r}")
        return None if value is None else int(value)

    def token_ids(self, name: str, vocab_size: int) -> tuple[int, ...]:
        """One token of the vocabulary, a list of them, or nothing."""
        value = self.get(name)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(_is_token(token, vocab_size) for token in ids):
            self.fail(name, f"must be token ids below {vocab_size}, not {value!r}")
        return tuple(ids)

    def _typed(self, name: str, default: T | None, fits: Callable[[Any], bool], wanted: str) -> T:
        value = self.get(name)
        if value is None:
            if default is None:
                self.fail(name, f"is missing; it must be {wanted}")
            return default
        if not fits(value):
            self.fail(name, f"must be {wanted}, not {value!r}")
        typed: T = value
        return typed


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value <= _MAX_COUNT


def _is_token(value: Any, vocab_size: int) -> bool:
    return type(value) is int and 0 <= value < vocab_size


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)
