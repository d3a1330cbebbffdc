"""One region from one file: a real Redis Cluster, and stand-ins for its services, which others test."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from infra.processes import Process, StartFailed, wait_gone, wait_ready
from infra.region.region import Region

BASE_PORT = 20300


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    (tmp_path / "secret").write_text("0123456789abcdef")
    file = tmp_path / "region.toml"
    file.write_text(f"""
name = "us-east"
state_dir = "{tmp_path}/state of us-east"
key_secret_file = "{tmp_path}/secret"
[redis]
username = "apportion"
password = "a word, \\"quoted\\" \\\\ and spaced"
[redis.own]
admin_password = "another, \\"quoted\\" too"
base_port = {BASE_PORT}
[kafka]
bootstrap = "127.0.0.1:{BASE_PORT + 40}"
[check_api]
ports = [{BASE_PORT + 20}, {BASE_PORT + 21}]
[sync]
port = {BASE_PORT + 22}
""")
    region = Region(file, services="tests.stand_ins")
    yield region
    region.down()
    assert region.processes.known() == []
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", BASE_PORT))


def kill(region: Region, *names: str) -> None:
    """SIGKILL, as a crash would end them."""
    processes = [process for name in names if (process := region.processes.find(name))]
    assert len(processes) == len(names)
    for process in processes:
        os.kill(process.pid, signal.SIGKILL)
    assert wait_gone(processes, 5) == []


def primaries(region: Region) -> list[int]:
    servers = region.status()["redis"]
    assert [server["state"] for server in servers] == ["ok"] * 6
    return [server["port"] for server in servers if server["role"] == "primary"]


def test_a_region_comes_up_survives_crashes_drains_and_leaves_nothing(region: Region) -> None:
    assert region.up(ready_s=5) == []
    assert primaries(region) == [BASE_PORT, BASE_PORT + 1, BASE_PORT + 2]
    status = region.status()
    assert [node["ready"] for node in status["nodes"]] == [True, True]
    assert status["sync"]["ready"]
    pids = {name: process.pid for name, process in region.processes.running().items()}
    check_flags(region)

    # A second `up` changes nothing.
    region.up()
    assert {name: process.pid for name, process in region.processes.running().items()} == pids

    # A crash of some: only they are started again, and the cluster is whole.
    kill(region, f"redis-{BASE_PORT}", f"redis-{BASE_PORT + 4}", "node-2")
    region.up()
    assert len(primaries(region)) == 3
    after = {name: process.pid for name, process in region.processes.running().items()}
    assert {name for name in pids if pids[name] != after[name]} == {
        f"redis-{BASE_PORT}",
        f"redis-{BASE_PORT + 4}",
        "node-2",
    }

    # Nodes leave one after another; the rest stays.
    said: list[str] = []
    assert region.drain(said.append) == []
    assert said == ["draining node-1", "draining node-2"]
    assert set(region.processes.running()) == {"sync", *(f"redis-{BASE_PORT + i}" for i in range(6))}

    # Everything crashes: stale pid files and old cluster files do no harm.
    kill(region, *region.processes.running())
    region.up()
    assert primaries(region) == [BASE_PORT, BASE_PORT + 1, BASE_PORT + 2]


def check_flags(region: Region) -> None:
    own = region.settings.redis.own
    assert own is not None
    assert own.admin_password is not None
    password = own.admin_password.get_secret_value()
    with redis.Redis(port=BASE_PORT, username="admin", password=password, decode_responses=True) as client:
        wanted = {
            "maxmemory-policy": "noeviction",
            "cluster-require-full-coverage": "no",
            "repl-backlog-ttl": "0",
            "cluster-node-timeout": "2000",
            "save": "",
            "appendonly": "no",
        }
        assert {name: client.config_get(name)[name] for name in wanted} == wanted


def test_a_node_that_does_not_drain_is_told_and_not_killed(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.region.region.DRAIN_S", 0.5)
    region.settings.state_dir.mkdir(parents=True)
    (region.settings.state_dir / "stubborn").touch()
    node = start_node(region)
    assert region.drain() == ["node-1"]
    assert node.alive()
    (region.settings.state_dir / "stubborn").unlink()


def start_node(region: Region) -> Process:
    process = region._start("node-1")
    wait_ready(region.processes, process, lambda: "listening" in region.processes.log_tail("node-1"), patience_s=20)
    return process


def test_a_restart_takes_one_part_after_another_and_leaves_redis_alone(region: Region) -> None:
    region.up()
    before = {name: process.pid for name, process in region.processes.running().items()}
    said: list[str] = []
    region.restart(said.append)
    after = {name: process.pid for name, process in region.processes.running().items()}
    assert said == ["restarting node-1", "restarting node-2", "restarting sync"]
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"node-1", "node-2", "sync"}
    assert after.keys() == before.keys()


def test_a_part_that_does_not_end_stops_the_restart(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    region.up()
    monkeypatch.setattr("infra.region.region.DRAIN_S", 0.3)
    (region.settings.state_dir / "stubborn").touch()
    before = {name: process.pid for name, process in region.processes.running().items()}
    with pytest.raises(StartFailed, match="node-1 did not end within"):
        region.restart()
    assert {name: process.pid for name, process in region.processes.running().items()} == before
    (region.settings.state_dir / "stubborn").unlink()


def test_a_stranger_on_a_port_is_named_and_left_alone(region: Region) -> None:
    with socket.create_server(("127.0.0.1", BASE_PORT + 3)), pytest.raises(StartFailed, match=str(BASE_PORT + 3)):
        region.up()
