"""The store in this process: embedded mode, simulation, tests.  The same algorithms, the same rules of shares.

:class:`MemoryPoint` is one enforcement point without I/O: every call carries the point's time in microseconds.
:class:`MemoryStore` fulfils both contracts of ``store/base.py`` over one or more points and an injected clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar
from zlib import crc32

from regional_limiter.algorithms.outcome import Ending, Outcome, settle
from regional_limiter.algorithms.registry import fixed_share, functions_of
from regional_limiter.algorithms.token_lease import lease
from regional_limiter.model.decision import Reason, Verdict
from regional_limiter.model.enforcement import Enforcement, ShareInForce, Write, WriteReply
from regional_limiter.model.errors import OtherRequest, StoreUnavailable
from regional_limiter.model.escrow import WindowNews, WindowUse
from regional_limiter.model.keys import rule_of, tag_of
from regional_limiter.model.share import LARGEST_EXACT_INTEGER, ProtocolTimes, region_capacity
from regional_limiter.store.base import (
    BEAT_YOUNG_US,
    BEATS_MOST,
    DEMAND_A_REPLY,
    DEMAND_MOST,
    RECORD_MS,
    BeatSeen,
    BucketCall,
    Collected,
    Decided,
    NodeBeat,
    ReturnedLease,
    Sharing,
    TokenLease,
    TouchReply,
    WindowsReply,
)
from regional_limiter.store.bucket_table import BucketTable
from regional_limiter.store.library import asked_digest, charge_key, record_key
from regional_limiter.store.subjects import SubjectsInMemory

_T = TypeVar("_T")

RECORDS_MOST = 100_000


@dataclass(frozen=True, slots=True)
class _Record:
    """What a request asked for and was answered; ``turn`` times before the last.

    No ``answer``: nothing of its charge is left, and it is decided anew.
    """

    asked: bytes
    answer: tuple[Verdict, ...] | None
    turn: int


@dataclass(slots=True)
class _Told:
    """What nodes and agent told the point: kept and lost with the variable."""

    beats: dict[str, tuple[NodeBeat, int]] = field(default_factory=dict)
    demand: dict[str, int] = field(default_factory=dict)
    rules: tuple[int, bytes] = (-1, b"")


class MemoryPoint:
    """One enforcement point: buckets, the shares in force, and what nodes and agent tell it."""

    def __init__(self, times: ProtocolTimes, buckets_most: int = 100_000) -> None:
        self.enforcement = Enforcement(times)
        self.buckets = BucketTable(buckets_most)
        self._consent_us = times.consent_us
        self._told = _Told()
        self._told_since = 0
        self._records: dict[str, tuple[_Record, int]] = {}  # until when
        self._charges: dict[str, tuple[tuple[int, str, int], int]] = {}  # (cost, stored under, when), until

    def lose(self, *, buckets: bool = False) -> None:
        """The process restarted: the variable is gone, with ``buckets`` the buckets too."""
        self.enforcement.lose()
        self._told_since = -1
        if buckets:
            self.buckets.clear()
            self._records.clear()
            self._charges.clear()

    def purge(self, now_us: int) -> None:
        """Drop every bucket and record that is due, as Redis does in the background."""
        now_ms = now_us // 1000
        self.buckets.purge(now_ms)
        self._records = {key: held for key, held in self._records.items() if now_ms < held[1]}
        self._charges = {key: held for key, held in self._charges.items() if now_ms < held[1]}

    # ---- checks

    def check(self, now_us: int, calls: Sequence[BucketCall], request_id: str | None = None) -> list[Verdict]:
        """Decide and charge: all or none; see CheckStore.check."""
        self._enter(now_us)
        now_ms = now_us // 1000
        record = record_key(calls, request_id) if request_id is not None else None
        turn = 0
        if record is not None and (known := self._record(record, now_ms)) is not None:
            turn = known.turn + 1
            if known.answer is not None:
                if known.asked != asked_digest(calls):
                    raise OtherRequest
                self._records[record] = (replace(known, turn=turn), self._records[record][1])
                told = zip(calls, known.answer, strict=True)
                return [replace(self._replay(now_us, call, then), turn=turn) for call, then in told]
        outcomes = [self._decide(now_us, call) for call in calls]
        endings = settle(outcomes)
        for call, ending in zip(calls, endings, strict=True):
            self._store(call, ending, now_ms)
            self._note_use(call, ending.verdict, now_ms)
        verdicts = [
            _as_told(call, outcome, ending) for call, outcome, ending in zip(calls, outcomes, endings, strict=True)
        ]
        if record is not None and request_id is not None and any(call.cost for call in calls):
            kept = _Record(asked_digest(calls), tuple(verdicts), turn)
            _remember(self._records, record, (kept, now_ms + RECORD_MS))
            verdicts = [replace(verdict, turn=turn) for verdict in verdicts]
            for call, outcome, ending in zip(calls, outcomes, endings, strict=True):
                charged = call.cost if ending is outcome.charged and ending is not outcome.left else 0
                charge = (charged, functions_of(call).storage_key(call, now_ms), now_ms)
                _remember(self._charges, charge_key(call, request_id), (charge, now_ms + RECORD_MS))
        return verdicts

    def refund(
        self,
        now_us: int,
        calls: Sequence[BucketCall],
        request_id: str | None = None,
        turn: int | None = None,
    ) -> None:
        """Give back; with ``request_id`` once, never more than is known to be charged, nor to a later window."""
        self._enter(now_us)
        now_ms = now_us // 1000
        if request_id is not None and turn is not None:
            known = self._record(record_key(calls, request_id), now_ms)
            if known is None or known.answer is None or known.turn != turn:
                return
        some_back = some_kept = False
        for call in calls:
            cost = call.cost
            functions = functions_of(call)
            stored_under = functions.storage_key(call, now_ms)
            if request_id is not None and cost > 0:
                charge = charge_key(call, request_id)
                (left, charged_under, charged_ms), expires_ms = self._charges.get(charge, ((0, "", 0), 0))
                if now_ms < expires_ms:
                    reached = charged_under == stored_under and functions.reaches(call, charged_ms, now_ms)
                    cost = min(cost, left) if reached else 0
                    some_back, some_kept = some_back or cost > 0, some_kept or cost < left
                    _remember(self._charges, charge, ((0, "", now_ms), now_ms + RECORD_MS))
                else:
                    cost = 0
            state = self.buckets.get(stored_under, _group(call, now_ms), now_ms)
            ending = functions.give_back(state, replace(call, cost=cost), self._share(now_us, call), now_ms)
            if ending is not None:
                self._store(call, ending, now_ms)
        if request_id is not None and some_back and not some_kept:
            self._forget(record_key(calls, request_id), now_ms)

    def renew(self, now_us: int, calls: Sequence[BucketCall]) -> list[bool]:
        """Renew leases; see CheckStore.renew."""
        self._enter(now_us)
        now_ms = now_us // 1000
        renewals = [(call, functions_of(call).renew) for call in calls]
        still_held = []
        for call, renew in renewals:
            if renew is None:
                raise ValueError(f"{call.algorithm} has no leases")
            state = self.buckets.get(functions_of(call).storage_key(call, now_ms), _group(call, now_ms), now_ms)
            ending = renew(state, call, self._share(now_us, call), now_ms)
            if ending is not None:
                self._store(call, ending, now_ms)
            still_held.append(ending is not None)
        return still_held

    def release(self, now_us: int, calls: Sequence[BucketCall], request_id: str) -> list[bool]:
        """Free slots; see CheckStore.release."""
        self._enter(now_us)
        now_ms = now_us // 1000
        held = []
        for call in calls:
            functions = functions_of(call)
            ending = None
            if functions.renew is not None:
                state = self.buckets.get(functions.storage_key(call, now_ms), _group(call, now_ms), now_ms)
                ending = functions.give_back(state, call, self._share(now_us, call), now_ms)
            if ending is not None:
                self._store(call, ending, now_ms)
            held.append(ending is not None)
        self._forget(record_key(calls, request_id), now_ms)
        return held

    def lease(self, now_us: int, call: BucketCall, want: int, returned: Sequence[ReturnedLease] = ()) -> TokenLease:
        """Take back and give; see CheckStore.lease."""
        self._enter(now_us)
        now_ms = now_us // 1000
        group = _group(call, now_ms)
        share = self._share(now_us, call)
        adaptive = call.sharing is Sharing.ADAPTIVE
        if adaptive and not self.enforcement.may_be_leased(now_us, call.key):
            want = 0
        leased = lease(self.buckets.get(call.key, group, now_ms), call, share, now_us, want, returned)
        if adaptive and leased.lease.tokens:
            self.enforcement.note_lease(call.key, call.domain, share.share)
        if leased.state is not None:
            self.buckets.put(call.key, group, leased.state, leased.ttl_ms, now_ms)
        return leased.lease

    def _record(self, key: str, now_ms: int) -> _Record | None:
        record, expires_ms = self._records.get(key, (None, 0))
        return record if now_ms < expires_ms else None

    def _forget(self, key: str, now_ms: int) -> None:
        """The same request must not be allowed again by what is remembered of it."""
        if (known := self._record(key, now_ms)) is not None:
            _remember(self._records, key, (replace(known, answer=None), now_ms + RECORD_MS))

    def _decide(self, now_us: int, call: BucketCall) -> Outcome:
        now_ms = now_us // 1000
        functions = functions_of(call)
        state = self.buckets.get(functions.storage_key(call, now_ms), _group(call, now_ms), now_ms)
        return functions.decide(state, call, self._share(now_us, call), now_ms)

    def _store(self, call: BucketCall, ending: Ending, now_ms: int) -> None:
        if ending.state is not None:
            key = functions_of(call).storage_key(call, now_ms)
            left = ending.verdict.remaining if call.refill is None else 0
            self.buckets.put(key, _group(call, now_ms), ending.state, ending.ttl_ms, now_ms, left)

    def _note_use(self, call: BucketCall, verdict: Verdict, now_ms: int) -> None:
        """A window in escrow of which less than half is left, or that denies, is the agent's business."""
        window_of = functions_of(call).window_of
        if call.sharing is not Sharing.ADAPTIVE or window_of is None or not call.cost:
            return
        top = region_capacity(call.capacity, verdict.share, call.regions)
        if verdict.reason is Reason.LIMITED or (verdict.allowed and 2 * verdict.remaining < top):
            window, _, end_ms = window_of(call, now_ms)
            used = top - verdict.remaining
            granted = self.enforcement.granted(call.key, window)
            limit = call.capacity, call.regions
            self.enforcement.note_use(WindowUse(call.key, window, end_ms, used, call.cost, top, granted, *limit))

    def _share(self, now_us: int, call: BucketCall) -> ShareInForce:
        if call.sharing is not Sharing.ADAPTIVE:
            return fixed_share(call)
        self.enforcement.know_base(now_us, call.domain, call.base_version, call.base, call.floor)
        window_of = functions_of(call).window_of
        if window_of is not None:
            window, start_ms, _ = window_of(call, now_us // 1000)
            return self.enforcement.window_share(now_us, call.key, call.domain, window, start_ms * 1000)
        return self.enforcement.share(now_us, call.key, call.domain)

    def _replay(self, now_us: int, call: BucketCall, then: Verdict) -> Verdict:
        """The same answer again; the share is told as of now, because nodes act on its time left."""
        share = self._share(now_us, call)
        return replace(
            then,
            replayed=True,
            share=share.share,
            share_kind=share.kind,
            session_left_us=share.session_left_us,
            consent_left_us=share.consent_left_us,
        )

    # ---- nodes

    def touch(self, now_us: int, beat: NodeBeat) -> TouchReply:
        told = self._enter(now_us)
        if beat.node not in told.beats and len(told.beats) >= BEATS_MOST:
            self._forget_beats(now_us, self._consent_us)
            if len(told.beats) >= BEATS_MOST:
                raise StoreUnavailable("too many nodes", may_have_run=False)
        told.beats[beat.node] = (beat, now_us)
        young = sum(now_us - at_us < BEAT_YOUNG_US for _, at_us in told.beats.values())
        base_version, bases = self.enforcement.known_bases()
        consent_left_us = self.enforcement.consent_left(now_us)
        return TouchReply(now_us, told.rules[0], base_version, dict(bases), young, consent_left_us)

    def offer(self, now_us: int, demand: Mapping[str, int]) -> None:
        told = self._enter(now_us)
        for key, cost in demand.items():
            if key in told.demand or len(told.demand) < DEMAND_MOST:
                told.demand[key] = min(told.demand.get(key, 0) + cost, LARGEST_EXACT_INTEGER - 1)

    def fetch_rules(self, now_us: int) -> tuple[int, bytes]:
        return self._enter(now_us).rules

    # ---- agent

    def write(self, now_us: int, write: Write, replication_id: str = "") -> WriteReply:
        reply = self.enforcement.write(now_us, write, replication_id)
        self._keep_or_lose()
        return reply

    def collect(self, now_us: int) -> Collected:
        told = self._enter(now_us)
        self._forget_beats(now_us, 2 * self._consent_us)
        taken = dict(list(told.demand.items())[:DEMAND_A_REPLY])
        for key in taken:
            del told.demand[key]
        beats = [BeatSeen(beat, now_us - at_us) for beat, at_us in told.beats.values()]
        return Collected(taken, beats, told.rules[0])

    def windows(self, now_us: int, news: WindowNews) -> WindowsReply:
        instance = self.enforcement.tell_windows(now_us, news)
        self._keep_or_lose()
        return WindowsReply(instance, now_us, self.enforcement.take_uses())

    def publish_rules(self, now_us: int, version: int, blob: bytes) -> None:
        told = self._enter(now_us)
        if version > told.rules[0]:
            told.rules = (version, blob)

    # ---- E1: what is told is lost with the variable

    def _enter(self, now_us: int) -> _Told:
        self.enforcement.enter(now_us)
        return self._keep_or_lose()

    def _keep_or_lose(self) -> _Told:
        if self._told_since != self.enforcement.births:
            self._told = _Told()
            self._told_since = self.enforcement.births
        return self._told

    def _forget_beats(self, now_us: int, older_us: int) -> None:
        beats = self._told.beats
        for node in [node for node, (_, at_us) in beats.items() if now_us - at_us > older_us]:
            del beats[node]


class MemoryStore:
    """CheckStore and AgentStore over ``points`` in this process.  ``clock``: microseconds, for all points."""

    def __init__(
        self,
        clock: Callable[[], int],
        times: ProtocolTimes,
        points: Sequence[str] = ("memory:1/1",),
        buckets_most: int = 100_000,
    ) -> None:
        self._clock = clock
        self._names = tuple(points)
        self._points = {name: MemoryPoint(times, buckets_most) for name in points}
        self._cut: set[str] = set()
        self._lock: tuple[str, int] = ("", 0)
        self._subjects = SubjectsInMemory()
        self.look_up = self._subjects.look_up
        self.subject_positions = self._subjects.subject_positions
        self.write_subjects = self._subjects.write_subjects

    # ---- without asyncio: simulation

    def decide(
        self, calls: Sequence[BucketCall], now_us: int | None = None, request_id: str | None = None
    ) -> list[Verdict]:
        """``check`` as a plain function."""
        return self._owner(calls).check(self._now(now_us), calls, request_id)

    def point(self, name: str) -> MemoryPoint:
        """The point itself.  StoreUnavailable: cut off, or unknown."""
        if name not in self._points or name in self._cut:
            raise StoreUnavailable(f"{name} does not answer", may_have_run=False)
        return self._points[name]

    def lose(self, name: str, *, buckets: bool = False) -> None:
        """The process of a point restarted: its variable is gone, with ``buckets`` its buckets too."""
        self._points[name].lose(buckets=buckets)

    def cut(self, name: str) -> None:
        """The point answers nobody until it is healed."""
        self._cut.add(name)

    def heal(self, name: str) -> None:
        self._cut.discard(name)

    # ---- CheckStore

    @property
    def version(self) -> str:
        return "memory"

    def breaker_open(self, point: str) -> bool:
        return point in self._cut

    async def check(self, calls: Sequence[BucketCall], request_id: str | None = None) -> list[Verdict]:
        return self.decide(calls, None, request_id)

    def prepare(
        self, calls: Sequence[BucketCall], request_id: str | None
    ) -> tuple[Sequence[BucketCall], str | None]:
        return calls, request_id

    def is_crowded(self, prepared: tuple[Sequence[BucketCall], str | None]) -> bool:
        """Never: what is asked is answered before the next one asks."""
        return False

    def submit(self, prepared: tuple[Sequence[BucketCall], str | None], done: Decided) -> None:
        calls, request_id = prepared
        try:
            outcome: list[Verdict] | Exception = self.decide(calls, None, request_id)
        except StoreUnavailable as error:
            outcome = error
        done(outcome)

    async def refund(
        self, calls: Sequence[BucketCall], request_id: str | None = None, turn: int | None = None
    ) -> None:
        self._owner(calls).refund(self._now(), calls, request_id, turn)

    async def renew(self, calls: Sequence[BucketCall]) -> list[bool]:
        return self._owner(calls).renew(self._now(), calls)

    async def release(self, calls: Sequence[BucketCall], request_id: str) -> list[bool]:
        return self._owner(calls).release(self._now(), calls, request_id)

    async def drop(self, call: BucketCall) -> None:
        self._owner([call]).buckets.drop(functions_of(call).storage_key(call, self._now() // 1000))

    async def ttl_ms(self, call: BucketCall) -> int | None:
        now_ms = self._now() // 1000
        return self._owner([call]).buckets.ttl_ms(functions_of(call).storage_key(call, now_ms), now_ms)

    async def lease(self, call: BucketCall, want: int, returned: Sequence[ReturnedLease] = ()) -> TokenLease:
        return self._owner([call]).lease(self._now(), call, want, returned)

    async def points(self) -> Sequence[str]:
        return self._names

    async def touch(self, point: str, beat: NodeBeat) -> TouchReply:
        return self.point(point).touch(self._now(), beat)

    async def offer(self, point: str, demand: Mapping[str, int]) -> None:
        self.point(point).offer(self._now(), demand)

    async def fetch_rules(self, point: str) -> tuple[int, bytes]:
        return self.point(point).fetch_rules(self._now())

    async def close(self) -> None:
        """Nothing to close: what is here ends with the process."""

    # ---- AgentStore

    async def list_points(self) -> frozenset[str]:
        return frozenset(self._names)

    async def write(self, point: str, write: Write) -> WriteReply:
        return self.point(point).write(self._now(), write)

    async def collect(self, point: str) -> Collected:
        return self.point(point).collect(self._now())

    async def windows(self, point: str, news: WindowNews) -> WindowsReply:
        return self.point(point).windows(self._now(), news)

    async def publish_rules(self, point: str, version: int, blob: bytes) -> None:
        self.point(point).publish_rules(self._now(), version, blob)

    async def drop_library(self, point: str) -> None:
        raise ValueError("a store in memory has one version")

    async def hold_lock(self, owner: str, ttl_ms: int) -> bool:
        now_us = self._now()
        holder, until_us = self._lock
        if holder != owner and now_us < until_us:
            return False
        self._lock = (owner, now_us + ttl_ms * 1000)
        return True

    async def release_lock(self, owner: str) -> None:
        if self._lock[0] == owner:
            self._lock = ("", 0)

    def _now(self, now_us: int | None = None) -> int:
        return self._clock() if now_us is None else now_us

    def point_of(self, key: str) -> str:
        """Which point owns a bucket key."""
        return self._names[crc32(tag_of(key).encode()) % len(self._names)]

    def _owner(self, calls: Sequence[BucketCall]) -> MemoryPoint:
        tags = {tag_of(call.key) for call in calls}
        if len(tags) != 1 or len({call.key for call in calls}) != len(calls):
            raise ValueError("the buckets of one call must differ and share one hash tag")
        return self.point(self.point_of(calls[0].key))


def _as_told(call: BucketCall, outcome: Outcome, ending: Ending) -> Verdict:
    verdict = ending.verdict
    if call.was_allowed and verdict.reason is Reason.LIMITED and ending is outcome.charged is not outcome.left:
        return replace(verdict, allowed=True, reason=Reason.OK, retry_after_ms=0)
    return verdict


def _group(call: BucketCall, now_ms: int) -> str:
    """Buckets of one rule, and for windows of one window: their states may stand for one another."""
    window = functions_of(call).storage_key(call, now_ms)[len(call.key) :]
    return "/".join(rule_of(call.key)) + window


def _remember(records: dict[str, tuple[_T, int]], key: str, value: tuple[_T, int]) -> None:
    """Records live equally long, so the first is the oldest."""
    records.pop(key, None)
    if len(records) >= RECORDS_MOST:
        del records[next(iter(records))]
    records[key] = value
