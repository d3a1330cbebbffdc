"""Which gateway is told what of which bucket, and when.  Pure: time is an argument, nothing is sent here.

A gateway names buckets by ids of its own; several ids may mean one bucket of ours, which all of them share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from services.quota.division import next_grant
from services.quota.ledger import Grant, Ledger, Limit

IDLE_MS: Final = 60_000
"""What a gateway has not used for so long is not renewed, and when that has ended the bucket is taken from it."""


BucketId = tuple[str, tuple[tuple[str, str], ...]]
"""Domain, and what a gateway calls a bucket: sorted pairs."""


class Told(NamedTuple):
    """``grant`` None: the gateway is to forget the bucket."""

    stream: int
    bucket: BucketId
    grant: Grant | None


@dataclass(slots=True)
class _Held:
    """What one stream has by one id.  ``key``: of our bucket, None: it has none."""

    key: str | None
    used_ms: int


class Desk:
    """``ttl_ms``, ``late_ms``: see Ledger.  ``parts_least``: into how many parts a limit is divided at least.

    ``opens_ms``: nothing is granted earlier.  ``held_most`` bounds pairs of a stream and an id, ``ledgers_most``
    buckets of ours.
    """

    def __init__(
        self,
        *,
        ttl_ms: int,
        late_ms: int,
        parts_least: int = 1,
        opens_ms: int = 0,
        held_most: int = 20_000,
        ledgers_most: int = 10_000,
    ) -> None:
        self._ttl_ms, self._late_ms = ttl_ms, late_ms
        self._parts_least = parts_least
        self._opens_ms = opens_ms
        self._held_most, self._ledgers_most = held_most, ledgers_most
        self._held: dict[int, dict[BucketId, _Held]] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._sharers: dict[str, dict[tuple[int, BucketId], None]] = {}
        self._count = 0
        self.dropped = 0
        """Buckets of gateways that found the tables full, each time they were reported."""

    @property
    def buckets(self) -> list[tuple[int, BucketId]]:
        """Every pair of a stream and an id."""
        return [(stream, bucket) for stream, held in self._held.items() for bucket in held]

    @property
    def keys(self) -> list[str]:
        """Of our buckets."""
        return list(self._ledgers)

    def key_of(self, stream: int, bucket: BucketId) -> str | None:
        """Which of our buckets it is; None: none, or it is not known."""
        held = self._held.get(stream, {}).get(bucket)
        return None if held is None else held.key

    # ---- what gateways say

    def report(self, stream: int, bucket: BucketId, used: bool, now_ms: int) -> bool:
        """``stream`` has ``bucket``.  False: there is no room for it."""
        held = self._held.setdefault(stream, {})
        known = held.get(bucket)
        if known is None:
            if self._count >= self._held_most:
                self.dropped += 1
                return False
            self._count += 1
            held[bucket] = _Held(None, now_ms)
        elif used:
            known.used_ms = now_ms
        elif known.key is None and now_ms - known.used_ms >= IDLE_MS:
            del held[bucket]
            self._count -= 1
        return True

    def leave(self, stream: int) -> None:
        """``stream`` has ended.  What its gateway holds counts on."""
        for bucket, held in self._held.pop(stream, {}).items():
            self._count -= 1
            self._part(stream, bucket, held)

    def mean(self, stream: int, bucket: BucketId, key: str | None, limit: Limit | None, now_ms: int) -> list[Told]:
        """By ``bucket``, our bucket ``key`` of ``limit`` is meant; None: nothing that can be granted."""
        held = self._held.get(stream, {}).get(bucket)
        if held is None:
            return []
        told: list[Told] = []
        if held.key is not None and held.key != key:
            if self._ledgers[held.key].holder((stream, bucket)).grant is not None:
                told.append(Told(stream, bucket, None))
            self._part(stream, bucket, held)
        if key is None or limit is None:
            return told
        ledger = self._ledgers.get(key)
        if ledger is None:
            if len(self._ledgers) >= self._ledgers_most:
                self.dropped += 1
                return told
            ledger = self._ledgers[key] = Ledger(limit, now_ms, self._ttl_ms, self._late_ms)
        ledger.change(limit, now_ms)
        held.key = key
        self._sharers.setdefault(key, {})[stream, bucket] = None
        return told

    def _part(self, stream: int, bucket: BucketId, held: _Held) -> None:
        if held.key is None:
            return
        self._ledgers[held.key].forget((stream, bucket))
        sharers = self._sharers[held.key]
        del sharers[stream, bucket]
        if not sharers:
            del self._sharers[held.key]
        held.key = None

    # ---- what gateways are told

    def turn(self, keys: Iterable[str], now_ms: int) -> list[Told]:
        """What is to be sent now of the buckets ``keys``, of ours."""
        told: list[Told] = []
        for key in keys:
            ledger = self._ledgers.get(key)
            if ledger is None:
                continue
            ledger.pass_time(now_ms)
            sharers = self._sharers.get(key, {})
            if not sharers and ledger.is_new:
                del self._ledgers[key]
            parts = max(self._parts_least, len(sharers))
            for name in list(sharers):
                told += self._tell(ledger, name, parts, now_ms)
        return told

    def _tell(self, ledger: Ledger, name: tuple[int, BucketId], parts: int, now_ms: int) -> list[Told]:
        stream, bucket = name
        holder = ledger.holder(name)
        used_ms = self._held[stream][bucket].used_ms
        if now_ms - used_ms >= IDLE_MS:
            if holder.counted:
                return []
            self._part(stream, bucket, self._held[stream].pop(bucket))
            self._count -= 1
            return [Told(stream, bucket, None)]
        if now_ms < self._opens_ms:
            return []
        grant = next_grant(ledger, name, parts)
        if grant is not None:
            ledger.grant(name, grant, now_ms)
            return [Told(stream, bucket, grant)]
        if holder.grant is not None and now_ms - holder.sent_ms >= self._ttl_ms // 3:
            ledger.renew(name, now_ms)
            return [Told(stream, bucket, holder.grant)]
        return []
