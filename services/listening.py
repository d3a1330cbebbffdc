"""Sockets to listen on."""

from __future__ import annotations

import socket


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound, not yet listening.  Raises OSError.

    Never SO_REUSEPORT: a second copy on the same port must fail, not take half of the traffic in silence.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named: asyncio turns Nagle's algorithm off only then, and 40 ms an answer hang on it.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), port))
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
