"""A log that follows a lost one, on a real broker of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from global_sync.codec import decode_records, encode_records
from global_sync.protocol.leader import LeaderSide
from global_sync.protocol.messages import Snapshot
from global_sync.transport.base import LOG
from global_sync.transport.kafka import KafkaOptions, KafkaTransport
from global_sync.transport.kafka_hub import begin_log
from regional_limiter.model.share import ProtocolTimes
from services.cli.hub import app
from services.clock import wall_ms
from tests.contract.kafka_broker import broker
from tests.contract.test_hub import run

pytestmark = pytest.mark.timeout(120)


def test_a_log_that_follows_a_lost_one_says_so_first_and_one_that_was_begun_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker(tmp_path) as address:
        other = tmp_path / "hub.toml"
        kept = f'[control_api]\nport = 1\nstate_dir = "{tmp_path}"\n[dashboard]\nport = 2\n[regions.us-east]\n'
        other.write_text(f'[kafka]\nbootstrap = "{address}"\n{kept}')
        before_ms = wall_ms()
        assert run("init", other, "--anew")[0] == 0
        assert run("init", other, "--anew")[0] == 0, "a second time changes nothing"
        options = KafkaOptions(address)
        (first,) = decode_records(asyncio.run(begin_log(options, b"not taken")))
        assert isinstance(first, Snapshot)
        assert before_ms < first.windows_from_ms <= wall_ms() + 1
        assert asyncio.run(length_of_log(options)) == 1

        side = LeaderSide("c", (), ProtocolTimes())
        side.on_record(0, first, 0)
        mark = side.take_over(0, "nonce")
        side.on_record(0, mark, 1)
        assert (side.has_snapshot, side.active, mark.epoch) == (True, True, 1)

        async def begun(options: KafkaOptions, value: bytes) -> bytes:
            return encode_records([mark])

        monkeypatch.setattr("global_sync.transport.kafka_hub.begin_log", begun)
        done = CliRunner().invoke(app, ["init", "--config", str(other), "--anew"])
        assert done.exit_code == 2
        assert "rl.log was begun without it" in done.stderr


async def length_of_log(options: KafkaOptions) -> int:
    transport = KafkaTransport(options)
    try:
        return await (await transport.reader(LOG, "latest")).end_offset()
    finally:
        await transport.close()
