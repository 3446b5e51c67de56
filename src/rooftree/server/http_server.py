"""uvicorn as this server needs it: our signals, our connections, never out of files."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from rooftree.server.http_protocol import http_protocol
from rooftree.server.listen import BACKLOG

KEEP_ALIVE_SECONDS = 60
# Time for last words to reach clients that read them.
LAST_WORDS_SECONDS = 2

_MOST_FILES = 1 << 16
# For everything that is not a connection, and for connections accepted but not counted yet.
_RESERVED_FILES = 256
_ACCEPTED_AT_ONCE = 16


class HttpServer(uvicorn.Server):
    """Serves ``app``, with as many connections as this process may hold files, less a reserve."""

    def __init__(self, app: ASGIApp) -> None:
        files = raise_file_limit()
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http=http_protocol(files - min(_RESERVED_FILES, files // 2)),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                # To asyncio this is also how often it tries again at once when no file is left, and each try
                # plans as many more: with a long backlog it would do nothing else.
                backlog=_ACCEPTED_AT_ONCE,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=LAST_WORDS_SECONDS,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: what one means is decided in ``Service``."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept, and let clients wait in line again, which asyncio has just shortened."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)


def raise_file_limit() -> int:
    """Let this process hold as many files as it is allowed to; how many that is.

    Many systems start programs with a limit of 1024 and allow them far more.
    """
    soft, hard = (_MOST_FILES if each == resource.RLIM_INFINITY else each for each in _file_limits())
    wanted = min(hard, _MOST_FILES)
    if soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, _file_limits()[1]))
    except (OSError, ValueError):
        return soft
    return wanted


def _file_limits() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)
