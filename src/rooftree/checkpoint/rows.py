"""Rows of a stored tensor, read a few at a time so that no more of a file than that need be in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rooftree.checkpoint.mapped import MappedFile


class StoredRows:
    """What has a shape and bytes that may lie in a mapped file. A row is an element of the first axis."""

    __slots__ = ()

    if TYPE_CHECKING:  # fields of the dataclasses, whose defaults these would become

        @property
        def shape(self) -> tuple[int, ...]:
            """Row-major, outermost first."""

        @property
        def data(self) -> npt.NDArray[np.uint8]:
            """All bytes, one-dimensional."""

        @property
        def file(self) -> MappedFile | None:
            """The mapped file that ``data`` is a part of; None: it lies elsewhere."""

    @property
    def num_rows(self) -> int:
        """Size of the first axis; a scalar is one row."""
        return self.shape[0] if self.shape else 1

    def rows(self, first: int, last: int) -> npt.NDArray[np.uint8]:
        """The bytes of rows ``first`` up to and without ``last``, for reading.

        Raises:
            ModelError: the file has been cut short meanwhile.
        """
        if self.file is not None:
            self.file.check()
        return self._part(first, last)

    def give_back(self, first: int, last: int) -> None:
        """Say that these rows have been copied: the system may have their pages.

        Raises:
            ModelError: the file has been cut short meanwhile, so what was read may be wrong.
        """
        if self.file is not None:
            self.file.give_back(self._part(first, last))
            self.file.check()

    def _part(self, first: int, last: int) -> npt.NDArray[np.uint8]:
        size = self.data.nbytes // max(self.num_rows, 1)
        return self.data[first * size : last * size]
