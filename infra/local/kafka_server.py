"""One Kafka for a local system: a combined node with a listener for each region's link, so that links can be cut.

A Kafka client asks a broker where the brokers are, and goes there.  So every region has a listener of its own
whose advertised address is the region's link: there is no way round the link.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from global_sync.transport.base import TransportUnavailable
from global_sync.transport.kafka import KafkaOptions, KafkaTransport
from infra.install import KafkaChoice
from infra.local.layout import HOST, Layout
from infra.processes import Process, ProcessDirectory, StartFailed, check_wanted, refuse_taken, wait_ready

NAME = "kafka"
START_S = 60.0
FORMAT_S = 60

JVM = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:MaxDirectMemorySize=64m",
    "-Xss512k",
    "-XX:ReservedCodeCacheSize=48m",
    "-XX:-UsePerfData",
)
"""Small and quick to start: 150 to 180 MiB."""

LOG4J = """\
status = warn
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{ISO8601} %p %m (%c{1})%n
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
"""


def start_kafka(
    layout: Layout, choice: KafkaChoice, processes: ProcessDirectory, *, patience_s: float = START_S
) -> None:
    """Start the Kafka of ``choice`` unless it runs (or was given), and make our topics.  Raises StartFailed.

    ``patience_s``: for it to listen, and again for the topics.
    """
    if choice.kind != "given":
        process = processes.find(NAME) or _start(layout, choice, processes)
        wait_ready(processes, process, lambda: _accepts(layout), patience_s=patience_s)
    try:
        asyncio.run(_make_topics(layout.hub_bootstrap, patience_s))
    except (TransportUnavailable, TimeoutError) as error:
        raise StartFailed(f"Kafka on {layout.hub_bootstrap} does not answer: {error}") from None


async def _make_topics(bootstrap: str, patience_s: float) -> None:
    """The transport makes what is missing when it starts."""
    transport = KafkaTransport(KafkaOptions(bootstrap, client_id="apportion-local"))
    starting = asyncio.create_task(transport.start())
    try:
        async with asyncio.timeout(patience_s):
            while not (await asyncio.wait({starting}, timeout=0.2))[0]:
                check_wanted()
            await starting
    finally:
        starting.cancel()
        await transport.close()


def _accepts(layout: Layout) -> bool:
    try:
        with socket.create_connection((layout.hub_host, layout.kafka_port), timeout=1.0):
            return True
    except OSError:
        return False


def _start(layout: Layout, choice: KafkaChoice, processes: ProcessDirectory) -> Process:
    place = layout.directory / "kafka"
    place.mkdir(parents=True, exist_ok=True)
    refuse_taken(layout.hub_host, layout.kafka_port)
    if choice.kind == "noida":
        arguments = ["start", "--only", "kafka", "--host", HOST, "--kafka-port", str(layout.kafka_port)]
        return processes.start(NAME, [str(choice.noida), *arguments, "--data-dir", str(place / "noida")])
    for port in (layout.kafka_controller_port, *(layout.kafka_link_port(region) for region in layout.regions)):
        refuse_taken(layout.hub_host, port)
    properties = place / "server.properties"
    properties.write_text(_properties(layout, place / "data"))
    log4j = place / "log4j2.properties"
    log4j.write_text(LOG4J)
    java = [str(choice.java), *JVM, f"-Dlog4j2.configurationFile={log4j.as_uri()}", "-cp", f"{choice.libs}/*"]
    if not (place / "data" / "meta.properties").exists():
        _copy_formatted(java, choice, place / "data", properties.read_text())
    return processes.start(NAME, [*java, "kafka.Kafka", str(properties)])


def _copy_formatted(java: list[str], choice: KafkaChoice, data: Path, properties: str) -> None:
    """An empty data directory with a cluster id.  Made once and copied: Java takes seconds to write two files.

    That all local systems have one id does no harm: they never meet.
    """
    template = choice.libs.with_name(f"{choice.libs.name}-formatted")
    if not template.exists():
        with tempfile.TemporaryDirectory(dir=template.parent) as name:
            fresh = Path(name) / "data"
            configuration = Path(name) / "server.properties"
            configuration.write_text(properties.replace(f"log.dirs={data}\n", f"log.dirs={fresh}\n"))
            _format(java, configuration)
            try:
                fresh.replace(template)
            except OSError:
                pass  # another start was quicker
    shutil.rmtree(data, ignore_errors=True)
    shutil.copytree(template, data)


def _format(java: list[str], properties: Path) -> None:
    cluster = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
    # An id that begins with "-" is taken for an option.
    command = [*java, "kafka.tools.StorageTool", "format", "-t", "A" + cluster[1:], "-c", str(properties)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FORMAT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StartFailed(f"Kafka's storage could not be formatted: {error}") from None
    if done.returncode != 0:
        raise StartFailed(f"Kafka's storage could not be formatted:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _properties(layout: Layout, data: Path) -> str:
    links = {f"LINK{number}": region for number, region in enumerate(layout.regions)}
    listeners = {"HUB": layout.kafka_port, "CONTROLLER": layout.kafka_controller_port}
    listeners |= {name: layout.kafka_link_port(region) for name, region in links.items()}
    advertised = {"HUB": layout.kafka_port}
    advertised |= {name: layout.link_port(region) for name, region in links.items()}

    def addresses(ports: dict[str, int]) -> str:
        return ",".join(f"{name}://{layout.hub_host}:{port}" for name, port in ports.items())

    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{layout.hub_host}:{layout.kafka_controller_port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "HUB",
        "listeners": addresses(listeners),
        "advertised.listeners": addresses(advertised),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
        "log.dirs": data,
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.replication.factor": 1,
        "share.coordinator.state.topic.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
        # Threads and buffers for a laptop: a listener each has its own network threads.
        "num.network.threads": 1,
        "num.io.threads": 2,
        "num.replica.fetchers": 1,
        "log.cleaner.dedupe.buffer.size": 4 * 1024 * 1024,
        "log.cleaner.io.buffer.size": 128 * 1024,
        # One that was killed is refused until the session of its former life is over: 9 s, unless told otherwise.
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        # A broker that is asked to end ends soon; there is nobody to hand leaderships to.
        "controlled.shutdown.enable": "false",
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())
