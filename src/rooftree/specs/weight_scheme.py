"""Which tensor of a model is stored in which format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from rooftree.errors import ConfigError
from rooftree.specs.weight import Role, Weight
from rooftree.specs.weight_format import FORMATS, WeightFormat

# Roles whose linear weights a quantised checkpoint quantises unless it says otherwise; routers it leaves.
QUANTISED_ROLES: frozenset[Role] = frozenset({"attention", "recurrent", "dense", "experts", "shared"})

_GGML = tuple(name for name in FORMATS if re.match(r"i?q\d|tq", name))


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """Which tensor is stored in which format.

    Rules, first match wins: ``exact``, ``overrides``, ``ignore``, ``embedding`` and ``head``, then ``linear``
    for linear weights of attention, recurrent and feed-forward parts, and ``rest`` for all others (norms,
    biases, routers). Experts of one layer that share a name share a format.

    Attributes:
        name: for people and for ``--weight-dtype``.
        linear, rest: see above.
        embedding, head: formats of these two, where not ``rest``.
        ignore: regular expressions; linear modules that one of them matches entirely are ``rest``.
        overrides: (regular expression, format) pairs, matched in the same way.
        exact: full tensor names and their formats (GGUF files state each).
    """

    name: str
    linear: WeightFormat
    rest: WeightFormat
    embedding: WeightFormat | None = None
    head: WeightFormat | None = None
    ignore: tuple[str, ...] = ()
    overrides: tuple[tuple[str, WeightFormat], ...] = ()
    exact: Mapping[str, WeightFormat] = field(default_factory=dict, hash=False)

    def format_of(self, prefix: str, weight: Weight) -> WeightFormat:
        """The format of a tensor; ``prefix`` is what the checkpoint puts before its name."""
        stored = self._format(prefix, weight)
        columns = stored.block[1]
        if stored.fallback is not None and weight.shape[-1] % columns:
            return FORMATS[stored.fallback]
        return stored

    def _format(self, prefix: str, weight: Weight) -> WeightFormat:
        if self.exact:
            known = self.exact.get(prefix + weight.name)
            if known is not None:
                return known
        if weight.kind not in ("linear", "embedding"):
            return self.rest
        if self.overrides or self.ignore:
            module = prefix + weight.module.replace("{}", "0")
            for pattern, override in self.overrides:
                if _compiled(pattern).fullmatch(module):
                    return override
            if self.ignore and _compiled("|".join(f"(?:{p})" for p in self.ignore)).fullmatch(module):
                return self.rest
        if weight.role == "embedding":
            return self.embedding or self.rest
        if weight.role == "head":
            return self.head or self.rest
        return self.linear if weight.role in QUANTISED_ROLES else self.rest


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def uniform(dtype: str) -> WeightScheme:
    """Every tensor in one element type."""
    return WeightScheme(dtype, FORMATS[dtype], FORMATS[dtype])


def named_scheme(name: str, rest: str = "bf16") -> WeightScheme:
    """The scheme that ``--weight-dtype NAME`` means.

    ``fp32``, ``fp16``, ``bf16``: every tensor. ggml's block formats: as llama.cpp's pure files store them
    (embedding in the format, an untied head in q6_k, or q8_0 for q8_0; norms, biases and routers in fp32).
    All others: linear weights inside the layers; embedding, head, norms and routers in ``rest``.

    Raises:
        ConfigError: there is no such scheme; the message lists the names.
    """
    stored = FORMATS.get(name)
    if stored is None:
        raise ConfigError(f"weight dtype {name!r} is not known; known are {', '.join(FORMATS)}")
    if name in ("fp32", "fp16", "bf16"):
        return uniform(name)
    if name in _GGML:
        head = FORMATS["q8_0" if name == "q8_0" else "q6_k"]
        return WeightScheme(name, stored, FORMATS["fp32"], embedding=stored, head=head)
    return WeightScheme(name, stored, FORMATS[rest])
