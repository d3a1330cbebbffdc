"""Token bucket: starts full, refills evenly, exact to a fraction of a token.  Pure integers.

A level counts units of 1/(period_ms x 10,000) tokens: a bucket whose share is v gains tokens x v units a
millisecond, so every level at every whole millisecond is an integer.  Elapsed time is cut at the time to full
before it is multiplied, so no product passes 2^53 (:func:`fits_exactly`) and Lua's doubles agree to the unit.

How a bucket refills while its share moves:
- whole limit: the share is 10,000 since ever; a missing bucket is full.
- static: the share is the number that the call carries; when it changed, the time since the last charge counts
  at the smaller of old and new.  A missing bucket is full.
- adaptive: every millisecond counts at the share that was in force.  A bucket older than the two shares that
  are known keeps at most one token; a missing one holds what the present share has earned since it is in force,
  at least one token.  A share that rises counts from the next whole millisecond and one that falls from the last.
  So a full bucket may only be forgotten when a missing one would be full as well: its key lives until then.
"""

from __future__ import annotations

from regional_limiter.algorithms.bucket_state import Bucket, converted, pack, unpack
from regional_limiter.algorithms.outcome import (
    REBASE_EVERY_MS,
    RETRY_FOR_LARGER_SHARE_MS,
    SHARE_ZERO_RESET_MS,
    STEP_KEPT_MS,
    Ending,
    Outcome,
)
from regional_limiter.algorithms.tokens_out import Out, accrued, cap_at, gained, reached_ms, shifted, still_out
from regional_limiter.model.decision import Reason, Verdict
from regional_limiter.model.enforcement import ShareInForce
from regional_limiter.model.rule import Rate
from regional_limiter.model.share import LARGEST_EXACT_INTEGER, SHARE_UNITS, region_capacity
from regional_limiter.model.value import value
from regional_limiter.store.base import BucketCall, Sharing


@value
class Looked:
    """A bucket brought up to now.

    ``earns_from``: what it holds and how far after now it begins to gain ``per_ms`` (negative: before now).
    ``absent_full_ms``: how long until a missing bucket would be full.  ``unsettled``: its state says less than is
    known now, so that it is stored again even by a denied check.
    """

    now_ms: int
    bucket: Bucket
    top: int
    per_ms: int
    earns_from: tuple[int, int]
    absent_full_ms: int
    unsettled: bool

    def holding(self, level: int, out: Out | None = None) -> Looked:
        """The same bucket after a charge, a refund or a token lease."""
        held = self.bucket
        out = held.out if out is None else out
        bucket = Bucket(held.time_ms, level, held.capacity, held.period_ms, held.share, held.rebased_ms, out)
        earns_from = (level, max(0, self.earns_from[1]))
        return Looked(self.now_ms, bucket, self.top, self.per_ms, earns_from, self.absent_full_ms, self.unsettled)

    def cap(self) -> int:
        """The most that the level may be now."""
        return cap_at(self.bucket.time_ms, self.top, unit_of(self.bucket), self.bucket.out)


def fits_exactly(capacity: int, refill: Rate) -> bool:
    """Whether every intermediate number of a bucket with these numbers stays below 2^53."""
    return (2 * capacity * refill.period_ms + refill.tokens) * SHARE_UNITS < LARGEST_EXACT_INTEGER


def numbers(call: BucketCall, now_ms: int) -> tuple[int, ...]:
    """What the function library has to know of the rule: its rate."""
    if call.refill is None:
        raise ValueError(f"a {call.algorithm} needs a refill")
    return call.refill.tokens, call.refill.period_ms


def storage_key(call: BucketCall, now_ms: int) -> str:
    """Where the bucket is stored: under its own key."""
    return call.key


def decide(state: bytes | None, call: BucketCall, share: ShareInForce, now_ms: int) -> Outcome:
    """What a check of ``call.cost`` does to the bucket.  ``state`` None: no key."""
    looked = look(state, call, share, now_ms)
    cost = call.cost
    if call.capacity == 0:
        return _refused(looked, share, Reason.ZERO_LIMIT)
    if cost > call.largest:
        return _refused(looked, share, Reason.EXCEEDS_CAPACITY)
    if cost == 0:
        ending = Ending(_verdict(looked, share, 0, True, Reason.OK))
        return Outcome(True, ending, ending, False)
    bucket = looked.bucket
    price = cost * unit_of(bucket)
    allowed = price <= bucket.level
    reason = Reason.OK if allowed else Reason.LIMITED
    after = looked.holding(max(bucket.level - price, -call.capacity * unit_of(bucket)))
    charged = _stored(Ending(_verdict(after, share, cost, allowed, reason)), after)
    left = Ending(_verdict(looked, share, cost, allowed, reason))
    if looked.unsettled:
        left = _stored(left, looked)
    return Outcome(allowed, charged, left, call.charge_denied)


def give_back(state: bytes | None, call: BucketCall, share: ShareInForce, now_ms: int) -> Ending | None:
    """Return ``call.cost`` tokens, never above capacity.  None: nothing to return to (the bucket is full)."""
    if state is None or call.capacity == 0:
        return None
    looked = look(state, call, share, now_ms)
    bucket = looked.bucket
    level = min(looked.cap(), bucket.level + min(call.cost, call.capacity) * unit_of(bucket))
    after = looked.holding(level)
    return _stored(Ending(_verdict(after, share, 0, True, Reason.OK)), after)


def look(state: bytes | None, call: BucketCall, share: ShareInForce, now_ms: int) -> Looked:
    """The bucket as of now, by every share that was in force since it was stored.  ``state`` None: no key."""
    tokens, period_ms = numbers(call, now_ms)
    unit = period_ms * SHARE_UNITS
    v = share.share
    top = region_capacity(call.capacity, v, call.regions) * unit
    adaptive = call.sharing is Sharing.ADAPTIVE
    since_ms, before_since_ms = _in_ms(share) if adaptive else (now_ms, now_ms)
    absent_full_ms = since_ms - now_ms - (-top // (tokens * v)) if adaptive and v else 0
    if state is None:
        level = top
        if adaptive:
            level = min(top, max(unit if v else 0, gained(0, now_ms - since_ms, tokens * v, top)))
        bucket = Bucket(now_ms, level, call.capacity, period_ms, v)
        return Looked(now_ms, bucket, top, tokens * v, (0, since_ms - now_ms), absent_full_ms, False)
    bucket = unpack(state, now_ms) or Bucket(now_ms, 0, call.capacity, period_ms, v)
    bucket = converted(bucket, call.capacity, period_ms, call.regions)
    time_ms, rebased_ms, stepped = _time(bucket, now_ms)
    stored_ms = min(bucket.time_ms, time_ms)
    out = shifted(bucket.out, bucket.time_ms - time_ms) if stepped else bucket.out
    level = bucket.level
    unsettled = stepped
    if not adaptive:
        slower = min(bucket.share, v)
        clip = min(top, region_capacity(call.capacity, slower, call.regions) * unit)
        level = accrued(level, stored_ms, time_ms, tokens * slower, clip, unit, out)
        unsettled = unsettled or bucket.share != v
    elif stored_ms >= since_ms:
        level = accrued(level, stored_ms, time_ms, tokens * v, top, unit, out)
    else:
        if stored_ms >= before_since_ms:
            before = share.share_before
            clip = region_capacity(call.capacity, before, call.regions) * unit
            level = accrued(level, stored_ms, min(since_ms, time_ms), tokens * before, clip, unit, out)
        else:
            level = min(level, unit)
        level = accrued(level, since_ms, time_ms, tokens * v, top, unit, out)
        unsettled = True
    earns_from = (level, max(time_ms, since_ms) - now_ms)
    now_bucket = Bucket(time_ms, level, call.capacity, period_ms, v, rebased_ms, still_out(out, time_ms))
    return Looked(now_ms, now_bucket, top, tokens * v, earns_from, absent_full_ms, unsettled)


def _time(bucket: Bucket, now_ms: int) -> tuple[int, int | None, bool]:
    """(the bucket's time from now on, when it was last rebased, whether it is being rebased now)."""
    back_ms = bucket.time_ms - now_ms
    if back_ms <= 0:
        return now_ms, bucket.rebased_ms, False
    recently = bucket.rebased_ms is not None and abs(now_ms - bucket.rebased_ms) < REBASE_EVERY_MS
    if back_ms <= STEP_KEPT_MS or recently:
        return bucket.time_ms, bucket.rebased_ms, False
    return now_ms, now_ms, True


def _in_ms(share: ShareInForce) -> tuple[int, int]:
    since_ms = share.since_us // 1000 if share.share < share.share_before else -(-share.since_us // 1000)
    return since_ms, -(-share.before_since_us // 1000)


def unit_of(bucket: Bucket) -> int:
    """How many units of a level make a token."""
    return bucket.period_ms * SHARE_UNITS


def reset_after_ms(looked: Looked) -> int:
    """How long until the bucket is full: nothing is missing, and nothing is out."""
    if looked.bucket.capacity == 0:
        return 0
    if looked.per_ms == 0:
        return SHARE_ZERO_RESET_MS
    return _wait_ms(looked, looked.top) if looked.bucket.level < looked.top else 0


def _wait_ms(looked: Looked, level: int) -> int:
    """How long until the bucket holds ``level``, which it does not hold now."""
    held, ahead_ms = looked.earns_from
    bucket = looked.bucket
    if not bucket.out:
        return ahead_ms + max(0, -(-(level - held) // looked.per_ms))
    begins_ms = looked.now_ms + ahead_ms
    at_ms = reached_ms(held, begins_ms, level, looked.per_ms, looked.top, unit_of(bucket), bucket.out)
    return at_ms - looked.now_ms


def _stored(ending: Ending, looked: Looked) -> Ending:
    """The ending, whose verdict is of ``looked``, with what is to be kept of the bucket, and for how long."""
    ttl_ms = max(1, ending.verdict.reset_after_ms, looked.absent_full_ms)
    return Ending(ending.verdict, pack(looked.bucket), ttl_ms)


def ttl_ms(looked: Looked) -> int:
    """How long the bucket's key is to live: until it is full, and a missing one would be full as well."""
    return max(1, reset_after_ms(looked), looked.absent_full_ms)


def _refused(looked: Looked, share: ShareInForce, reason: Reason) -> Outcome:
    ending = Ending(_verdict(looked, share, 0, False, reason))
    return Outcome(False, ending, ending, False)


def _verdict(looked: Looked, share: ShareInForce, cost: int, allowed: bool, reason: Reason) -> Verdict:
    unit = unit_of(looked.bucket)
    retry_after_ms: int | None = 0
    if reason is Reason.LIMITED:
        fits = cost * unit <= looked.top
        retry_after_ms = _wait_ms(looked, cost * unit) if fits else RETRY_FOR_LARGER_SHARE_MS
    elif not allowed:
        retry_after_ms = None
    return Verdict(
        allowed=allowed,
        reason=reason,
        remaining=max(0, looked.bucket.level // unit),
        retry_after_ms=retry_after_ms,
        reset_after_ms=reset_after_ms(looked),
        share=share.share,
        share_kind=share.kind,
        session_left_us=share.session_left_us,
        consent_left_us=share.consent_left_us,
    )
