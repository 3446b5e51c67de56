"""In which dtypes a plan may store weights and KV, and what a smaller one costs in quality."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rooftree.planner.deployment import PUBLISHED, Deployment, weight_bytes
from rooftree.planner.question import Question
from rooftree.specs.device import DeviceSpec
from rooftree.specs.weight_format import FORMATS, cache_bytes

WIDE_KV = "bf16"
SMALLER = 0.9
"""A dtype is offered where it takes at most this share of the published bytes."""

# What published evaluations found (docs/planner.md names them); not measured here.
_QUALITY = {
    "kv8": "usually within 1 % of a 16-bit cache; check long contexts",
    "fp8": "usually within 1 % of 16-bit weights",
    "int8": "usually 1 to 3 % below 16-bit weights",
    "4": "usually 1 to 4 % below 16-bit weights, more for small models",
    "less": "clearly below 16-bit weights: measure on your task",
}


@dataclass(frozen=True, slots=True)
class Change:
    """A dtype that differs from the published one. ``quality``: what it costs, in words."""

    what: str
    before: str
    after: str
    quality: str

    def words(self) -> str:
        """``weights in fp8 instead of bf16``."""
        return f"{self.what} in {self.after} instead of {self.before}"


def storages(question: Question, device: DeviceSpec) -> Iterator[Question]:
    """The question with its dtypes settled, in order of what they cost in quality: as published first.

    A dtype that the user states is kept. Else weights as published, in 8 and in 4 bits, in a format that the
    chip computes in where it has one; and the KV cache in 16 and in 8 bits.
    """
    weights = [question.weight_dtype] if question.weight_dtype else [PUBLISHED, *_smaller(question, device)]
    caches = [question.kv_dtype] if question.kv_dtype else _caches(question)
    for weight_dtype in weights:
        for kv_dtype in caches:
            yield replace(question, weight_dtype=weight_dtype, kv_dtype=kv_dtype)


def changes(deployment: Deployment) -> tuple[Change, ...]:
    """How a deployment's dtypes differ from those that the model is published in."""
    architecture = deployment.model.architecture
    found = []
    if deployment.weight_dtype != PUBLISHED and deployment.weight_dtype != architecture.scheme.name:
        stored = FORMATS[deployment.weight_dtype]
        if stored.bits < architecture.scheme.linear.bits:
            quality = _weight_quality(stored.name, stored.bits)
            found.append(Change("weights", architecture.scheme.name, stored.name, quality))
    if architecture.kv_bytes_per_token() and cache_bytes(64, deployment.kv_dtype) < 128:
        found.append(Change("KV cache", WIDE_KV, deployment.kv_dtype, _QUALITY["kv8"]))
    return tuple(found)


def change_words(deployment: Deployment) -> str:
    """All changes in a clause, with their price; empty where nothing is changed."""
    return " and ".join(f"{change.words()} (quality {change.quality})" for change in changes(deployment))


def price_words(deployment: Deployment) -> str:
    """The price alone, change by change; empty where nothing is changed."""
    return "; ".join(f"{change.what}: {change.quality}" for change in changes(deployment))


def _smaller(question: Question, device: DeviceSpec) -> Iterator[str]:
    """8 and 4 bits as the chip likes them, where that is less than what is published."""
    eight = next((name for name in ("fp8", "int8") if name in device.peak_flops), "fp8")
    four = "nvfp4" if "fp4" in device.peak_flops else "awq"
    published = weight_bytes(question.model, PUBLISHED)
    for name in (eight, four):
        if weight_bytes(question.model, name) <= SMALLER * published:
            yield name


def _caches(question: Question) -> list[str]:
    return [WIDE_KV, "fp8"] if question.model.architecture.kv_bytes_per_token() else [WIDE_KV]


def _weight_quality(name: str, bits: int) -> str:
    if bits >= 8:
        return _QUALITY["int8" if name == "int8" else "fp8"]
    return _QUALITY["4" if bits >= 4 else "less"]
