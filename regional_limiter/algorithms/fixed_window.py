"""Fixed window: so many requests in each half-open window [start, end).  Pure integers.

Windows are aligned to the epoch, or are those of a calendar (``calendar``).  A window's identity is in its key
(``<bucket key>:<number of the window>``, of a calendar its start in ms), so the instant of the end belongs to the
next window and a clock that goes back a little finds the old count again: the key outlives its window by the clock
tolerance.  The state is the count alone, as decimal digits, which Redis keeps in the pointer itself.  Usage is what
is stored, so a rule whose limit changes keeps it without a conversion.

Redis has no calendar: it is told the edges of three windows around the caller's clock, and refuses a call whose
edges are not around its own.

A global limit is split by the number that the call carries (``static``), or is in escrow (``adaptive``): a region's
share of a window only grows until the window ends, since what was spent of it cannot be handed back.
"""

from __future__ import annotations

from regional_limiter.algorithms.calendar import edges_around, window_at
from regional_limiter.algorithms.outcome import RETRY_FOR_LARGER_SHARE_MS, STEP_KEPT_MS, Ending, Outcome
from regional_limiter.model.decision import Reason, Verdict
from regional_limiter.model.enforcement import ShareInForce
from regional_limiter.model.share import region_capacity
from regional_limiter.store.base import BucketCall, Sharing


def numbers(call: BucketCall, now_ms: int) -> tuple[int, ...]:
    """What the function library has to know of the rule: how long a window is, or a calendar's next edges."""
    return edges_around(call.calendar, now_ms) if call.calendar is not None else (_window_ms(call),)


def storage_key(call: BucketCall, now_ms: int) -> str:
    """Where the window that ``now_ms`` lies in is stored."""
    return f"{call.key}:{_window(call, now_ms)[0]}"


def decide(state: bytes | None, call: BucketCall, share: ShareInForce, now_ms: int) -> Outcome:
    """What a check of ``call.cost`` does to the count of the present window."""
    count = int(state) if state is not None else _lost(call, share)
    # What a denied check costs is not counted on top of what may have been lost: that would become the count.
    costs_denied = call.charge_denied and (state is not None or count == 0)
    left_ms = _window(call, now_ms)[1] - now_ms
    top = _top(call, share)
    cost = call.cost
    reason = Reason.OK
    if call.capacity == 0:
        reason = Reason.ZERO_LIMIT
    elif cost > call.largest:
        reason = Reason.EXCEEDS_CAPACITY
    elif cost and count + cost > top:
        reason = Reason.LIMITED
    left = Ending(_verdict(call, share, reason, top, count, left_ms))
    if not cost or reason in (Reason.ZERO_LIMIT, Reason.EXCEEDS_CAPACITY):
        return Outcome(reason is Reason.OK, left, left, False)
    after = min(count + cost, max(count, 2 * call.capacity))
    charged = Ending(
        _verdict(call, share, reason, top, after, left_ms), str(after).encode(), left_ms + STEP_KEPT_MS
    )
    return Outcome(reason is Reason.OK, charged, left, costs_denied)


def give_back(state: bytes | None, call: BucketCall, share: ShareInForce, now_ms: int) -> Ending | None:
    """Return ``call.cost`` to the present window, never below nothing used.  None: nothing to return to."""
    if state is None:
        return None
    count = max(0, int(state) - call.cost)
    left_ms = _window(call, now_ms)[1] - now_ms
    top = _top(call, share)
    verdict = _verdict(call, share, Reason.OK, top, count, left_ms)
    return Ending(verdict, str(count).encode(), left_ms + STEP_KEPT_MS)


def window_of(call: BucketCall, now_ms: int) -> tuple[int, int, int]:
    """(its number, start and end in ms) of the window that ``now_ms`` lies in."""
    number, end_ms = _window(call, now_ms)
    return number, number if call.calendar is not None else number * _window_ms(call), end_ms


def _top(call: BucketCall, share: ShareInForce) -> int:
    """What may be used of the window here."""
    if call.sharing is Sharing.ADAPTIVE:
        return region_capacity(call.capacity, share.share, call.regions)
    return call.part


def _lost(call: BucketCall, share: ShareInForce) -> int:
    """What counts as used where no count is stored: of a window in escrow there may have been one."""
    if call.sharing is Sharing.ADAPTIVE:
        return region_capacity(call.capacity, share.share_before, call.regions)
    return 0


def _window_ms(call: BucketCall) -> int:
    if not call.window_ms:
        raise ValueError("a fixed window needs its length")
    return call.window_ms


def _window(call: BucketCall, now_ms: int) -> tuple[int, int]:
    """(which window it is, when it ends)."""
    if call.calendar is not None:
        return window_at(call.calendar, now_ms)
    window_ms = _window_ms(call)
    number = now_ms // window_ms
    return number, (number + 1) * window_ms


def _verdict(call: BucketCall, share: ShareInForce, reason: Reason, top: int, count: int, left_ms: int) -> Verdict:
    retry_after_ms: int | None = None
    if reason is Reason.OK:
        retry_after_ms = 0
    elif reason is Reason.LIMITED:
        retry_after_ms = RETRY_FOR_LARGER_SHARE_MS if call.cost > top else left_ms
        if call.sharing is Sharing.ADAPTIVE:
            retry_after_ms = min(RETRY_FOR_LARGER_SHARE_MS, left_ms)
    return Verdict(
        allowed=reason is Reason.OK,
        reason=reason,
        remaining=max(0, top - count),
        retry_after_ms=retry_after_ms,
        reset_after_ms=left_ms,
        share=share.share,
        share_kind=share.kind,
        session_left_us=share.session_left_us,
        consent_left_us=share.consent_left_us,
    )
