"""The engine process: one EngineCore behind a channel, for as long as its parent lives."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from rooftree.engine.channel import EngineChannel
from rooftree.engine.config import EngineConfig
from rooftree.engine.messages import (
    AbortRequests,
    AddRequest,
    EngineCoreOutputs,
    EngineCoreRequest,
    EngineFailed,
    EngineInput,
    EngineProgress,
    EngineReady,
    Shutdown,
)
from rooftree.engine.pulse import Pulse
from rooftree.errors import RooftreeError

if TYPE_CHECKING:
    from collections.abc import Iterable

HEARTBEAT_SECONDS = 1.0
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"
"""Of the engine's warnings and the server's log: both go to one standard error."""


class Core(Protocol):
    """What the loop needs of an ``EngineCore``."""

    @property
    def progress(self) -> object:
        """Changes whenever work gets on, inside of a step too; for any thread."""

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether ``step`` has something to do."""

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue one generation."""

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """End these generations now."""

    def step(self) -> EngineCoreOutputs:
        """Do one step; with nothing to do, report the state."""

    def close(self) -> None:
        """Give everything back."""


BuildCore = Callable[[EngineConfig, Callable[[str], None]], tuple[Core, EngineReady]]


def serve(core: Core, channel: EngineChannel) -> None:
    """Take messages, step, send news, until told to stop. Idle, sleep and send a heartbeat each second."""
    while True:
        idle = not core.has_unfinished_requests
        for message in channel.receive(HEARTBEAT_SECONDS if idle else 0.0):
            if not _apply(core, message):
                return
        channel.send(core.step())


def _apply(core: Core, message: EngineInput) -> bool:
    """Pass one message on; False when it says to stop."""
    match message:
        case AddRequest():
            for choice in message.choices():
                core.add_request(choice)
        case AbortRequests():
            core.abort_requests(message.request_ids)
        case Shutdown():
            return False
    return True


def run(folder: Path, config: EngineConfig, build: BuildCore) -> int:
    """Build the engine, serve, and say why if it fails. Returns the exit status."""
    # A Ctrl-C or a service manager's SIGTERM reaches us too, but when to stop is the parent's decision.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, args=(folder,), daemon=True).start()
    channel = EngineChannel(folder)
    core: Core | None = None
    try:
        core, ready = build(config, lambda phase: channel.send(EngineProgress(phase)))
        channel.send(ready)
        with Pulse(channel.beat, lambda: core.progress, HEARTBEAT_SECONDS):
            serve(core, channel)
    except Exception as error:
        if not isinstance(error, RooftreeError):
            traceback.print_exc()
        channel.send(EngineFailed(kind=type(error).__name__, message=str(error)))
        return 1
    finally:
        if core is not None:
            core.close()
        channel.close()
    return 0


def _die_with_parent(folder: Path) -> None:
    """End at once when the parent's end of our standard input closes, however the parent ended."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _build(config: EngineConfig, progress: Callable[[str], None]) -> tuple[Core, EngineReady]:
    from rooftree.engine.builder import build_engine_core  # heavy: the parent-death watch must stand first

    return build_engine_core(config, progress=progress)


def main(argv: list[str]) -> int:
    """``python -m rooftree.engine.process FOLDER CONFIG_JSON``, as ``EngineClient`` starts it."""
    folder, config = argv
    logging.basicConfig(level="WARNING", format=LOG_FORMAT)
    return run(Path(folder), msgspec.json.decode(config, type=EngineConfig), _build)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
