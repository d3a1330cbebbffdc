"""Does a fault to a world, ends it, and notes what it excuses.  [IO]

Each fault is a generator: it begins, yields once for as long as it lasts, and ends.  What it excuses is noted from
when it began until some time after its end.  Processes that were killed are started again by ``World.mend``.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from infra.processes import Process
from infra.region.resp import ServerError
from tests.chaos.judge import UNREPLICATED_S, Excuse
from tests.chaos.network import SYNC_MARK, WHOLE, Link
from tests.chaos.schedule import Fault
from tests.chaos.shards import SHARDS
from tests.chaos.world import NODE_PORTS, World

SETTLES_S = 1.5
"""A shard that answers again: breakers probe it every 0.5 s, and nodes find it one after another."""
FAILOVER_S = 8.0
"""A dead primary's replica takes over in about 4 s; a busy machine takes longer."""
ALONE_S = 4.0
"""For so long a primary that is cut off decides on, and what it charges is lost: one and a half times the cluster's
node timeout of 2 s, and a busy machine's delay."""
RECONNECTS_S = 6.0
"""A check that waited in a stopped node's socket."""


class NotNow(Exception):
    """The fault cannot be done to the system as it is."""


class Faults:
    """``excuses``: see judge.  ``done``: when each began and ended."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = threading.Lock()
        self.excuses: list[Excuse] = []
        self.done: list[tuple[float, float, Fault]] = []
        self.not_now = 0
        self._full: list[tuple[str, int]] = []
        self._dead: list[tuple[str, float, str]] = []

    def strike(self, fault: Fault) -> None:
        """The whole of it: begin, wait, end.  Raises NotNow when it could not begin."""
        began = time.monotonic()
        steps = _KINDS[fault.kind](self, fault)
        try:
            next(steps)
        except (LookupError, ServerError) as error:
            with self._lock:
                self.not_now += 1
            raise NotNow(f"{fault.kind} in {fault.region}: {error}") from None
        try:
            time.sleep(fault.seconds)
        finally:
            with suppress(StopIteration, ServerError):
                next(steps)
        with self._lock:
            self.done.append((began, time.monotonic(), fault))

    def mended(self) -> None:
        """What was killed runs again."""
        while self._dead:
            region, began, url = self._dead.pop()
            self._excuse(region, began, time.monotonic() + RECONNECTS_S, url=url)

    def end_round(self) -> None:
        """What could not be undone at once."""
        while self._full:
            region, port = self._full.pop()
            with suppress(ServerError):  # killed: it comes back empty
                self._world.redis(region, port, "CONFIG", "SET", "maxmemory", "0")

    def _excuse(
        self,
        region: str,
        start: float,
        end: float,
        *,
        url: str | None = None,
        shard: int = 0,
        unreplicated_s: float = UNREPLICATED_S,
    ) -> None:
        with self._lock:
            self.excuses.append(Excuse(region, start, end, url, shard, unreplicated_s))

    def _primary(self, fault: Fault) -> tuple[int, int]:
        """The port of one of the region's primaries, and its shard.  Raises LookupError, ServerError."""
        port = self._world.primary(fault.region, fault.place)
        return port, self._world.shard(fault.region, port)

    def _service(self, region: str, name: str) -> Process:
        process = self._world.process(region, name)
        if process is None:
            raise LookupError(f"{name} does not run")
        return process

    # ---- links

    def _link(self, fault: Fault, link: Link) -> Iterator[None]:
        self._world.network.set_link(fault.region, link)
        yield
        self._world.network.set_link(fault.region, WHOLE)

    def cut(self, fault: Fault) -> Iterator[None]:
        return self._link(fault, Link(up=False, down=False))

    def speaks(self, fault: Fault) -> Iterator[None]:
        return self._link(fault, Link(down=False))

    def hears(self, fault: Fault) -> Iterator[None]:
        return self._link(fault, Link(up=False))

    def lossy(self, fault: Fault) -> Iterator[None]:
        return self._link(fault, Link(loss_percent=int(fault.amount)))

    def slow(self, fault: Fault) -> Iterator[None]:
        return self._link(fault, Link(kbit_per_s=int(fault.amount)))

    # ---- the broker

    def pause_broker(self, fault: Fault) -> Iterator[None]:
        return _paused(self._broker())

    def kill_broker(self, fault: Fault) -> Iterator[None]:
        _kill(self._broker())
        yield

    def _broker(self) -> Process:
        process = self._world.hub.find("kafka")
        if process is None:
            raise LookupError("the broker does not run")
        return process

    # ---- Redis

    def pause_primary(self, fault: Fault) -> Iterator[None]:
        port, shard = self._primary(fault)
        began = time.monotonic()
        yield from _paused(self._service(fault.region, f"redis-{port}"))
        # Longer than the cluster waits is a failover, too.
        lasts = FAILOVER_S if fault.seconds > 1.5 else SETTLES_S
        self._excuse(fault.region, began, time.monotonic() + lasts, shard=shard)

    def kill_primary(self, fault: Fault) -> Iterator[None]:
        port, shard = self._primary(fault)
        began = time.monotonic()
        _kill(self._service(fault.region, f"redis-{port}"))
        yield
        self._excuse(fault.region, began, max(time.monotonic(), began + FAILOVER_S) + SETTLES_S, shard=shard)

    def promote(self, fault: Fault) -> Iterator[None]:
        primary, shard = self._primary(fault)
        replica = self._world.replica_of(fault.region, primary)
        began = time.monotonic()
        how = ["TAKEOVER"] if fault.place == 0 else ["FORCE"] if fault.place == 1 else []
        self._world.redis(fault.region, replica, "CLUSTER", "FAILOVER", *how)
        yield
        self._excuse(fault.region, began, began + 2 + SETTLES_S, shard=shard)

    def kill_replicas(self, fault: Fault) -> Iterator[None]:
        for port, role in self._world.servers(fault.region).items():
            if role == "slave":
                _kill(self._service(fault.region, f"redis-{port}"))
        yield

    def keep_node_from_shard(self, fault: Fault) -> Iterator[None]:
        port, shard = self._primary(fault)
        began = time.monotonic()
        servers = {port, *self._world.replicas_of(fault.region, port)}
        self._world.network.cut_in_two(fault.region, {fault.place % len(NODE_PORTS) + 1}, servers)
        yield
        self._world.network.cut_in_two(fault.region, (), ())
        self._excuse(fault.region, began, time.monotonic() + RECONNECTS_S, shard=shard)

    def cut_in_two(self, fault: Fault) -> Iterator[None]:
        """A primary, the others' replicas and the second node are on one side, the majority on the other.

        There the primary's replica takes over; here it decides on until it has missed the majority for as long as
        the other side has missed it, and what it charged meanwhile is lost.
        """
        port, cut_off = self._primary(fault)
        began = time.monotonic()
        own = set(self._world.replicas_of(fault.region, port))
        roles = self._world.servers(fault.region)
        replicas = {one for one, role in roles.items() if role == "slave"}
        here = {2, port, *(replicas - own)}
        there = {1, SYNC_MARK, *(roles.keys() - here)}
        self._world.network.cut_in_two(fault.region, here, there)
        yield
        self._world.network.cut_in_two(fault.region, (), ())
        ended = max(time.monotonic(), began + FAILOVER_S) + RECONNECTS_S
        for shard in range(SHARDS):  # only that primary's replica can take over: the others' lack the majority
            unreplicated_s = ALONE_S if shard == cut_off else UNREPLICATED_S
            self._excuse(fault.region, began, ended, shard=shard, unreplicated_s=unreplicated_s)

    def step_clock(self, fault: Fault) -> Iterator[None]:
        port, shard = self._primary(fault)
        began = time.monotonic()
        self._world.step(fault.region, port, fault.amount)
        yield
        self._world.step(fault.region, port, 0)
        self._excuse(fault.region, began, time.monotonic() + SETTLES_S, shard=shard)

    def fill_memory(self, fault: Fault) -> Iterator[None]:
        port, shard = self._primary(fault)
        began = time.monotonic()
        self._world.redis(fault.region, port, "CONFIG", "SET", "maxmemory", "1")
        yield
        try:
            self._world.redis(fault.region, port, "CONFIG", "SET", "maxmemory", "0")
        except ServerError:  # stopped by another fault, or gone
            self._full.append((fault.region, port))
        self._excuse(fault.region, began, time.monotonic() + SETTLES_S, shard=shard)

    # ---- services

    def pause_sync(self, fault: Fault) -> Iterator[None]:
        return _paused(self._service(fault.region, "sync"))

    def pause_leader(self, fault: Fault) -> Iterator[None]:
        return _paused(self._leader())

    def kill_sync(self, fault: Fault) -> Iterator[None]:
        _kill(self._service(fault.region, "sync"))
        yield

    def kill_leader(self, fault: Fault) -> Iterator[None]:
        _kill(self._leader())
        yield

    def _leader(self) -> Process:
        region = self._world.leader()
        if region is None:
            raise LookupError("nobody leads")
        return self._service(region, "sync")

    def kill_node(self, fault: Fault) -> Iterator[None]:
        place = fault.place % len(NODE_PORTS)
        began = time.monotonic()
        _kill(self._service(fault.region, f"node-{place + 1}"))
        yield
        self._dead.append((fault.region, began, self._world.nodes(fault.region)[place]))

    def pause_node(self, fault: Fault) -> Iterator[None]:
        place = fault.place % len(NODE_PORTS)
        began = time.monotonic()
        yield from _paused(self._service(fault.region, f"node-{place + 1}"))
        url = self._world.nodes(fault.region)[place]
        self._excuse(fault.region, began, time.monotonic() + RECONNECTS_S, url=url)

    # ---- disks

    def fill_region_disk(self, fault: Fault) -> Iterator[None]:
        return _filled(self._world.place(fault.region))

    def fill_broker_disk(self, fault: Fault) -> Iterator[None]:
        return _filled(self._world.directory / "kafka")


def _paused(process: Process) -> Iterator[None]:
    process.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.signal(signal.SIGCONT)


def _kill(process: Process) -> None:
    process.signal(signal.SIGKILL)


def _filled(disk: Path) -> Iterator[None]:
    filler = disk / "filler"
    with filler.open("wb") as file, suppress(OSError):
        while True:
            os.write(file.fileno(), bytes(1 << 16))
    with filler.open("ab") as file, suppress(OSError):
        while True:
            os.write(file.fileno(), b"0")
    try:
        yield
    finally:
        filler.unlink(missing_ok=True)  # two of them on one disk at once


_KINDS: Mapping[str, Callable[[Faults, Fault], Iterator[None]]] = {
    "cut a link": Faults.cut,
    "let a link only speak": Faults.speaks,
    "let a link only hear": Faults.hears,
    "lossy link": Faults.lossy,
    "slow link": Faults.slow,
    "pause the broker": Faults.pause_broker,
    "kill the broker": Faults.kill_broker,
    "pause a primary": Faults.pause_primary,
    "kill a primary": Faults.kill_primary,
    "promote a replica": Faults.promote,
    "kill every replica": Faults.kill_replicas,
    "pause a sync service": Faults.pause_sync,
    "pause the leader": Faults.pause_leader,
    "kill a sync service": Faults.kill_sync,
    "kill the leader": Faults.kill_leader,
    "kill a node": Faults.kill_node,
    "pause a node": Faults.pause_node,
    "keep a node from a shard": Faults.keep_node_from_shard,
    "cut a region in two": Faults.cut_in_two,
    "step a clock": Faults.step_clock,
    "fill a region's disk": Faults.fill_region_disk,
    "fill the broker's disk": Faults.fill_broker_disk,
    "fill a server's memory": Faults.fill_memory,
}
