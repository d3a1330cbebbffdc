"""Who is called: makes faults in a local system, and runs what the runbook names."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

from global_sync.rule_states import DomainState, encode_parts
from global_sync.transport.base import RULES
from global_sync.transport.kafka import KafkaOptions, KafkaTransport
from infra.deploy_tools import node_exporter, redis_exporter
from infra.install import redis_server
from infra.processes import Process, ProcessDirectory
from tests.chaos.load import Stream, written
from tests.e2e.alerting import Prometheus
from tests.e2e.system import CLI, ROOT, LocalSystem

RULES_FILE = Path(__file__).with_name("rules.yaml")
ACCESS = '10.0.0.1 - - [30/Nov/2026:10:00:00 +0000] "GET /shared HTTP/1.1" 200 5 "-" "-"\n'
RUNBOOK = ROOT / "docs" / "runbook.md"
BATCH = 500
MORE_WORDS = {
    "apportion plan": ["--checks-per-second", "10000", "--keys", "100000", "--regions", "3"],
}
"""What a reader adds to a command."""
NEWER = "written-by-a-newer-version"


def commands_of(alert: str) -> list[str]:
    """What the alert's section of the runbook says to run."""
    section = RUNBOOK.read_text().partition(f"\n## {alert}\n")[2].partition("\n## ")[0]
    return commands_in(section)


def commands_in(text: str) -> list[str]:
    return re.findall(r"`((?:apportion|redis-cli) [^`]+)`", text)


class Desk:
    """``said``: what each command of the runbook has printed.  ``looked_at``: alerts that were worked at."""

    def __init__(self, system: LocalSystem, watch: Prometheus, directory: Path) -> None:
        self.system, self.watch = system, watch
        self.said: dict[str, str] = {}
        self.looked_at: set[str] = set()
        self._directory = directory
        self._access_log = directory / "access.log"
        self._access_log.write_text(ACCESS * 100)
        self._children: list[subprocess.Popen[bytes]] = []
        self._load: subprocess.Popen[bytes] | None = None

    # ---- what is asked

    def ask(self, rates: dict[str, float]) -> None:
        """From now on, these checks a second, of one client."""
        self._end_load()
        streams = [
            Stream(region, "shared", self.system.nodes(region), ["one"], rate) for region, rate in rates.items()
        ]
        spec, log = self._directory / "load.json", self._directory / "answers.jsonl"
        spec.write_text(written(streams))
        command = [sys.executable, "-m", "tests.chaos.load", str(spec), str(log)]
        self._load = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)

    def check_many(self, region: str, clients: int) -> None:
        """As many clients, once each at every node of the region."""
        for url in self.system.nodes(region):
            for first in range(0, clients, BATCH):
                checks = [
                    {"client_key": f"many-{number}", "resource": "GET /regional"}
                    for number in range(first, first + BATCH)
                ]
                self.system.http.post(f"{url}/v1/check:batch", json={"checks": checks}).raise_for_status()

    def _end_load(self) -> None:
        if self._load is not None:
            self._load.terminate()
            self._load.wait(20)
            self._load = None

    # ---- what the runbook says

    def look(self, alert: str, *, hub_answers: bool = True) -> None:
        """Run every command of its section; without the hub some can only say so."""
        self.looked_at.add(alert)
        for command in commands_of(alert):
            self.said[command] = self._run(command, fails_too=not hub_answers)

    def _run(self, command: str, *, fails_too: bool = False) -> str:
        """With what a reader fills in: which region, which server, which file."""
        program, *words = shlex.split(command)
        config = self._config("ap-south")
        if program == "redis-cli":
            server = {"HOST": "127.0.0.1", "PORT": str(self.port_that_answers("ap-south"))}
            starts = [shutil.which("redis-cli") or str(redis_server().with_name("redis-cli"))]
            words = [server.get(word, word) for word in words]
        else:
            starts = CLI
            needs = {"region": str(config), "hub": str(self.system.directory / "hub.toml")}
            words += ["-c", needs[words[0]]] if words[0] in needs and "-c" not in words else []
            words += MORE_WORDS.get(command, [])
            words += [str(self._access_log), "--rules", str(RULES_FILE)] if words[:1] == ["rehearse"] else []
        environment = {**os.environ, "APPORTION_CONTROL_URL": self.system.addresses["control_api"]}
        done = subprocess.run(
            [*starts, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        said = done.stdout + done.stderr
        # 1: it ran, and says that something is wrong.
        assert fails_too or done.returncode in (0, 1), f"{command}: {done.returncode}: {said}"
        assert "Traceback" not in said, said
        assert said.strip(), f"{command} says nothing"
        return said

    # ---- the system

    def _config(self, region: str) -> Path:
        return Path(self.system.addresses["regions"][region]["config"])

    def region(self, command: str, region: str) -> None:
        done = subprocess.run(
            [*CLI, "region", command, "-c", str(self._config(region))],
            cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def region_up(self, region: str) -> None:
        self.region("up", region)

    def broker(self) -> Process:
        return _running(self.system.directory, "kafka")

    def sync_service(self, region: str) -> Process:
        return _running(self._config(region).parent, "sync")

    def kill_sync(self, region: str) -> None:
        self.sync_service(region).signal(signal.SIGKILL)

    def _redis_server(self, region: str, port: int) -> Process:
        return _running(self._config(region).parent, f"redis-{port}")

    def _ports(self, region: str) -> list[int]:
        return [int(server["port"]) for server in self.system.addresses["regions"][region]["redis"]]

    def shard(self, region: str) -> list[Process]:
        """A primary and its replicas."""
        port = self._primary_ports(region)[0]
        with redis.Redis(port=port, decode_responses=True) as client:
            told = client.info("replication")
        replicas = [int(told[f"slave{number}"]["port"]) for number in range(int(told["connected_slaves"]))]
        return [self._redis_server(region, one) for one in (port, *replicas)]

    def primaries(self, region: str) -> list[Process]:
        return [self._redis_server(region, port) for port in self._primary_ports(region)]

    def _primary_ports(self, region: str) -> list[int]:
        found = []
        for port in self._ports(region):
            with redis.Redis(port=port, decode_responses=True) as client:
                found += [port] if client.info("replication")["role"] == "master" else []
        return found

    def port_that_answers(self, region: str) -> int:
        for port in self._ports(region):
            try:
                with redis.Redis(port=port, socket_timeout=1) as client:
                    client.ping()
                    return port
            except redis.RedisError:
                continue
        return self._ports(region)[0]

    def kill_redis(self, region: str) -> None:
        for port in self._ports(region):
            self._redis_server(region, port).signal(signal.SIGKILL)

    def forget_everything(self, region: str) -> None:
        """The region is new: no process, no file but its own."""
        self.region("down", region)
        for path in self._config(region).parent.iterdir():
            if path.is_dir() and path.name != "logs":
                shutil.rmtree(path)
        self.region_up(region)

    @contextmanager
    def stopped(self, *processes: Process) -> Iterator[None]:
        """They may be killed meanwhile."""
        for process in processes:
            process.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in processes:
                process.signal(signal.SIGCONT)

    def bound_memory(self, over_used: float) -> None:
        """The first server of a region may use so many times of what it uses; 0: what it likes."""
        with redis.Redis(port=self.watched_redis, decode_responses=True) as client:
            used = int(client.info("memory")["used_memory"])
            client.config_set("maxmemory", int(used * over_used))

    @property
    def watched_redis(self) -> int:
        return self._ports("us-east")[0]

    def start_exporters(self, redis_at: int, node_at: int) -> None:
        of_redis = [redis_exporter(), f"-redis.addr=127.0.0.1:{self.watched_redis}"]
        of_redis += [f"-web.listen-address=127.0.0.1:{redis_at}"]
        of_machine = [node_exporter(), "--collector.disable-defaults", "--collector.timex"]
        of_machine += [f"--web.listen-address=127.0.0.1:{node_at}"]
        for command in (of_redis, of_machine):
            child = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self._children.append(child)

    # ---- rules

    def change_a_rule(self) -> None:
        rule = {"match": {"resource": "POST /once"}, "capacity": 99, "refill": "1/day"}
        control = self.system.addresses["control_api"]
        answer = self.system.http.put(f"{control}/rules/hundred", json=rule)
        # The answer waits for nobody but the leader.
        assert answer.status_code == 200, answer.text

    def accept_rules_of_a_newer_version(self) -> None:
        """What a newer leader would write: a set with a word that is not known here."""
        rule = {"id": "new", "capacity": 5, "refill": "1/s", "colour": "red"}
        version = self._newer_version()
        state = DomainState(NEWER, {"domain": NEWER, "rules": [rule]}, {"new": 1}, version, bases_version=0)
        asyncio.run(self._write(state))

    def take_out_what_is_newer(self) -> None:
        state = DomainState(NEWER, {"domain": NEWER, "rules": []}, {}, self._newer_version(), bases_version=0)
        asyncio.run(self._write(state))

    def _newer_version(self) -> int:
        """Above every change so far: agents look at what is newer than all that they have."""
        nodes = self.system.nodes(*self.system.addresses["regions"])
        return 1 + max(self.system.http.get(f"{url}/v1/node").json()["rules_version"] for url in nodes)

    async def _write(self, state: DomainState) -> None:
        transport = KafkaTransport(KafkaOptions(self.system.addresses["kafka"]["bootstrap"]))
        await transport.start()
        try:
            for key, value in encode_parts(state, epoch=1):
                await transport.send(RULES, [value], key=key)
        finally:
            await transport.close()

    def close(self) -> None:
        self._end_load()
        for child in self._children:
            child.terminate()
            child.wait(20)


def _running(directory: Path, name: str) -> Process:
    process = ProcessDirectory(directory).find(name)
    assert process is not None, f"{name} does not run"
    return process
