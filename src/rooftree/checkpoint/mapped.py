"""Files mapped into memory: pages are read when touched, and shared by every process that maps them."""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rooftree.errors import ModelError


@dataclass(frozen=True, slots=True, eq=False)
class MappedFile:
    """A whole file, read-only.

    Attributes:
        buffer: for struct and slices; a slice is a bytes copy.
        data: uint8 view of the same memory, for tensors.
    """

    path: Path
    buffer: mmap.mmap
    data: npt.NDArray[np.uint8]

    @property
    def size(self) -> int:
        """Bytes mapped; reading beyond them is what must never happen."""
        return len(self.buffer)


def map_file(path: Path) -> MappedFile:
    """Map a regular file. Raises ModelError where it is missing, unreadable, empty or no file at all."""
    try:
        # A pipe would block here for ever, so look before opening.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ModelError(f"{path}: not a regular file")
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ModelError(f"{path}: the file is empty")
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error
    return MappedFile(path, buffer, np.frombuffer(buffer, np.uint8))
