"""The command line against a control API that is really there, with a leader that decides."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
import yaml

from global_sync.transport.memory import MemoryHub
from services.control_api.app import create_app
from tests.unit.cli.test_main import BAD, GOOD, run
from tests.unit.control_api.conftest import hub_settings
from tests.unit.control_api.fake_leader import leading

TOKEN = "a-token-of-enough-length"


@pytest.fixture(scope="module")
def control() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server: list[uvicorn.Server] = []

    async def serve() -> None:
        hub = MemoryHub()
        app = create_app(hub.transport("control"), hub_settings(TOKEN))
        server.append(uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", loop="asyncio")))
        async with leading(hub):
            await server[0].serve()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    url = f"http://127.0.0.1:{port}"
    while not (server and server[0].started and httpx.get(f"{url}/readyz").is_success):
        assert time.monotonic() < deadline, "the control API did not become ready"
        time.sleep(0.02)
    yield url
    server[0].should_exit = True
    thread.join(10)


@pytest.fixture(autouse=True)
def _known(control: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPORTION_CONTROL_URL", control)
    monkeypatch.setenv("APPORTION_CONTROL_TOKEN", TOKEN)


def test_what_is_applied_is_listed_and_exported_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(GOOD)
    code, stdout, stderr = run("rules", "apply", str(file), "--reason", "launch")
    assert code == 0, stderr
    assert "accepted: domain shop, version" in stdout
    code, stdout, _ = run("rules", "list", "--domain", "shop")
    assert code == 0
    assert "20 at once, then 10/s" in stdout
    code, stdout, stderr = run("rules", "export", "--domain", "shop")
    assert code == 0
    assert yaml.safe_load(stdout) == yaml.safe_load(GOOD)
    assert "--if-version" in stderr


def test_a_set_made_from_an_old_version_is_refused_with_one(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(GOOD.replace("domain: shop", "domain: versions"))
    assert run("rules", "apply", str(file), "--if-version", "0")[0] == 0
    code, _, stderr = run("rules", "apply", str(file), "--if-version", "0")
    assert code == 1
    assert "is the newest" in stderr


def test_a_dry_run_sends_nothing(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(GOOD.replace("domain: shop", "domain: dry"))
    code, stdout, stderr = run("rules", "apply", str(file), "--dry-run")
    assert (code, stdout) == (0, "")
    assert "nothing sent" in stderr
    assert json.loads(run("rules", "list", "--domain", "dry", "--json")[1])["rules"] == []


def test_a_rule_can_be_removed_once(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(GOOD.replace("domain: shop", "domain: removal"))
    run("rules", "apply", str(file))
    assert run("rules", "delete", "orders", "--domain", "removal")[0] == 0
    code, _, stderr = run("rules", "delete", "orders", "--domain", "removal")
    assert code == 1
    assert "no rule orders" in stderr


def test_a_wrong_token_is_a_refusal_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPORTION_CONTROL_TOKEN", "another-token-of-enough-length")
    code, _, stderr = run("rules", "list")
    assert code == 1
    assert "bearer token" in stderr


def test_status_without_a_leader_says_so_and_is_not_well() -> None:
    code, stdout, _ = run("status")
    assert code == 1
    assert "No leader has been heard of yet" in stdout
    assert "us-east" in stdout
    code, stdout, _ = run("status", "--json")
    assert code == 1
    document = json.loads(stdout)
    assert document["well"] is False
    assert set(document["regions"]) == {"us-east", "eu-west"}


def test_bad_rules_are_refused_with_every_fault(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(BAD)
    code, stdout, stderr = run("rules", "apply", str(file))
    assert (code, stdout) == (1, "")
    assert "4 faults" in stderr
