"""The API process's end of the engine: starts the process, passes messages, notices its death, ends it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import zmq

from rooftree.engine.channel import input_address, open_socket, output_address, private_folder
from rooftree.engine.config import EngineConfig
from rooftree.engine.messages import EngineInput, EngineOutput, Shutdown

_RETRY_SECONDS = 0.01

# -P: a file in the user's current directory must not stand in for a module.
ENGINE_COMMAND = (sys.executable, "-P", "-m", "rooftree.engine.process")


class EngineClient:
    """One engine process.

    The process keeps its standard input open to us and ends when that closes, so it cannot outlive us. It has
    a session of its own, so a Ctrl-C in the terminal reaches only us.
    """

    def __init__(self, config: EngineConfig, command: Sequence[str] = ENGINE_COMMAND) -> None:
        self._folder = private_folder()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._to_engine = open_socket(self._context, zmq.PUSH, 0)
        self._from_engine = open_socket(self._context, zmq.PULL, 0)
        self._to_engine.bind(input_address(self._folder))
        self._from_engine.bind(output_address(self._folder))
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode: msgspec.msgpack.Decoder[EngineOutput] = msgspec.msgpack.Decoder(EngineOutput)
        self._readable = int(self._from_engine.getsockopt(zmq.FD))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._unsent: deque[bytes] = deque()
        arguments = [*command, str(self._folder), msgspec.json.encode(config).decode()]
        self._process = subprocess.Popen(arguments, stdin=subprocess.PIPE, start_new_session=True)

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    def attach(
        self,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[EngineOutput], None],
        on_exit: Callable[[int], None],
    ) -> None:
        """Call ``on_message`` on ``loop`` for each message, and ``on_exit`` once with the exit status, after
        all messages that the process sent.
        """
        self._loop = loop

        def drain() -> None:
            # The descriptor fires on a change of state only, so everything there must be taken each time.
            while not self._closed:
                try:
                    frame = self._from_engine.recv(zmq.NOBLOCK)
                except zmq.Again:
                    return
                try:
                    on_message(self._decode.decode(frame))
                except Exception:
                    loop.call_soon(drain)  # a defect in one message must not hide those behind it
                    raise

        def ended(status: int) -> None:
            drain()
            on_exit(status)

        def wait() -> None:
            status = self._process.wait()
            with contextlib.suppress(RuntimeError):  # the loop may have closed meanwhile
                # Its last words were flushed before it ended, but may still be in ZeroMQ's own thread.
                loop.call_soon_threadsafe(loop.call_later, 0.1, ended, status)

        self._send_all()
        loop.add_reader(self._readable, drain)
        threading.Thread(target=wait, name="engine-exit", daemon=True).start()
        loop.call_soon(drain)

    def send(self, message: EngineInput) -> None:
        """Send one message; never blocks. What the process is not there yet to take goes to it later, once
        there is a loop to try again on. A message to a process that has ended goes nowhere.
        """
        self._unsent.append(self._encode(message))
        if len(self._unsent) == 1:  # else a retry is under way
            self._send_all()

    def _send_all(self) -> None:
        """Send what waits, in order.

        The queue is not limited, so what makes a socket refuse is that its peer is not there: the process has
        ended, or it has not connected yet although we have heard of it.
        """
        while self._unsent and not self._closed:
            try:
                self._to_engine.send(self._unsent[0], zmq.NOBLOCK)
            except zmq.Again:
                if self._loop is not None and self._process.poll() is None:
                    self._loop.call_later(_RETRY_SECONDS, self._send_all)
                return
            self._unsent.popleft()

    def wait(self, timeout: float) -> int | None:
        """Block until the process ends: its exit status, or None if it still runs."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def request_shutdown(self) -> None:
        """Ask the process to end after its current step."""
        self.send(Shutdown())

    def close(self) -> None:
        """End the process if it still runs, and give sockets and folder back; idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._readable)
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._to_engine.close()
        self._from_engine.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)
