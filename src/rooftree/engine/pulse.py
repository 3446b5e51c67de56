"""Signs of life from inside a long step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType


class Pulse:
    """Beats for as long as work gets on, from a thread of its own, within a ``with`` block.

    The step loop can say nothing while a step computes, and a step of a large model may take longer than
    anyone waits for a word. A step that is stuck must stay silent: each beat needs progress since the last.

    Args:
        beat: called from the thread.
        progress: a value that changes as work gets on; asked for from the thread.
        seconds: between two looks.
    """

    def __init__(self, beat: Callable[[], None], progress: Callable[[], object], seconds: float) -> None:
        self._beat = beat
        self._progress = progress
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        seen = self._progress()
        while not self._ended.wait(self._seconds):
            now = self._progress()
            if now != seen:
                self._beat()
            seen = now
