"""The scripts that make a region's cluster in containers and on Kubernetes, run on real servers of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis import exceptions as errors

from infra.region.redis_cluster import REDIS_FILES
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.cluster import ClusterOptions
from regional_limiter.store.connection import ConnectionOptions
from regional_limiter.store.redis_cluster import RedisClusterStore, StoreOptions
from tests.unit.limiter_store import blob_of, check, rule, running

FIRST_PORT = 12850
OTHERS_FIRST_PORT = 12860
PASSWORD, ADMIN_PASSWORD = "of-nodes-and-agents", "of whoever forms the cluster"

pytestmark = pytest.mark.timeout(90)


class Servers:
    """Six servers, each started by start.sh with a folder of its own."""

    def __init__(self, directory: Path, first_port: int) -> None:
        self.directory = directory
        self.ports = list(range(first_port, first_port + 6))
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        secrets = directory / "secrets"
        secrets.mkdir()
        (secrets / "redis_password").write_text(PASSWORD + "\n")
        (secrets / "redis_admin_password").write_text(ADMIN_PASSWORD + "\n")
        self.environment = os.environ | {
            "REDIS_SECRETS": str(secrets),
            "REDIS_CONFIG": str(REDIS_FILES / "redis.conf"),
            "REDIS_COMMANDS": str(REDIS_FILES / "commands.acl"),
            "REDIS_ADDRESS": "127.0.0.1",
            "REDIS_SERVERS": " ".join(f"localhost:{port}" for port in self.ports),
            "REDIS_REPLICAS_EACH": "1",
            "REDIS_PATIENCE_S": "40",
        }

    def start(self, port: int) -> None:
        place = self.directory / str(port)
        (place / "data").mkdir(parents=True, exist_ok=True)
        own = {"REDIS_PORT": str(port), "REDIS_DATA": str(place / "data"), "REDIS_RUN": str(place / "run")}
        self._processes[port] = subprocess.Popen(
            ["sh", str(REDIS_FILES / "start.sh")], env=self.environment | own, stdout=subprocess.DEVNULL
        )

    def start_all(self) -> None:
        for port in self.ports:
            self.start(port)

    def move_to(self, address: str) -> None:
        """From the next start on every server is reached at this loopback address, and nowhere else."""
        config = self.directory / "redis.conf"
        config.write_text((REDIS_FILES / "redis.conf").read_text() + f"bind {address}\n")
        self.environment |= {
            "REDIS_CONFIG": str(config),
            "REDIS_ADDRESS": address,
            "REDIS_SERVERS": " ".join(f"{address}:{port}" for port in self.ports),
        }

    def kill(self, port: int) -> None:
        process = self._processes.pop(port)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for port in list(self._processes):
            self.kill(port)

    def form(self) -> str:
        done = subprocess.run(
            ["sh", str(REDIS_FILES / "form-cluster.sh")],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip().splitlines()[-1]

    def client(self, port: int, user: str = "admin", password: str = ADMIN_PASSWORD) -> redis.Redis:
        return redis.Redis(
            host=self.environment["REDIS_ADDRESS"],
            port=port,
            username=user,
            password=password,
            socket_timeout=5,
            decode_responses=True,
        )

    def wait_for(self, port: int) -> None:
        end = time.monotonic() + 15
        while True:
            try:
                with self.client(port) as client:
                    client.ping()
                return
            except errors.ConnectionError:
                assert time.monotonic() < end, f"{port} does not answer"
                time.sleep(0.1)

    def nodes(self, port: int) -> dict[str, dict[str, Any]]:
        """All servers by their places, as the server at ``port`` knows them."""
        with self.client(port) as client:
            found: dict[str, dict[str, Any]] = client.cluster("NODES")
        return found

    def slots(self, port: int) -> dict[str, list[list[str]]]:
        """The slots of every server by its id, as the server at ``port`` knows them."""
        return {node["node_id"]: node["slots"] for node in self.nodes(port).values()}

    def replicas(self, port: int) -> list[str]:
        """Whose replicas there are, as the server at ``port`` knows them: one id for each."""
        return sorted(node["master_id"] for node in self.nodes(port).values() if "slave" in node["flags"])


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("servers"), FIRST_PORT)
    try:
        servers.start_all()
        assert servers.form() == "form-cluster: 6 servers are one cluster"
        yield servers
    finally:
        servers.stop()


@pytest.fixture
def others(tmp_path: Path) -> Iterator[Servers]:
    """Six more, of which nothing is made yet."""
    servers = Servers(tmp_path, OTHERS_FIRST_PORT)
    try:
        servers.start_all()
        yield servers
    finally:
        servers.stop()


def test_forming_a_cluster_that_is_one_changes_nothing(servers: Servers) -> None:
    with servers.client(FIRST_PORT) as client:
        before = client.execute_command("CLUSTER MYID"), client.cluster("NODES").keys()
        assert servers.form() == "form-cluster: 6 servers are one cluster already"
        assert (client.execute_command("CLUSTER MYID"), client.cluster("NODES").keys()) == before


async def test_a_limiter_works_on_it_as_the_user_of_nodes(servers: Servers, tmp_path: Path) -> None:
    login = ConnectionOptions(username="apportion", password=PASSWORD)
    options = StoreOptions(500, 1000, 1000, ClusterOptions(login))
    store = RedisClusterStore([f"127.0.0.1:{FIRST_PORT}"], ProtocolTimes(), options)
    try:
        await store.cluster.known(5)
        async with running(store, tmp_path, blob_of(rule("a", capacity=2, refill="1/d"))) as limiter:
            outcomes = [(await limiter.check(check("user:1"))).allowed for _ in range(3)]
        assert outcomes == [True, True, False]
    finally:
        await store.close()


@pytest.mark.parametrize("command", ["FLUSHALL", "KEYS *", "CONFIG GET *", "ACL LIST", "SHUTDOWN", "SET other 1"])
def test_the_user_of_nodes_may_nothing_else(servers: Servers, command: str) -> None:
    with (
        servers.client(FIRST_PORT, "apportion", PASSWORD) as client,
        pytest.raises(errors.NoPermissionError),
    ):
        client.execute_command(*command.split())


def test_a_stranger_may_nothing(servers: Servers) -> None:
    with (
        redis.Redis(port=FIRST_PORT, socket_timeout=5) as client,
        pytest.raises(errors.AuthenticationError),
    ):
        client.execute_command("CLUSTER", "INFO")


def test_passwords_are_on_no_command_line(servers: Servers) -> None:
    for process in servers._processes.values():
        told = Path(f"/proc/{process.pid}/cmdline").read_bytes().decode()
        assert "redis-server" in told
        assert PASSWORD not in told
        assert ADMIN_PASSWORD not in told


def test_a_server_that_comes_back_is_known_again(servers: Servers) -> None:
    port = servers.ports[-1]
    with servers.client(port) as client:
        name = client.execute_command("CLUSTER MYID")
    servers.kill(port)
    servers.start(port)
    end = time.monotonic() + 20
    while True:
        try:
            with servers.client(port) as client:
                facts = client.execute_command("CLUSTER INFO")
                if facts["cluster_state"] == "ok" and client.execute_command("ROLE")[0] == "slave":
                    assert client.execute_command("CLUSTER MYID") == name
                    return
        except errors.RedisError:
            pass
        assert time.monotonic() < end, "not a replica again within 20 s"
        time.sleep(0.1)


def test_servers_that_all_come_back_elsewhere_find_each_other(others: Servers) -> None:
    assert others.form() == "form-cluster: 6 servers are one cluster"
    before = others.slots(OTHERS_FIRST_PORT)
    others.stop()
    others.move_to("127.0.0.2")
    others.start_all()
    assert others.form() == "form-cluster: 6 servers are one cluster again"
    # A replica may have become a primary meanwhile, so slots may have moved; none is lost, and nobody is new.
    after = others.slots(OTHERS_FIRST_PORT)
    assert after.keys() == before.keys()
    assert sorted(filter(None, after.values())) == sorted(filter(None, before.values()))
    for port in others.ports:
        _wait_until_all_are_at(others, port, "127.0.0.2")


def _wait_until_all_are_at(servers: Servers, port: int, address: str) -> None:
    end = time.monotonic() + 15
    while True:
        nodes = servers.nodes(port)
        places = {name.rsplit(":", 1)[0] for name in nodes}
        if places == {address} and all(node["connected"] for node in nodes.values()):
            return
        assert time.monotonic() < end, f"{port} knows the others at {places}"
        time.sleep(0.1)


def test_a_making_that_was_interrupted_before_the_replicas_is_brought_to_its_end(others: Servers) -> None:
    slots = [(0, 5460), (5461, 10922), (10923, 16383)]
    for port, (start, end) in zip(others.ports, slots, strict=False):
        others.wait_for(port)
        with others.client(port) as client:
            client.execute_command("CLUSTER ADDSLOTSRANGE", start, end)
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", port - OTHERS_FIRST_PORT + 1)
    with others.client(OTHERS_FIRST_PORT) as client:
        for port in others.ports[1:]:
            others.wait_for(port)
            client.execute_command("CLUSTER MEET", "127.0.0.1", port)
    _wait_until_six_are_known(others)
    assert others.replicas(OTHERS_FIRST_PORT) == []
    assert others.form() == "form-cluster: 6 servers are one cluster again"
    after = others.slots(OTHERS_FIRST_PORT)
    assert others.replicas(OTHERS_FIRST_PORT) == sorted(name for name, owned in after.items() if owned)
    assert others.form() == "form-cluster: 6 servers are one cluster already"


def _wait_until_six_are_known(servers: Servers) -> None:
    end = time.monotonic() + 15
    while True:
        nodes = servers.nodes(servers.ports[0])
        if len(nodes) == 6 and not any("handshake" in node["flags"] for node in nodes.values()):
            return
        assert time.monotonic() < end, nodes
        time.sleep(0.1)
