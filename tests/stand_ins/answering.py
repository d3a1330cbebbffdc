"""A process that answers every GET with 200 until SIGTERM; with a file ``stubborn`` in its state, not even then."""

from __future__ import annotations

import argparse
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType

from services.settings import load_region


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve(port: int, state_dir: Path) -> None:
    def end(_number: int, _frame: FrameType | None) -> None:
        if not (state_dir / "stubborn").exists():
            sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    print(f"listening on {port}", flush=True)
    ThreadingHTTPServer(("127.0.0.1", port), _Answer).serve_forever()


def node() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--node", type=int, required=True)
    arguments = parser.parse_args()
    settings = load_region(arguments.config)
    serve(settings.check_api.port(arguments.node), settings.state_dir)


def sync() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    settings = load_region(parser.parse_args().config)
    serve(settings.sync.port, settings.state_dir)
