"""Files mapped into memory: pages are read when touched, and shared by every process that maps them.

Pages that were read count as this process' memory until they are given back; that is for whoever has copied
what they hold.
"""

from __future__ import annotations

import mmap
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rooftree.errors import ModelError

# A touched page brings its neighbours with it, within this many bytes; a multiple of every page size.
_PAGES_TOGETHER = 1 << 16


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

    def check(self) -> None:
        """Raise ModelError if the file has become shorter since it was mapped.

        A page beyond its end cannot be read: the system would end the process (SIGBUS), without a word.
        """
        now = self.buffer.size()
        if now < self.size:
            raise ModelError(
                f"{self.path}: the file was cut from {self.size} to {now} bytes while it was being read; "
                f"load a file that nobody writes to"
            )

    def give_back(self, view: npt.NDArray[np.uint8]) -> None:
        """Give the pages under a part of ``data`` back to the system; they are read again when touched again.

        On a system without such an advice nothing happens.
        """
        if view.nbytes == 0 or not hasattr(mmap, "MADV_DONTNEED"):
            return
        first = view.ctypes.data - self.data.ctypes.data
        begin = first // _PAGES_TOGETHER * _PAGES_TOGETHER
        end = min(-(-(first + view.nbytes) // _PAGES_TOGETHER) * _PAGES_TOGETHER, self.size)
        self.buffer.madvise(mmap.MADV_DONTNEED, begin, end - begin)


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
