"""Tensors whose bytes are made when they are asked for, and not kept."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from rooftree.checkpoint.base import DType, Scales, Tensor
from rooftree.checkpoint.formats import tensor_bytes


class LazyTensor(Tensor):
    """A tensor that makes its data anew each time, so that no more than one such copy need exist at once.

    ``make(first, last)`` gives the bytes of these rows (uint8, one-dimensional, as many as dtype and shape
    need) in memory of their own, and gives back the pages that it read; what it raises comes out of ``data``
    and ``rows``.
    """

    __slots__ = ("_make",)
    _make: Callable[[int, int], npt.NDArray[np.uint8]]

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: DType,
        source: str,
        make: Callable[[int, int], npt.NDArray[np.uint8]],
        scales: Scales | None = None,
    ) -> None:
        values = {
            "name": name,
            "shape": shape,
            "dtype": dtype,
            "source": source,
            "scales": scales,
            "file": None,
        }
        for attribute, value in (values | {"_make": make}).items():
            object.__setattr__(self, attribute, value)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The bytes, made for this call."""
        return self._make(0, self.num_rows)

    def rows(self, first: int, last: int) -> npt.NDArray[np.uint8]:
        """The bytes of these rows, made for this call."""
        return self._make(first, last)

    @property
    def num_bytes(self) -> int:
        """Bytes of ``data``, known without making any."""
        return tensor_bytes(self.dtype, self.shape)
