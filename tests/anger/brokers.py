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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from global_sync.transport.kafka import KafkaOptions
from tests.contract.kafka_broker import CLUSTER, java

COUNT, MIN_INSYNC = 3, 2
PORTS, CONTROLLERS = range(12930, 12933), range(12940, 12943)
UP_WITHIN_S = 240.0
SESSION_MS = 4000
"""A broker that says nothing for so long leads nothing any more (Kafka's default is 9 s)."""

CONFIG = """
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
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
    """``kill``, ``freeze`` and ``thaw`` take places from 0 to 2; ``options`` is what a transport needs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._java = java()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        logging = directory / "log4j2.properties"
        logging.write_text(LOGGING)
        self._java.insert(1, f"-Dlog4j2.configurationFile=file:{logging}")

    @property
    def options(self) -> KafkaOptions:
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in PORTS)
        return KafkaOptions(bootstrap, replication=COUNT, min_insync=MIN_INSYNC)

    def format(self) -> None:
        """Empty disks.  Java takes seconds for it, so it is done once and copied."""
        for place in range(COUNT):
            self._write_config(place)
        tool = [*self._java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._config(0))]
        done = subprocess.run(tool, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            pytest.fail(f"Kafka's storage was not formatted: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        for place in range(1, COUNT):
            shutil.copytree(self._data(0), self._data(place))
            meta = self._data(place) / "meta.properties"
            lines = dict(line.split("=", 1) for line in meta.read_text().splitlines() if "=" in line)
            lines["node.id"] = str(place + 1)
            lines["directory.id"] = "A" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode()[1:22]
            meta.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def start(self, places: Iterable[int] = range(COUNT)) -> None:
        """Start those, and wait until they listen."""
        started = list(places)
        for place in started:
            self._start(place)
        end = time.monotonic() + UP_WITHIN_S
        for place in started:
            while not _listens(PORTS[place]):
                if time.monotonic() > end:
                    pytest.fail(f"broker {place} did not start: {self._log(place).read_text()[-3000:]}")
                if self._processes[place].poll() is not None:
                    self._start(place)  # on a busy machine it does not wait for the others for long enough
                time.sleep(0.1)

    def _start(self, place: int) -> None:
        with self._log(place).open("ab") as out:
            command = [*self._java, "kafka.Kafka", str(self._config(place))]
            self._processes[place] = subprocess.Popen(command, stdout=out, stderr=out)

    def kill(self, *places: int) -> None:
        """kill -9."""
        processes = [self._processes.pop(place) for place in places]
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()

    def freeze(self, *places: int) -> None:
        for place in places:
            os.kill(self._processes[place].pid, signal.SIGSTOP)

    def thaw(self, *places: int) -> None:
        for place in places:
            os.kill(self._processes[place].pid, signal.SIGCONT)

    def stop(self) -> None:
        self.kill(*self._processes)

    def _write_config(self, place: int) -> None:
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(CONTROLLERS, 1))
        self._config(place).write_text(
            CONFIG.format(
                node=place + 1,
                voters=voters,
                port=PORTS[place],
                controller=CONTROLLERS[place],
                data=self._data(place),
                session_ms=SESSION_MS,
            )
        )

    def _config(self, place: int) -> Path:
        return self._directory / f"server-{place}.properties"

    def _data(self, place: int) -> Path:
        return self._directory / f"data-{place}"

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
