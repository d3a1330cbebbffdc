"""The sub-buckets of a rule with ``split: k``: a key that outgrows a shard lives in k buckets on k slots.  Pure.

Each has its part of the limit, and the parts sum to it: of ten tokens in three, 4, 3 and 3; the rate in thirds.  So
all together never let more through than one bucket of the whole limit would.  The price is that what is left in one
is not there for a check that asks another: a node asks where it saw most left, and the others when that one denies.
A cost above the largest part can never pass.

``k`` and the place are parts of a sub-bucket's key: another ``split`` starts new buckets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from regional_limiter.model.decision import Reason, Verdict
from regional_limiter.model.keys import tag_of
from regional_limiter.model.rule import Rate
from regional_limiter.store.base import BucketCall
from regional_limiter.store.topology import SLOTS, hash_slot_of

_SILENT_US = 500_000
"""For so long a sub-bucket whose shard did not answer is asked last."""


def part_of(capacity: int, split: int, place: int) -> int:
    """The part of ``capacity`` that the sub-bucket at ``place`` (from 0 on) may hold."""
    return capacity // split + (place < capacity % split)


def largest_part(capacity: int, split: int) -> int:
    """The largest cost that can pass."""
    return part_of(capacity, split, 0)


def rate_of_part(refill: Rate, split: int) -> Rate:
    """The rate of one sub-bucket, exactly."""
    part = Fraction(refill.tokens, refill.period_ms * split)
    return Rate(part.numerator, part.denominator)


def sub_call(call: BucketCall, place: int) -> BucketCall:
    """``call``, which is of a split rule, as it is asked of one of its sub-buckets."""
    return replace(
        call,
        key=sub_key(call.key, call.split, place),
        capacity=part_of(call.capacity, call.split, place),
        refill=None if call.refill is None else rate_of_part(call.refill, call.split),
        split=1,
    )


@lru_cache(maxsize=4096)
def sub_key(key: str, split: int, place: int) -> str:
    """``key`` with a tag whose hash slot lies ``place`` / ``split`` of all slots further on.

    Shards own equal runs of slots, mostly, so the sub-buckets lie on as many shards as there are.
    """
    tag = tag_of(key)
    middle = hash_slot_of(tag) + SLOTS * place // split
    number = 0
    while True:
        own = f"{tag}.{split}.{place}.{number:x}"
        if (hash_slot_of(own) - middle + SLOTS // (8 * split)) % SLOTS < SLOTS // (4 * split):
            return f"rl:{{{own}}}{key[key.index('}') + 1 :]}"
        number += 1


def spread(cost: int, room: Sequence[int]) -> list[int]:
    """``cost`` dealt to places that have ``room`` for it, the roomiest first; what fits nowhere goes nowhere."""
    dealt = [0] * len(room)
    for place in sorted(range(len(room)), key=lambda place: -room[place]):
        dealt[place] = min(cost, max(0, room[place]))
        cost -= dealt[place]
    return dealt


class SubBuckets:
    """What a node last saw of one key's sub-buckets.  Times in us of its steady clock.

    ``leased_from``: where its token lease is from.
    """

    __slots__ = ("_full_us", "_left", "_turn", "leased_from", "parts")

    def __init__(self, capacity: int, split: int, turn: int) -> None:
        """``turn``: where to begin among equals; nodes that begin alike would meet at one shard."""
        self.parts = tuple(part_of(capacity, split, place) for place in range(split))
        self._left = list(self.parts)
        self._full_us = [0] * split
        self._turn = turn % split
        self.leased_from = -1

    def saw(self, place: int, verdict: Verdict, now_us: int) -> None:
        self.saw_left(place, verdict.remaining, verdict.reset_after_ms, now_us)

    def saw_left(self, place: int, remaining: int, reset_after_ms: int, now_us: int) -> None:
        self._left[place] = remaining
        self._full_us[place] = now_us + reset_after_ms * 1000

    def silent(self, place: int, now_us: int) -> None:
        """Its shard did not answer."""
        self._left[place] = 0
        self._full_us[place] = now_us + _SILENT_US

    def left(self, place: int, now_us: int) -> int:
        """About: others may have taken of it since, and it refills."""
        return self.parts[place] if now_us >= self._full_us[place] else self._left[place]

    def others_left(self, place: int, now_us: int) -> int:
        return sum(self.left(other, now_us) for other in range(len(self.parts)) if other != place)

    def best(self, cost: int, tried: Sequence[int], now_us: int) -> int:
        """Where to ask next for ``cost``: of those not ``tried`` that can ever hold it, the one with most left.

        -1: nobody is left to ask.  Of equals each has its turn.
        """
        split = len(self.parts)
        best, most = -1, -1
        for place in range(self._turn, self._turn + split):
            place %= split
            if place in tried or (tried and self.parts[place] < cost):
                continue
            left = self.left(place, now_us)
            if left > most:
                best, most = place, left
        if not tried:
            self._turn = (self._turn + 1) % split
        return best

    # ---- one verdict of several

    def allowed(self, place: int, verdict: Verdict, now_us: int) -> Verdict:
        """One of them has allowed: what is left is what was seen of all."""
        reset_after_ms = max(verdict.reset_after_ms, self._reset_after_ms(now_us))
        return replace(
            verdict, remaining=verdict.remaining + self.others_left(place, now_us), reset_after_ms=reset_after_ms
        )

    def denied(self, verdicts: Sequence[Verdict], some_silent: bool, now_us: int) -> Verdict:
        """All that could be asked have denied: the shortest of their waits, and what is left in all of them.

        ``some_silent``: the shard of another one did not answer, so a part of the limit is not to be had.
        """
        limited = [verdict for verdict in verdicts if verdict.reason is Reason.LIMITED] or verdicts
        waits_ms = [verdict.retry_after_ms for verdict in limited if verdict.retry_after_ms is not None]
        return replace(
            limited[-1],
            remaining=sum(self.left(place, now_us) for place in range(len(self.parts))),
            retry_after_ms=min(waits_ms, default=None),
            reset_after_ms=max(self._reset_after_ms(now_us), *(verdict.reset_after_ms for verdict in verdicts)),
            degraded=some_silent,
            replayed=all(verdict.replayed for verdict in verdicts),
        )

    def peeked(self, verdicts: Sequence[Verdict], some_silent: bool) -> Verdict:
        """All that answered, looked at: nothing was asked for."""
        return replace(
            verdicts[0],
            remaining=sum(verdict.remaining for verdict in verdicts),
            reset_after_ms=max(verdict.reset_after_ms for verdict in verdicts),
            degraded=some_silent,
        )

    def _reset_after_ms(self, now_us: int) -> int:
        return -(-max(0, *(full_us - now_us for full_us in self._full_us)) // 1000)
