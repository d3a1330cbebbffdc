"""Runs one ASGI application until SIGTERM or SIGINT: ends cleanly, with streams told first.  [IO]"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import uvicorn

from services.bounded_server import BoundedServer
from services.check_api.bounded_http import BoundedHttp
from services.listening import bind
from services.settings import Listener

DRAIN_S = 3
CONNECTIONS_MOST = 1024


class _Server(BoundedServer):
    """Tells the application when the end begins: streams that never end by themselves would hold it up."""

    def __init__(self, config: uvicorn.Config, on_exit: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_exit = on_exit

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not uvicorn's own handler: it raises the signal again after its clean end, so the exit code is not 0.
        self._on_exit()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def bounded(app: Any) -> uvicorn.Config:
    """Without bounds one stranger's endless head would fill the memory, and hold up a leader's beats."""
    return uvicorn.Config(
        app,
        http=BoundedHttp,
        limit_concurrency=CONNECTIONS_MOST,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=DRAIN_S,
    )


def serve(app: Any, listener: Listener, port: int, on_exit: Callable[[], None] = lambda: None) -> int:
    """Serve until told to stop; the process's exit code."""
    try:
        bound = bind(listener.host, port)
    except OSError as error:
        print(f"{listener.host}:{port}: {error.strerror}", file=sys.stderr)
        return 2
    config = bounded(app)
    config.load()
    config.ssl = listener.tls.context("http/1.1") if listener.tls else None
    server = _Server(config, on_exit)
    server.run(sockets=[bound])
    return 0 if server.started else 1
