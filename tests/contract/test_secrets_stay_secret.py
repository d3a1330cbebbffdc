"""Every secret that a region and a hub are given, marked, and then looked for in all that they write and say.

All services run with ``log_level = "debug"`` and the wrong brokers, are asked with right and wrong tokens and what
cannot be read, and lose their Redis: so what is logged when things go wrong is looked at, too.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from infra import install
from infra.processes import ProcessDirectory, stop, wait_ready
from infra.region.region import Region, answers

PORT = 12600
MARK = "hush-"
SECRETS = {
    name: f"{MARK}{name}-0123456789abcdef"
    for name in ("key", "redis", "admin", "checks", "sync", "grpc", "control", "kafka", "node")
}
WRONG = f"{MARK}wrong-0123456789abcdef"
"""What a caller sends is his secret, even if it is not ours."""
LIVES_S = 60.0


def region_toml(directory: Path) -> str:
    return f"""
        name = "us-east"
        log_level = "debug"
        state_dir = "{directory}/region"
        key_secret_file = "{directory}/key"
        [redis]
        username = "apportion"
        password_file = "{directory}/redis"
        own = {{base_port = {PORT}, admin_password_file = "{directory}/admin"}}
        [kafka]
        bootstrap = "127.0.0.1:{PORT + 99}"
        sasl = {{mechanism = "SCRAM-SHA-512", username = "apportion", password_file = "{directory}/kafka"}}
        [check_api]
        ports = [{PORT + 20}]
        token_file = "{directory}/checks"
        [grpc]
        ports = [{PORT + 22}]
        token_file = "{directory}/grpc"
        [sync]
        port = {PORT + 23}
        token_file = "{directory}/sync"
        """


def hub_toml(directory: Path) -> str:
    return f"""
        log_level = "debug"
        [kafka]
        bootstrap = "127.0.0.1:{PORT + 99}"
        sasl = {{mechanism = "PLAIN", username = "apportion", password_file = "{directory}/kafka"}}
        [control_api]
        port = {PORT + 30}
        state_dir = "{directory}/control"
        token_file = "{directory}/control"
        [dashboard]
        port = {PORT + 31}
        [regions.us-east]
        nodes = ["http://127.0.0.1:{PORT + 20}"]
        sync = "http://127.0.0.1:{PORT + 23}"
        token_file = "{directory}/sync"
        node_token_file = "{directory}/node"
        """


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[Region, ProcessDirectory]]:
    install.redis_server()
    for name, secret in SECRETS.items():
        (tmp_path / name).write_text(secret)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "region.toml").write_text(region_toml(tmp_path))
    (tmp_path / "hub.toml").write_text(
        hub_toml(tmp_path).replace(f'"{tmp_path}/control"', f'"{tmp_path}/state"', 1)
    )
    region, hub = Region(tmp_path / "region.toml"), ProcessDirectory(tmp_path / "hub")
    try:
        region.up()
        for name, port in (("control_api", PORT + 30), ("dashboard", PORT + 31)):
            command = [sys.executable, "-m", f"services.{name}", "--config", str(tmp_path / "hub.toml")]
            process = hub.start(name, command)
            lives = functools.partial(answers, f"http://127.0.0.1:{port}/livez")
            wait_ready(hub, process, lives, patience_s=LIVES_S)
        yield region, hub
    finally:
        stop(hub.running().values())
        region.down()


@pytest.mark.timeout(300)
def test_no_secret_is_logged_shown_or_on_a_command_line(
    running: tuple[Region, ProcessDirectory], tmp_path: Path
) -> None:
    region, hub = running
    said = ask_everybody()
    cluster = region.cluster()
    assert cluster is not None
    for process in cluster.processes().values():
        os.kill(process.pid, signal.SIGKILL)
    said += ask_everybody()
    said += [shown(tmp_path / file) for file in ("region.toml", "hub.toml")]
    said += [Path(f"/proc/{one.pid}/cmdline").read_text() for one in hub.running().values()]
    said += [json.dumps(region.status())]
    logs = [*tmp_path.glob("*/logs/*")]
    assert {log.stem for log in logs} >= {"node-1", "sync", f"redis-{PORT}", "control_api", "dashboard"}
    written = {str(log): log.read_text(errors="replace") for log in logs}
    written |= {str(file): file.read_text() for file in tmp_path.glob("*/run/*.json")}
    # It was told what is looked for, or else finding nothing would mean nothing.
    assert "Kafka" in written[str(tmp_path / "region" / "logs" / "sync.log")]
    for where, text in [*written.items(), *((f"said {number}", text) for number, text in enumerate(said))]:
        for form in forms():
            assert form not in text, f"{form} in {where}: …{text[max(0, text.index(form) - 300) :][:600]}"


def forms() -> Iterator[str]:
    """A secret as it is, and as it is sent to Kafka and in headers."""
    yield MARK
    for secret in SECRETS.values():
        for sent in (secret, f"\0apportion\0{secret}"):
            yield base64.b64encode(sent.encode()).decode().rstrip("=")


def shown(config: Path) -> str:
    command = [sys.executable, "-m", "services.cli.main", "config", "show", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


ASKED = {
    PORT + 20: ("checks", "/v1/node", "/v1/check"),
    PORT + 23: ("sync", "/v1/region", "/metrics"),
    PORT + 30: ("control", "/v1/status", "/tokens"),
    PORT + 31: (None, "/metrics", "/"),
}
"""By port: whose token, and paths."""


def ask_everybody() -> list[str]:
    """Every service, with its token, with another, and with what it cannot read; all that they answer."""
    said = []
    for port, (name, *paths) in ASKED.items():
        for token in (SECRETS[name] if name else "none", WRONG):
            headers = {"authorization": f"Bearer {token}"}
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30) as client:
                said += [client.get(path).text for path in paths]
                said.append(client.post(paths[-1], json={"client_key": "a", "resource": "GET /"}).text)
                client.post(f"{paths[-1]}?token={WRONG}", content=b"{" + WRONG.encode())
        with socket.create_connection(("127.0.0.1", port), timeout=30) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\nauthorization: Bearer " + WRONG.encode() + b"\r\n\0\r\n\r\n")
            raw.recv(1000)
    with socket.create_connection(("127.0.0.1", PORT + 22), timeout=30) as grpc:
        grpc.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + WRONG.encode() * 10)
        grpc.recv(1000)
    return said
