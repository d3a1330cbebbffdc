"""A gateway as a process, run with the example configuration that is given out, and what stands around it."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from infra import install
from tests.unit.check_api.test_process import free_port

EXAMPLES: Final = Path(__file__).resolve().parents[2] / "infra" / "gateways"
WITHIN_MS: Final = 1500
"""What a test's machine may take where the examples give a node 50 ms."""


@dataclass
class Application:
    """What stands behind a gateway: answers with what it was asked, or with the status that the path says."""

    port: int
    asked: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def application() -> Iterator[Application]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            running.asked.append(f"{self.command} {self.path} {body.decode()}".strip())
            status = int(self.path.removeprefix("/status/")) if self.path.startswith("/status/") else 200
            self.send_response(status)
            said = b"from the application"
            self.send_header("content-length", str(len(said)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(said)

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    running = Application(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def silent_node() -> Iterator[str]:
    """The address of something that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


class Gateway:
    """One running gateway.  ``url``: where it listens."""

    def __init__(self, kind: str, directory: Path, nodes: list[str], application: Application) -> None:
        self.kind = kind
        self._directory = directory
        port, inner = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        places = {
            "127.0.0.1:8101": nodes[0],
            "127.0.0.1:8102": nodes[1],
            "127.0.0.1:3000": application.address,
            "127.0.0.1:8080": f"127.0.0.1:{port}",
            "127.0.0.1:8189": f"127.0.0.1:{inner}",
            "50ms": f"{WITHIN_MS}ms",
            "timeout: 0.05s": f"timeout: {WITHIN_MS / 1000}s",
            "ANSWER_WITHIN_MS = 150": f"ANSWER_WITHIN_MS = {3 * WITHIN_MS}",
        }
        directory.mkdir(parents=True)
        # Envoy names a port without its address.
        for place in ("8101", "8102", "3000", "8080"):
            used = places[f"127.0.0.1:{place}"].rpartition(":")[2]
            places[f"port_value: {place}}}"] = f"port_value: {used}}}"
        for example in (EXAMPLES / kind).iterdir():
            text = example.read_text()
            for given, used in places.items():
                text = text.replace(given, used)
            (directory / example.name).write_text(text)

    def start(self) -> None:
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(), cwd=self._directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        until = time.monotonic() + 10
        while True:
            assert self._process.poll() is None, self.log()
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
                return
            except OSError:
                assert time.monotonic() < until, self.log()
                time.sleep(0.02)

    def _command(self) -> list[str]:
        here = self._directory
        if self.kind == "nginx":
            # Beside the example's own lines: in the foreground, in this directory, with few workers.
            lines = f"daemon off; pid {here}/pid; error_log stderr;"
            places = "".join(
                f"{name}_temp_path {here}/{name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            )
            config = here / "nginx.conf"
            text = config.read_text().replace("worker_processes auto;", "worker_processes 1;")
            config.write_text(text.replace("http {\n", "http {\n    " + places + "\n", 1))
            return [str(install.nginx()), "-p", str(here), "-c", str(config), "-g", lines]
        if self.kind == "caddy":
            return [str(install.caddy()), "run", "--config", str(here / "Caddyfile"), "--adapter", "caddyfile"]
        if self.kind == "envoy-ext-authz":
            options = ["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning"]
            return [str(install.envoy()), "-c", str(here / "envoy.yaml"), *options]
        return [str(install.haproxy()), "-db", "-f", str(here / "haproxy.cfg")]

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def log(self) -> str:
        return (self._directory / "log").read_text()


@contextmanager
def running(kind: str, directory: Path, nodes: list[str], behind: Application) -> Iterator[Gateway]:
    shutil.rmtree(directory, ignore_errors=True)
    gateway = Gateway(kind, directory, nodes, behind)
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()


def problem(text: str) -> str:
    """The last word of a problem's type."""
    return str(json.loads(text)["type"]).rpartition("#")[2]
