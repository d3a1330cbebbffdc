"""Sliding window by two counts: previous x (1 - elapsed part) + current <= limit.  Pure integers.

Windows are aligned to the epoch and half-open.  What the previous window counts for is rounded up, so what remains
is rounded down.  The state is one short string: window_ms 5 bytes, number of the window 6, previous 6, current 6,
and rebased 6 if there ever was a reason; all little-endian.

- A clock that goes back by up to 2 s keeps the stored window, and stands at its first instant until it is there
  again.  With a larger step back both counts count as charged in the window that the clock says, in full (how much
  of the stored one had elapsed is not known), but not twice within 30 s.
- The rule's limit changed: the counts are usage, nothing to convert.  Its window changed: what counted at that
  moment counts as charged in the present window.
- A refund reaches the present window's count only: what was charged in the previous one stays.
"""

from __future__ import annotations

from dataclasses import replace

from regional_limiter.algorithms.counted import REFUSED, is_recent, reason_of, verdict_of
from regional_limiter.algorithms.outcome import (
    REBASE_EVERY_MS,
    RETRY_FOR_LARGER_SHARE_MS,
    STEP_KEPT_MS,
    Ending,
    Outcome,
)
from regional_limiter.model.decision import Reason
from regional_limiter.model.enforcement import ShareInForce
from regional_limiter.model.value import value
from regional_limiter.store.base import BucketCall

_MOST = 2**41 - 1
"""More never counts: with it no product in Lua passes 2^53, whatever was converted how often."""

_SIZES = (5, 6, 6, 6)
_REBASED_AT = sum(_SIZES)


@value
class _Counts:
    window_ms: int
    number: int
    previous: int
    current: int
    rebased_ms: int | None = None


@value
class _Looked:
    """Counts brought up to now.  ``ahead_ms``: how far behind the start of their window the clock is.

    ``unsettled``: what is known now is lost unless it is stored, so a denied check stores it too.
    """

    counts: _Counts
    ahead_ms: int
    elapsed_ms: int
    unsettled: bool = False

    @property
    def used(self) -> int:
        counts = self.counts
        return counts.current + counts.previous - counts.previous * self.elapsed_ms // counts.window_ms

    @property
    def reset_after_ms(self) -> int:
        counts = self.counts
        windows = 2 if counts.current else 1 if counts.previous else 0
        return self.ahead_ms + windows * counts.window_ms - self.elapsed_ms if windows else 0

    def counting(self, current: int) -> _Looked:
        return replace(self, counts=replace(self.counts, current=current))


def numbers(call: BucketCall, now_ms: int) -> tuple[int, ...]:
    """What the function library has to know of the rule: how long a window is."""
    return (_window_ms(call),)


def storage_key(call: BucketCall, now_ms: int) -> str:
    """Where the counts are stored."""
    return f"{call.key}:c"


def reaches(call: BucketCall, charged_ms: int, now_ms: int) -> bool:
    """Whether a refund now can reach what was charged then: only in the same window."""
    return charged_ms // _window_ms(call) == now_ms // _window_ms(call)


def decide(state: bytes | None, call: BucketCall, share: ShareInForce, now_ms: int) -> Outcome:
    """What a check of ``call.cost`` does to the counts."""
    looked = _look(state, call, now_ms)
    reason = reason_of(call, call.cost, call.part - looked.used, call.largest)
    left = _ending(looked, call, share, reason)
    if not call.cost or reason in REFUSED:
        return Outcome(reason is Reason.OK, left, left, False)
    current = looked.counts.current
    after = looked.counting(min(current + call.cost, max(current, 2 * call.capacity)))
    if looked.unsettled:
        left = _stored(left, looked)
    charged = _stored(_ending(after, call, share, reason), after)
    return Outcome(reason is Reason.OK, charged, left, call.charge_denied)


def give_back(state: bytes | None, call: BucketCall, share: ShareInForce, now_ms: int) -> Ending | None:
    """Return ``call.cost`` to the present window's count.  None: nothing to return to."""
    if state is None:
        return None
    looked = _look(state, call, now_ms)
    after = looked.counting(max(0, looked.counts.current - call.cost))
    return _stored(_ending(after, call, share, Reason.OK), after)


def _look(state: bytes | None, call: BucketCall, now_ms: int) -> _Looked:
    window_ms = _window_ms(call)
    if state is None:
        return _Looked(_Counts(window_ms, now_ms // window_ms, 0, 0), 0, now_ms % window_ms)
    looked = _now(_unpack(state), now_ms)
    counts = looked.counts
    if counts.window_ms == window_ms:
        return looked
    number = (now_ms + looked.ahead_ms) // window_ms
    # The clock stands where it did: not before the window that it is in now.
    ahead_ms = max(0, number * window_ms - now_ms)
    elapsed_ms = now_ms + ahead_ms - number * window_ms
    used = min(looked.used, _MOST)
    return _Looked(_Counts(window_ms, number, 0, used, counts.rebased_ms), ahead_ms, elapsed_ms, True)


def _now(counts: _Counts, now_ms: int) -> _Looked:
    """The same counts in the window that ``now_ms`` lies in, or in their own if the clock went back a little."""
    number, elapsed_ms = divmod(now_ms, counts.window_ms)
    if number == counts.number:
        return _Looked(counts, 0, elapsed_ms)
    if number > counts.number:
        previous = counts.current if number == counts.number + 1 else 0
        return _Looked(replace(counts, number=number, previous=previous, current=0), 0, elapsed_ms)
    ahead_ms = counts.number * counts.window_ms - now_ms
    if ahead_ms <= STEP_KEPT_MS or is_recent(counts.rebased_ms, now_ms, REBASE_EVERY_MS):
        return _Looked(counts, ahead_ms, 0)
    used = min(counts.previous + counts.current, _MOST)
    return _Looked(_Counts(counts.window_ms, number, 0, used, now_ms), 0, elapsed_ms, True)


def _wait_ms(looked: _Looked, call: BucketCall) -> int:
    """How long until the cost, which does not fit now, would."""
    if call.cost > call.part:
        return RETRY_FOR_LARGER_SHARE_MS
    counts, window_ms = looked.counts, looked.counts.window_ms
    since_start_ms = looked.ahead_ms - looked.elapsed_ms
    free = call.part - call.cost
    if counts.current <= free:
        # The previous window's part has to shrink to what the current count leaves.
        return since_start_ms + window_ms - (free - counts.current) * window_ms // counts.previous
    return since_start_ms + 2 * window_ms - free * window_ms // counts.current


def _ending(looked: _Looked, call: BucketCall, share: ShareInForce, reason: Reason) -> Ending:
    wait_ms = _wait_ms(looked, call) if reason is Reason.LIMITED else 0
    return Ending(verdict_of(share, reason, call.part - looked.used, wait_ms, looked.reset_after_ms))


def _stored(ending: Ending, looked: _Looked) -> Ending:
    ttl_ms = max(1, min(looked.reset_after_ms, 2 * looked.counts.window_ms))
    return replace(ending, state=_pack(looked.counts), ttl_ms=ttl_ms)


def _pack(counts: _Counts) -> bytes:
    fields = (counts.window_ms, counts.number, counts.previous, counts.current)
    packed = b"".join(field.to_bytes(size, "little") for field, size in zip(fields, _SIZES, strict=True))
    return packed if counts.rebased_ms is None else packed + counts.rebased_ms.to_bytes(6, "little")


def _unpack(packed: bytes) -> _Counts:
    fields, at = [], 0
    for size in (*_SIZES, 6)[: 4 if len(packed) == _REBASED_AT else 5]:
        fields.append(int.from_bytes(packed[at : at + size], "little"))
        at += size
    return _Counts(*fields)


def _window_ms(call: BucketCall) -> int:
    if not call.window_ms:
        raise ValueError("a sliding window needs its length")
    return call.window_ms
