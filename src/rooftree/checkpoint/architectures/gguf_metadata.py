"""GGUF metadata of one architecture, together with what its tensor table tells."""

from __future__ import annotations

import re
from collections.abc import Mapping

from rooftree.checkpoint.fields import Fields

Shapes = Mapping[str, tuple[int, ...]]


class Metadata:
    """The metadata of one architecture, with per-layer lists made plain."""

    def __init__(self, fields: Fields, shapes: Shapes) -> None:
        self.fields = fields
        self.shapes = shapes
        self.num_layers = fields.layers("block_count") - self._extra_layers()

    def _extra_layers(self) -> int:
        """Layers that only predict further tokens come last."""
        return len({name.split(".")[1] for name in self.shapes if ".nextn." in name})

    def by_layer(self, name: str) -> list[int] | None:
        """A key with a number for each layer, or None where it is one number or absent."""
        value = self.fields.get(name)
        if not isinstance(value, list):
            return None
        if len(value) < self.num_layers or any(type(item) is not int or item < 0 for item in value):
            self.fields.fail(name, f"must hold a number for each of {self.num_layers} layers")
        return value[: self.num_layers]

    def number(self, name: str) -> int | None:
        """A key that must agree in all layers that have it (0: the layer has none), or None where absent."""
        listed = self.by_layer(name)
        if listed is None:
            return None if self.fields.get(name) is None else self.fields.count(name)
        distinct = {item for item in listed if item}
        if len(distinct) > 1:
            self.fields.fail(name, "differs from layer to layer, which is not supported")
        return distinct.pop() if distinct else None

    def has(self, pattern: str) -> bool:
        """Whether a tensor of that name is there; ``N`` stands for a layer's number."""
        expression = re.compile(re.escape(pattern).replace("N", r"\d+"))
        return any(expression.fullmatch(name) for name in self.shapes)

    def layers_with(self, tensor: str) -> list[bool]:
        """For each layer whether it has that tensor."""
        return [f"blk.{index}.{tensor}" in self.shapes for index in range(self.num_layers)]
