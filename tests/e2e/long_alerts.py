"""Every alert tried once: its fault on a running system, a real Prometheus that fires, what the runbook says to do.

``make test-alerts``.  Windows and waits are a tenth of what is shipped, thresholds are as shipped.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from infra.monitoring.alerts import ALERTS
from infra.processes import Process
from tests.e2e.alert_desk import Desk, commands_in
from tests.e2e.alerting import watching
from tests.e2e.conftest import THIRD
from tests.e2e.system import REGIONS, ROOT, local_system

PROMETHEUS, REDIS_EXPORTER, NODE_EXPORTER = 12590, 12591, 12592
NOT_TRIED = {
    "ClockOff": "the machine's clock is not ours to step",
    "ClockRate": "nor to make faster or slower",
    "ConsumerLag": "to be a thousand messages behind, and still scraped, takes more load than is made here",
}
FIRES_S, ENDS_S = 150.0, 150.0
HOT, OTHER = "us-east", "ap-south"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    directory = tmp_path_factory.mktemp("alerts")
    exporters = [f"127.0.0.1:{port}" for port in (REDIS_EXPORTER, NODE_EXPORTER)]
    with (
        local_system(directory / "system", base_port=30800, scale=THIRD) as system,
        watching(system, directory / "prometheus", PROMETHEUS, exporters) as watch,
    ):
        desk = Desk(system, watch, directory)
        desk.start_exporters(REDIS_EXPORTER, NODE_EXPORTER)
        try:
            desk.ask(dict.fromkeys(REGIONS, 20.0))
            time.sleep(15)  # rates need a past
            yield desk
        finally:
            desk.close()


pytestmark = pytest.mark.timeout(600)


def seen(desk: Desk, name: str, labels: Mapping[str, str], *, hub_answers: bool = True) -> None:
    """It fires, and the runbook's commands are run."""
    print(f"{name}: fires after {desk.watch.fires(name, labels, FIRES_S):.0f} s")
    desk.look(name, hub_answers=hub_answers)


@contextmanager
def fires(desk: Desk, *names: str, **labels: str) -> Iterator[None]:
    """They fire, the runbook's commands are run, and they end with what is done inside."""
    for name in names:
        seen(desk, name, labels)
    yield
    for name in names:
        print(f"{name}: over after {desk.watch.ends(name, labels, ENDS_S):.0f} s")
    desk.system.settle()


def test_nothing_fires_while_all_is_well(desk: Desk) -> None:
    assert desk.watch.firing() == []
    assert desk.watch.query("node_timex_offset_seconds"), "ClockOff has nothing to look at"


def test_a_client_that_asks_for_much_more(desk: Desk) -> None:
    desk.ask(dict.fromkeys(REGIONS, 60.0))
    with fires(desk, "DenialsRise", "NearQuota", "AtQuota", rule="shared"):
        desk.ask(dict.fromkeys(REGIONS, 20.0))


def test_a_region_that_is_cut_off(desk: Desk) -> None:
    desk.system.cli("cut", OTHER)
    with fires(desk, "RegionCut", region=OTHER):
        assert f"{OTHER}" in desk.said["apportion status"]
        desk.system.cli("heal", OTHER)


def test_a_region_without_an_agent(desk: Desk) -> None:
    desk.kill_sync(OTHER)
    with fires(desk, "AgentMissing", region=OTHER):
        desk.region_up(OTHER)


def test_nobody_who_leads(desk: Desk) -> None:
    for region in REGIONS:
        desk.kill_sync(region)
    with fires(desk, "LeaderMissing"):
        for region in REGIONS:
            desk.region_up(region)


def test_two_who_say_that_they_lead(desk: Desk) -> None:
    leader = desk.system.leader_region()
    assert leader is not None
    desk.system.cli("cut", leader)
    with fires(desk, "TwoLeaders"):
        desk.kill_sync(leader)
        desk.region_up(leader)
        desk.system.cli("heal", leader)


def test_a_region_whose_times_are_not_those_of_the_others(desk: Desk) -> None:
    file = Path(desk.system.addresses["regions"][OTHER]["config"])
    right = file.read_text()
    file.write_text(re.sub(r"time_scale = .*", "time_scale = 0.5", right))
    desk.kill_sync(OTHER)
    desk.region_up(OTHER)
    with fires(desk, "RecordRefused"):
        file.write_text(right)
        desk.kill_sync(OTHER)
        desk.region_up(OTHER)


def test_a_broker_that_hangs(desk: Desk) -> None:
    with desk.stopped(desk.broker()):
        for name in ("LogNotAppended", "TopicSilent"):
            seen(desk, name, {}, hub_answers=False)
    for name in ("LogNotAppended", "TopicSilent"):
        desk.watch.ends(name, {}, ENDS_S)
    desk.system.settle()


def test_a_shard_that_hangs_with_its_replica(desk: Desk) -> None:
    shard = desk.shard(OTHER)
    with desk.stopped(*shard):
        desk.ask({OTHER: 150.0, HOT: 20.0})  # shares move there, and cannot come into force
        for name, labels in (
            ("ChecksDegraded", {"region": OTHER}),
            ("BreakerOpen", {"region": OTHER}),
            ("ConvergenceSlow", {}),
        ):
            seen(desk, name, labels)
        for server in shard:
            server.signal(signal.SIGKILL)
    desk.region_up(OTHER)
    desk.ask(dict.fromkeys(REGIONS, 20.0))
    with fires(desk, "PointReset", region=OTHER):
        for name in ("ChecksDegraded", "BreakerOpen", "ConvergenceSlow"):
            desk.watch.ends(name, {}, ENDS_S)


def test_redis_that_is_slow_for_moments(desk: Desk) -> None:
    desk.ask(dict.fromkeys(REGIONS, 100.0))
    over = threading.Event()
    pausing = threading.Thread(target=_pause_now_and_then, args=(desk, desk.primaries(OTHER), over))
    pausing.start()
    try:
        seen(desk, "CheckSlow", {"region": OTHER})
    finally:
        over.set()
        pausing.join()
    # That it ends is not waited for: on a machine that does much else checks are slow anyhow.


def _pause_now_and_then(desk: Desk, primaries: list[Process], over: threading.Event) -> None:
    while not over.wait(0.5):
        with desk.stopped(*primaries):
            time.sleep(0.03)


def test_an_agent_that_hangs_while_rules_change(desk: Desk) -> None:
    with desk.stopped(desk.sync_service(OTHER)):
        desk.change_a_rule()
        seen(desk, "RuleVersionsApart", {})
    desk.watch.ends("RuleVersionsApart", {}, ENDS_S)
    desk.system.settle()


def test_a_server_whose_memory_is_full(desk: Desk) -> None:
    desk.bound_memory(over_used=1.1)
    with fires(desk, "RedisMemory"):
        desk.bound_memory(over_used=0)


def test_many_clients_while_a_region_has_no_redis(desk: Desk) -> None:
    desk.kill_redis(OTHER)
    desk.check_many(OTHER, 12_000)
    with fires(desk, "ChargesLost", region=OTHER):
        desk.region_up(OTHER)


def test_rules_that_a_node_does_not_understand(desk: Desk) -> None:
    desk.accept_rules_of_a_newer_version()
    with fires(desk, "RulesRefused"):
        desk.take_out_what_is_newer()


def test_nodes_that_have_never_heard_of_rules(desk: Desk) -> None:
    desk.system.cli("cut", OTHER)
    desk.forget_everything(OTHER)
    with fires(desk, "CheckErrors", region=OTHER):
        desk.region("drain", OTHER)
        desk.system.cli("heal", OTHER)
        desk.region_up(OTHER)


def test_every_alert_was_tried_and_every_command_of_the_runbook(desk: Desk) -> None:
    assert desk.looked_at | set(NOT_TRIED) == {alert.name for alert in ALERTS}
    written = set(commands_in((ROOT / "docs" / "runbook.md").read_text()))
    assert written <= desk.said.keys(), written - desk.said.keys()
