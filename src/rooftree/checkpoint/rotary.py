"""Rows of Q and K from the pairwise rotary order of GGUF's llama files to the half-split order used here.

llama.cpp rotates neighbours (2i, 2i + 1) of a head in this architecture, so its converter stores the halves
of each head interleaved: stored row 2i + s is row i of half s.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rooftree.checkpoint.base import Tensor


class HalfSplitTensor(Tensor):
    """A tensor whose rows are put in half-split order each time its data is asked for, and not before.

    Whole rows move, so quantised ones keep their bits. The rows lie on the first axis; those of a vector are
    its elements.
    """

    __slots__ = ("_heads", "_stored")
    _heads: int
    _stored: Tensor

    def __init__(self, stored: Tensor, heads: int) -> None:
        for attribute in ("name", "shape", "dtype", "source"):
            object.__setattr__(self, attribute, getattr(stored, attribute))
        object.__setattr__(self, "_stored", stored)
        object.__setattr__(self, "_heads", heads)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The bytes in order: a copy, made for this call."""
        half = self.shape[0] // self._heads // 2
        return self._stored.data.reshape(self._heads, half, 2, -1).swapaxes(1, 2).reshape(-1)

    @property
    def num_bytes(self) -> int:
        """Bytes as stored, known without moving any."""
        return self._stored.num_bytes
