"""One real Kafka broker for tests, with a second listener whose advertised address is a proxy's."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pytest

from infra.install import kafka

PORT, CONTROLLER, BEHIND_PROXY, PROXY = 23000, 23001, 23002, 23003
CLUSTER = "YXBwb3J0aW9uLXRlc3RzLQ"

CONFIG = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAIN://127.0.0.1:{port},FAR://127.0.0.1:{behind},CONTROLLER://127.0.0.1:{controller}{listeners}
advertised.listeners=PLAIN://127.0.0.1:{port},FAR://127.0.0.1:{proxy}{advertised}
listener.security.protocol.map=PLAIN:PLAINTEXT,FAR:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}
inter.broker.listener.name=PLAIN
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
{more}"""

JVM = ["-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def java() -> list[str]:
    """The java command with the broker's jars, installed as for the local system."""
    choice = kafka(last_resort=False)
    if choice.kind != "apache":
        pytest.fail("these tests start a broker of their own: unset APPORTION_KAFKA_BOOTSTRAP")
    return [str(choice.java), *JVM, "-cp", f"{choice.libs}/*"]


@contextmanager
def broker(
    directory: Path, *, listeners: Mapping[str, tuple[int, str]] = MappingProxyType({}), more: str = ""
) -> Iterator[str]:
    """A fresh broker; its address.  Fails the test when it does not come up.

    ``listeners``: further ones by name, as (port, security protocol); ``more``: lines of the configuration.
    """
    command = java()
    config = directory / "server.properties"
    config.write_text(
        CONFIG.format(
            port=PORT,
            controller=CONTROLLER,
            behind=BEHIND_PROXY,
            proxy=PROXY,
            data=directory / "data",
            listeners="".join(f",{name}://127.0.0.1:{port}" for name, (port, _) in listeners.items()),
            advertised="".join(f",{name}://localhost:{port}" for name, (port, _) in listeners.items()),
            protocols="".join(f",{name}:{protocol}" for name, (_, protocol) in listeners.items()),
            more=more,
        )
    )
    logging = directory / "log4j2.properties"
    logging.write_text(
        "rootLogger.level=warn\nrootLogger.appenderRef.c.ref=c\nappender.c.type=Console\n"
        "appender.c.name=c\nappender.c.layout.type=PatternLayout\n"
    )
    command.insert(1, f"-Dlog4j2.configurationFile=file:{logging}")
    tool = [*command, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(config)]
    formatted = subprocess.run(tool, capture_output=True, text=True, timeout=60, check=False)
    if formatted.returncode:
        pytest.fail(f"Kafka's storage was not formatted: {formatted.stdout[-2000:]}{formatted.stderr[-2000:]}")
    log = directory / "kafka.log"
    with log.open("wb") as out:
        process = subprocess.Popen([*command, "kafka.Kafka", str(config)], stdout=out, stderr=out)
    try:
        _wait_for_port(process, log)
        yield f"127.0.0.1:{PORT}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_port(process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 45
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", PORT)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(f"Kafka did not start: {log.read_text()[-3000:]}")


class BlackHole:
    """A TCP proxy in front of the second listener that can swallow everything, without a word to anyone."""

    def __init__(self) -> None:
        self.cut = False
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{PROXY}"

    async def __aenter__(self) -> BlackHole:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", PROXY)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", BEHIND_PROXY)
        for source, target in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pump(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                if not self.cut:
                    target.write(data)
                    await target.drain()
        except OSError:
            pass
        finally:
            target.close()
