"""What the gateways of one node may hold of one bucket, so that all of it together keeps to the limit.  Pure.

A gateway that gets other numbers begins with a full bucket.  So a grant is paid for: its tokens are taken from what
is *saved*, which fills with the part of the rate that nobody holds, up to the part of the capacity that nobody
holds.  With C and R of the limit, and m and r summed over the grants that count,

    saved <= C - m,   saved grows by R - r,   a grant of k tokens takes k <= saved,

and so all gateways together let through at most C + R x t in any t, whatever comes, goes or is replaced: at the
start of the t they hold at most m, are granted and earn at most saved + R x t, and m + saved <= C.

A grant counts from when it is sent until the gateway has surely let go of it, replaced or not: nobody acknowledges
anything.  One holder has one grant in force, the old or the new one: the larger of each number counts meanwhile.
While grants of another limit count, the larger one of the limits is what is kept to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

PICO: Final = 10**12
"""Rates are 10^-12 tokens a millisecond, as integers; so is what is saved, in 10^-12 tokens."""

_COUNTED_MOST: Final = 4


@dataclass(frozen=True, slots=True)
class Limit:
    """``capacity``: tokens.  ``rate``: 10^-12 tokens a millisecond."""

    capacity: int
    rate: int


@dataclass(frozen=True, slots=True)
class Grant:
    """A bucket of ``tokens`` that earns ``fill`` of them every ``every_s`` seconds; of 0 tokens: all is denied."""

    tokens: int
    fill: int = 0
    every_s: int = 1

    @property
    def rate(self) -> int:
        """As of a limit, rounded up."""
        return -(-self.fill * PICO // (self.every_s * 1000))


DENY: Final = Grant(0)


@dataclass(slots=True)
class Counted:
    """A grant that counts until ``ends_ms``."""

    tokens: int
    rate: int
    ends_ms: int


@dataclass(slots=True)
class Holder:
    """``grant``: what was sent last, until it can no longer be renewed (``over_ms``); None: nothing."""

    grant: Grant | None = None
    over_ms: int = 0
    sent_ms: int = 0
    counted: list[Counted] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return max((one.tokens for one in self.counted), default=0)

    @property
    def rate(self) -> int:
        return max((one.rate for one in self.counted), default=0)


class Ledger:
    """``ttl_ms``: how long a gateway keeps a grant.  ``late_ms``: how much later than sent it may begin with it."""

    def __init__(self, limit: Limit, now_ms: int, ttl_ms: int, late_ms: int) -> None:
        self.limit = limit
        self._older: tuple[Limit, int] | None = None
        self._ttl_ms = ttl_ms
        self._late_ms = late_ms
        self._saved = limit.capacity * PICO
        self._at_ms = now_ms
        self._holders: dict[object, Holder] = {}

    # ---- what is known

    def holder(self, name: object) -> Holder:
        """What ``name`` holds; an empty one if nothing."""
        return self._holders.get(name) or Holder()

    @property
    def saved(self) -> int:
        """Whole tokens that can be granted."""
        return max(0, self._saved // PICO)

    def capacity_left(self, name: object) -> int:
        """The most tokens that ``name`` may come to hold beside the others."""
        return self._kept_to.capacity - sum(held.tokens for held in self._others(name))

    def rate_left(self, name: object) -> int:
        """The highest rate that ``name`` may come to hold beside the others."""
        return self._kept_to.rate - sum(held.rate for held in self._others(name))

    @property
    def is_new(self) -> bool:
        """Nobody holds anything, and all is saved: as if it had never been there."""
        return not self._holders and self._older is None and self._saved >= self.limit.capacity * PICO

    @property
    def _kept_to(self) -> Limit:
        if self._older is None:
            return self.limit
        older = self._older[0]
        return Limit(max(self.limit.capacity, older.capacity), max(self.limit.rate, older.rate))

    def _others(self, name: object) -> Iterator[Holder]:
        return (held for other, held in self._holders.items() if other != name)

    # ---- what changes

    def pass_time(self, now_ms: int) -> None:
        """Save what nobody earned since the last time; what ended since then is still counted for it."""
        kept_to = self._kept_to
        tokens = sum(held.tokens for held in self._holders.values())
        rate = sum(held.rate for held in self._holders.values())
        passed_ms = max(0, now_ms - self._at_ms)
        self._at_ms = max(now_ms, self._at_ms)
        grown = self._saved + max(0, kept_to.rate - rate) * passed_ms
        self._saved = min(grown, (kept_to.capacity - tokens) * PICO)
        for name, held in list(self._holders.items()):
            held.counted = [one for one in held.counted if one.ends_ms > now_ms]
            if held.over_ms <= now_ms:
                held.grant = None
            if not held.counted and held.grant is None:
                del self._holders[name]
        if self._older is not None and self._older[1] <= now_ms:
            self._older = None
        self._clip()

    def change(self, limit: Limit, now_ms: int) -> None:
        """Keep to ``limit`` from now on.  What was used stays used."""
        if limit == self.limit:
            return
        self.pass_time(now_ms)
        self._saved += max(0, limit.capacity - self._kept_to.capacity) * PICO
        if self._holders:
            self._older = self._kept_to, now_ms + self._ttl_ms + self._late_ms
        self.limit = limit
        self._clip()

    def _clip(self) -> None:
        held = sum(holder.tokens for holder in self._holders.values())
        self._saved = min(self._saved, (self._kept_to.capacity - held) * PICO)

    def grant(self, name: object, grant: Grant, now_ms: int) -> None:
        """``name`` is sent ``grant``, with which it begins anew.  It must fit: else AssertionError."""
        self.pass_time(now_ms)
        assert grant.tokens <= self.saved
        assert grant.rate <= self.rate_left(name) or not grant.rate
        held = self._holders.setdefault(name, Holder())
        self._saved -= grant.tokens * PICO
        held.counted.append(Counted(grant.tokens, grant.rate, 0))
        if len(held.counted) > _COUNTED_MOST:
            first, second = held.counted[:2]
            held.counted[:2] = [
                Counted(
                    max(first.tokens, second.tokens),
                    max(first.rate, second.rate),
                    max(first.ends_ms, second.ends_ms),
                )
            ]
        held.grant = grant
        self._sent(held, now_ms)
        assert sum(holder.tokens for holder in self._holders.values()) <= self._kept_to.capacity

    def renew(self, name: object, now_ms: int) -> None:
        """``name`` is sent the same grant again, which it goes on with."""
        self.pass_time(now_ms)
        held = self._holders[name]
        assert held.grant is not None
        self._sent(held, now_ms)

    def _sent(self, held: Holder, now_ms: int) -> None:
        held.sent_ms = now_ms
        # Sent again later than this, it might arrive when the gateway has let go of it, and would begin anew.
        held.over_ms = now_ms + self._ttl_ms - self._late_ms
        held.counted[-1].ends_ms = now_ms + self._ttl_ms + self._late_ms

    def forget(self, name: object) -> None:
        """``name`` is told no more; what it holds counts until it ends."""
        held = self._holders.get(name)
        if held is not None:
            held.grant, held.over_ms = None, 0
