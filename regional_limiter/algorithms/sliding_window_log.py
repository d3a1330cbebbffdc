"""Sliding window by a log of what was charged when: exact, at the price of an entry a charge.  Pure integers.

An entry at t counts in [t, t + window).  The state is a row of entries, time_ms 6 bytes and end 6, little-endian;
``end`` is the running total of all charges up to and with this one, modulo 2^48.  The first is no entry but the
base: its end is where the total of the others begins; rebased_ms follows it, 6 bytes, if there ever was a reason.
What counts is therefore the last end less the end before the first entry that counts, found by bisection, however
many entries before that are still there.  Redis holds each entry as one element of a list.

- At most ``TRIM_MOST`` entries that no longer count are dropped by a charge, so none takes long.
- Charges of one millisecond share an entry, and a charge that adds one drops one that no longer counts, or more.
  So a log has never more than the limit has units (twice that with ``charge_denied``) or its window milliseconds.
- A clock that goes back by up to 2 s stands still until it is there again.  A larger step back turns what counts
  into one entry of now, but not twice within 30 s.
- The rule's limit changed: the log is usage.  Its window changed: what the log still has of the new window counts.
- A refund takes back the newest charges that count, whoever made them.
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

TRIM_MOST = 100
ENTRY_BYTES = 12
_HALF = 6
_MODULUS = 2**48
_LIST_BYTES = 300
_ELEMENT_BYTES = 15


@value
class _Log:
    """``base``: the total before the first entry.  ``base_ms``: whatever time that was of."""

    base_ms: int = 0
    base: int = 0
    entries: bytes = b""
    rebased_ms: int | None = None

    def __len__(self) -> int:
        return len(self.entries) // ENTRY_BYTES

    def time_ms(self, place: int) -> int:
        at = place * ENTRY_BYTES
        return int.from_bytes(self.entries[at : at + _HALF], "little")

    def end(self, place: int) -> int:
        """The total after the entry at ``place``; -1 for the base."""
        if place < 0:
            return self.base
        at = place * ENTRY_BYTES + _HALF
        return int.from_bytes(self.entries[at : at + _HALF], "little")

    def keeping(self, count: int) -> _Log:
        """Only the ``count`` oldest entries."""
        return replace(self, entries=self.entries[: count * ENTRY_BYTES])

    def without(self, count: int) -> _Log:
        """Without the ``count`` oldest entries."""
        if not count:
            return self
        entries = self.entries[count * ENTRY_BYTES :]
        return replace(self, base_ms=self.time_ms(count - 1), base=self.end(count - 1), entries=entries)

    def with_entry(self, time_ms: int, end: int) -> _Log:
        entry = time_ms.to_bytes(_HALF, "little") + (end % _MODULUS).to_bytes(_HALF, "little")
        return replace(self, entries=self.entries + entry)


@value
class _Looked:
    """A log as of ``time_ms``, which is ``now_ms`` unless the clock went back; ``first``: the first that counts.

    ``unsettled``: it was rebased just now, which is lost unless it is stored, so a denied check stores it too.
    """

    log: _Log
    now_ms: int
    time_ms: int
    first: int
    used: int
    unsettled: bool = False

    def ends_after_ms(self, place: int, window_ms: int) -> int:
        return self.log.time_ms(place) + window_ms - self.now_ms

    def reset_after_ms(self, window_ms: int) -> int:
        return self.ends_after_ms(len(self.log) - 1, window_ms) if self.used else 0

    def place_of(self, units: int) -> int:
        """The entry with which the total of those that count reaches ``units`` (from 1 to ``used``)."""
        base = self.log.end(self.first - 1)
        low, high = self.first, len(self.log) - 1
        while low < high:
            middle = (low + high) // 2
            if (self.log.end(middle) - base) % _MODULUS >= units:
                high = middle
            else:
                low = middle + 1
        return low


def entries_most(capacity: int, window_ms: int) -> int:
    """The most entries that a log can have, the base included, unless denied checks are charged too."""
    return min(capacity, window_ms) + 1


def memory_bytes_most(capacity: int, window_ms: int) -> int:
    """About what a full log of such a rule takes in Redis, key included."""
    return _LIST_BYTES + _ELEMENT_BYTES * entries_most(capacity, window_ms)


def numbers(call: BucketCall, now_ms: int) -> tuple[int, ...]:
    """What the function library has to know of the rule: how long a window is."""
    return (_window_ms(call),)


def storage_key(call: BucketCall, now_ms: int) -> str:
    """Where the log is stored."""
    return f"{call.key}:l"


def reaches(call: BucketCall, charged_ms: int, now_ms: int) -> bool:
    """Whether a refund now can reach what was charged then: while it counts."""
    return now_ms - charged_ms < _window_ms(call)


def decide(state: bytes | None, call: BucketCall, share: ShareInForce, now_ms: int) -> Outcome:
    """What a check of ``call.cost`` does to the log."""
    looked = _look(state, call, now_ms)
    reason = reason_of(call, call.cost, call.part - looked.used, call.largest)
    left = _ending(looked, call, share, reason)
    if not call.cost or reason in REFUSED:
        return Outcome(reason is Reason.OK, left, left, False)
    if looked.unsettled:
        left = _stored(left, looked, call)
    after = _charged(looked, call)
    charged = _stored(_ending(after, call, share, reason), after, call)
    return Outcome(reason is Reason.OK, charged, left, call.charge_denied)


def give_back(state: bytes | None, call: BucketCall, share: ShareInForce, now_ms: int) -> Ending | None:
    """Return ``call.cost`` to the newest charges that count.  None: there are none."""
    looked = _look(state, call, now_ms)
    back = min(call.cost, looked.used)
    if not back:
        return None
    log, used = looked.log, looked.used - back
    if used:
        place = looked.place_of(used)
        log = log.keeping(place).with_entry(log.time_ms(place), log.end(looked.first - 1) + used)
    else:
        log = log.keeping(looked.first)
    after = replace(looked, log=log, used=used)
    return _stored(_ending(after, call, share, Reason.OK), after, call)


def _look(state: bytes | None, call: BucketCall, now_ms: int) -> _Looked:
    log = _unpack(state) if state is not None else _Log()
    window_ms = _window_ms(call)
    last_ms = log.time_ms(len(log) - 1) if len(log) else now_ms
    time_ms = max(now_ms, last_ms)
    first = _first_after(log, time_ms - window_ms)
    used = (log.end(len(log) - 1) - log.end(first - 1)) % _MODULUS
    if last_ms - now_ms <= STEP_KEPT_MS or is_recent(log.rebased_ms, now_ms, REBASE_EVERY_MS):
        return _Looked(log, now_ms, time_ms, first, used)
    log = _Log(rebased_ms=now_ms)
    if used:
        log = log.with_entry(now_ms, used)
    return _Looked(log, now_ms, now_ms, 0, used, used > 0)


def _first_after(log: _Log, edge_ms: int) -> int:
    low, high = 0, len(log)
    while low < high:
        middle = (low + high) // 2
        if log.time_ms(middle) > edge_ms:
            high = middle
        else:
            low = middle + 1
    return low


def _charged(looked: _Looked, call: BucketCall) -> _Looked:
    log, used = looked.log, min(looked.used + call.cost, max(looked.used, 2 * call.capacity))
    if used > looked.used:
        end = log.end(len(log) - 1) + used - looked.used
        if len(log) and log.time_ms(len(log) - 1) == looked.time_ms:
            log = log.keeping(len(log) - 1)
        log = log.with_entry(looked.time_ms, end)
    trimmed = min(looked.first, TRIM_MOST)
    return replace(looked, log=log.without(trimmed), first=looked.first - trimmed, used=used)


def _wait_ms(looked: _Looked, call: BucketCall) -> int:
    """How long until the cost, which does not fit now, would."""
    if call.cost > call.part:
        return RETRY_FOR_LARGER_SHARE_MS
    return looked.ends_after_ms(looked.place_of(looked.used + call.cost - call.part), _window_ms(call))


def _ending(looked: _Looked, call: BucketCall, share: ShareInForce, reason: Reason) -> Ending:
    wait_ms = _wait_ms(looked, call) if reason is Reason.LIMITED else 0
    reset_after_ms = looked.reset_after_ms(_window_ms(call))
    return Ending(verdict_of(share, reason, call.part - looked.used, wait_ms, reset_after_ms))


def _stored(ending: Ending, looked: _Looked, call: BucketCall) -> Ending:
    ttl_ms = max(1, min(ending.verdict.reset_after_ms, 2 * _window_ms(call)))
    return replace(ending, state=_pack(looked.log), ttl_ms=ttl_ms)


def _pack(log: _Log) -> bytes:
    base = log.base_ms.to_bytes(_HALF, "little") + log.base.to_bytes(_HALF, "little")
    rebased = b"" if log.rebased_ms is None else log.rebased_ms.to_bytes(_HALF, "little")
    return base + rebased + log.entries


def _unpack(packed: bytes) -> _Log:
    start = ENTRY_BYTES + len(packed) % ENTRY_BYTES
    fields = [int.from_bytes(packed[at : at + _HALF], "little") for at in range(0, start, _HALF)]
    return _Log(fields[0], fields[1], packed[start:], fields[2] if len(fields) > 2 else None)


def _window_ms(call: BucketCall) -> int:
    if not call.window_ms:
        raise ValueError("a sliding window needs its length")
    return call.window_ms
