"""The hub is lost, disks and all, and another begins with an empty log: by the commands of docs/topologies.md.

``make test-new-hub``.  Regions begin anew one by one, while the others are asked.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from infra.install import kafka
from infra.local.kafka_server import start_kafka
from infra.local.layout import Layout
from infra.processes import ProcessDirectory
from services.cli.drive import drive
from tests.e2e.bound import worst_excess
from tests.e2e.conftest import THIRD
from tests.e2e.moving_hub import commands_in, point_to, restart_hub_services
from tests.e2e.system import REGIONS, ROOT, LocalSystem, local_system, wait_for
from tests.e2e.upgrading import BURST, RATE, Callers, understood

SECTION = "Beginning anew after the hub was lost"
QUOTA = 600
"""Of a window of thirty days: it runs before, while and after the hub is lost."""
CHANGES = 5
"""Of the rules, before the loss: so the versions that regions keep are above those of the new log."""


class Operator:
    """Runs the page's commands in a shell.  ``ran``: those so far, as they are on the page."""

    def __init__(self, **names: str) -> None:
        self.names = names
        self.ran: list[str] = []

    async def run(self, command: str, **names: str) -> None:
        assert command in commands_in(SECTION), f"not on the page: {command}"
        self.ran.append(command)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **self.names, **names}
        done = await asyncio.to_thread(
            subprocess.run,
            ["sh", "-c", command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"


def at_base(system: LocalSystem) -> bool:
    """Every region, at each of its primaries: no session and no consent is left."""
    points = [point for region in REGIONS for point in system.sync_view(region)["agent"]["points"]]
    return all(point["session_left_ms"] == 0 and point["consent_left_ms"] == 0 for point in points)


def rules_versions(system: LocalSystem) -> set[int]:
    return {system.http.get(f"{url}/v1/node").json()["rules_version"] for url in system.nodes(*REGIONS)}


def change_a_rule(system: LocalSystem, capacity: int) -> int:
    """The version that it is now."""
    rule = {"match": {"resource": "POST /once"}, "capacity": capacity, "refill": "1/day"}
    answer = system.http.put(f"{system.addresses['control_api']}/rules/hundred", json=rule)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["version"])


def add_quota(system: LocalSystem) -> None:
    numbers = {"limit": QUOTA, "window": "30d", "scope": "global", "distribution": "adaptive"}
    rule = {"match": {"resource": "GET /quota"}, "key": ["client_key"], "algorithm": "fixed_window", **numbers}
    answer = system.http.put(f"{system.addresses['control_api']}/rules/quota", json=rule)
    assert answer.is_success, answer.text


async def quota_used(system: LocalSystem, regions: Sequence[str]) -> int:
    """How many checks of a long adaptive window are allowed, where all regions named ask for more than there is."""
    told = await asyncio.gather(
        *(
            drive(system.nodes(region), QUOTA / 6, 12, client_key="anew", resource="GET /quota")
            for region in regions
        )
    )
    return sum(one.allowed - one.degraded for one in told)


@pytest.mark.timeout(1200)
async def test_regions_begin_anew_with_an_empty_log_one_by_one_and_the_bound_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hubs = [Layout(tmp_path / name, port, ("none",)) for name, port in (("old", 30200), ("new", 30400))]
    choice = kafka(last_resort=False)
    old, new = (f"127.0.0.1:{hub.kafka_port}" for hub in hubs)
    processes = [ProcessDirectory(hub.directory) for hub in hubs]
    try:
        await asyncio.to_thread(start_kafka, hubs[0], choice, processes[0])
        monkeypatch.setenv("APPORTION_KAFKA_BOOTSTRAP", old)
        with local_system(tmp_path / "system", base_port=30600, scale=THIRD) as system:
            operator = Operator(
                RULES_YAML=str(tmp_path / "rules.yaml"),
                HUB_TOML=str(system.directory / "hub.toml"),
                APPORTION_CONTROL_URL=system.addresses["control_api"],
            )
            add_quota(system)
            last = [change_a_rule(system, 1000 + number) for number in range(CHANGES)][-1]
            await asyncio.to_thread(
                wait_for, lambda: rules_versions(system) == {last}, 60, "the changes everywhere"
            )
            before = await quota_used(system, REGIONS[:1])
            # The static half counts as used: everything here is younger than the window.
            assert 0.4 * QUOTA < before <= QUOTA / 2, f"{before} used of what is granted"
            callers = Callers(system)
            async with callers.calling():
                await asyncio.to_thread(lose, processes[0], hubs[0].directory)
                await operator.run("apportion rules export > $RULES_YAML")
                await asyncio.to_thread(wait_for, lambda: at_base(system), 60, "every region at its base")
                assert callers.failed == [], "a check waits for the hub"

                await asyncio.to_thread(start_kafka, hubs[1], choice, processes[1])
                point_to(system, old, new)
                await operator.run("apportion hub init --config $HUB_TOML --anew")
                await asyncio.to_thread(begin_hub_anew, system)
                for region in REGIONS:
                    await begin_anew(system, operator, region)
                    if region == REGIONS[0]:
                        await apply(operator)
                await asyncio.to_thread(system.settle)
                await asyncio.sleep(3)
            after = await quota_used(system, REGIONS)
            print(f"of {QUOTA} in a window that ran all the time, {before} were used before and {after} after")
            assert before + after <= QUOTA / 2, "granted a second time"
            excess = worst_excess(callers.admitted, BURST + callers.by_nodes, RATE, slack=0.01)
            print(f"{callers.checks} checks, {len(callers.failed)} not answered, {callers.degraded} degraded")
            assert excess <= 0, f"{excess:.1f} checks above the bound"

            version = change_a_rule(system, 7)
            assert version < last, "the new log numbers as the old one did: this test shows nothing"
            await asyncio.to_thread(wait_for, lambda: rules_versions(system) == {version}, 60, "the new rules")
            await asyncio.to_thread(understood, system)
            await windows_move(system)
            await shares_move(system)
    finally:
        for directory in processes:
            for process in directory.running().values():
                process.signal(signal.SIGKILL)
    assert list(dict.fromkeys(operator.ran)) == commands_in(SECTION)


def lose(processes: ProcessDirectory, disk: Path) -> None:
    broker = processes.find("kafka")
    assert broker is not None
    broker.signal(signal.SIGKILL)
    wait_for(lambda: not broker.alive(), 20, "the old hub gone")
    shutil.rmtree(disk / "kafka")


def begin_hub_anew(system: LocalSystem) -> None:
    """Without rules they live, and are not ready."""
    restart_hub_services(system, between=lambda: shutil.rmtree(system.directory / "control"), probe="livez")


async def begin_anew(system: LocalSystem, operator: Operator, region: str) -> None:
    config = system.addresses["regions"][region]["config"]
    names = {"REGION_TOML": config, "STATE_DIR": str(Path(config).parent)}
    await operator.run("apportion region down --config $REGION_TOML", **names)
    await operator.run("rm -r $STATE_DIR/rules.json $STATE_DIR/node-*", **names)
    await operator.run("apportion region up --config $REGION_TOML --wait 0", **names)


async def apply(operator: Operator) -> None:
    """Accepted as soon as the first region's candidate leads."""
    command = 'apportion rules apply $RULES_YAML --reason "a new hub"'
    end = time.monotonic() + 60
    while True:
        try:
            await operator.run(command)
        except AssertionError:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(1)
        else:
            return


async def windows_move(system: LocalSystem) -> None:
    """Of windows that began after the log something is lent: two whole ones lie in the time, at least."""
    one = await drive(system.nodes("us-east"), 45, 30, client_key="anew", resource="GET /windowed")
    print(f"us-east, asking for all of windows of 300 in 10 s: {one.allowed} in 30 s")
    assert one.allowed > 2 * 0.5 * 300, "windows are not lent"


async def shares_move(system: LocalSystem) -> None:
    hot = await drive(system.nodes("us-east"), 1.5 * RATE, 10, client_key="anew", resource="GET /shared")
    late = [check for check in hot.checks if check.sent_at > hot.checks[0].sent_at + 5]
    rate = sum(check.allowed for check in late) / 5
    print(f"us-east, asking for all of it: {rate:.0f}/s of {RATE}")
    assert rate > 0.8 * RATE, "shares do not move"
