"""The listening socket, taken before anything else is done."""

from __future__ import annotations

import errno
import socket

from rooftree.errors import ConfigError

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; clients that connect wait until someone accepts.

    Raises:
        ConfigError: the address cannot be had.
    """
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"--host {host} is not an address of this machine: {error.strerror}") from None
    # The protocol number matters: asyncio switches Nagle's delay off only where it reads TCP.
    family, kind, protocol, _, address = places[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(_refusal(host, port, error)) from None
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL under which clients on this machine reach it."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _refusal(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken by another program; choose another with --port"
    if error.errno == errno.EACCES:
        return f"port {port} needs rights that this user lacks; choose one above 1023 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is not an address of this machine"
    return f"cannot listen on {host} port {port}: {error.strerror or error}"
