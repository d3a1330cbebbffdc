"""A real Redis Cluster for tests: three primaries and three replicas on this machine, gone when the test ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import redis

from tests.contract.redis_user import SERVER_ARGUMENTS

NODE_TIMEOUT_MS = 1000
PORTS = range(22000, 22100)
BUS_ABOVE = 100
_UP_WITHIN_S = 20.0


def _free_ports(count: int) -> list[int]:
    """The first run of ports that nobody holds, nor the bus ports above them."""
    for first in range(PORTS.start, PORTS.stop - count, count):
        ports = [first + i for i in range(count)]
        if all(_is_free(port) and _is_free(port + BUS_ABOVE) for port in ports):
            return ports
    raise AssertionError(f"no {count} free ports in {PORTS}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_until(what: str, holds: Callable[[], bool], within_s: float) -> float:
    """Poll until ``holds()``; returns how long it took, fails when it takes too long."""
    start = time.monotonic()
    while time.monotonic() - start < within_s:
        if holds():
            return time.monotonic() - start
        time.sleep(0.01)
    raise AssertionError(f"not within {within_s} s: {what}")


async def eventually(what: str, holds: Callable[[], Awaitable[bool]], within_s: float) -> None:
    """As ``wait_until``, beside other tasks."""
    try:
        async with asyncio.timeout(within_s):
            while not await holds():  # noqa: ASYNC110 - other processes set no events here
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {within_s} s: {what}") from None


class RedisCluster:
    """``primaries`` primaries on the first ports, a replica for each on the next (by place: i + primaries).

    ``settings``: further ones of the server of a port.
    """

    def __init__(
        self,
        directory: Path,
        primaries: int = 3,
        *,
        settings: Callable[[int], Mapping[str, object]] = lambda _: {},
    ) -> None:
        self.directory = directory
        self._settings = settings
        self.primaries = primaries
        self.ports = _free_ports(2 * primaries)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._clients: dict[int, redis.Redis] = {}

    # ---- life

    def start(self) -> None:
        for port in self.ports:
            self.start_server(port)
        for port in self.ports:
            wait_until(f"{port} answers", lambda port=port: self._answers(port), _UP_WITHIN_S)
        for i, port in enumerate(self.ports):
            self.client(port).execute_command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        first = self.client(self.ports[0])
        for port in self.ports[1:]:
            bus = self._settings(port).get("cluster-announce-bus-port", port + BUS_ABOVE)
            first.execute_command("CLUSTER", "MEET", "127.0.0.1", port, bus)
        bounds = [16384 * i // self.primaries for i in range(self.primaries + 1)]
        for i in range(self.primaries):
            span = (bounds[i], bounds[i + 1] - 1)
            self.client(self.ports[i]).execute_command("CLUSTER", "ADDSLOTSRANGE", *span)
        wait_until("everybody knows everybody", self._all_met, _UP_WITHIN_S)
        for i in range(self.primaries):
            self.replicate(self.ports[self.primaries + i], self.ports[i])
        wait_until("the cluster is whole", self.whole, _UP_WITHIN_S)

    def start_server(self, port: int) -> None:
        directory = self.directory / str(port)
        directory.mkdir(parents=True, exist_ok=True)
        binary = shutil.which("redis-server")
        assert binary is not None, "redis-server is not installed"
        settings = {
            "port": port,
            "cluster-port": port + BUS_ABOVE,
            "bind": "127.0.0.1",
            "dir": directory,
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": NODE_TIMEOUT_MS,
            "cluster-require-full-coverage": "no",
            "cluster-replica-validity-factor": 0,
            "repl-diskless-sync-delay": 0,
            "save": "",
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
            "enable-debug-command": "local",
            "logfile": directory / "log",
            **self._settings(port),
        }
        command = [binary, *SERVER_ARGUMENTS]
        for name, value in settings.items():
            command += [f"--{name}", str(value)]
        self._processes[port] = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def stop(self) -> None:
        for client in self._clients.values():
            client.close()
        for port in list(self._processes):
            self.kill(port)

    def kill(self, port: int) -> None:
        """kill -9."""
        process = self._processes.pop(port, None)
        if process is not None:
            process.kill()
            process.wait()

    def freeze(self, port: int) -> None:
        os.kill(self._processes[port].pid, signal.SIGSTOP)

    def thaw(self, port: int) -> None:
        os.kill(self._processes[port].pid, signal.SIGCONT)

    # ---- looking and changing

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]

    def client(self, port: int) -> redis.Redis:
        if port not in self._clients:
            self._clients[port] = redis.Redis(
                port=port, socket_timeout=2, retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0)
            )
        return self._clients[port]

    def id_of(self, port: int) -> str:
        return self.client(port).execute_command("CLUSTER", "MYID").decode()

    def role(self, port: int) -> str:
        try:
            return self.client(port).execute_command("ROLE")[0].decode()
        except redis.RedisError:
            return "gone"

    def replicate(self, port: int, primary: int) -> None:
        self.client(port).execute_command("CLUSTER", "REPLICATE", self.id_of(primary))

    def owner_of(self, slot: int) -> int:
        """The port of the server that says that it serves ``slot``."""
        for port in self._processes:
            for line in self.nodes(port):
                flags = line[2].split(",")
                if "myself" in flags and "master" in flags:
                    for span in line[8:]:
                        first, _, last = span.partition("-")
                        if first.isdigit() and int(first) <= slot <= int(last or first):
                            return port
        raise AssertionError(f"nobody serves slot {slot}")

    def nodes(self, port: int) -> list[list[str]]:
        # redis-py turns CLUSTER NODES into a mapping; the lines as they are say more.
        try:
            reply = self.client(port).connection_pool
            connection = reply.get_connection()
        except redis.RedisError:
            return []
        try:
            connection.send_command("CLUSTER", "NODES")
            text = connection.read_response().decode()
        except redis.RedisError:
            return []
        finally:
            reply.release(connection)
        return [line.split(" ") for line in text.splitlines()]

    def begin_move(self, slot: int, source: int, target: int, *, with_keys: bool = True) -> None:
        """Leave a slot on the move: its keys moved already, or not yet."""
        self.client(target).execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        self.client(source).execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
        if with_keys:
            self.move_keys(slot, source, target)

    def end_move(self, slot: int, source: int, target: int) -> None:
        self.move_keys(slot, source, target)
        for port in (target, source):
            self.client(port).execute_command("CLUSTER", "SETSLOT", slot, "NODE", self.id_of(target))

    def move_slot(self, slot: int, source: int, target: int) -> None:
        """Move one slot with its keys, as redis-cli does."""
        self.begin_move(slot, source, target)
        self.end_move(slot, source, target)

    def move_keys(self, slot: int, source: int, target: int) -> None:
        keys = self.client(source).execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1000)
        if keys:
            self.client(source).execute_command("MIGRATE", "127.0.0.1", target, "", 0, 5000, "KEYS", *keys)

    def _answers(self, port: int) -> bool:
        try:
            return bool(self.client(port).ping())
        except redis.RedisError:
            return False

    def _all_met(self) -> bool:
        return all(
            len([n for n in self.nodes(port) if "handshake" not in n[2]]) == len(self.ports) for port in self.ports
        )

    def whole(self) -> bool:
        """Every server says that all is well, and every primary has a replica that follows."""
        for port in self.ports:
            try:
                info = self.client(port).execute_command("CLUSTER", "INFO")
                role = self.client(port).execute_command("ROLE")
            except redis.RedisError:
                return False
            text = info.decode() if isinstance(info, bytes) else str(info)
            if not ("cluster_state:ok" in text or "'cluster_state': 'ok'" in text):
                return False
            if role[0] == b"master" and not role[2]:
                return False
            if role[0] == b"slave" and role[3] != b"connected":
                return False
        return True
