"""A local system's files say what its layout says, and no two of its ports are one."""

from __future__ import annotations

import asyncio
import json
import stat
from collections import Counter
from pathlib import Path

import pytest

from infra.local.first_rules import RULES, regions_of
from infra.local.layout import PORTS, REGIONS_MOST, Layout, load_layout
from infra.local.traffic import WAITING_MOST, Node, parts_of_traffic
from infra.processes import StartFailed
from services.settings import load_hub, load_region


def ports_of(layout: Layout) -> list[int]:
    ports = [layout.control_api_port, layout.dashboard_port, layout.kafka_port]
    ports += [layout.kafka_controller_port, layout.links_port]
    for region in layout.regions:
        ports += [*layout.node_ports(region), *layout.grpc_ports(region), layout.sync_port(region)]
        ports += [layout.link_port(region), layout.kafka_link_port(region)]
        own = load_region(layout.region_config(region)).redis.own
        assert own is not None
        ports += [*own.ports(), *(own.bus_port(port) for port in own.ports())]
    return ports


def test_no_port_is_used_twice_and_all_are_in_the_block(tmp_path: Path) -> None:
    layout = Layout(tmp_path, 9000, tuple(f"region-{number}" for number in range(REGIONS_MOST)))
    layout.save()
    ports = ports_of(layout)
    assert len(set(ports)) == len(ports)
    assert all(9000 <= port < 9000 + PORTS for port in ports)


def test_the_files_are_settings_that_the_services_load(tmp_path: Path) -> None:
    layout = Layout(tmp_path, 9000, ("us-east", "eu.west"), time_scale=0.5)
    layout.save()
    assert load_layout(tmp_path) == layout
    region = load_region(layout.region_config("eu.west"))
    assert (region.name, region.time_scale, region.sync.rank) == ("eu.west", 0.5, 1)
    assert region.kafka.bootstrap == f"127.0.0.1:{layout.link_port('eu.west')}"
    hub = load_hub(layout.hub_config)
    assert list(hub.regions) == ["us-east", "eu.west"]
    assert hub.regions["eu.west"].nodes == layout.node_urls("eu.west")
    assert hub.kafka.bootstrap == layout.hub_bootstrap


def test_the_secret_is_made_once_and_nobody_else_reads_it(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.save()
    secret = layout.secret.read_text()
    assert stat.S_IMODE(layout.secret.stat().st_mode) == 0o600
    layout.save()
    assert layout.secret.read_text() == secret
    assert len(load_region(layout.region_config("us-east")).key_secret()) == 64


def test_links_lead_nowhere_with_a_kafka_of_another_kind(tmp_path: Path) -> None:
    layout = Layout(tmp_path, kafka="given", kafka_bootstrap="kafka.example:9092")
    assert layout.region_bootstrap("us-east") == "kafka.example:9092"
    assert not layout.has_links


@pytest.mark.parametrize(
    "wrong",
    [{"base_port": 80}, {"base_port": 65500}, {"time_scale": 0.0}, {"time_scale": float("nan")}, {"regions": ()}],
)
def test_what_cannot_be_laid_out_is_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"--base-port|--scale|regions"):
        Layout(tmp_path, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kafka", ["apache", "noida", "given"])
def test_the_ports_that_are_checked_are_those_that_are_used(tmp_path: Path, kafka: str) -> None:
    layout = Layout(tmp_path, 9000, kafka=kafka)  # type: ignore[arg-type]
    layout.save()
    used = set(ports_of(layout))
    if kafka != "apache":
        used -= {layout.links_port, layout.kafka_controller_port}
        used -= {
            port for region in layout.regions for port in (layout.link_port(region), layout.kafka_link_port(region))
        }
    if kafka == "given":
        used.remove(layout.kafka_port)
    checked = [port for ports in layout.ports().values() for port in ports]
    assert sorted(checked) == sorted(used)


@pytest.mark.parametrize("content", ["", "{}", "[1]", json.dumps({"regions": ["a"], "wheels": 4})])
def test_a_broken_layout_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "local.json").write_text(content)
    assert load_layout(tmp_path) is None


def test_the_example_rules_are_valid_and_name_the_regions() -> None:
    assert regions_of(RULES) == ("us-east", "eu-west", "ap-south")


def test_rules_with_faults_are_refused_before_anything_starts(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("domain: default\nrules:\n  - id: x\n    capacity: -1\n")
    with pytest.raises(StartFailed, match=r"rules\[0\]"):
        regions_of(rules)


@pytest.mark.parametrize("at_s", [0.0, 37.0, 80.0, 160.0, 1e6])
def test_the_sun_shines_somewhere_and_traffic_is_bounded(at_s: float) -> None:
    parts = parts_of_traffic(3, at_s)
    assert sum(parts) == pytest.approx(1)
    assert min(parts) > 0.02
    assert max(parts) > 0.4


def test_noon_moves_from_region_to_region() -> None:
    noons = {max(range(3), key=parts_of_traffic(3, at_s).__getitem__) for at_s in (0.0, 80.0, 160.0)}
    assert noons == {0, 1, 2}


async def test_checks_do_not_pile_up_behind_a_node_that_does_not_answer() -> None:
    async def say_nothing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.append(writer)

    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    node = Node(server.sockets[0].getsockname()[1], Counter())
    sent = []
    while node.usable() and len(sent) < 1_000:
        sent.append(node.send(b"{}"))
    assert len(sent) == WAITING_MOST
    for task in sent:
        task.cancel()
    await asyncio.gather(*sent, return_exceptions=True)
    assert node.usable()
    node.close()
    for writer in held:
        writer.transport.abort()
    server.close()
