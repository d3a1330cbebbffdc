"""Three real Kafka brokers that can be killed, stopped and started again, one by one or all at once."""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from global_sync.transport.kafka import KafkaOptions
from tests.contract.kafka_broker import CLUSTER, java

COUNT, MIN_INSYNC = 3, 2
PORTS, CONTROLLERS = range(12930, 12933), range(12940, 12943)
UP_WITHIN_S = 600.0
SESSION_MS = 4000
"""A broker that says nothing for so long leads nothing any more (Kafka's default is 9 s)."""

CONFIG = """
process.roles=broker,controller
node.id={node}
{quorum}
listeners=PLAIN://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAIN://127.0.0.1:{port}
listener.security.protocol.map=PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAIN
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
broker.session.timeout.ms={session_ms}
broker.heartbeat.interval.ms=500
replica.lag.time.max.ms={session_ms}
controller.quorum.election.timeout.ms={election_ms}
controller.quorum.fetch.timeout.ms={fetch_ms}
controller.quorum.request.timeout.ms={fetch_ms}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""
LOGGING = """
rootLogger.level=warn
rootLogger.appenderRef.c.ref=c
appender.c.type=Console
appender.c.name=c
appender.c.layout.type=PatternLayout
appender.c.layout.pattern=%d{ISO8601} %p %m (%c{1})%n
"""


class Brokers:
    """``kill``, ``freeze`` and ``thaw`` take places from 0 to 2; ``options`` is what a transport needs.

    ``quorum``: the line that says who the controllers are; without it, these.  ``session_ms``: see SESSION_MS.
    """

    def __init__(
        self,
        directory: Path,
        ports: Sequence[int] = PORTS,
        controllers: Sequence[int] = CONTROLLERS,
        first_node: int = 1,
        quorum: str | None = None,
        session_ms: int = SESSION_MS,
    ) -> None:
        self._directory = directory
        self._ports, self._controllers, self._first_node = ports, controllers, first_node
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(controllers, first_node))
        self._quorum = quorum or f"controller.quorum.voters={voters}"
        self._session_ms = session_ms
        self._java = java()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        logging = directory / "log4j2.properties"
        logging.write_text(LOGGING)
        self._java.insert(1, f"-Dlog4j2.configurationFile=file:{logging}")

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def options(self) -> KafkaOptions:
        return KafkaOptions(self.bootstrap, replication=COUNT, min_insync=MIN_INSYNC)

    def format(self) -> None:
        """Empty disks.  Java takes seconds for it, so it is done once and copied."""
        self.write_configs()
        tool = [*self._java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self.config(0))]
        done = subprocess.run(tool, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            pytest.fail(f"Kafka's storage was not formatted: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        for place in range(1, COUNT):
            shutil.copytree(self._data(0), self._data(place))
            meta = self._meta(place)
            meta["node.id"] = str(self.node(place))
            meta["directory.id"] = "A" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode()[1:22]
            self._meta_file(place).write_text("".join(f"{name}={value}\n" for name, value in meta.items()))

    def start(self, places: Iterable[int] = range(COUNT)) -> None:
        """Start those, and wait until they listen."""
        started = list(places)
        for place in started:
            self._start(place)
        end = time.monotonic() + UP_WITHIN_S
        for place in started:
            while not _listens(self._ports[place]):
                if time.monotonic() > end:
                    pytest.fail(f"broker {place} did not start: {self._log(place).read_text()[-3000:]}")
                if self._processes[place].poll() is not None:
                    self._start(place)  # on a busy machine it does not wait for the others for long enough
                time.sleep(0.1)

    def _start(self, place: int) -> None:
        with self._log(place).open("ab") as out:
            command = [*self._java, "kafka.Kafka", str(self.config(place))]
            self._processes[place] = subprocess.Popen(command, stdout=out, stderr=out)

    def kill(self, *places: int) -> None:
        """kill -9."""
        processes = [self._processes.pop(place) for place in places]
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()

    def end(self, place: int, within_s: float = 120) -> None:
        """As an operator ends a broker: it hands over what it leads.  One that takes longer is left to ``stop``."""
        process = self._processes[place]
        process.terminate()
        process.wait(within_s)
        del self._processes[place]

    def freeze(self, *places: int) -> None:
        for place in places:
            os.kill(self._processes[place].pid, signal.SIGSTOP)

    def thaw(self, *places: int) -> None:
        for place in places:
            os.kill(self._processes[place].pid, signal.SIGCONT)

    def stop(self) -> None:
        self.kill(*self._processes)

    def write_configs(self, quorum: str | None = None) -> None:
        """What they are told at their next start; ``quorum``: from now on."""
        self._quorum = quorum or self._quorum
        for place in range(COUNT):
            self.config(place).write_text(
                CONFIG.format(
                    node=self.node(place),
                    quorum=self._quorum,
                    port=self._ports[place],
                    controller=self._controllers[place],
                    data=self._data(place),
                    session_ms=self._session_ms,
                    election_ms=self._session_ms // 4,
                    fetch_ms=self._session_ms // 2,
                )
            )

    def node(self, place: int) -> int:
        """Its number in the cluster."""
        return self._first_node + place

    def directory_id(self, place: int) -> str:
        """What its disk is called in the quorum."""
        return self._meta(place)["directory.id"]

    def config(self, place: int) -> Path:
        return self._directory / f"server-{place}.properties"

    def _data(self, place: int) -> Path:
        return self._directory / f"data-{place}"

    def _meta(self, place: int) -> dict[str, str]:
        """What its disk says of itself."""
        lines = self._meta_file(place).read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def _meta_file(self, place: int) -> Path:
        return self._data(place) / "meta.properties"

    def _log(self, place: int) -> Path:
        return self._directory / f"kafka-{place}.log"


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def three_brokers(directory: Path) -> Iterator[Brokers]:
    brokers = Brokers(directory)
    brokers.format()
    try:
        brokers.start()
        yield brokers
    finally:
        brokers.stop()
