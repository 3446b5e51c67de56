"""Lists of modules that a quantised checkpoint leaves alone, as regular expressions of whole module names."""

from __future__ import annotations

import re
from collections.abc import Callable

from rooftree.checkpoint.fields import Fields

Pattern = Callable[[str], str]


def patterns(fields: Fields, names: tuple[str, ...], pattern: Pattern) -> tuple[str, ...]:
    """The entries of all lists under these names, each as an expression.

    Raises:
        ModelError: not a list of names, or not an expression.
    """
    return tuple(found for name in names for found in _listed(fields, name, pattern))


def _listed(fields: Fields, name: str, pattern: Pattern) -> tuple[str, ...]:
    entries = fields.get(name)
    if entries is None:
        return ()
    if not isinstance(entries, list) or any(not isinstance(entry, str) for entry in entries):
        fields.fail(name, f"must be a list of module names, not {entries!r}")
    expressions = tuple(map(pattern, entries))
    for entry, expression in zip(entries, expressions, strict=True):
        try:
            re.compile(expression)
        except re.error as error:
            fields.fail(name, f"has {entry!r}, which is not a regular expression ({error})")
    return expressions


def by_name(entry: str) -> str:
    """compressed-tensors: a module's full name, or ``re:`` and an expression that matches its beginning."""
    return f"(?:{entry[3:]}).*" if entry.startswith("re:") else re.escape(entry)


def by_substring(entry: str) -> str:
    """GPTQ, AWQ: any module whose name contains it."""
    return f".*{re.escape(entry)}.*"


def by_part(entry: str) -> str:
    """FP8: a module by its full name or by its last parts, and all inside it."""
    return rf"(?:.*\.)?{re.escape(entry)}(?:\..*)?"


def by_glob(entry: str) -> str:
    """ModelOpt, gpt-oss: ``*`` stands for anything; what is inside a named module goes with it."""
    anything = re.escape(entry).replace(r"\*", ".*")
    return rf"{anything}(?:\..*)?"
