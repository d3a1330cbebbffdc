"""The servers of one Redis Cluster: connections, topology, breakers, and a call that finds its way.  I/O.

A command is sent once.  It is sent a second time only when the reply proves that nothing ran: MOVED, ASK, or an
unknown function (after the library is loaded).  A refusal that says "not here, not now" ends the call at once
and makes the topology be read again; so does a shard that lets several calls time out, since a frozen primary
never says MOVED.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Final, Generic, NamedTuple, TypeVar

from regional_limiter.durations import STORE_BOUNDS_S, Durations
from regional_limiter.model.errors import OtherWindows, StoreUnavailable
from regional_limiter.store.base import CROWDED_FROM
from regional_limiter.store.breaker import Breaker
from regional_limiter.store.connection import ConnectionOptions, ReplyError, Server, pack
from regional_limiter.store.library import OTHER_WINDOWS
from regional_limiter.store.topology import NOTHING_KNOWN, NodeLine, Topology, merge, parse_nodes

_log = logging.getLogger("apportion.store")

_NODES: Final = pack("CLUSTER", "NODES")

# Refusals that come before anything is executed.
_ELSEWHERE: Final = frozenset(("READONLY", "LOADING", "CLUSTERDOWN", "TRYAGAIN", "MASTERDOWN"))
_NOT_RUN: Final = _ELSEWHERE | {"MOVED", "ASK", "BUSY", "OOM", "MISCONF", "NOREPLICAS", "NOAUTH", "NOPERM"}
_LOG_EVERY_S: Final = 1.0
# At its start only: an error that quotes a caller's text must not prove that nothing ran.
_UNKNOWN_FUNCTION: Final = "ERR Function not found"

TIMED_MOST: Final = 256
"""Servers whose calls are timed: far more than a region has, also after many were replaced."""

_T = TypeVar("_T")

Load = Callable[[str, float], Awaitable[None]]
"""Load the function library at an address within so many seconds."""


Watch = Callable[[str, Callable[[Any], None]], Callable[[Any], None]]
"""Told of every call of a check that is about to go out: to which server ("": not known yet), and who gets its
outcome.  It gives back who shall get it instead."""


class CallKind(NamedTuple, Generic[_T]):
    """What many calls have in common: who reads their replies, and the deadlines of :meth:`Cluster.call`."""

    decode: Callable[[Any], _T]
    attempt_s: float
    whole_s: float
    load: Load


class _Way(NamedTuple):
    """Where the calls for a slot go.  ``took``: how long checks there have taken."""

    address: str
    server: Server
    breaker: Breaker
    took: Durations


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Times in seconds.

    ``refresh_hurt_s``: how often the topology is read while a shard does not answer.  ``quick_s``: an answer that
    took longer does not close a breaker: a shard that is too slow for checks is not well because a patient call
    came back.
    """

    connection: ConnectionOptions = field(default_factory=ConnectionOptions)
    view_timeout_s: float = 0.25
    refresh_s: float = 5.0
    refresh_hurt_s: float = 0.2
    refresh_apart_s: float = 0.05
    timeouts_to_refresh: int = 3
    quick_s: float = 0.008


class Cluster:
    """Connections to every known server, and who owns which hash slot.  Starts with the first call."""

    def __init__(self, seeds: Sequence[str], options: ClusterOptions) -> None:
        self._seeds = frozenset(seeds)
        self._options = options
        self._servers: dict[str, Server] = {}
        self._breakers: dict[str, Breaker] = {}
        self._strikes: dict[str, int] = {}
        self._logged_at: dict[str, float] = {}
        self._topology = NOTHING_KNOWN
        self._owners: list[str] = list(NOTHING_KNOWN.owners)
        self._ways: dict[int, _Way] = {}
        """By hash slot; found when first needed, and again when anything of it changes."""
        self._known = asyncio.Event()
        self._wanted = asyncio.Event()
        self._refresher: asyncio.Task[None] | None = None
        self._closed = False
        self._closing: set[asyncio.Task[None]] = set()
        self._finishing: set[asyncio.Task[None]] = set()
        self.watch: Watch | None = None
        self.took: dict[str, Durations] = {}
        """How long the calls of checks took until their replies came, by server."""
        self.unanswered: dict[str, int] = {}
        """Calls of checks that were sent and had no reply, by server."""

    # ---- life

    def start(self) -> None:
        """Begin to connect and to read the topology (needs a running loop)."""
        if self._refresher is None and not self._closed:
            for address in self._seeds:
                self.server(address)
            self._refresher = asyncio.get_running_loop().create_task(self._keep_fresh(), name="redis topology")

    async def close(self) -> None:
        self._closed = True
        if self._refresher is not None:
            self._refresher.cancel()
            await asyncio.gather(self._refresher, return_exceptions=True)
        await asyncio.gather(*(server.close() for server in self._servers.values()))
        self._servers.clear()
        self._ways.clear()

    # ---- what is known

    @property
    def topology(self) -> Topology:
        return self._topology

    def slots_of(self, address: str) -> Sequence[tuple[int, int]]:
        """Half-open ranges of the hash slots that a server serves, as far as is known."""
        return dict(self._topology.claims).get(address, ())

    def server(self, address: str) -> Server:
        """The connection to ``address``, begun if there is none."""
        server = self._servers.get(address)
        if server is None:
            if self._closed:
                raise StoreUnavailable("closed", may_have_run=False)
            server = self._servers[address] = Server(address, self._options.connection, self._lost)
            server.start()
        return server

    def is_connected(self, address: str) -> bool:
        """Whether there is a connection to ``address`` now; begins none."""
        server = self._servers.get(address)
        return server is not None and server.connected

    def breaker(self, address: str) -> Breaker:
        breaker = self._breakers.get(address)
        if breaker is None:
            breaker = self._breakers[address] = Breaker()
        return breaker

    async def known(self, timeout_s: float) -> Topology:
        """The topology; waits for the first one at most ``timeout_s``."""
        self.start()
        if not self._known.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._known.wait()
            except TimeoutError:
                raise StoreUnavailable("no_topology", may_have_run=False) from None
        return self._topology

    async def ready(self, timeout_s: float) -> bool:
        """Wait until every primary is connected, at most ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                topology = await self.known(timeout_s)
                connected = [self.server(address).ready(timeout_s) for address in topology.primaries]
                return all(await asyncio.gather(*connected))
        except (StoreUnavailable, TimeoutError):
            return False

    def owner(self, hash_slot: int) -> str:
        address = self._owners[hash_slot]
        if not address:
            self.want_refresh()
            raise StoreUnavailable("slot_unserved", may_have_run=False)
        return address

    def is_crowded(self, hash_slot: int) -> bool:
        """Whether the calls for ``hash_slot`` that wait now are more than three quarters of what may wait."""
        server = self._servers.get(self._owners[hash_slot])
        if server is None:
            return len(self._finishing) > CROWDED_FROM * self._options.connection.in_flight_max
        return server.crowded

    # ---- calls

    async def call(
        self,
        command: bytes,
        *,
        hash_slot: int | None = None,
        address: str = "",
        attempt_s: float,
        whole_s: float,
        load: Load | None = None,
        through_breaker: bool = True,
    ) -> object:
        """Send ``command`` to the owner of ``hash_slot``, or to ``address``; the reply is never an error.

        ``attempt_s`` bounds each sending, ``whole_s`` all of them.  With ``load`` an unknown function is loaded
        once.  Raises StoreUnavailable.
        """
        end = monotonic() + whole_s
        if not self._known.is_set():
            await self.known(whole_s)
        address = address or self.owner(hash_slot or 0)
        reply = await self._send(address, command, min(attempt_s, whole_s), False, through_breaker)
        if not isinstance(reply, ReplyError):
            return reply
        return await self._follow(reply, address, command, hash_slot, attempt_s, end, load, through_breaker)

    def submit(
        self,
        command: bytes,
        hash_slot: int,
        kind: CallKind[_T],
        done: Callable[[_T | Exception], None],
    ) -> None:
        """:meth:`call` by callback: ``done`` gets the decoded reply, or an exception.

        One that was foreseen is StoreUnavailable.  ``done`` may be called before this returns.  There is no task
        and no future on the way while the slot's owner is known and answers.
        """
        if self.watch is not None:
            done = self.watch(self._owners[hash_slot], done)
        way = self._ways.get(hash_slot) or self._way(hash_slot)
        if way is None:
            if len(self._finishing) >= self._options.connection.in_flight_max:
                done(StoreUnavailable("queue_full", may_have_run=False))
                return
            _, attempt_s, whole_s, load = kind
            call = self.call(command, hash_slot=hash_slot, attempt_s=attempt_s, whole_s=whole_s, load=load)
            self._finish(call, kind.decode, done)
            return
        address, server, breaker, _ = way
        started = monotonic()
        if breaker.is_open and not breaker.admits(started):
            done(_silent(StoreUnavailable("breaker_open", may_have_run=False), address, breaker, started))
            return
        answered = partial(self._answered, way, started, command, hash_slot, kind, done)
        try:
            server.submit(command, started + kind.attempt_s, answered)
        except StoreUnavailable as error:
            done(_silent(error, address, breaker, started))

    def _way(self, hash_slot: int) -> _Way | None:
        """Where calls for ``hash_slot`` go, None while that is not known."""
        address = self._owners[hash_slot]
        server = self._servers.get(address)
        if server is None or not self._known.is_set():
            return None
        way = self._ways[hash_slot] = _Way(address, server, self.breaker(address), self._took(address))
        return way

    def _took(self, address: str) -> Durations:
        known = self.took.get(address)
        if known is None:
            if len(self.took) >= TIMED_MOST:
                gone = next(iter(self.took))
                del self.took[gone]
                self.unanswered.pop(gone, None)
            known = self.took[address] = Durations(STORE_BOUNDS_S)
        return known

    def _answered(
        self,
        way: _Way,
        started: float,
        command: bytes,
        hash_slot: int,
        kind: CallKind[_T],
        done: Callable[[_T | Exception], None],
        reply: object,
    ) -> None:
        """What came of a call that was submitted."""
        breaker = way.breaker
        if isinstance(reply, StoreUnavailable):
            breaker.failed(started, monotonic())
            if way.address in self.took:
                self.unanswered[way.address] = self.unanswered.get(way.address, 0) + 1
            done(_silent(reply, way.address, breaker, started))
            return
        way.took.record(monotonic() - started)
        if not breaker.calm:
            breaker.succeeded()
        if self._strikes:
            self._strikes.pop(way.address, None)
        if isinstance(reply, ReplyError):
            _, attempt_s, whole_s, load = kind
            end = started + whole_s
            call = self._follow(reply, way.address, command, hash_slot, attempt_s, end, load, True)
            self._finish(call, kind.decode, done)
            return
        try:
            outcome: _T | Exception = kind.decode(reply)
        except Exception as error:
            outcome = error
        done(outcome)

    def _finish(
        self, call: Coroutine[Any, Any, object], decode: Callable[[Any], _T], done: Callable[[_T | Exception], None]
    ) -> None:
        """Have ``done`` told what comes of ``call``."""

        async def finish() -> None:
            try:
                outcome: _T | Exception = decode(await call)
            except Exception as error:
                outcome = error
            done(outcome)

        task = asyncio.get_running_loop().create_task(finish())
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def _follow(
        self,
        reply: ReplyError,
        address: str,
        command: bytes,
        hash_slot: int | None,
        attempt_s: float,
        end: float,
        load: Load | None,
        through_breaker: bool,
    ) -> object:
        """Go on after an error reply: where the reply says, once more, if it proves that nothing ran."""
        said: object = reply
        asking = redirected = loaded = False
        while isinstance(said, ReplyError):
            text = str(said)
            kind, _, rest = text.partition(" ")
            if text.startswith(_UNKNOWN_FUNCTION) and load is not None and not loaded:
                loaded = True
                await load(address, end - monotonic())
            elif kind in ("MOVED", "ASK") and hash_slot is not None and not redirected:
                redirected, asking = True, kind == "ASK"
                address = await self._redirect(rest, address, moved=kind == "MOVED", left_s=end - monotonic())
            else:
                raise self._refused(kind, text, address)
            left_s = end - monotonic()
            if left_s <= 0:
                raise StoreUnavailable("timeout", may_have_run=False)
            said = await self._send(address, command, min(attempt_s, left_s), asking, through_breaker)
        return said

    async def _send(self, address: str, command: bytes, timeout_s: float, asking: bool, guarded: bool) -> object:
        breaker = self.breaker(address)
        started = monotonic()
        if guarded and not breaker.admits(started):
            raise _silent(StoreUnavailable("breaker_open", may_have_run=False), address, breaker, started)
        try:
            reply = await self.server(address).call(command, timeout_s, asking=asking)
        except StoreUnavailable as error:
            # Without a connection a call fails at once by itself: the breaker has nothing to add.
            if error.may_have_run:
                breaker.failed(started, monotonic())
            if guarded:
                _silent(error, address, breaker, started)
            raise
        if guarded or monotonic() - started <= self._options.quick_s:
            self._succeeded(address, breaker)
        return reply

    def _succeeded(self, address: str, breaker: Breaker) -> None:
        breaker.succeeded()
        if self._strikes:
            self._strikes.pop(address, None)

    async def _redirect(self, rest: str, asked: str, *, moved: bool, left_s: float) -> str:
        """The address that MOVED or ASK names (``SLOT HOST:PORT``), connected."""
        slot_text, _, address = rest.partition(" ")
        host, _, port = address.rpartition(":")
        address = f"{host or asked.rpartition(':')[0]}:{port}"
        if moved:
            self._owners[int(slot_text)] = address
            self._ways.pop(int(slot_text), None)
            self.want_refresh()
        if not await self.server(address).ready(max(0.0, left_s)):
            raise StoreUnavailable("disconnected", may_have_run=False)
        return address

    def _refused(self, kind: str, text: str, address: str) -> StoreUnavailable:
        if kind == OTHER_WINDOWS:
            return OtherWindows(int(text.split()[1]))
        if kind in _ELSEWHERE or kind == "MOVED":
            self.want_refresh()
        self._log_seldom(address, f"refused a call: {text[:300]}")
        if kind in _NOT_RUN or text.startswith(_UNKNOWN_FUNCTION):
            return StoreUnavailable(kind.lower() if kind in _NOT_RUN else "no_function", may_have_run=False)
        return StoreUnavailable("error")

    def _log_seldom(self, address: str, what: str) -> None:
        now = monotonic()
        if now - self._logged_at.get(address, 0.0) > _LOG_EVERY_S:
            self._logged_at[address] = now
            _log.warning("redis %s: %s", address, what)

    # ---- topology

    def want_refresh(self) -> None:
        """Have the topology read again soon (many wishes are one reading)."""
        self._wanted.set()

    def _lost(self, address: str, cause: str) -> None:
        self._log_seldom(address, f"connection lost ({cause})")
        strikes = self._strikes[address] = self._strikes.get(address, 0) + 1
        if cause != "timeout" or strikes >= self._options.timeouts_to_refresh:
            self.want_refresh()

    def hurt(self) -> bool:
        """Whether some shard does not answer."""
        return not self._topology.primaries or any(
            not self.server(address).connected or self.breaker(address).is_open
            for address in self._topology.primaries
        )

    async def _keep_fresh(self) -> None:
        while True:
            try:
                self._use(merge(await self.views(self._options.view_timeout_s / 2)))
            except StoreUnavailable:
                pass
            except Exception:
                _log.exception("reading the topology failed")
            await asyncio.sleep(self._options.refresh_apart_s)
            await self._until_due()

    async def _until_due(self) -> None:
        """Wait for a wish, for a shard that hurts (a frozen one says nothing), or for the regular interval."""
        due_at = monotonic() + self._options.refresh_s
        while not self._wanted.is_set() and monotonic() < due_at:
            try:
                async with asyncio.timeout(self._options.refresh_hurt_s):
                    await self._wanted.wait()
            except TimeoutError:
                if self.hurt():
                    break
        self._wanted.clear()

    async def views(self, connect_s: float) -> list[list[NodeLine]]:
        """What every reachable server says now; also of servers that only the replies name.

        Raises StoreUnavailable when none answers.
        """
        asked: set[str] = set()
        views: list[list[NodeLine]] = []
        to_ask = set(self._seeds) | self._topology.servers
        while to_ask:
            asked |= to_ask
            answers = await asyncio.gather(*(self._view(address, connect_s) for address in to_ask))
            new = [view for view in answers if view is not None]
            views += new
            to_ask = {line.address for view in new for line in view} - asked
        if not views:
            raise StoreUnavailable("no_topology", may_have_run=False)
        return views

    async def _view(self, address: str, connect_s: float) -> list[NodeLine] | None:
        try:
            server = self.server(address)
            if server.long_down or not await server.ready(connect_s):
                return None
            reply = await server.call(_NODES, self._options.view_timeout_s)
        except StoreUnavailable:
            return None
        if not isinstance(reply, bytes):
            return None
        return parse_nodes(reply.decode(), address)

    def _use(self, topology: Topology) -> None:
        if not topology.primaries:
            return
        before = dict(self._topology.claims)
        for address, slots in topology.claims:
            if before.get(address) != slots:
                self.breaker(address).reset()
        self._topology = topology
        self._owners = list(topology.owners)
        self._ways = {}
        self._known.set()
        for address in topology.servers:
            self.server(address)
        for address in self._servers.keys() - topology.servers - self._seeds:
            server = self._servers.pop(address)
            self._breakers.pop(address, None)
            self._strikes.pop(address, None)
            self._logged_at.pop(address, None)
            closing = asyncio.get_running_loop().create_task(server.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


def _silent(error: StoreUnavailable, address: str, breaker: Breaker, started: float) -> StoreUnavailable:
    """Say who was silent, and since when."""
    error.server = address
    error.silent_since_us = int(breaker.silent_since(started) * 1_000_000)
    return error
