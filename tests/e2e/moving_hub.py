"""An operator who moves the hub: runs a page's commands as they are written there, against real brokers."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import re
import shlex
import string
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from global_sync.transport.base import HISTORY, RULES, Message
from global_sync.transport.kafka import KafkaOptions, KafkaTransport
from global_sync.transport.topics import TOPICS
from infra.install import kafka_tools
from infra.processes import ProcessDirectory, stop
from infra.region.region import answers
from tests.anger.three_brokers import everything
from tests.contract.kafka_broker import java
from tests.e2e.system import CLI, ROOT, LocalSystem, wait_for

PAGE = ROOT / "docs" / "topologies.md"
SCRIPTS = {
    "kafka-cluster.sh": "org.apache.kafka.tools.ClusterTool",
    "kafka-features.sh": "org.apache.kafka.tools.FeatureCommand",
    "kafka-metadata-quorum.sh": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-storage.sh": "kafka.tools.StorageTool",
}
"""What Kafka's scripts start."""
CHANGE_EVERY_S = 1.0


def commands_in(heading: str) -> list[str]:
    """Those of a section of the page, in its order, each once."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return list(dict.fromkeys(line for line in lines if line))


class Operator:
    """``names``: what the page's ``$NAMES`` stand for.  ``ran``: the commands so far, as they are on the page."""

    def __init__(self, names: dict[str, str]) -> None:
        *starts, jars = java()
        self._java = [*starts, f"{jars}:{kafka_tools()}/*"]
        self.names = names
        self.ran: list[str] = []

    async def run(self, command: str, *, may_fail: bool = False, **names: str) -> str:
        """What the command printed."""
        self.ran.append(command)
        program, *words = (string.Template(word).substitute(self.names | names) for word in shlex.split(command))
        starts = CLI if program == "apportion" else [*self._java, SCRIPTS[program]]
        return await asyncio.to_thread(_printed, [*starts, *words], may_fail)

    async def until(
        self, command: str, over: Callable[[str], bool], within_s: float, *, repeat: str = "", **names: str
    ) -> None:
        """Run it until it prints that it is over, each time after ``repeat``, which may have failed."""
        async with asyncio.timeout(within_s):
            while True:
                if repeat:
                    await self.run(repeat, may_fail=True, **names)
                if over(await self.run(command, may_fail=True)):
                    return
                await asyncio.sleep(1)


def _printed(command: list[str], may_fail: bool) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert may_fail or done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def plan_of(printed: str) -> str:
    """What ``--generate`` proposes."""
    return printed.partition("Proposed partition reassignment configuration")[2].strip()


def moved(printed: str) -> bool:
    """What ``--verify`` says when every partition is where it should be."""
    return "is completed" in printed and "in progress" not in printed


def votes(node: int, wanted: bool, printed: str) -> bool:
    """Whether ``describe --status`` says so; while a leader leaves it says nothing."""
    line = re.search(r"^CurrentVoters:.*$", printed, re.MULTILINE)
    return line is not None and (f'"id": {node},' in line[0]) == wanted


def safe(printed: str) -> bool:
    """What `apportion hub check` says when nothing is missing."""
    return printed.strip() == "safe"


def topics_to_move() -> str:
    return json.dumps({"version": 1, "topics": [{"topic": topic} for topic in TOPICS]})


def point_to(system: LocalSystem, before: str, after: str, *, replicated: bool = False) -> None:
    """Write other addresses of the hub into every file."""
    for file in (system.directory / "hub.toml", *(Path(r["config"]) for r in system.addresses["regions"].values())):
        text = file.read_text()
        assert f'bootstrap = "{before}"' in text
        more = "\nreplication = 3\nmin_insync = 2" if replicated else ""
        file.write_text(text.replace(f'bootstrap = "{before}"', f'bootstrap = "{after}"{more}'))


def restart_hub_services(
    system: LocalSystem, *, between: Callable[[], None] = lambda: None, probe: str = "readyz"
) -> None:
    """Control API and dashboard, by the same commands as before; ``between``: while none of them runs."""
    processes = ProcessDirectory(system.directory)
    names = ("control_api", "dashboard")
    commands = [json.loads((processes.run / f"{name}.json").read_text())["command"] for name in names]
    for name in names:
        running = processes.find(name)
        assert running is not None
        assert stop([running], patience_s=30) == [], f"{name} had to be killed"
    between()
    for name, command in zip(names, commands, strict=True):
        processes.start(name, command)
        wait_for(functools.partial(answers, f"{system.addresses[name]}/{probe}", 2.0), 60, f"{name} again")


class Editor:
    """Changes one rule again and again.  ``accepted``: the versions that the control API said yes to."""

    def __init__(self, system: LocalSystem) -> None:
        self._control = system.addresses["control_api"]
        self.accepted: list[int] = []
        self.refused = 0

    @asynccontextmanager
    async def editing(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._edit())
        try:
            yield
            assert not task.done(), task.exception()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _edit(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
            for capacity in itertools.count(1000):
                rule = {"match": {"resource": "POST /once"}, "capacity": capacity, "refill": "1/day"}
                try:
                    answer = await client.put(f"{self._control}/rules/hundred", json=rule)
                except httpx.HTTPError:
                    self.refused += 1  # the control API is being restarted
                else:
                    assert answer.status_code in (200, 409, 503), answer.text
                    self.accepted += [answer.json()["version"]] if answer.status_code == 200 else []
                    self.refused += answer.status_code != 200
                await asyncio.sleep(CHANGE_EVERY_S)

    def assert_kept(self, system: LocalSystem) -> None:
        """Everything that was accepted is in the history."""
        found: set[int] = set()
        before = ""
        while True:
            page = (
                system.http.get(f"{self._control}/history?accepted=true&limit=100{before}")
                .raise_for_status()
                .json()
            )
            found |= {one["version"] for one in page["changes"]}
            if page["next"] is None:
                break
            before = f"&before={page['next']}"
        assert self.accepted
        assert set(self.accepted) <= found


async def records(bootstrap: str) -> dict[str, list[Message]]:
    """Everything in the topics whose records are never deleted."""
    transport = KafkaTransport(KafkaOptions(bootstrap))
    await transport.start()
    try:
        return {topic: await everything(transport, topic) for topic in (HISTORY, RULES)}
    finally:
        await transport.close()
