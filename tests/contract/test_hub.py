"""``apportion hub`` on a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from typer.testing import CliRunner

from global_sync.transport.base import LOG
from global_sync.transport.topics import TOPICS
from services.cli.hub import app
from tests.contract.kafka_broker import broker

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The hub's file; its broker has no topic yet."""
    directory = tmp_path_factory.mktemp("hub")
    with broker(directory) as address:
        file = directory / "hub.toml"
        file.write_text(f"""
[kafka]
bootstrap = "{address}"
[control_api]
port = 1
state_dir = "{directory}"
[dashboard]
port = 2
[regions.us-east]
""")
        yield file


def run(command: str, hub: Path, *more: str) -> tuple[int, dict[str, object]]:
    done = CliRunner().invoke(app, [command, "--config", str(hub), "--json", *more])
    return done.exit_code, json.loads(done.stdout)


def test_topics_are_made_once_and_an_unsafe_change_is_found(hub: Path) -> None:
    code, told = run("check", hub)
    assert (code, told["safe"]) == (1, False), "nothing is there yet"

    code, told = run("init", hub)
    assert (code, told["safe"], told["made"]) == (0, True, list(TOPICS))
    assert {finding["severity"] for finding in told["findings"]} == {"weak"}, "one broker"  # type: ignore[index, union-attr]
    assert run("check", hub, "--strict")[0] == 1

    code, told = run("init", hub)
    assert (code, told["made"]) == (0, [])

    bootstrap = hub.read_text().split('bootstrap = "')[1].split('"')[0]
    asyncio.run(_set(bootstrap, "retention.ms", "3600000"))
    code, told = run("check", hub)
    assert code == 1
    assert told["findings"][0] == {  # type: ignore[index]
        "severity": "unsafe",
        "topic": LOG,
        "problem": "retention.ms=3600000, so records are dropped: set it to -1",
    }


async def _set(bootstrap: str, setting: str, value: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, LOG, configs={setting: value})])
    finally:
        await admin.close()


def test_a_hub_that_does_not_answer_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("global_sync.transport.kafka_hub.PATIENCE_S", 1.0)
    file = tmp_path / "hub.toml"
    text = (
        '[kafka]\nbootstrap = "127.0.0.1:1"\n[control_api]\nport = 1\nstate_dir = "/tmp"\n[dashboard]\nport = 2\n'
    )
    file.write_text(text + "[regions.us-east]\n")
    done = CliRunner().invoke(app, ["check", "--config", str(file)])
    assert done.exit_code == 2
    assert "the hub cannot be looked at: 127.0.0.1:1" in done.stderr
