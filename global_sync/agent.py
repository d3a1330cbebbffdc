"""One region's side of the sync: what carries the pure RegionSide's decisions to Redis and to the log.  [IO]

The agent turns the region's demand into reports, writes session, leases and bases to every enforcement point,
acknowledges what the points have accepted, hands the rules to the nodes and publishes the region's usage.
Its own clock decides nothing about shares: it only paces the loops (protocol: the agent needs no clock).

Only the holder of the region's lock acts; a standby waits for it.  The lock is tidiness, not safety: two agents
at once are told apart by their sessions.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec
import structlog

from global_sync import codec
from global_sync.allocation.demand import DemandEstimator
from global_sync.allocation.window_demand import WindowDemand
from global_sync.loops import end, keep_running, wait
from global_sync.node_usage import NodeUsage
from global_sync.protocol.messages import Kind, LeaseRecord
from global_sync.protocol.points import Rest
from global_sync.protocol.region import RegionSide
from global_sync.protocol.region_state import KEYS_MOST
from global_sync.region_rules import RegionRules
from global_sync.subject_delivery import SubjectDelivery
from global_sync.tracing import CAUSES_MOST, UNTRACED, Causes, Doing, Traces
from global_sync.transport.base import (
    IN_FLIGHT,
    LOG,
    REPORTS,
    RULES,
    USAGE,
    RecordsMissed,
    Start,
    Transport,
    TransportUnavailable,
)
from regional_limiter.model.enforcement import BASE, Write, WriteReply
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.model.keys import rule_of
from regional_limiter.model.share import ProtocolTimes, domain_of_floor
from regional_limiter.store.base import KEYS_TOLD, AgentStore
from regional_limiter.store.subjects import SubjectStore

COLLECT_INTERVAL_S = 0.05
COLLECT_BUSY_S = 0.025
LISTEN_S = 0.1
GIVES_BELOW = 0.9
FEW_KEYS = 500
"""Demand for no more keys than these is collected twice as often: a jump of it is then known sooner."""
USAGE_INTERVAL_S = 1.0
WINDOWS_INTERVAL_S = 0.04
WINDOWS_GAP_S = 0.01
LOCK_TTL_MS = 3_000
LEASES_PER_WRITE = 500
_LOST_BY = (
    "its server restarted, another took over, a clock jumped, or nobody called it in time, as when all is busy"
)
REPORT_GAP_S = 0.004
PUBLISHED_KEYS = 200
SUMMED_KEYS = 10_000
"""Keys whose shares are summed for metrics: more would hold up the loop for too long."""

WAITED_OUT = (StoreUnavailable, TransportUnavailable)

log = structlog.get_logger(__name__)


def monotonic_us() -> int:
    return time.monotonic_ns() // 1_000


@dataclass(slots=True)
class PointState:
    """What the agent last saw of one enforcement point (for displays; the protocol's own state is RegionSide's).

    ``trace``: of the grant that the next write brings there; "": of none that is traced.
    """

    accepted_at_us: int = 0
    reached: bool = False
    last_error: str = ""
    session_left_us: int = 0
    consent_extended_at_us: int = 0
    instance: str = ""
    resets: int = 0
    trace: str = ""
    writer: asyncio.Task[None] | None = None
    wake: asyncio.Event = field(default_factory=asyncio.Event)


class Agent:
    """Runs one region's side until ``stop``.

    ``state_dir``: where it keeps its rules; None: nowhere.  ``now_us`` paces; it is never compared with another
    clock.  ``new_id``: that many random bytes in hexadecimal.
    """

    def __init__(
        self,
        region: str,
        store: AgentStore,
        transport: Transport,
        times: ProtocolTimes,
        state_dir: Path | None,
        *,
        now_us: Callable[[], int] = monotonic_us,
        new_id: Callable[[int], str] = secrets.token_hex,
        traces: Traces = UNTRACED,
    ) -> None:
        self.region = region
        self.traces = traces
        self.sends_took = transport.took
        self._causes = Causes()
        self.times = times
        self._store = store
        self._transport = transport
        self._now_us = now_us
        self._new_id = new_id
        self.agent_id = new_id(16)
        self.side = RegionSide(region, self.agent_id, times)
        self.rules = RegionRules(state_dir / "rules.json" if state_dir is not None else None)
        self.demand = DemandEstimator(self.rules.refill_of, self.side.held)
        self.windows = WindowDemand()
        self.usage = NodeUsage(forget_after_us=2 * times.consent_us)
        self.subjects = (
            SubjectDelivery(store, transport, lambda: self.active) if isinstance(store, SubjectStore) else None
        )
        self.points: dict[str, PointState] = {}
        self.active = False
        self.records_read = 0
        self.reports_sent = 0
        self.sends_failed = 0
        self.malformed = 0
        self.leases_read = {"grow": 0, "keep": 0, "base": 0}
        """Records about this region's shares, by what they do: each is a hand-over, or a return to the base."""
        self.log_read_at_us = now_us()
        self._listening_since_us = now_us()
        self._listened_us = 0
        self._usage_seq = 0
        self._log_from: Start = "earliest"
        self._report_wake = asyncio.Event()
        self._listing_wake = asyncio.Event()
        self._windows_wake = asyncio.Event()
        self._reports_under_way: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Load the last known rules from disk and start the loops."""
        self.rules.load()
        loops = [
            self._lock_loop,
            self._log_loop,
            self._rules_loop,
            self._listing_loop,
            self._collect_loop,
            self._windows_loop,
            self._report_loop,
            self._usage_loop,
            *([self._subjects_loop] if self.subjects is not None else []),
        ]
        self._tasks = [keep_running(loop, WAITED_OUT) for loop in loops]

    async def stop(self) -> None:
        """Send the last totals, give the lock back and end every loop (bounded)."""
        if self.active:
            await self._publish_usage()
        await end(
            [
                *self._tasks,
                *self._reports_under_way,
                *(state.writer for state in self.points.values() if state.writer),
            ]
        )
        try:
            async with asyncio.timeout(1):
                await self._store.release_lock(self.agent_id)
        except (StoreUnavailable, TimeoutError) as error:
            log.info("lock not given back; it ends by itself", error=str(error))

    # ---- the region's lock

    async def _lock_loop(self) -> None:
        while True:
            asked_us = self._now_us()
            try:
                held = not self.side.deposed and await self._store.hold_lock(self.agent_id, LOCK_TTL_MS)
            except StoreUnavailable:
                # Unknown is not lost: an agent that cannot reach one shard goes on writing to the others.
                held = self.active
            if held and not self.active:
                log.info("this agent acts for the region", region=self.region, agent=self.agent_id)
            if self.side.deposed:
                self._begin_anew()
                held = False
            self.active = held
            await asyncio.sleep(max(0.05, LOCK_TTL_MS / 3_000 - (self._now_us() - asked_us) / 1e6))

    def _begin_anew(self) -> None:
        """Deposed, or records missed: what this process knew is void; it goes on as a new one."""
        self.agent_id = self._new_id(16)
        self.side.restart(self.agent_id)
        self._listening_since_us = self._now_us()
        self._log_from = "earliest"
        log.warning("agent starts anew", region=self.region, agent=self.agent_id)

    # ---- log -> side

    async def _log_loop(self) -> None:
        # A process goes only forward in the log; one that starts anew begins at the first record left.
        agent_id = self.agent_id
        reader = await self._transport.reader(LOG, self._log_from)
        try:
            while True:
                messages = await reader.read(timeout_ms=1_000)
                if self.agent_id != agent_id:
                    return  # begun anew meanwhile: from the first record left, not from here
                for message in messages:
                    self._take(message.value, codec.trace_of(message.value) if self.traces.is_on else "")
                    self._log_from = message.offset + 1
                if messages:
                    self.log_read_at_us = self._now_us()
                    self._wake_writers()
                    self._listing_wake.set()
                    self._windows_wake.set()
        except RecordsMissed:
            self._begin_anew()
        finally:
            await reader.close()

    def _take(self, value: bytes, trace: str = "") -> None:
        try:
            records = codec.decode_records(value)
        except codec.MalformedRecord as error:
            # What is not understood is not obeyed, and so never acknowledged.
            self.malformed += 1
            log.error("record not understood", error=str(error))
            return
        for record in records:
            self.records_read += 1
            if isinstance(record, LeaseRecord) and record.region == self.region:
                self.leases_read["base" if record.value == BASE else record.kind] += 1
                if trace:
                    for state in self.points.values():
                        state.trace = trace
            if isinstance(record, LeaseRecord) and record.region == self.region and record.kind is Kind.KEEP:
                self._take_cut(record)
            else:
                self.side.on_record(record)

    def _take_cut(self, record: LeaseRecord) -> None:
        before, had_lease = self.side.held(record.key)
        self.side.on_record(record)
        # A small cut is for a little more that somebody needs: what is kept here for a peak stays.
        if not had_lease or self.side.held(record.key)[0] < GIVES_BELOW * before:
            self._lower_to_want(record.key)

    def _lower_to_want(self, key: str) -> None:
        """Somebody else is short of a key: give at once what is not needed here, which spares a round trip.

        Of a key that rested at its base the demand is known from the nodes' totals, and said at once: that spares
        those who ask for it here a cut to less than they need.
        """
        if not self.active:
            return
        if key not in self.demand:
            known = self.usage.rate(key, KEYS_TOLD)
            if known is None:
                return
            rate, all_along = known
            self.demand.begin_at(key, rate, self._now_us())
            if not all_along:
                # It may have begun just now: from here on nodes tell of it.
                asyncio.get_running_loop().call_later(LISTEN_S, self._lower, key)
                return
        self._lower(key)

    def _lower(self, key: str) -> None:
        needed = self.demand.needed(key)
        held, has_lease = self.side.held(key)
        if needed is not None and has_lease and needed < held:
            self.side.set_want(key, self.demand.say(key, self._now_us()))
            self.side.release(key, needed)
            self._wake_writers()
            self._report_wake.set()

    # ---- rules -> disk -> points

    async def _rules_loop(self) -> None:
        reader = await self._transport.reader(RULES, "earliest")
        try:
            end = await reader.end_offset()
            while True:
                for message in await reader.read(timeout_ms=1_000):
                    self.rules.take(message.value)
                if reader.next_offset >= end and await asyncio.to_thread(self.rules.settle):
                    log.info("rules taken", version=self.rules.version)
                    self._wake_writers()
        except RecordsMissed:
            log.info("rules topic was trimmed, reading it again")
        finally:
            await reader.close()

    # ---- what is known of clients -> points

    async def _subjects_loop(self) -> None:
        assert self.subjects is not None
        await self.subjects.run()

    # ---- points

    async def _listing_loop(self) -> None:
        while True:
            token = self.side.listing_started()
            points = await self._store.list_points()
            self.side.on_listing(token, points, self._nodes_base_version())
            self._follow_points(points)
            await self._drop_unused_libraries(points)
            if self.side.news:
                self._report_wake.set()
            self._listing_wake.clear()
            if not self.side.listing_due:
                await wait(self._listing_wake, self.times.beat_us / 1e6)

    async def _drop_unused_libraries(self, points: frozenset[str]) -> None:
        """A version that no node calls any more goes (E5): a point that is never written again settles nothing."""
        now_us, consent_us = self._now_us(), self.times.stretch(self.times.consent_us)
        if not self.active or now_us - self._listening_since_us < consent_us:
            return
        in_use = self.usage.libraries(now_us, consent_us)
        if not in_use or "" in in_use:
            return
        for point in points:
            if point.partition("/")[2] not in in_use | {self._store.version}:
                log.info("dropping a function library that no node calls", point=point)
                await self._store.drop_library(point)

    def _nodes_base_version(self) -> int | None:
        """The version of the bases that surely every node uses; None while a silent node may yet turn up.

        A node counts as gone when nothing was heard of it for a whole consent *in which we listened*.
        """
        now_us = self._now_us()
        consent_us = self.times.stretch(self.times.consent_us)
        if not self.active or now_us - self._listening_since_us < consent_us:
            return None
        least = self.usage.least_base_version(now_us, consent_us)
        return self.side.base_version if least is None else least

    def _follow_points(self, points: frozenset[str]) -> None:
        for point in points - self.points.keys():
            state = self.points[point] = PointState()
            state.writer = keep_running(partial(self._write_loop, point), WAITED_OUT, name=f"write {point}")
        for point in self.points.keys() - points:
            writer = self.points.pop(point).writer
            if writer is not None:
                writer.cancel()

    def _wake_writers(self) -> None:
        for state in self.points.values():
            state.wake.set()

    async def _write_loop(self, point: str) -> None:
        state = self.points[point]
        while True:
            state.wake.clear()
            if self.active:
                await self._write(point, state)
            await wait(state.wake, self.times.write_us / 1e6)

    async def _write(self, point: str, state: PointState) -> None:
        """Bring one point up to date: as many writes as its changed keys need."""
        while True:
            write = self.side.prepare_write(point, self._new_id(16), LEASES_PER_WRITE)
            if write is None:
                return
            trace, state.trace = state.trace, ""
            told = {"ratelimit.region": self.region, "ratelimit.point": point}
            writing = self.traces.begin("write", parent=trace, told=told) if trace else None
            try:
                reply = await self._store.write(point, write)
            except StoreUnavailable as error:
                state.reached, state.last_error = False, error.cause
                if writing is not None:
                    writing.end(error.cause)
                return
            if writing is not None:
                writing.end(None if reply.accepted else "refused")
            rest = self.side.on_reply(point, reply)
            if rest is not None:
                # Timers of some loops are a millisecond early.
                rest_us = self.times.stretch(self.times.token_lease_us) + 2000
                asyncio.get_running_loop().call_later(rest_us / 1e6, self._rested, rest)
            self._note(point, state, write, reply)
            if self.side.news:
                self._report_wake.set()
            if not self.side.needs_write(point):
                return

    def _rested(self, rest: Rest) -> None:
        self.side.rested(rest)
        if self.side.news:
            self._report_wake.set()

    def _note(self, point: str, state: PointState, write: Write, reply: WriteReply) -> None:
        state.reached = True
        if state.instance != reply.instance:
            # A variable is born without a session, and with a consent.
            state.session_left_us = 0
            state.consent_extended_at_us = self._now_us() - reply.age_us
        if state.instance and state.instance != reply.instance:
            # A restart, a promotion, a clock step, or nobody called for longer than the gap.
            state.resets += 1
            log.warning("a point has lost its variable", point=point, resets=state.resets, cause=_LOST_BY)
        state.instance = reply.instance
        if reply.accepted:
            state.session_left_us = max(0, write.until_us - reply.time_us)
            state.accepted_at_us = self._now_us()
            if write.extend:
                state.consent_extended_at_us = state.accepted_at_us

    # ---- demand and beats

    async def _collect_loop(self) -> None:
        while True:
            began_us = self._now_us()
            if self.active:
                heard = await asyncio.gather(*(self._collect(point) for point in list(self.points)))
                self._listen(began_us, everywhere=bool(heard) and all(heard))
                self.usage.expire(began_us)
                wants = self.demand.tick(self._now_us())
                for key, want in wants.items():
                    self.side.set_want(key, want)
                if wants:
                    self._report_wake.set()
            every_s = COLLECT_BUSY_S if 0 < len(self.demand) <= FEW_KEYS else COLLECT_INTERVAL_S
            await asyncio.sleep(max(0.01, every_s - (self._now_us() - began_us) / 1e6))

    def _listen(self, began_us: int, everywhere: bool) -> None:
        """Beats are missed while we do not act, and where a point does not answer."""
        if began_us - self._listened_us > self.times.gap_us:
            self._listening_since_us = began_us
        if everywhere:
            self._listened_us = began_us

    async def _collect(self, point: str) -> bool:
        """Whether the point's beats were taken in."""
        try:
            collected = await self._store.collect(point)
            now_us = self._now_us()
            for key, cost in collected.demand.items():
                self.demand.offer(key, cost, now_us)
            for seen in collected.beats:
                self.usage.take(seen, now_us)
                if self.traces.is_on:
                    for context in seen.beat.traces[:CAUSES_MOST]:
                        self._causes.hear(context)
            if self.rules.version > collected.rules_version:
                await self._store.publish_rules(point, self.rules.version, self.rules.blob())
            return True
        except StoreUnavailable as error:
            self._not_reached(point, error.cause)
        except Exception as error:
            # For example what a point of another version answers: the other points are not to suffer.
            self._not_reached(point, repr(error))
            log.exception("not collected", point=point)
        return False

    def _not_reached(self, point: str, cause: str) -> None:
        if point in self.points:
            self.points[point].reached, self.points[point].last_error = False, cause

    # ---- windows in escrow

    async def _windows_loop(self) -> None:
        """Tell the points what was granted, hear which windows are being used up, and ask for more of them."""
        while True:
            self._windows_wake.clear()
            if self.active and self.rules.has_escrow:
                await asyncio.gather(*(self._tell_windows(point) for point in list(self.points)))
                for key, ask in self.windows.asks(self._now_us(), self.side.escrow.held).items():
                    self.side.ask(key, ask)
                if self.side.news:
                    self._report_wake.set()
            await asyncio.sleep(WINDOWS_GAP_S)
            await wait(self._windows_wake, WINDOWS_INTERVAL_S)

    async def _tell_windows(self, point: str) -> None:
        escrow = self.side.escrow
        news = escrow.to_tell(point, self.side.base_version, self.side.bases_since)
        try:
            reply = await self._store.windows(point, news)
        except StoreUnavailable as error:
            self._not_reached(point, error.cause)
            return
        except Exception:
            # For example what a point of an older version answers: it has no windows in escrow.
            log.debug("a point takes no windows", point=point, exc_info=True)
            return
        if escrow is self.side.escrow:
            escrow.was_told(point, reply.instance, news)
            escrow.forget_ended(reply.time_us // 1000)
        now_us = self._now_us()
        for use in reply.uses:
            self.windows.take(use, reply.time_us // 1000, now_us)

    # ---- reports and usage

    async def _report_loop(self) -> None:
        while True:
            self._report_wake.clear()
            report = self.side.report() if self.active else None
            if report is not None:
                # Not waited for: over an ocean the next report would be late by a whole round trip.
                told: dict[str, str | int] = {"ratelimit.region": self.region, "ratelimit.keys": len(report.wants)}
                doing = self.traces.begin("report", self._causes.take(), told=told)
                sending = asyncio.create_task(
                    self._send(REPORTS, codec.encode_report(report, doing.context), doing)
                )
                self._reports_under_way.add(sending)
                sending.add_done_callback(self._reports_under_way.discard)
                self.reports_sent += 1
            await asyncio.sleep(REPORT_GAP_S)
            if len(self._reports_under_way) >= IN_FLIGHT[REPORTS]:
                await asyncio.wait(self._reports_under_way, return_when=asyncio.FIRST_COMPLETED)
            await self._until_worth_reporting()

    async def _until_worth_reporting(self) -> None:
        deadline_us = self._now_us() + self.times.report_us
        while not self.side.news and self._now_us() < deadline_us:
            self._report_wake.clear()
            await wait(self._report_wake, (deadline_us - self._now_us()) / 1e6)

    async def _send(self, topic: str, value: bytes, doing: Doing | None = None) -> None:
        failed = None
        try:
            await self._transport.send(topic, [value], key=self.region.encode())
        except TransportUnavailable as error:
            failed = "not sent"
            self.sends_failed += 1
            log.info("not sent", topic=topic, error=str(error))
        if doing is not None:
            doing.end(failed)

    async def _usage_loop(self) -> None:
        while True:
            for violated in self.side.evidence.take_untold():
                log.error("an invariant would have been broken", region=self.region, **asdict(violated))
            if self.active:
                await self._publish_usage()
            await asyncio.sleep(USAGE_INTERVAL_S)

    async def _publish_usage(self) -> None:
        self._usage_seq += 1
        await self._send(
            USAGE,
            msgspec.json.encode(
                {**self.view(), "counted": self.usage.rows(), "counted_keys": self.usage.key_rows(self._now_us())}
            ),
        )

    def view(self) -> dict[str, object]:
        """The region as its agent sees it: published as usage, and shown by the sync service."""
        now_us = self._now_us()
        shares = self.side.shares()
        totals = self.usage.keys(PUBLISHED_KEYS)
        keys = {*list(totals), *list(shares)[:PUBLISHED_KEYS]}
        return {
            "v": 1,
            "region": self.region,
            "agent": self.agent_id,
            "at_ms": time.time_ns() // 1_000_000,
            "seq": self._usage_seq,
            "active": self.active,
            "epoch": self.side.epoch,
            "session": self.side.session,
            "deposed": self.side.deposed,
            "malformed": self.malformed,
            "violations": self.side.evidence.total,
            "records_read": self.records_read,
            "reports_sent": self.reports_sent,
            "sends_failed": self.sends_failed,
            "keys_refused": self.side.keys_refused,
            "link_age_ms": (now_us - self.log_read_at_us) // 1_000,
            "behind": self._transport.behind(),
            "rules_version": self.rules.version,
            "base_version": self.side.base_version,
            **_own_parts(self.side.bases),
            "totals": {name: list(values) for name, values in self.usage.rules().items()},
            "keys": {key: self._key_view(key, shares, totals) for key in sorted(keys)},
            "nodes": [
                {
                    "node": beat.node,
                    "address": beat.address,
                    "age_ms": age_us // 1_000,
                    "rules_version": beat.rules_version,
                }
                for beat, age_us in self.usage.nodes(now_us)
            ],
            "points": [self._point_view(point, state, now_us) for point, state in sorted(self.points.items())],
        }

    def shares_by_rule(self) -> dict[tuple[str, str], tuple[int, int]]:
        """By domain and rule: the sum of the shares of its keys that are away from their base, and how many are."""
        sums: dict[tuple[str, str], tuple[int, int]] = {}
        for key, share in islice(self.side.shares().items(), SUMMED_KEYS):
            if share == BASE:
                continue
            try:
                rule = rule_of(key)
            except ValueError:
                continue  # no bucket key: nobody's
            total, keys = sums.get(rule, (0, 0))
            sums[rule] = (total + share, keys + 1)
        return sums

    def tables(self) -> dict[str, tuple[int, int]]:
        """By table: entries, and how many there may be."""
        return {"keys": (len(self.side.shares()), KEYS_MOST)}

    def _key_view(
        self, key: str, shares: Mapping[str, int], totals: Mapping[str, tuple[int, ...]]
    ) -> dict[str, object]:
        want = self.side.want(key)
        return {
            "share": shares.get(key),
            "want": want.want if want else 0,
            "totals": list(totals.get(key, (0, 0, 0, 0, 0, 0))),
        }

    def _point_view(self, point: str, state: PointState, now_us: int) -> dict[str, object]:
        since_us = now_us - state.accepted_at_us if state.accepted_at_us else None
        consent_left_us = self.times.consent_us - (now_us - state.consent_extended_at_us)
        return {
            "point": point,
            "ok": state.reached,
            "error": state.last_error if not state.reached else "",
            "resets": state.resets,
            "accepted_age_ms": None if since_us is None else since_us // 1_000,
            "session_left_ms": max(0, state.session_left_us - (since_us or 0)) // 1_000,
            "consent_left_ms": max(0, consent_left_us if state.consent_extended_at_us else 0) // 1_000,
        }


def _own_parts(bases: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """By domain: the region's base, and its floor where the set names one."""
    parts: dict[str, dict[str, int]] = {"bases": {}, "floors": {}}
    for name, number in bases.items():
        domain = domain_of_floor(name)
        parts["bases" if domain is None else "floors"][domain or name] = number
    return parts
