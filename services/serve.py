"""Runs one ASGI application until SIGTERM or SIGINT: ends cleanly, with streams told first.  [IO]"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

DRAIN_S = 3


class _Server(uvicorn.Server):
    """Tells the application when the end begins: streams that never end by themselves would hold it up."""

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not uvicorn's own handler: it raises the signal again after its clean end, so the exit code is not 0.
        self._on_exit()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def port_is_free(host: str, port: int) -> bool:
    """Whether nobody listens there: uvicorn would end with a traceback, or share the port in silence."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def serve(app: Any, host: str, port: int, on_exit: Callable[[], None] = lambda: None) -> int:
    """Serve until told to stop; the process's exit code."""
    if not port_is_free(host, port):
        print(f"{host}:{port} is taken or not an address of this machine", file=sys.stderr)
        return 2
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=DRAIN_S,
    )
    server = _Server(config, on_exit)
    server.run()
    return 0 if server.started else 1
