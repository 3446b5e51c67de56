"""The wire between the API process and the engine process: two ZeroMQ pipes in a folder only we can read."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
import zmq

from rooftree.engine.messages import EngineBeat, EngineInput, EngineOutput

# A Unix socket's path is limited to 107 bytes; a long TMPDIR would break the limit.
_LONGEST_FOLDER = 80

_BEAT = msgspec.msgpack.encode(EngineBeat())


def private_folder() -> Path:
    """A new folder, mode 0700, whose sockets have paths short enough for the system."""
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="rooftree-", dir=base if len(base) <= _LONGEST_FOLDER else "/tmp"))


def input_address(folder: Path) -> str:
    """Where messages to the engine pass."""
    return f"ipc://{folder}/in"


def output_address(folder: Path) -> str:
    """Where messages from the engine pass."""
    return f"ipc://{folder}/out"


def open_socket(context: zmq.Context[zmq.Socket[bytes]], kind: int, linger_ms: int) -> zmq.Socket[bytes]:
    """A PUSH or PULL socket without a limit on queued messages.

    What is in flight is bounded by the tokens that running requests may still generate, and a full queue
    would stop the engine for everyone.
    """
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, linger_ms)
    return socket


class EngineChannel:
    """The engine's end: receives ``EngineInput``, sends ``EngineOutput``."""

    def __init__(self, folder: Path) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._in = open_socket(self._context, zmq.PULL, 0)
        # Last words, such as why the engine failed, get a second to leave.
        self._out = open_socket(self._context, zmq.PUSH, 1000)
        # A socket is for one thread; this one is for the pulse.
        self._beats = open_socket(self._context, zmq.PUSH, 0)
        self._in.connect(input_address(folder))
        self._out.connect(output_address(folder))
        self._beats.connect(output_address(folder))
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode: msgspec.msgpack.Decoder[EngineInput] = msgspec.msgpack.Decoder(EngineInput)

    def send(self, message: EngineOutput) -> None:
        """Hand one message to the API process; never blocks."""
        self._out.send(self._encode(message), copy=True)

    def beat(self) -> None:
        """Say that a step is getting on. For one thread, which need not be that of all else."""
        self._beats.send(_BEAT)

    def receive(self, wait_seconds: float) -> list[EngineInput]:
        """All messages that have come; sleeps up to ``wait_seconds`` for the first one."""
        messages: list[EngineInput] = []
        if wait_seconds > 0 and not self._in.poll(int(wait_seconds * 1000)):
            return messages
        while True:
            try:
                messages.append(self._decode.decode(self._in.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return messages

    def close(self) -> None:
        """Let what was sent go out, then close."""
        for socket in (self._in, self._out, self._beats):
            socket.close()
        self._context.term()
