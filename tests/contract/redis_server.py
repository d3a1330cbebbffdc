"""One real redis-server in cluster mode that owns every slot, for tests of the function library."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import redis

from regional_limiter.store.library import Encoded, Library
from tests.contract.redis_user import SERVER_ARGUMENTS

PORTS = range(21000, 21050)
BUS_ABOVE = 50


class RedisServer:
    """Starts on a free port of ``PORTS``; ends its own process by id.  A start that fails is a failed test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> RedisServer:
        try:
            return self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def _start(self) -> RedisServer:
        for port in _free_ports():
            if self._starts_on(port):
                self.client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
                self._wait("serves its slots", lambda: self.client.set("x", 1) and bool(self.client.delete("x")))
                return self
        raise AssertionError(f"no redis-server could be started on {PORTS}: {self._log()}")

    def _starts_on(self, port: int) -> bool:
        """False: somebody else took the port between our look and the start."""
        binary = shutil.which("redis-server")
        assert binary is not None, "redis-server is not installed"
        self.port = port
        settings = {
            "port": port,
            "cluster-port": port + BUS_ABOVE,
            "bind": "127.0.0.1",
            "dir": self._directory,
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-require-full-coverage": "no",
            "save": "",
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
            "logfile": self._directory / "log",
        }
        command = [binary, *SERVER_ARGUMENTS]
        for name, value in settings.items():
            command += [f"--{name}", str(value)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.client = redis.Redis(port=port, socket_timeout=5)
        try:
            self._wait("is ours", lambda: self.client.info("server")["process_id"] == self.pid)
        except _Ended:
            self.client.close()
            return False
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def load(self, library: Library) -> None:
        self.client.function_load(library.text, replace=True)

    def call(self, library: Library, function: str, encoded: Encoded, *more: object) -> list[int | bytes]:
        keys, arguments = encoded
        reply = self.client.fcall(library.functions[function], len(keys), *keys, *arguments, *more)
        assert isinstance(reply, list)
        return reply

    def _wait(self, what: str, holds: Callable[[], bool]) -> None:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            assert self._process is not None
            if self._process.poll() is not None:
                raise _Ended(f"redis-server ended: {self._log()}")
            try:
                if holds():
                    return
            except redis.RedisError:
                pass
            time.sleep(0.02)
        raise AssertionError(f"redis-server on {self.port}: never {what}")

    def _log(self) -> str:
        path = self._directory / "log"
        return path.read_text()[-2000:] if path.exists() else "no log"


class _Ended(AssertionError):
    """The process is gone."""


def _free_ports() -> Iterator[int]:
    for port in PORTS:
        try:
            for candidate in (port, port + BUS_ABOVE):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", candidate))
        except OSError:
            continue
        yield port
