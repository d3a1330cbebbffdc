"""The global side: a candidate that leads when nobody else does.  [IO]

Follows the log; takes over after a silence (the longer, the higher its rank); as leader it takes reports, beats,
lets the policy move shares, accepts or refuses proposals of rules, and keeps the log short by snapshots.

Rule of time (protocol T1): the clock is read after a report has been taken in and before MARK or BEAT is
appended.  Records leave through one appender, in the order in which they were decided.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict

import structlog

from global_sync import codec
from global_sync.loops import end, keep_running, wait
from global_sync.policy import LeaderPolicy
from global_sync.protocol.leader import LeaderSide
from global_sync.protocol.messages import Beat, Mark, Record, Snapshot
from global_sync.protocol.wall_clock import WallClock
from global_sync.rule_desk import RuleDesk
from global_sync.tracing import UNTRACED, Causes, Doing, Traces
from global_sync.transport.base import (
    LOG,
    REPORTS,
    Message,
    Reader,
    RecordsMissed,
    Start,
    Transport,
    TransportUnavailable,
)
from regional_limiter.model.share import ProtocolTimes

POLICY_INTERVAL_S = 0.03
POLICY_GAP_S = 0.003
END_REGION_S = 2.0
"""For so long a word that a region is destroyed is waited for, until it has been read back."""
END_REGION_EVERY_S = 0.05
SIGNS_A_BEAT = 3
"""The leader appends BEATs so many times in the period that its policy counts in: its silence is known sooner."""
SILENCE_US = 900_000
RANK_US = 150_000
"""How long a candidate waits without a BEAT before it takes over, and how much longer the next in rank."""
SILENCE_BEATS_MOST = 3
SNAPSHOT_RECORDS = 20_000
SNAPSHOT_BEATS_LEAST = 5
SNAPSHOT_BEATS_MOST = 60
KEYS_A_SNAPSHOT_BEAT = 20
"""A successor counts every record since the last snapshot, acknowledged or not, for a region that does not answer
it: so a small ledger, which costs next to nothing, is written soon after it has changed."""
TRIM_INTERVAL_BEATS = 60
KEYS_PER_PART = 2_000
WAITING_RECORDS_MOST = 50_000
APPEND_BATCH = 500

_USUAL_BEAT_US = ProtocolTimes().beat_us

log = structlog.get_logger(__name__)


def boot_us() -> int:
    """The leader's clock: it goes on while the machine sleeps, and nobody sets it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


def wall_ms() -> int:
    """Since 1970.  It decides nothing but which windows are over."""
    return time.time_ns() // 1_000_000


class Leader:
    """A candidate coordinator.  ``rank`` orders the candidates: a higher one waits longer."""

    def __init__(
        self,
        transport: Transport,
        times: ProtocolTimes,
        rank: int,
        *,
        now_us: Callable[[], int] = boot_us,
        wall_ms: Callable[[], int] = wall_ms,
        new_id: Callable[[int], str] = secrets.token_hex,
        traces: Traces = UNTRACED,
    ) -> None:
        self.traces = traces
        self._causes = Causes()
        self._granting: Doing | None = None
        self._transport = transport
        self._times = times
        self._rank = rank
        self._now_us = now_us
        self._wall_ms = wall_ms
        self._wall_clock = WallClock()
        self._new_id = new_id
        self.candidate = new_id(8)
        self.side = LeaderSide(self.candidate, (), times)
        self.policy = LeaderPolicy(times)
        self.desk = RuleDesk(transport, self._end_region)
        self.heard_us = now_us()
        self.takeovers = 0
        self.appended = 0
        self.appended_by_kind: dict[str, int] = {}
        self.append_failures = 0
        self.reports_taken = 0
        self.malformed = 0
        self.other_times = False
        self._waiting: deque[Record] = deque()
        self._append_wake = asyncio.Event()
        self._policy_wake = asyncio.Event()
        self._changes = 0
        self._snapshot_us = now_us()
        self._trimmed_us = now_us()
        self._caught_up = False
        self._led_epoch = 0
        self._log_from: Start = "earliest"
        self._log_reader: Reader | None = None
        self._began_at_start = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def _history_is_whole(self) -> bool:
        return self._began_at_start or self.side.has_snapshot

    @property
    def active(self) -> bool:
        return self.side.active

    async def start(self) -> None:
        loops = [
            self._log_loop,
            self._report_loop,
            self._beat_loop,
            self._policy_loop,
            self._append_loop,
            self._takeover_loop,
            self._desk_loop,
        ]
        self._tasks = [keep_running(loop, (TransportUnavailable,)) for loop in loops]

    async def stop(self) -> None:
        await end(self._tasks)

    # ---- reading

    async def _log_loop(self) -> None:
        self._caught_up = False
        reader = self._log_reader = await self._transport.reader(LOG, self._log_from)
        self._began_at_start = self._began_at_start or reader.next_offset == 0
        try:
            end = await reader.end_offset()
            while True:
                messages = await reader.read(timeout_ms=500)
                if messages:
                    # Also while another leads: so a step of the clock is known by then.
                    self._is_believed(self._now_us(), self._wall_ms())
                for message in messages:
                    self._log_from = message.offset + 1
                    self._take(message)
                if not self._caught_up and reader.next_offset >= end:
                    self._caught_up = True
                    self.heard_us = self._now_us()
        except RecordsMissed:
            log.warning("records missed, following the log from its snapshot")
            self._begin_anew()
        finally:
            self._caught_up, self._log_reader = False, None
            await reader.close()

    def _begin_anew(self) -> None:
        """A crash in small: as a new candidate, that knows nothing (C1)."""
        self.candidate = self._new_id(8)
        self.side = LeaderSide(self.candidate, (), self._times)
        self._log_from = "earliest"
        self._began_at_start = False
        self._waiting.clear()
        self.desk.rest()

    def _take(self, message: Message) -> None:
        try:
            for record in codec.decode_records(message.value):
                self._take_record(record, message.offset)
        except Exception:
            # A candidate that did not take in all of the log must not lead: it would count too little.
            self.malformed += 1
            self._begin_anew()
            log.exception("record not understood, this candidate will not lead", offset=message.offset)

    def _take_record(self, record: Record, offset: int) -> None:
        now_us = self._now_us()
        led = self.side.active
        self.side.on_record(now_us, record, offset)
        if not isinstance(record, (Beat, Snapshot)):
            self._changes += 1
        if isinstance(record, (Beat, Mark)):
            self.heard_us = now_us
        if isinstance(record, (Mark, Snapshot)) and record.times not in ((), self._times.signature):
            # What was granted by other times would be counted wrongly.
            self.other_times = True
            log.error("the log was written with other times, this candidate will not lead", times=record.times)
        if self.side.active and self.side.epoch != self._led_epoch:
            self._led_epoch = self.side.epoch
            self._waiting.clear()
            self.policy = LeaderPolicy(self._times)
            self._snapshot_us = now_us
            log.info("leading", candidate=self.candidate, epoch=self.side.epoch)
            self.desk.lead(self.side.epoch)
        elif led and not self.side.active:
            log.info("no longer leading", candidate=self.candidate)
            self._waiting.clear()
            self.desk.rest()
        self._policy_wake.set()

    async def _report_loop(self) -> None:
        reader = await self._transport.reader(REPORTS, "latest")
        try:
            while True:
                for message in await reader.read(timeout_ms=500):
                    self._take_report(message.value)
                self._policy_wake.set()
        except RecordsMissed:
            log.info("reports missed, going on with the latest")
        finally:
            await reader.close()

    def _take_report(self, value: bytes) -> None:
        try:
            report = codec.decode_report(value)
        except codec.MalformedRecord as error:
            log.error("report not understood", error=str(error))
            return
        self.reports_taken += 1
        if self.traces.is_on and self.side.active:
            self._causes.hear(codec.trace_of(value))
        self._append(self.side.on_report(self._now_us(), report))

    # ---- leading

    async def _takeover_loop(self) -> None:
        while True:
            await asyncio.sleep(self._times.beat_us / 10e6)
            # Asked twice: a beat may come in while the log's end is looked up.
            if self._is_leaderless() and await self._has_read_everything() and self._is_leaderless():
                self.take_over()

    @property
    def may_lead(self) -> bool:
        """Who begins in the middle of a log, and not at a snapshot, does not know what was granted before."""
        knows_all = self._caught_up and self._history_is_whole and not self.malformed and not self.other_times
        return knows_all and not self.side.active

    def _is_leaderless(self) -> bool:
        return self.may_lead and self._now_us() - self.heard_us >= self._waits_us()

    def _waits_us(self) -> int:
        """Where all times are shorter it is not so much shorter that a busy machine looks like a dead leader."""
        beat_us = self._times.beat_us
        in_proportion = (SILENCE_US + RANK_US * self._rank) * beat_us // _USUAL_BEAT_US
        least = min(SILENCE_BEATS_MOST * beat_us, SILENCE_US) + self._rank * min(beat_us, RANK_US)
        return max(in_proportion, least)

    def take_over(self) -> None:
        """Append a MARK, whoever leads: for :attr:`may_lead` only.  Safe at any time, and never needed twice."""
        silent_ms = (self._now_us() - self.heard_us) // 1_000
        self.takeovers += 1
        self.heard_us = self._now_us()  # wait as long again before the next try
        mark = self.side.take_over(self._now_us(), self._new_id(16))
        log.info("taking over", candidate=self.candidate, epoch=mark.epoch, silent_ms=silent_ms)
        self._waiting.clear()
        self._append([mark])

    async def _has_read_everything(self) -> bool:
        """Silence counts only on a link that works: else a MARK would wait for it to heal, and depose a leader."""
        reader = self._log_reader
        try:
            return reader is not None and reader.next_offset >= await reader.end_offset()
        except TransportUnavailable:
            return False

    async def _beat_loop(self) -> None:
        while True:
            await asyncio.sleep(self._times.beat_us / SIGNS_A_BEAT / 1e6)
            for violated in self.side.evidence.take_untold():
                log.error("an invariant would have been broken", **asdict(violated))
            if self.side.active:
                now_us = self._now_us()
                self._append(self.side.beat(now_us, self.policy.leave_out(now_us, self.side)))

    async def _policy_loop(self) -> None:
        while True:
            if self.side.active and not self._waiting:
                self._lead()
            self._policy_wake.clear()
            await wait(self._policy_wake, POLICY_INTERVAL_S)
            await asyncio.sleep(POLICY_GAP_S)

    def _lead(self) -> None:
        version, bases = self.desk.configuration()
        self._append(self.side.configure(self._now_us(), version, bases))
        self._append(self.side.done(self._now_us(), self._wall_ms()))
        for region in self.side.gone_unread():
            self._append(self.side.gone(self._now_us(), region))
        due = self._snapshot_is_due()
        if due:
            self._changes, self._snapshot_us = 0, self._now_us()
        if due or self.side.snapping:  # said again until it is read back; nothing else is said meanwhile
            self._append(self.side.snapshot(self._now_us(), KEYS_PER_PART))
            return
        records = [
            *self.policy.step(self._now_us(), self.side),
            *self._grant_windows(),
        ]
        if self.traces.is_on and records and self._granting is None:
            self._granting = self.traces.begin(
                "grant", self._causes.take(), told={"ratelimit.records": len(records)}
            )
        self._append(records)

    def _grant_windows(self) -> list[Record]:
        now_us, wall_ms = self._now_us(), self._wall_ms()
        return self.side.grant_windows(now_us, wall_ms) if self._is_believed(now_us, wall_ms) else []

    def _is_believed(self, now_us: int, wall_ms: int) -> bool:
        doubted = self._wall_clock.ahead_ms > 0
        believed = self._wall_clock.look(now_us, wall_ms)
        if not believed and not doubted:
            log.error("the wall clock stepped forward, no windows are granted", ahead_ms=self._wall_clock.ahead_ms)
        elif believed and doubted:
            log.warning("the wall clock is believed again, windows are granted")
        return believed

    def _snapshot_is_due(self) -> bool:
        keys = len(self.side.counts.ledger.keys)
        beats = min(SNAPSHOT_BEATS_MOST, SNAPSHOT_BEATS_LEAST + keys // KEYS_A_SNAPSHOT_BEAT)
        late = self._now_us() - self._snapshot_us > beats * self._times.beat_us
        return self._changes > (0 if late else SNAPSHOT_RECORDS)

    async def _desk_loop(self) -> None:
        await self.desk.run()

    async def _end_region(self, region: str) -> str | None:
        """An operator says that ``region`` is destroyed.  Why it cannot be; None once it is in the log."""
        for _ in range(round(END_REGION_S / END_REGION_EVERY_S)):
            side, now_us = self.side, self._now_us()
            if not side.active:
                return "there is another leader now: say it again"
            if side.is_gone(region):
                log.warning("a region was said to be destroyed", region=region)
                return None
            if region not in side.regions | set(side.gone_unread()):
                return f"no region is called {region}"
            if left_us := side.session_left_us(region, now_us):
                return (
                    f"{region} lives, or did lately: its session may go on for {left_us / 1e6:.0f} s, and is "
                    "renewed while it is heard of"
                )
            self._append(side.gone(now_us, region))  # nothing while a snapshot is being written
            await asyncio.sleep(END_REGION_EVERY_S)
        return "it has not been read back from the log in time; it may still be: look, and say it again"

    # ---- writing

    def _append(self, records: Iterable[Record]) -> None:
        self._waiting.extend(records)
        if len(self._waiting) > WAITING_RECORDS_MOST:
            # What is booked stays booked: a record that never leaves only keeps shares smaller.
            self._waiting.clear()
            self.append_failures += 1
        if self._waiting:
            self._append_wake.set()

    async def _append_loop(self) -> None:
        while True:
            await self._append_wake.wait()
            self._append_wake.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(APPEND_BATCH, len(self._waiting)))]
                doing, self._granting = self._granting or Doing(), None
                failed = None
                try:
                    await self._transport.send(LOG, codec.encode_batches(batch, trace=doing.context))
                    self.appended += len(batch)
                    for record in batch:
                        kind = codec.kind_of(record)
                        self.appended_by_kind[kind] = self.appended_by_kind.get(kind, 0) + 1
                except TransportUnavailable as error:
                    self.append_failures += 1
                    log.info("not appended, as far as known", records=len(batch), error=str(error))
                    self._waiting.clear()
                    failed = "not appended"
                doing.end(failed)
            await self._trim()

    async def _trim(self) -> None:
        trim = self.side.trim_before
        if trim is not None and self._now_us() - self._trimmed_us > TRIM_INTERVAL_BEATS * self._times.beat_us:
            self._trimmed_us = self._now_us()
            self.side.trim_before = None
            await self._transport.delete_before(LOG, trim)

    def view(self) -> dict[str, object]:
        """The candidate as it sees itself, for displays."""
        now_us = self._now_us()
        unacked = self.side.unacked(now_us)
        return {
            "candidate": self.candidate,
            "rank": self._rank,
            "leading": self.side.active,
            "epoch": self.side.view,
            "malformed": self.malformed,
            "heard_age_ms": (now_us - self.heard_us) // 1_000,
            "takeovers": self.takeovers,
            "appended": self.appended,
            "append_failures": self.append_failures,
            "reports_taken": self.reports_taken,
            "violations": self.side.evidence.total,
            "unacked": len(unacked),
            "longest_unacked_ms": max((wait.waiting_us for wait in unacked), default=0) // 1_000,
            "caught_up": self._caught_up,
            "other_times": self.other_times,
            "history_is_whole": self._history_is_whole,
            "waiting_for_bases": self.side.waiting_for_bases() if self.side.active else {},
            "waiting_for_floors": self.side.waiting_for_floors() if self.side.active else {},
            "heard_of_gone": sorted(self.side.heard_of_gone),
        }
