"""Concurrency: at most so many slots held at once, each for a lease.  Pure integers.

A check takes as many slots as it costs, under its holder, for ``lease_ms``; a lease is half-open.  Asking again
under the same holder renews all of that holder's slots and takes only what is missing to the cost.  Giving back
under a holder frees all of its slots, whatever the cost, and a second time nothing.  What a dead holder had is free
when its lease ends.  ``charge_denied`` means nothing here: whoever was denied would hold a slot and not know it.

One check holds ``SLOTS_A_HOLDER`` slots at most; a larger cost is ``exceeds_capacity``.

The state is latest_ms 6 bytes, then 13 bytes a slot for whom (12 of the holder's digest, 1 for which of its slots)
behind 6 for the end of its lease, in the order of ends; little-endian.  Redis holds it as a sorted set of slots by
end, where what is not a slot has a score below zero.  It has a time of its own: ``latest_ms`` is when it was last
written, and offset_ms 6 bytes and rebased_ms 6 follow it if there ever was a reason.

- A clock that goes back by up to 2 s stands still until it is there again.  With a larger step back the state's
  time goes on where it was (``offset_ms``), but not twice within 30 s: no lease becomes longer or shorter by it.
- Slots whose lease is over do not count.  At most ``TRIM_MOST`` of them are dropped by each check that takes some.
- The rule's limit changed: what is held stays held.  Its lease changed: those given before keep theirs.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from hashlib import blake2b

from regional_limiter.algorithms.counted import REFUSED, is_recent, reason_of, verdict_of
from regional_limiter.algorithms.outcome import (
    REBASE_EVERY_MS,
    RETRY_FOR_LARGER_SHARE_MS,
    STEP_KEPT_MS,
    Ending,
    Outcome,
)
from regional_limiter.algorithms.sliding_window_log import TRIM_MOST
from regional_limiter.model.decision import Reason
from regional_limiter.model.enforcement import ShareInForce
from regional_limiter.store.base import BucketCall

SLOTS_A_HOLDER = 100
_TIME_BYTES = 6
_DIGEST_BYTES = 12
_SLOT_BYTES = _TIME_BYTES + _DIGEST_BYTES + 1

Slot = tuple[int, bytes]
"""(end of its lease in the state's time, whose)."""


@dataclass(frozen=True, slots=True)
class _Held:
    """``slots`` in the order of their ends; all but ``latest_ms`` in the state's time, which is offset_ms ahead."""

    latest_ms: int
    slots: tuple[Slot, ...] = ()
    offset_ms: int = 0
    rebased_ms: int | None = None


@dataclass(frozen=True, slots=True)
class _Looked:
    """Slots as of ``time_ms``.  ``clock_ms``: now in the state's time, which is less while that stands still.

    ``over``: how many slots are no longer held.  ``mine``: those that the call's holder holds.  ``unsettled``: the
    clock was followed back just now, which is lost unless it is stored, so a denied check stores it too.
    """

    held: _Held
    clock_ms: int
    time_ms: int
    over: int
    mine: frozenset[bytes]
    unsettled: bool = False

    @property
    def used(self) -> int:
        return len(self.held.slots) - self.over

    @property
    def reset_after_ms(self) -> int:
        return self.held.slots[-1][0] - self.clock_ms if self.used else 0


def holder_digest(holder: str) -> bytes:
    """How a holder is kept: 12 bytes, whatever it calls itself."""
    return blake2b(holder.encode(), digest_size=_DIGEST_BYTES).digest()


def numbers(call: BucketCall, now_ms: int) -> tuple[int, ...]:
    """What the function library has to know of the rule: how long a lease is."""
    return (_lease_ms(call),)


def storage_key(call: BucketCall, now_ms: int) -> str:
    """Where the slots are stored."""
    return f"{call.key}:h"


def decide(state: bytes | None, call: BucketCall, share: ShareInForce, now_ms: int) -> Outcome:
    """What a check of ``call.cost`` by ``call.holder`` does to the slots."""
    looked = _look(state, call, now_ms)
    missing = max(0, call.cost - len(looked.mine))
    free = call.part - looked.used
    reason = reason_of(call, missing, max(0, free), min(call.largest, SLOTS_A_HOLDER))
    wait_ms = _wait_ms(looked, call, missing - free) if reason is Reason.LIMITED else 0
    left = Ending(verdict_of(share, reason, free, wait_ms, looked.reset_after_ms))
    if not call.cost or reason in REFUSED:
        return Outcome(reason is Reason.OK, left, left, False)
    if looked.unsettled:
        left = _stored(left, looked)
    if reason is Reason.LIMITED:
        return Outcome(False, left, left, False)
    after = _taken(looked, call, missing)
    verdict = verdict_of(share, reason, call.part - after.used, 0, after.reset_after_ms)
    verdict = replace(verdict, held_before=len(looked.mine))
    return Outcome(True, _stored(Ending(verdict), after), left, False)


def give_back(state: bytes | None, call: BucketCall, share: ShareInForce, now_ms: int) -> Ending | None:
    """Free every slot of ``call.holder``.  None: it holds none, or the cost is 0."""
    looked = _look(state, call, now_ms)
    if not call.cost or not looked.mine:
        return None
    kept = tuple(slot for slot in looked.held.slots if slot[1] not in looked.mine)
    return _changed(looked, kept, call, share)


def renew(state: bytes | None, call: BucketCall, share: ShareInForce, now_ms: int) -> Ending | None:
    """A new lease for every slot of ``call.holder``.  None: it holds none any more."""
    looked = _look(state, call, now_ms)
    if not looked.mine:
        return None
    return _changed(looked, _leased(looked, looked.mine, call), call, share)


def _look(state: bytes | None, call: BucketCall, now_ms: int) -> _Looked:
    held = _unpack(state) if state is not None else _Held(now_ms)
    clock_ms = now_ms + held.offset_ms
    back_ms = held.latest_ms - clock_ms
    unsettled = False
    if back_ms > STEP_KEPT_MS and not is_recent(held.rebased_ms, now_ms, REBASE_EVERY_MS):
        held = replace(held, offset_ms=held.offset_ms + back_ms, rebased_ms=now_ms)
        clock_ms, unsettled = held.latest_ms, True
    time_ms = max(clock_ms, held.latest_ms)
    over = bisect_right(held.slots, time_ms, key=_end)
    return _Looked(held, clock_ms, time_ms, over, _mine(held.slots[over:], call.holder), unsettled)


def _mine(live: tuple[Slot, ...], holder: str) -> frozenset[bytes]:
    names = {name for _, name in live}
    digest = holder_digest(holder)
    count = 0
    while _name(digest, count) in names:
        count += 1
    return frozenset(_name(digest, number) for number in range(count))


def _taken(looked: _Looked, call: BucketCall, missing: int) -> _Looked:
    digest, already = holder_digest(call.holder), len(looked.mine)
    mine = frozenset(_name(digest, number) for number in range(already + missing))
    slots = _leased(looked, mine, call)
    over = bisect_right(slots, looked.time_ms, key=_end)
    trimmed = min(over, TRIM_MOST)
    held = replace(looked.held, latest_ms=looked.time_ms, slots=slots[trimmed:])
    return replace(looked, held=held, over=over - trimmed, mine=mine)


def _leased(looked: _Looked, mine: frozenset[bytes], call: BucketCall) -> tuple[Slot, ...]:
    """The slots with those of ``mine`` held from now on."""
    others = [slot for slot in looked.held.slots if slot[1] not in mine]
    end_ms = looked.time_ms + _lease_ms(call)
    return tuple(sorted(others + [(end_ms, name) for name in mine]))


def _changed(looked: _Looked, slots: tuple[Slot, ...], call: BucketCall, share: ShareInForce) -> Ending:
    held = replace(looked.held, latest_ms=looked.time_ms, slots=slots)
    after = replace(looked, held=held, over=bisect_right(slots, looked.time_ms, key=_end))
    return _stored(Ending(verdict_of(share, Reason.OK, call.part - after.used, 0, after.reset_after_ms)), after)


def _wait_ms(looked: _Looked, call: BucketCall, short: int) -> int:
    """How long until ``short`` more slots of others are free (when its own end, it needs them again)."""
    if call.cost > call.part:
        return RETRY_FOR_LARGER_SHARE_MS
    others = [end_ms for end_ms, name in looked.held.slots[looked.over :] if name not in looked.mine]
    return others[short - 1] - looked.clock_ms


def _stored(ending: Ending, looked: _Looked) -> Ending:
    return replace(ending, state=_pack(looked.held), ttl_ms=max(1, looked.reset_after_ms))


def _pack(held: _Held) -> bytes:
    times = [held.latest_ms]
    if held.rebased_ms is not None:
        times += [held.offset_ms, held.rebased_ms]
    packed = [time_ms.to_bytes(_TIME_BYTES, "little") for time_ms in times]
    packed += [end_ms.to_bytes(_TIME_BYTES, "little") + name for end_ms, name in held.slots]
    return b"".join(packed)


def _unpack(packed: bytes) -> _Held:
    start = _TIME_BYTES if len(packed) % _SLOT_BYTES == _TIME_BYTES else 3 * _TIME_BYTES
    times = [int.from_bytes(packed[at : at + _TIME_BYTES], "little") for at in range(0, start, _TIME_BYTES)]
    slots = tuple(
        (int.from_bytes(packed[at : at + _TIME_BYTES], "little"), packed[at + _TIME_BYTES : at + _SLOT_BYTES])
        for at in range(start, len(packed), _SLOT_BYTES)
    )
    return _Held(times[0], slots, *times[1:])


def _end(slot: Slot) -> int:
    return slot[0]


def _name(digest: bytes, number: int) -> bytes:
    return digest + bytes((number,))


def _lease_ms(call: BucketCall) -> int:
    if not call.lease_ms:
        raise ValueError("concurrency needs the length of a lease")
    if call.cost and not call.holder:
        raise ValueError("concurrency needs a holder")
    return call.lease_ms
