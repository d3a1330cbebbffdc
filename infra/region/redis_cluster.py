"""A Redis Cluster on this machine: its servers are started, made one cluster, and watched until they agree.

Everything is told from what the servers say of themselves, so that the same steps make a new cluster, bring
back servers that died, and do nothing to one that is whole.  No server keeps anything on disk: what a region
must remember is written again by its nodes and its agent.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.processes import Process, ProcessDirectory, StartFailed, check_wanted, refuse_taken, stop, wait_ready
from infra.region.resp import Server, ServerError
from services.settings import OwnRedis, RedisSettings

SLOTS = 16_384
REDIS_FILES = Path(__file__).resolve().parent.parent / "redis"
"""What a server of a region's cluster is told everywhere: here, in containers, on Kubernetes."""
ADMIN = "admin"
"""The user who replicates and forms the cluster, where nodes and sync service have a user of their own."""


def commands_needed() -> str:
    """The commands that nodes and sync service call, as rules of Redis's ACL."""
    return (REDIS_FILES / "commands.acl").read_text().strip()


def _digest(password: str) -> str:
    return hashlib.sha256(password.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ServerView:
    """One server as another one sees it (a line of CLUSTER NODES)."""

    id: str
    port: int
    flags: frozenset[str]
    primary_id: str
    slots: int
    owned: tuple[range, ...] = ()
    leaving: tuple[tuple[int, str], ...] = ()
    """(slot, id of where it goes): moves that have begun, as only the server itself tells."""

    @property
    def is_primary(self) -> bool:
        return "master" in self.flags

    @property
    def is_lost(self) -> bool:
        return bool(self.flags & {"fail", "noaddr", "handshake"})


@dataclass(slots=True)
class OwnCluster:
    """The servers of ``settings.own``, whose files are under ``directory``."""

    settings: RedisSettings
    own: OwnRedis
    directory: ProcessDirectory
    files: Path
    binary: str
    _servers: dict[int, Server] = field(default_factory=dict)

    # ---- what callers do

    def start(self, *, patience_s: float = 30.0) -> None:
        """Start what does not run, and wait until the whole cluster serves.  Raises StartFailed.

        A cluster of which a part survived and that cannot be mended in half the time is made anew.
        """
        mending = bool(self.processes())
        try:
            self._start_and_assemble(patience_s / 2 if mending else patience_s)
        except StartFailed:
            if not mending:
                raise
            self.stop()
            self._start_and_assemble(patience_s)

    def _start_and_assemble(self, patience_s: float) -> None:
        with self.talking():
            for port, process in self._start_servers().items():
                answers = functools.partial(self.answers, port)
                wait_ready(self.directory, process, answers, patience_s=10.0)
            self._assemble(patience_s)

    def assemble(self, *, patience_s: float = 60.0) -> None:
        """Make one cluster of servers that somebody else has started.  Raises StartFailed."""
        with self.talking():
            self._assemble(patience_s)

    def configure(self, port: int) -> Path:
        """Write what the server on ``port`` is told at its start; the file, which only we can read."""
        place = self.files / str(port)
        place.mkdir(parents=True, exist_ok=True)
        configuration = place / "redis.conf"
        configuration.touch(mode=0o600)
        configuration.write_text(self._configuration(port, place))
        return configuration

    def processes(self) -> dict[int, Process]:
        """The running servers by port."""
        found = {port: self.directory.find(server_name(port)) for port in self.own.ports()}
        return {port: process for port, process in found.items() if process is not None}

    def stop(self) -> None:
        """End every server; nothing is saved."""
        stop(self.processes().values(), patience_s=5.0)
        self.directory.forget([server_name(port) for port in self.own.ports()])

    def describe(self) -> list[dict[str, Any]]:
        """Every server: port, pid (None: not running), role and the cluster's state as it sees it."""
        running = self.processes()
        with self.talking():
            return [self._describe(port, running.get(port)) for port in self.own.ports()]

    # ---- servers

    def _start_servers(self) -> dict[int, Process]:
        running = self.processes()
        missing = [port for port in self.own.ports() if port not in running]
        for port in missing:
            for needed in (port, self.own.bus_port(port)):
                refuse_taken(self.own.host, needed)
        if not running:
            # Nobody is left who knows the old cluster: a new one is whole in 3 s, an old one in many more.
            shutil.rmtree(self.files, ignore_errors=True)
        started = {}
        for port in missing:
            configuration = self.configure(port)
            command = [self.binary, str(configuration)]
            started[port] = self.directory.start(server_name(port), command, cwd=configuration.parent)
        return started

    def _configuration(self, port: int, place: Path) -> str:
        own = self.own
        lines = [
            f"include {_quoted(REDIS_FILES / 'redis.conf')}",
            f"bind {own.host}",
            *self._listening(port),
            f"cluster-port {own.bus_port(port)}",
            f"cluster-config-file {_quoted(place / 'nodes.conf')}",
            f"cluster-node-timeout {own.node_timeout_ms}",
            f"maxmemory {own.maxmemory}",
            f"dir {_quoted(place)}",
            "daemonize no",
            'logfile ""',
            "loglevel notice",
        ]
        return "\n".join(lines + self._access()) + "\n"

    def _listening(self, port: int) -> list[str]:
        own, tls = self.own, self.settings.tls
        if tls is None:
            return [f"port {port}"]
        return [
            "port 0",
            f"tls-port {port}",
            f"tls-cert-file {_quoted(own.certificate)}",
            f"tls-key-file {_quoted(own.key)}",
            f"tls-ca-cert-file {_quoted(tls.ca)}",
            # Whoever shows a certificate must show a good one; whoever shows none needs a password all the same.
            f"tls-auth-clients {'yes' if tls.certificate else 'optional'}",
            "tls-replication yes",
            "tls-cluster yes",
        ]

    def _access(self) -> list[str]:
        if self.settings.password is None:
            return []
        password = self.settings.password.get_secret_value()
        if self.settings.username is None:
            return [f"requirepass {_quoted(password)}", f"masterauth {_quoted(password)}"]
        admin = self.own.admin_password
        secret = admin.get_secret_value() if admin else password
        return [
            "user default off",
            f"user {self.settings.username} on #{_digest(password)} ~rl:* resetchannels -@all {commands_needed()}",
            f"user {ADMIN} on #{_digest(secret)} ~* &* +@all",
            f"masteruser {ADMIN}",
            f"masterauth {_quoted(secret)}",
        ]

    # ---- talking to them

    @contextmanager
    def talking(self) -> Iterator[None]:
        try:
            yield
        finally:
            for server in self._servers.values():
                server.close()
            self._servers.clear()

    def call(self, port: int, *words: str | int) -> Any:
        return self.call_all(port, [words])[0]

    def call_all(self, port: int, commands: Sequence[Sequence[str | int]]) -> list[Any]:
        """The answers of the server on ``port`` to commands that are sent together.  Raises ServerError."""
        server = self._servers.pop(port, None)
        if server is None:
            tls = self.settings.tls.contexts()() if self.settings.tls else None
            server = Server(self.own.host, port, *self.login(), tls)
        try:
            answers = server.call_all(commands)
        except ServerError:
            server.close()
            raise
        self._servers[port] = server
        return answers

    def login(self) -> tuple[str | None, str | None]:
        """The user and the password of whoever forms the cluster."""
        if self.settings.password is None:
            return None, None
        password = self.settings.password.get_secret_value()
        if self.settings.username is None:
            return None, password
        return ADMIN, self.own.admin_password.get_secret_value() if self.own.admin_password else password

    def answers(self, port: int) -> bool:
        try:
            return bool(self.call(port, "PING") == "PONG")
        except ServerError:
            return False

    def view(self, port: int) -> dict[int, ServerView]:
        """The cluster as the server on ``port`` sees it, by port."""
        views = [_parse_line(line) for line in str(self.call(port, "CLUSTER", "NODES")).splitlines()]
        return {view.port: view for view in views if not view.is_lost}

    def info(self, port: int, section: str) -> dict[str, str]:
        text = str(self.call(port, *section.split()))
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    # ---- making them one cluster

    def _assemble(self, patience_s: float) -> None:
        end = time.monotonic() + patience_s
        self.until(end, "the servers to know each other", self._introduce)
        self._deal_slots()
        self.until(end, "every replica to have its primary", self._attach_replicas)
        self.until(end, "cluster_state:ok on every server", self._is_whole)

    def until(self, end: float, what: str, step: Callable[[], bool]) -> None:
        while True:
            check_wanted()
            problem = ""
            try:
                if step():
                    return
            except ServerError as error:
                problem = f" ({error})"
            if time.monotonic() >= end:
                raise StartFailed(
                    f"the Redis Cluster on port {self.own.base_port} waited too long for {what}{problem}"
                )
            time.sleep(0.05)

    def _largest_view(self) -> tuple[int, dict[int, ServerView]]:
        """The server that knows the most slots dealt, and servers; and its view."""
        views = {port: self.view(port) for port in self.own.ports()}
        known = {port: (sum(v.slots for v in view.values()), len(view)) for port, view in views.items()}
        port = max(views, key=lambda port: known[port])
        return port, views[port]

    def _introduce(self) -> bool:
        """Whether everyone knows everyone; whoever is unknown to the server that knows most is introduced."""
        host, view = self._largest_view()
        everyone = set(self.own.ports())
        for port in everyone - set(view):
            if self.view(port).keys() >= everyone:
                continue
            self.call(host, "CLUSTER", "MEET", self.own.host, port, self.own.bus_port(port))
        if everyone - set(view):
            time.sleep(0.1)
            return False
        return all(everyone <= set(self.view(port)) for port in everyone)

    def _deal_slots(self) -> None:
        """Slots that nobody has go to primaries without any, or else to all primaries, in even ranges."""
        _, view = self._largest_view()
        owned = {port: server.slots for port, server in view.items() if server.is_primary}
        if sum(owned.values()) == SLOTS:
            return
        ports = self.own.ports()
        if not any(owned.values()):
            takers = ports[: self.own.primaries]
            for epoch, port in enumerate(ports, start=1):
                # All start with epoch 0: different ones now save the cluster from sorting that out later.
                try:
                    self.call(port, "CLUSTER", "SET-CONFIG-EPOCH", epoch)
                except ServerError:
                    pass  # gossip was faster, and has given it one
            for index, port in enumerate(takers):
                first, last = SLOTS * index // len(takers), SLOTS * (index + 1) // len(takers) - 1
                self.call(port, "CLUSTER", "ADDSLOTSRANGE", first, last)
            return
        taken = self._slots_taken(next(iter(view)))
        free = [slot for slot in range(SLOTS) if slot not in taken]
        wanted = self.own.primaries - sum(1 for slots in owned.values() if slots)
        takers = [port for port in ports if owned.get(port) == 0][: max(wanted, 0)]
        takers = takers or [port for port, slots in owned.items() if slots]
        for index, port in enumerate(takers):
            part = free[len(free) * index // len(takers) : len(free) * (index + 1) // len(takers)]
            if part:
                self.call(port, "CLUSTER", "ADDSLOTS", *part)

    def _slots_taken(self, port: int) -> set[int]:
        taken: set[int] = set()
        for first, last, *_ in self.call(port, "CLUSTER", "SLOTS"):
            taken.update(range(int(first), int(last) + 1))
        return taken

    def _attach_replicas(self) -> bool:
        """Whether every primary has its replicas in sync; a server without slots joins whoever has fewest."""
        _, view = self._largest_view()
        primaries = {server.id: 0 for server in view.values() if server.is_primary and server.slots}
        if len(primaries) < 1 or sum(s.slots for s in view.values()) < SLOTS:
            return False
        for server in view.values():
            if server.primary_id in primaries:
                primaries[server.primary_id] += 1
        for port, server in sorted(view.items()):
            if server.slots or server.primary_id in primaries:
                continue
            fewest = min(primaries, key=lambda id: primaries[id])
            if fewest in {seen.id for seen in self.view(port).values()}:
                self.call(port, "CLUSTER", "REPLICATE", fewest)
                primaries[fewest] += 1
        roles = [self.info(port, "INFO replication") for port in self.own.ports()]
        linked = sum(1 for role in roles if role["role"] == "slave" and role["master_link_status"] == "up")
        return linked == self.own.count - len(primaries)

    def _is_whole(self) -> bool:
        for port in self.own.ports():
            info = self.info(port, "CLUSTER INFO")
            if info["cluster_state"] != "ok" or info["cluster_slots_ok"] != str(SLOTS):
                return False
            if len(self.view(port)) != self.own.count:
                return False
        return True

    # ---- telling

    def _describe(self, port: int, process: Process | None) -> dict[str, Any]:
        told: dict[str, Any] = {"port": port, "pid": process.pid if process else None, "role": None, "state": None}
        if process is None:
            return told
        try:
            server = next(v for v in self.view(port).values() if "myself" in v.flags)
            told["state"] = self.info(port, "CLUSTER INFO")["cluster_state"]
        except (ServerError, StopIteration):
            return told
        told["role"] = "primary" if server.is_primary else "replica"
        told["slots"] = server.slots
        return told


def server_name(port: int) -> str:
    return f"redis-{port}"


def _parse_line(line: str) -> ServerView:
    words = line.split()
    port = int(words[1].split("@")[0].rsplit(":", 1)[1])
    owned, leaving = [], []
    for word in words[8:]:
        if word.startswith("["):
            slot, arrow, target = word.strip("[]").partition("->-")
            if arrow:
                leaving.append((int(slot), target))
            continue
        first, _, last = word.partition("-")
        owned.append(range(int(first), int(last or first) + 1))
    flags = frozenset(words[2].split(","))
    return ServerView(words[0], port, flags, words[3], sum(map(len, owned)), tuple(owned), tuple(leaving))


def _quoted(value: object) -> str:
    """A word of redis.conf."""
    text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{text}"'
