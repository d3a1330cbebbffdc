"""The hub moves from three brokers to three others while three regions are asked, by the steps of a page.

``make test-move``: every command of docs/topologies.md, "Moving the hub", is run as it is written there.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.cli.drive import drive
from tests.anger.brokers import COUNT, Brokers
from tests.contract.kafka_broker import CLUSTER
from tests.e2e.conftest import THIRD
from tests.e2e.moving_hub import (
    Editor,
    Operator,
    commands_in,
    moved,
    plan_of,
    point_to,
    records,
    restart_hub_services,
    safe,
    topics_to_move,
    votes,
)
from tests.e2e.system import REGIONS, LocalSystem, local_system
from tests.e2e.upgrading import RATE, Callers, understood

OLD_PORTS, OLD_CONTROLLERS = range(12500, 12503), range(12510, 12513)
NEW_PORTS, NEW_CONTROLLERS = range(12503, 12506), range(12513, 12516)
NEW_FIRST_NODE = 4
PLACES = range(COUNT)
PATIENT_MS = 40_000
"""How long brokers wait for each other: none is lost here, and six of them start on a busy machine."""
HUB_CHECK = "apportion hub check --config $HUB_TOML --strict"
UPGRADE = "kafka-features.sh --bootstrap-server $OLD upgrade --feature kraft.version=1"
QUORUM = "kafka-metadata-quorum.sh --bootstrap-server $NEW"
ADD = f"{QUORUM} --command-config $BROKER_FILE add-controller"
REMOVE = f"{QUORUM} remove-controller --controller-id $OLD_ID --controller-directory-id $OLD_DIRECTORY"
STATUS = f"{QUORUM} describe --status"
REASSIGN = "kafka-reassign-partitions.sh --bootstrap-server $OLD"


def addresses(ports: range) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in ports)


def quorum_at(controllers: range) -> str:
    return f"controller.quorum.bootstrap.servers={addresses(controllers)}"


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Brokers]:
    """A hub whose controllers are written in its brokers' files, as most are."""
    (tmp_path / "old").mkdir()
    brokers = Brokers(tmp_path / "old", OLD_PORTS, OLD_CONTROLLERS, session_ms=PATIENT_MS)
    brokers.format()
    try:
        brokers.start()
        yield brokers
    finally:
        brokers.stop()


@pytest.fixture
def new(tmp_path: Path) -> Iterator[Brokers]:
    """Brokers that do not run yet and have no disks."""
    (tmp_path / "new").mkdir()
    quorum = quorum_at(OLD_CONTROLLERS)
    brokers = Brokers(tmp_path / "new", NEW_PORTS, NEW_CONTROLLERS, NEW_FIRST_NODE, quorum, PATIENT_MS)
    brokers.write_configs()
    try:
        yield brokers
    finally:
        brokers.stop()


async def restart_regions(system: LocalSystem, operator: Operator) -> None:
    """Each with `apportion region restart`, then what is the hub's own."""
    for region in REGIONS:
        config = system.addresses["regions"][region]["config"]
        await operator.run("apportion region restart --config $REGION_TOML", REGION_TOML=config)
        await asyncio.to_thread(system.settle)
    await asyncio.to_thread(restart_hub_services, system)


@pytest.mark.timeout(3600)
async def test_the_hub_moves_under_load_by_the_commands_of_the_page(
    tmp_path: Path, old: Brokers, new: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"TOPICS_JSON": tmp_path / "topics.json", "MOVES_JSON": tmp_path / "moves.json"}
    hub_toml = tmp_path / "system" / "hub.toml"
    new_ids = ",".join(str(new.node(place)) for place in PLACES)
    operator = Operator({name: str(path) for name, path in files.items()})
    operator.names |= {"OLD": old.bootstrap, "NEW": new.bootstrap, "NEW_IDS": new_ids, "HUB_TOML": str(hub_toml)}
    run = operator.run

    first = tmp_path / "first.toml"
    first.write_text(HUB.format(bootstrap=old.bootstrap, state=tmp_path))
    await Operator({}).until(f"apportion hub init --config {first} --strict", safe, within_s=300)
    monkeypatch.setenv("APPORTION_KAFKA_BOOTSTRAP", old.bootstrap)
    with local_system(tmp_path / "system", base_port=30600, scale=THIRD) as system:
        callers, editor = Callers(system), Editor(system)
        async with callers.calling(), editor.editing():
            before = await records(old.bootstrap)

            await operator.until(UPGRADE, lambda said: "kraft.version was upgraded to 1" in said, within_s=300)
            cluster = await run("kafka-cluster.sh cluster-id --bootstrap-server $OLD")
            assert CLUSTER in cluster
            for place in PLACES:
                await run(
                    "kafka-storage.sh format --cluster-id $CLUSTER --no-initial-controllers --config $BROKER_FILE",
                    CLUSTER=CLUSTER,
                    BROKER_FILE=str(new.config(place)),
                )
            await asyncio.to_thread(new.start)

            both = f"{old.bootstrap},{new.bootstrap}"
            point_to(system, old.bootstrap, both, replicated=True)
            await restart_regions(system, operator)

            files["TOPICS_JSON"].write_text(topics_to_move())
            planned = await run(
                f"{REASSIGN} --topics-to-move-json-file $TOPICS_JSON --broker-list $NEW_IDS --generate"
            )
            files["MOVES_JSON"].write_text(plan_of(planned))
            await run(f"{REASSIGN} --reassignment-json-file $MOVES_JSON --execute")
            await operator.until(f"{REASSIGN} --reassignment-json-file $MOVES_JSON --verify", moved, within_s=300)
            await operator.until(HUB_CHECK, safe, within_s=300)

            for place in PLACES:
                node = new.node(place)
                await operator.until(
                    STATUS,
                    functools.partial(votes, node, True),
                    300,
                    repeat=ADD,
                    BROKER_FILE=str(new.config(place)),
                )
            for place in PLACES:
                node = old.node(place)
                names = {"OLD_ID": str(node), "OLD_DIRECTORY": old.directory_id(place)}
                await operator.until(STATUS, functools.partial(votes, node, False), 300, repeat=REMOVE, **names)
            for place in PLACES:
                await asyncio.to_thread(old.end, place)
                await run(
                    "kafka-cluster.sh unregister --bootstrap-server $NEW --id $OLD_ID", OLD_ID=str(old.node(place))
                )
                await operator.until(HUB_CHECK, safe, within_s=300)

            point_to(system, both, new.bootstrap)
            await restart_regions(system, operator)
            new.write_configs(quorum_at(NEW_CONTROLLERS))
            for place in PLACES:
                await asyncio.to_thread(new.end, place)
                await asyncio.to_thread(new.start, [place])
                await operator.until(HUB_CHECK, safe, within_s=300)
            await asyncio.to_thread(system.settle)
        callers.assert_nobody_noticed()
        print(f"{len(editor.accepted)} changes of rules were accepted meanwhile, {editor.refused} were not")

        after = await records(new.bootstrap)
        for topic, known in before.items():
            held = {message.offset: message for message in after[topic]}
            newest = {message.key: message.offset for message in after[topic]}
            assert known, topic
            for message in known:  # a compacted topic keeps the newest of each key
                assert held.get(message.offset) == message or newest[message.key] > message.offset
        editor.assert_kept(system)
        await asyncio.to_thread(understood, system)
        hot = await drive(system.nodes("us-east"), 1.5 * RATE, 10, client_key="moved", resource="GET /shared")
        late = [check for check in hot.checks if check.sent_at > hot.checks[0].sent_at + 5]
        rate = sum(check.allowed for check in late) / 5
        print(f"us-east, asking for all of it: {rate:.0f}/s of {RATE}")
        assert rate > 0.8 * RATE, "shares do not move"
    assert list(dict.fromkeys(operator.ran)) == commands_in("Moving the hub")


HUB = """
[kafka]
bootstrap = "{bootstrap}"
replication = 3
min_insync = 2
[control_api]
port = 1
state_dir = "{state}"
[dashboard]
port = 2
[regions.us-east]
"""
