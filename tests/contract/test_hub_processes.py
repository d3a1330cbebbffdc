"""Control API and dashboard as processes, with no Kafka anywhere: they serve what they can and end cleanly."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.timeout(90)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def process(name: str, directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """The process, once it answers; its log is in ``directory``."""
    ports = {"control_api": free_port(), "dashboard": free_port()}
    config = directory / "hub.toml"
    config.write_text(
        f"""
        [kafka]
        bootstrap = "127.0.0.1:{free_port()}"
        [control_api]
        port = {ports["control_api"]}
        state_dir = "{directory}"
        [dashboard]
        port = {ports["dashboard"]}
        [regions.us-east]
        nodes = ["http://127.0.0.1:{free_port()}"]
        """
    )
    with (directory / "log").open("wb") as log:
        command = [sys.executable, "-m", f"services.{name}", "--config", str(config)]
        one = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{ports[name]}", trust_env=False, timeout=10) as client:
            _wait_until_it_answers(one, client, directory)
            yield one, client
    finally:
        if one.poll() is None:
            one.kill()
        one.wait(10)


def _wait_until_it_answers(one: subprocess.Popen[bytes], client: httpx.Client, directory: Path) -> None:
    deadline = time.monotonic() + 40
    while True:
        try:
            if client.get("/livez").status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert one.poll() is None, (directory / "log").read_text()
        assert time.monotonic() < deadline, (directory / "log").read_text()
        time.sleep(0.1)


def end(one: subprocess.Popen[bytes], number: signal.Signals, directory: Path) -> None:
    one.send_signal(number)
    assert one.wait(15) == 0, (directory / "log").read_text()
    assert "Traceback" not in (directory / "log").read_text()


def test_the_control_api_without_kafka_is_alive_not_ready_and_ends_cleanly(tmp_path: Path) -> None:
    with process("control_api", tmp_path) as (one, client):
        assert client.get("/readyz").status_code == 503
        answer = client.put("/rules/r", json={"match": {}, "capacity": 1, "refill_per_second": 1})
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        status = client.get("/v1/status").json()
        assert "Kafka does not answer here" in status["sentences"][0]["text"]
        end(one, signal.SIGTERM, tmp_path)


def test_the_dashboard_ends_cleanly_while_a_page_is_open(tmp_path: Path) -> None:
    with process("dashboard", tmp_path) as (one, client):
        assert "Apportion" in client.get("/").text
        with client.stream("GET", "/events") as stream:
            lines = stream.iter_lines()
            assert next(lines) == "event: hello"
            assert "Kafka does not answer here" in next(lines)
            end(one, signal.SIGINT, tmp_path)


def test_a_port_that_is_taken_is_said_in_one_line(tmp_path: Path) -> None:
    with process("dashboard", tmp_path) as (_, client):
        command = [sys.executable, "-m", "services.dashboard", "--config", str(tmp_path / "hub.toml")]
        second = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
        assert second.returncode == 2
        assert f":{client.base_url.port}: Address already in use" in second.stderr
        assert "Traceback" not in second.stderr
