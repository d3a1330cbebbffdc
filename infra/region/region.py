"""One region from one file: its Redis Cluster (when it is the region's own), its nodes and its sync service."""

from __future__ import annotations

import functools
import http.client
import json
import ssl
import sys
import time
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from infra import install
from infra.install import Say, silent
from infra.processes import (
    Process,
    ProcessDirectory,
    StartFailed,
    check_wanted,
    refuse_taken,
    stop,
    wait_ready,
)
from infra.region.redis_cluster import OwnCluster, server_name
from infra.region.reshape import Reshape
from services.settings import InvalidSettings, RegionSettings, load_region

SERVICE_READY_S = 40.0
"""How long a node or a sync service may take to answer; a busy machine starts a dozen at once."""
DRAIN_S = 30.0
"""How long a node may take to answer what it has begun."""
READY_AGAIN_S = 30.0
"""How long a part that was started anew may take to be ready."""


class Region:
    """A region whose configuration is the file ``config``.  ``services``: the package of its processes.

    Every method may be called at any time, also after a crash of anything.  Raises InvalidSettings for a
    wrong file, StartFailed when something does not come up (what did come up stays, ``down`` ends it).
    """

    def __init__(self, config: Path, *, services: str = "services") -> None:
        self.config = config.resolve()
        self.settings: RegionSettings = load_region(self.config)
        self.processes = ProcessDirectory(self.settings.state_dir)
        self._services = services

    # ---- what callers do

    def up(
        self, say: Say = silent, *, ready_s: float = 0.0, before_sync: Callable[[], None] = lambda: None
    ) -> list[str]:
        """Start whatever does not run, and wait until every process answers.

        ``before_sync`` is called before the sync service is started, and may wait for what only that needs.
        Then wait up to ``ready_s`` until all are ready too; those that are not.  (A node without rules, or a
        sync service without Kafka, runs but is not ready.)
        """
        self.settings.key_secret()
        with self.processes.locked():
            cluster = self.cluster()
            if cluster is not None:
                say("Redis Cluster")
                cluster.start()
            say("nodes")
            self._start_and_wait(self._node_names())
            before_sync()
            say("sync service")
            self._start_and_wait(["sync"])
            say("runs")
            return self._wait_all_ready(ready_s)

    def drain(self, say: Say = silent) -> list[str]:
        """End the nodes one after another, each when it has answered what it began; those that did not end."""
        left = []
        with self.processes.locked():
            for name in self._node_names():
                process = self.processes.find(name)
                if process is None:
                    continue
                say(f"draining {name}")
                if stop([process], patience_s=DRAIN_S, kill=False):
                    left.append(name)
            self.processes.forget(self._node_names())
        return left

    def restart(self, say: Say = silent) -> None:
        """End and start the nodes one after another, each when the one before is ready, then the sync service.

        So code or settings change under load: a node ends when it has answered what it began.  Raises StartFailed
        with the first that does not come back ready; those after it still run as they did.
        """
        with self.processes.locked():
            for name in self._service_names():
                process = self.processes.find(name)
                say(f"restarting {name}")
                if process is not None and stop([process], patience_s=DRAIN_S, kill=False):
                    raise StartFailed(f"{name} did not end within {DRAIN_S:.0f} s; it still runs as it did")
                self._start_and_wait([name])
                if not answers_within(f"{self.url_of(name)}/readyz", READY_AGAIN_S):
                    raise StartFailed(f"{name} runs but is not ready; see {self.url_of(name)}/readyz and its log")

    def down(self, say: Say = silent) -> None:
        """End everything: nodes first, so that the agent still reports what they counted, Redis last."""
        with self.processes.locked():
            say("nodes")
            stop(self._find(self._node_names()), patience_s=10.0)
            say("sync service")
            stop(self._find(["sync"]), patience_s=10.0)
            say("Redis")
            # By their pid files: the file's ports may have changed since they were started.
            stop(self.processes.running().values(), patience_s=5.0)
            self.processes.forget(self.processes.known())
            say("stopped")

    def status(self) -> dict[str, Any]:
        """What runs: pids (None: it does not run, or systemd runs it) and whether each part answers."""
        cluster = self.cluster()
        return {
            "region": self.settings.name,
            "redis": cluster.describe() if cluster else [{"server": at} for at in self.settings.redis.servers],
            "nodes": [
                {"node": number, **self._status_of(f"node-{number}", "readyz")}
                for number in range(1, len(self.settings.check_api.ports) + 1)
            ],
            "sync": self._status_of("sync", "readyz"),
        }

    def reshape_redis(
        self, end_server: Callable[[int], None] | None = None, old_ports: Sequence[int] = ()
    ) -> Reshape:
        """What brings the running cluster to what the file says.  Raises InvalidSettings when it is not ours.

        ``old_ports``: of servers that run, where somebody else started them; ``end_server`` ends one of those.
        """
        cluster = self.cluster()
        if cluster is None:
            problem = "is needed: this region's Redis is somebody else's"
            raise InvalidSettings(str(self.config), [("redis.own", problem)])
        ours = [int(name.removeprefix("redis-")) for name in self.processes.running() if name.startswith("redis-")]
        consent_s = self.settings.times().consent_us / 1e6
        return Reshape(
            cluster, sorted({*ours, *old_ports}), self._holds, consent_s + 5.0, end_server or self._end_redis
        )

    def own_redis_ports(self) -> list[int]:
        """The ports of the region's own Redis, as the file has them."""
        return self.settings.redis.own.ports() if self.settings.redis.own is not None else []

    def _holds(self, port: int) -> bool:
        """Whether the agent has a session at that server."""
        token = self.settings.sync.token
        agent = ask(f"{self.settings.sync.url}/v1/region", token.get_secret_value() if token else None).get("agent")
        points = agent.get("points", []) if isinstance(agent, dict) else []
        return any(
            point["point"].partition("/")[0].endswith(f":{port}") and (point.get("session_left_ms") or 0) > 0
            for point in points
        )

    def _end_redis(self, port: int) -> None:
        process = self.processes.find(server_name(port))
        if process is not None:
            stop([process], patience_s=10.0)
        self.processes.forget([server_name(port)])

    def cluster(self) -> OwnCluster | None:
        """The region's own Redis Cluster; None: it is somebody else's."""
        redis = self.settings.redis
        if redis.own is None:
            return None
        files = self.settings.state_dir / "redis"
        return OwnCluster(redis, redis.own, self.processes, files, str(install.redis_server()))

    # ---- how

    def _wait_all_ready(self, patience_s: float) -> list[str]:
        end = time.monotonic() + patience_s
        while True:
            check_wanted()
            left = [name for name in self._service_names() if not answers(f"{self.url_of(name)}/readyz")]
            if not left or time.monotonic() >= end:
                return left
            time.sleep(0.1)

    def _node_names(self) -> list[str]:
        return [f"node-{number}" for number in range(1, len(self.settings.check_api.ports) + 1)]

    def _service_names(self) -> list[str]:
        return [*self._node_names(), "sync"]

    def url_of(self, name: str) -> str:
        """Where ``node-N`` or ``sync`` is called from this machine."""
        if name == "sync":
            return self.settings.sync.url
        return self.settings.check_api.urls()[int(name.removeprefix("node-")) - 1]

    def _start_and_wait(self, names: list[str]) -> None:
        started = {name: self._start(name) for name in names}
        for name, process in started.items():
            lives = functools.partial(answers, f"{self.url_of(name)}/livez")
            wait_ready(self.processes, process, lives, patience_s=SERVICE_READY_S)

    def _start(self, name: str) -> Process:
        running = self.processes.find(name)
        if running is not None:
            return running
        config = ["--config", str(self.config)]
        if name == "sync":
            refuse_taken(self.settings.sync.host, self.settings.sync.port)
            command = [sys.executable, "-m", f"{self._services}.sync_service", *config]
        else:
            number = int(name.removeprefix("node-"))
            refuse_taken(self.settings.check_api.host, self.settings.check_api.port(number))
            grpc_port = self.settings.grpc.port(number)
            if grpc_port is not None:
                refuse_taken(self.settings.grpc.host, grpc_port)
            command = [sys.executable, "-m", f"{self._services}.check_api", *config, "--node", str(number)]
        return self.processes.start(name, command)

    def _find(self, names: list[str]) -> list[Process]:
        found = [self.processes.find(name) for name in names]
        return [process for process in found if process is not None]

    def _status_of(self, name: str, probe: str) -> dict[str, Any]:
        process = self.processes.find(name)
        url = self.url_of(name)
        return {"url": url, "pid": process.pid if process else None, "ready": answers(f"{url}/{probe}")}


def answers_within(url: str, patience_s: float) -> bool:
    """Ask until ``answers(url)``; False when it does not within ``patience_s``."""
    end = time.monotonic() + patience_s
    while not answers(url):
        check_wanted()
        if time.monotonic() >= end:
            return False
        time.sleep(0.1)
    return True


def answers(url: str, timeout_s: float = 1.0) -> bool:
    """Whether a GET of ``url``, of a service on this machine, is answered with 200.

    Nothing secret is asked or sent, so by https no certificate is held against a name.  A service that answers only
    callers who show one (``tls.client_ca``) shakes hands and hangs up, which is all the answer there is.
    """
    parts = urllib.parse.urlsplit(url)
    connection = _connection(parts, timeout_s)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == 200
    except http.client.RemoteDisconnected:
        return parts.scheme == "https"
    except (http.client.HTTPException, OSError):
        return False
    finally:
        connection.close()


def ask(url: str, token: str | None, timeout_s: float = 2.0) -> dict[str, Any]:
    """The JSON document that a service on this machine answers a GET with; nothing where it answers with none."""
    parts = urllib.parse.urlsplit(url)
    connection = _connection(parts, timeout_s)
    try:
        connection.request("GET", parts.path, headers={"Authorization": f"Bearer {token}"} if token else {})
        document = json.loads(connection.getresponse().read())
    except (http.client.HTTPException, OSError, ValueError):
        return {}
    finally:
        connection.close()
    return document if isinstance(document, dict) else {}


def _connection(parts: urllib.parse.SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    if parts.scheme != "https":
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    context = ssl._create_unverified_context()
    return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout_s, context=context)
