"""Envoy's rate limit quota service: usage reports in, grants out, over one stream for each gateway.  [IO]

``desk`` decides; here is the clock, and here streams are bounded, cut when they do not take what is sent, and told
at once what a change of rules or of nodes means for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final, Protocol

import structlog

from regional_limiter.model.decision import Check
from regional_limiter.model.errors import InvalidCheck, RulesUnavailable
from regional_limiter.quota import NoQuota, Quota
from services.quota.desk import BucketId, Desk, Told
from services.quota.ledger import PICO, Limit
from services.quota.messages import ACTIONS_MOST, METHOD, bucket_of, check_of, read_reports, write_response
from services.rls.methods import Methods, Stream
from services.rls.rpc import INVALID_ARGUMENT, RESOURCE_EXHAUSTED, Failed

TURN_S: Final = 0.02
SLICE: Final = 150
"""Buckets that are looked at in one go, some 4 ms: checks are answered on the same loop."""
STREAMS_MOST: Final = 1024
WRITE_MOST_S: Final = 1.0
LATE_MS: Final = 5000
"""By how much later than it was sent a grant may arrive: ``WRITE_MOST_S``, the keep-alive's 3 s, and some."""
HEARD_MS: Final = 2000
"""Within this a region's nodes have heard of a new one."""
REPORTED_MOST: Final = 10**9
LOGGED_MOST: Final = 1000
KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_timeout_ms", 2000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 4 * 1024 * 1024),
)

_log = structlog.get_logger("quota")


class QuotaLimiter(Protocol):
    @property
    def quota_version(self) -> object:
        """Another whenever :meth:`quota` may say something else."""
        ...

    def quota(self, check: Check) -> Quota | NoQuota:
        """Raises InvalidCheck and RulesUnavailable."""
        ...

    def count_quota(self, rule: str, allowed: int, denied: int) -> None: ...


@dataclass(slots=True)
class _Stream:
    """``waiting``: what is to be sent, the newest of each bucket.  ``writing_since_s`` None: it is not writing."""

    task: asyncio.Task[Any] | None
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    waiting: dict[BucketId, Told] = field(default_factory=dict)
    writing_since_s: float | None = None
    ended: Failed | None = None
    is_over: bool = False


class QuotaService:
    """``parts_least``: see Desk.  ``opens_in_ms``: granted is nothing before what an earlier process granted ends,
    and what other nodes granted that did not know of this one."""

    def __init__(
        self,
        limiter: QuotaLimiter,
        *,
        ttl_s: int,
        parts_least: int = 1,
        opens_in_ms: int | None = None,
        clock_s: Callable[[], float] = monotonic,
    ) -> None:
        self._limiter = limiter
        self._ttl_s = ttl_s
        self._clock_s = clock_s
        opens_in_ms = ttl_s * 1000 + LATE_MS + HEARD_MS if opens_in_ms is None else opens_in_ms
        self._desk = Desk(
            ttl_ms=ttl_s * 1000, late_ms=LATE_MS, parts_least=parts_least, opens_ms=self._now_ms() + opens_in_ms
        )
        self._streams: dict[int, _Stream] = {}
        self._next = 0
        self._logged: set[tuple[str, str]] = set()
        self._version: object = None
        self._unsettled: list[tuple[int, BucketId]] = []
        self._due: list[str] = []
        self.counts: Counter[str] = Counter()
        """What has happened, by a word for it: ``reports`` were read; buckets in them were ``refused`` since no
        rule's quota can be pushed, or ``dropped`` since tables are full; gateways were sent what is ``granted``,
        ``denied`` or ``taken_back``; streams were ``cut``; and what nobody foresaw ``failed``."""

    def methods(self) -> Methods:
        return {METHOD: Stream(self.stream)}

    def _now_ms(self) -> int:
        return int(self._clock_s() * 1000)

    # ---- the clock

    async def run(self) -> None:
        """Until cancelled: renew, take back, and look whether rules or nodes have changed."""
        while True:
            await asyncio.sleep(TURN_S)
            try:
                self.turn()
            except Exception:
                self.counts["failed"] += 1
                _log.exception("a turn of quotas failed")

    def turn(self) -> None:
        """One look at the next of all buckets; first at what a change of rules or nodes makes of them."""
        now_ms = self._now_ms()
        version = self._limiter.quota_version
        if version != self._version:
            self._version = version
            self._unsettled = self._desk.buckets
        settling, self._unsettled = self._unsettled[:SLICE], self._unsettled[SLICE:]
        for stream, bucket in settling:
            self._mean(stream, bucket, now_ms)
        if not self._due:
            self._due = self._desk.keys
        due, self._due = self._due[:SLICE], self._due[SLICE:]
        self._turn({*due, *(self._desk.key_of(*one) for one in settling)}, now_ms)
        for one in self._streams.values():
            since_s = one.writing_since_s
            if one.task is not None and since_s is not None and self._clock_s() - since_s > WRITE_MOST_S:
                self.counts["cut"] += 1
                one.task.cancel()

    def _turn(self, keys: Iterable[str | None], now_ms: int) -> None:
        self._send(self._desk.turn([key for key in keys if key is not None], now_ms))

    def _mean(self, stream: int, bucket: BucketId, now_ms: int) -> str:
        """See what ``bucket`` is by the rules in force; the rule whose quota it gets, "" if it gets none."""
        try:
            quota = self._limiter.quota(check_of(bucket))
        except (InvalidCheck, RulesUnavailable) as error:
            quota = NoQuota("", str(error))
        if isinstance(quota, NoQuota):
            self._note_refusal(bucket[0], quota)
            self._send(self._desk.mean(stream, bucket, None, None, now_ms))
            return ""
        limit = Limit(quota.capacity, int(quota.rate * PICO))
        self._send(self._desk.mean(stream, bucket, quota.key, limit, now_ms))
        return quota.rule

    def _note_refusal(self, domain: str, refused: NoQuota) -> None:
        said = refused.rule or domain, refused.why
        if said not in self._logged and len(self._logged) < LOGGED_MOST:
            self._logged.add(said)
            _log.warning("no quota is pushed", domain=domain[:255], rule=refused.rule, why=refused.why)

    # ---- a stream

    async def stream(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """One gateway: its reports in, what it is granted out.  Raises Failed."""
        if len(self._streams) >= STREAMS_MOST:
            raise Failed(RESOURCE_EXHAUSTED, f"more than {STREAMS_MOST} streams")
        self._next += 1
        number, one = self._next, _Stream(asyncio.current_task())
        self._streams[number] = one
        reading = asyncio.create_task(self._read(number, one, messages), name="read usage reports")
        try:
            while True:
                await one.wake.wait()
                one.wake.clear()
                if one.ended is not None:
                    raise one.ended
                while one.waiting:
                    batch = [one.waiting.pop(bucket) for bucket in list(one.waiting)[:ACTIONS_MOST]]
                    one.writing_since_s = self._clock_s()
                    yield write_response(batch, self._ttl_s)
                    one.writing_since_s = None
                if one.is_over:
                    return
        finally:
            del self._streams[number]
            self._desk.leave(number)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    async def _read(self, number: int, one: _Stream, messages: AsyncIterator[bytes]) -> None:
        domain = ""
        try:
            async for data in messages:
                domain = await self._hear(number, data, domain)
        except Failed as error:
            one.ended = error
        except Exception:
            self.counts["failed"] += 1
            _log.exception("a usage report failed")
            one.ended = Failed(INVALID_ARGUMENT, "the report could not be read; it has been logged")
        one.is_over = True
        one.wake.set()

    async def _hear(self, number: int, data: bytes, domain: str) -> str:
        reports = read_reports(data)
        domain = reports.domain or domain
        if not domain:
            raise Failed(INVALID_ARGUMENT, "domain: must not be empty in the first report")
        self.counts["reports"] += 1
        usages = reports.bucket_quota_usages
        for start in range(0, len(usages), SLICE):
            self._hear_of(number, domain, usages, range(start, min(start + SLICE, len(usages))))
            await asyncio.sleep(0)
        return domain

    def _hear_of(self, number: int, domain: str, usages: Any, places: range) -> None:
        now_ms = self._now_ms()
        keys: set[str | None] = set()
        for place in places:
            usage = usages[place]
            if not usage.bucket_id.bucket:
                raise Failed(INVALID_ARGUMENT, f"bucket_quota_usages[{place}].bucket_id: must have an entry")
            bucket = bucket_of(domain, usage)
            allowed = min(usage.num_requests_allowed, REPORTED_MOST)
            denied = min(usage.num_requests_denied, REPORTED_MOST)
            if not self._desk.report(number, bucket, allowed + denied > 0, now_ms):
                self.counts["dropped"] += 1
                continue
            rule = self._mean(number, bucket, now_ms)
            if rule:
                self._limiter.count_quota(rule, allowed, denied)
                keys.add(self._desk.key_of(number, bucket))
            else:
                self.counts["refused"] += 1
        self._turn(keys, now_ms)

    def _send(self, told: list[Told]) -> None:
        for one in told:
            stream = self._streams.get(one.stream)
            if stream is not None:
                self.counts["taken_back" if one.grant is None else "granted" if one.grant.tokens else "denied"] += 1
                stream.waiting[one.bucket] = one
                stream.wake.set()
