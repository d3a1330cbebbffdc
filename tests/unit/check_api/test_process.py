"""A node as a process, with Redis and Kafka down: ready from its disk, degraded, and gone with exit code 0."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from services.check_api.__main__ import main
from services.listening import bind

DOCUMENT = {
    "domain": "default",
    "regions": {"us-east": 1, "eu-west": 1},
    "rules": [
        {"id": "orders", "match": {"resource": "POST /orders"}, "capacity": 4, "refill": "1/h"},
        {
            "id": "login",
            "match": {"resource": "POST /login"},
            "capacity": 4,
            "refill": "1/h",
            "on_store_failure": "closed",
        },
    ],
}


def free_port() -> int:
    with bind("127.0.0.1", 0) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A region whose Redis and Kafka are not there, and whose first node has rules on disk."""
    directory = tmp_path / "state" / "node-us-east-1"
    directory.mkdir(parents=True)
    blob = {"version": 7, "sets": {"default": {"version": 7, "document": DOCUMENT}}}
    (directory / "rules.json").write_text(json.dumps(blob))
    (tmp_path / "secret").write_text("a secret of thirty-two bytes, or so")
    path = tmp_path / "region.toml"
    path.write_text(
        f"""
        name = "us-east"
        state_dir = "{tmp_path}/state"
        key_secret_file = "{tmp_path}/secret"
        redis.servers = ["127.0.0.1:{free_port()}"]
        kafka.bootstrap = "127.0.0.1:{free_port()}"
        check_api.ports = [{free_port()}, {free_port()}]
        check_api.drain_ms = 0
        sync.port = {free_port()}
        """
    )
    return path


def url_of(config: Path, node: int) -> str:
    line = next(line for line in config.read_text().splitlines() if "check_api.ports" in line)
    ports = json.loads(line.partition("=")[2])
    return f"http://127.0.0.1:{ports[node - 1]}"


@contextmanager
def node(config: Path, number: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A node process that listens."""
    command = [sys.executable, "-m", "services.check_api", "--config", str(config), "--node", str(number)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("APPORTION_")}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
    url = url_of(config, number)
    try:
        until = time.monotonic() + 30
        while True:
            assert process.poll() is None, process.stderr and process.stderr.read().decode()
            try:
                httpx.get(f"{url}/livez", trust_env=False, timeout=30)
                break
            except httpx.HTTPError:
                assert time.monotonic() < until, "the node does not listen"
                time.sleep(0.05)
        yield url, process
    finally:
        process.kill()
        process.communicate()


def ask(url: str, resource: str) -> dict[str, object]:
    body = {"client_key": "u:1", "resource": resource}
    response = httpx.post(f"{url}/v1/check", json=body, trust_env=False, timeout=30)
    assert response.status_code == 200
    return dict(response.json())


@pytest.mark.timeout(90)
def test_a_node_without_redis_is_ready_from_its_disk_and_limits_by_its_own_part(config: Path) -> None:
    with node(config, 1) as (url, process):
        ready = httpx.get(f"{url}/readyz", trust_env=False, timeout=30)
        assert (ready.status_code, ready.json()) == (200, {"ready": True, "degraded": True})
        answers = [ask(url, "POST /orders") for _ in range(6)]
        assert [answer["allowed"] for answer in answers] == [True] * 4 + [False] * 2
        assert all(answer["degraded"] for answer in answers)
        login = ask(url, "POST /login")
        assert (login["allowed"], login["reason"]) == (False, "store_unavailable")
        view = httpx.get(f"{url}/v1/node", trust_env=False, timeout=30).json()
        assert (view["rules_version"], view["degraded_checks"]) == (7, 7)
        second = subprocess.run(
            [sys.executable, "-m", "services.check_api", "--config", str(config), "--node", "1"],
            capture_output=True,
            timeout=30,
        )
        assert second.returncode == 2  # two copies would share the port in silence
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stderr is not None
        lines = [json.loads(line) for line in process.stderr.read().decode().splitlines()]
        assert lines[-1]["event"] == "stopped"
        assert not [line for line in lines if line["level"] == "error"]


@pytest.mark.timeout(60)
def test_kgateway_dev_kgateway_2832_a_node_that_never_had_rules_is_alive_not_ready_and_decides_nothing(
    config: Path,
) -> None:
    with node(config, 2) as (url, process):
        assert httpx.get(f"{url}/readyz", trust_env=False, timeout=30).status_code == 503
        response = httpx.post(
            f"{url}/v1/check", json={"client_key": "a", "resource": "b"}, trust_env=False, timeout=30
        )
        assert response.status_code == 503
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_a_wrong_start_is_exit_code_2_and_says_why(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(config), "--node", "3"]) == 2
    assert "no node 3" in capsys.readouterr().err
    assert main(["--config", str(config) + ".missing"]) == 2
