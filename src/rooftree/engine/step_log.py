"""The step log: a line of JSON for each step, written beside the step loop and never in its way."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import deque
from io import FileIO
from pathlib import Path

import msgspec

from rooftree.engine.stats import StepRecord
from rooftree.errors import ConfigError

logger = logging.getLogger(__name__)

FILE_BYTES = 64 << 20
"""A file that has grown to this becomes ``NAME.1``, in place of an older one: two files at the most."""

_PENDING = 1 << 15
_FLUSH_SECONDS = 0.5


_NO_READER = "nobody reads this pipe; start its reader first"


def _open_at_once(path: str, flags: int) -> int:
    """As ``open`` does, but a pipe that nobody reads is an error (ENXIO), not a wait."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


class StepLog:
    """Takes records in the step loop's thread and writes them in one of its own, twice a second.

    A disk that fails or cannot keep up costs lines and a warning, nothing else. A file that is there already
    becomes ``NAME.1``, so that a log is of one engine. A pipe must have a reader already.

    Raises:
        ConfigError: the file cannot be opened.
    """

    def __init__(self, path: Path, *, file_bytes: int = FILE_BYTES, pending: int = _PENDING) -> None:
        self._path = path
        self._file_bytes = file_bytes
        self._most_pending = pending
        self._pending: deque[StepRecord] = deque()
        self._num_dropped = 0
        self._failed = False
        self._closing = threading.Event()
        self._encode = msgspec.json.Encoder().encode_lines
        try:
            self._file = self._open()
        except OSError as error:
            reason = _NO_READER if error.errno == errno.ENXIO else error.strerror or error
            raise ConfigError(f"--step-log {path}: {reason}") from None
        self._thread = threading.Thread(target=self._run, name="step-log", daemon=True)
        self._thread.start()

    def add(self, record: StepRecord) -> None:
        """Take one record; never blocks."""
        if self._failed or len(self._pending) >= self._most_pending:
            self._num_dropped += 1
        else:
            self._pending.append(record)

    def close(self) -> None:
        """Write what is left; idempotent. Waits a few seconds at most for a disk that does not answer."""
        self._closing.set()
        self._thread.join(timeout=5.0)

    def _open(self) -> FileIO:
        if self._path.is_file() and self._path.stat().st_size:
            self._path.replace(f"{self._path}.1")
        self._size = 0
        return FileIO(self._path, "w", opener=_open_at_once)

    def _run(self) -> None:
        try:
            while not self._closing.wait(_FLUSH_SECONDS):
                self._flush()
            self._flush()
            self._file.close()
        except OSError as error:
            self._failed = True
            self._pending.clear()
            logger.warning("the step log %s ends here: %s", self._path, error.strerror or error)

    def _flush(self) -> None:
        """Write all records at hand.

        Raises:
            OSError: the disk fails.
        """
        if self._num_dropped:
            dropped, self._num_dropped = self._num_dropped, 0
            logger.warning("the step log %s lacks %d steps: the disk is too slow", self._path, dropped)
        records = [self._pending.popleft() for _ in range(len(self._pending))]
        if not records:
            return
        lines = memoryview(self._encode(records))
        self._size += len(lines)
        while lines:
            lines = lines[self._file.write(lines) or 0 :]
        if self._size >= self._file_bytes and self._path.is_file():
            self._file.close()
            self._file = self._open()
