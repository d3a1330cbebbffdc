"""One Redis primary of a region is killed, at the protocol's default times."""

from __future__ import annotations

import asyncio
import time

import pytest

from services.cli.drive import CheckRecord, drive
from tests.e2e.system import LocalSystem

KEYS = [f"client-{n}" for n in range(60)]
RATE = 120
RUN_S = 20.0


@pytest.mark.timeout(240)
async def test_a_killed_primary_degrades_its_shard_only_and_its_replica_takes_over(
    default_system: LocalSystem,
) -> None:
    region = default_system.status()["regions"]["us-east"]
    primary = next(server for server in region["redis"] if server["role"] == "primary")
    traffic = asyncio.create_task(
        drive(region["nodes"], RATE, RUN_S, client_key=KEYS, resource="GET /regional", concurrency=16)
    )
    await asyncio.sleep(5)
    default_system.kill(primary["pid"])
    killed_at = time.monotonic()
    checks = (await traffic).checks
    assert [check for check in checks if check.error] == []
    before = [check for check in checks if check.answered_at < killed_at]
    during = [check for check in checks if killed_at <= check.sent_at < killed_at + 8]
    degraded = [check for check in during if check.degraded]
    assert not any(check.degraded for check in before)
    assert degraded, "the killed primary had no keys: nothing was tested"
    slowest_ms = max(_latency_ms(check) for check in during)
    last_degraded_s = max(check.answered_at for check in degraded) - killed_at
    share_degraded = len(degraded) / len([c for c in during if c.answered_at < killed_at + last_degraded_s])
    print(
        f"{len(degraded)} degraded answers over {last_degraded_s:.1f} s ({share_degraded:.0%} of the checks then),"
        f" slowest answer {slowest_ms:.1f} ms"
    )
    assert slowest_ms < 50
    assert share_degraded < 0.6, "other shards were affected"
    assert last_degraded_s < 8
    assert all(check.allowed for check in during)


def _latency_ms(check: CheckRecord) -> float:
    return (check.answered_at - check.sent_at) * 1000
