"""What a node may allow when the store of a bucket does not answer.  Pure.

By the rule's ``on_store_failure``:
- ``local``: the node enforces its part.  That is the region's base, or the share that is certainly still in force
  if it is less, divided by the number of nodes; decided by the same algorithms on a bounded table in memory.
  While the region may be bound by its consent its base may be lent out: then a key of which nothing fresh is
  known has its floor.
- ``open``: allowed.  ``closed``: denied, ``store_unavailable``.

What was allowed here without a call having been sent, or under a request's id, is owed to the bucket, and charged
to it when the store is back (see ``debts``), as far as it has not refilled in the meantime.  Slots that are held
here are asked for there, each for its holder and for a whole lease, and not forced upon a limit that is full then.

A store that is asked too much sheds what may be shed (:func:`shed`): nothing is looked up, charged or owed.

A limit of 0 denies and a cost above the capacity is ``exceeds_capacity`` in every mode.  All verdicts are degraded.

Times: ``now_ms`` is this machine's wall clock (windows are aligned to it), ``now_us`` its steady clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from regional_limiter.algorithms.outcome import Ending, Outcome
from regional_limiter.algorithms.registry import fixed_share, functions_of
from regional_limiter.algorithms.token_bucket import fits_exactly
from regional_limiter.debts import Debt, Debts, RequestDebt
from regional_limiter.model.decision import Reason, ShareKind, Verdict
from regional_limiter.model.keys import rule_of, tag_of
from regional_limiter.model.rule import OnStoreFailure, Rate, Shed
from regional_limiter.model.share import (
    LARGEST_EXACT_INTEGER,
    SHARE_UNITS,
    floor_of,
    region_capacity,
    window_static,
)
from regional_limiter.store.base import BucketCall, Sharing, TokenLease

RETRY_MS = 1000
"""The wait named when only the store's return can help."""

_LONGEST_PERIOD_MS = 2**40 - 1
_PURGE_EVERY_MS = 1000
_REMEMBERED_MS = 60_000
_SERVERS_MOST = 1000


@dataclass(slots=True)
class _Known:
    """What the last reply said of a key's share, and until when that can be relied on (steady clock).

    ``fresh``: the store fell silent soon after, so nothing newer was written there.  Decided once, by the first
    check that it does not answer.
    """

    share: int
    kind: ShareKind
    answered_us: int
    session_end_us: int
    consent_end_us: int
    fresh: bool | None = None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A call that the store did not answer.

    ``owing``: the bucket is owed what passes, since the call was never sent, or has a request's id to be charged
    under: ``request``, which the store would have been asked under with all calls of the same tag ("": none).

    ``server``: which one was asked; "" if that is not known.  ``silent_since_us``: since when it has been silent
    (steady clock); None: for ever, as far as is known.
    """

    call: BucketCall
    mode: OnStoreFailure
    owing: bool
    server: str = ""
    silent_since_us: int | None = None
    request: str = ""
    may_have_run: bool = False


@dataclass(frozen=True, slots=True)
class _Local:
    """A call decided here: ``mine`` is the call as this node's own limit, stored under ``key``."""

    place: int
    mine: BucketCall
    key: str
    lag_ms: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class _Held:
    """A bucket's state here, on a clock that stands still while the store answers.

    ``ends_ms``: when it is full again, on that clock, which is ``lag_ms`` behind the wall clock; last used at
    ``used_ms`` of the wall clock.
    """

    state: bytes
    ends_ms: int
    lag_ms: int
    used_ms: int

    def is_over(self, now_ms: int) -> bool:
        """Full again whatever the store did meanwhile, and unused for long."""
        return self.ends_ms + self.lag_ms <= now_ms and now_ms - self.used_ms >= _REMEMBERED_MS


class Fallback:
    """One node's table.  ``keys_most`` bounds each of its tables.

    ``consent_us``, ``gap_us``: the protocol's.  ``started_us``: a node that has just started has heard of no
    consent, and there may be one.
    """

    def __init__(
        self, keys_most: int = 10_000, *, consent_us: int = 0, gap_us: int = 2**53, started_us: int = 0
    ) -> None:
        self._keys_most = keys_most
        self._consent_us = consent_us
        self._gap_us = gap_us
        self._bound_until_us = started_us + consent_us
        self._bound_by_server: dict[str, int] = {}
        self._known: dict[str, _Known] = {}
        self._states: dict[str, _Held] = {}
        self.debts = Debts(keys_most, self._used)
        self._purged_at_ms = -_PURGE_EVERY_MS

    def remember(self, key: str, verdict: Verdict | TokenLease, asked_us: int, answered_us: int) -> None:
        """The store has answered for a key of an adaptive rule.

        The right is counted from before the call and the promise from after it: each ends on the safe side.
        """
        known = self._known
        known.pop(key, None)
        if len(known) >= self._keys_most:
            del known[next(iter(known))]
        bound_until_us = self._bound_until(verdict.consent_left_us, answered_us)
        self._bound_until_us = max(self._bound_until_us, bound_until_us)
        known[key] = _Known(
            verdict.share,
            verdict.share_kind,
            answered_us,
            asked_us + verdict.session_left_us,
            answered_us + verdict.consent_left_us,
        )

    def hear_consent(self, server: str, consent_left_us: int, answered_us: int) -> None:
        """``server`` has said how long the region is bound there.  It may be bound anew until the next word of it.

        A server that has fallen silent is bound no longer than that, whatever the others go on to say: nothing is
        promised for its keys meanwhile.
        """
        until_us = max(self._bound_by_server.pop(server, 0), self._bound_until(consent_left_us, answered_us))
        if len(self._bound_by_server) >= _SERVERS_MOST:
            del self._bound_by_server[next(iter(self._bound_by_server))]
        self._bound_by_server[server] = until_us
        self._bound_until_us = max(self._bound_until_us, until_us)

    def _bound_until(self, consent_left_us: int, answered_us: int) -> int:
        return answered_us + self._consent_us + self._gap_us if consent_left_us > 0 and self._consent_us > 0 else 0

    def decide(
        self, unanswered: Sequence[Unanswered], *, now_ms: int, now_us: int, nodes: int, charge: bool
    ) -> list[Verdict]:
        """The verdicts of one check's rules that the store did not answer; all are charged or none.

        ``nodes``: by how many the region's part is divided.  ``charge`` False: another rule of the check has
        denied it.
        """
        verdicts: list[Verdict | None] = []
        local: list[_Local] = []
        opened: list[_Local] = []
        for place, asked in enumerate(unanswered):
            call = asked.call
            plain = _without_state(call, asked.mode)
            if plain is None:
                share, kind = self._share(call, asked.server, now_us)
                mine = _part(call, share, max(1, nodes))
                if mine is None or call.cost > mine.capacity:
                    plain = _denied(Reason.LIMITED, RETRY_MS, share, kind)
                else:
                    mine, key, lag_ms, outcome = self._outcome(mine, now_ms, _silent_us(asked, now_us))
                    local.append(_Local(place, mine, key, lag_ms, _with_share(outcome, share, kind)))
            elif asked.mode is OnStoreFailure.OPEN and plain.allowed and asked.owing and call.cost:
                opened += self._opened(place, asked, now_ms, now_us)
            verdicts.append(plain)
        everyone_allows = (
            charge
            and all(verdict is None or verdict.allowed for verdict in verdicts)
            and all(item.outcome.allowed for item in local)
        )
        owed = []
        for item in local:
            charged = everyone_allows or item.outcome.costs_denied
            ending = item.outcome.charged if charged else item.outcome.left
            verdicts[item.place] = ending.verdict
            self._store(item.key, ending, now_ms, item.lag_ms)
            if charged:
                owed.append(item)
        for item in opened:
            if everyone_allows:
                self._store(item.key, item.outcome.charged, now_ms, item.lag_ms)
                owed.append(item)
        self._owe(unanswered, sorted(owed, key=lambda item: item.place), now_ms)
        return [verdict for verdict in verdicts if verdict is not None]

    def _opened(self, place: int, asked: Unanswered, now_ms: int, now_us: int) -> list[_Local]:
        """What an open rule lets through is kept count of all the same, in a bucket of the region's whole part."""
        mine = _part(asked.call, self._share(asked.call, asked.server, now_us)[0], 1)
        if mine is None:
            return []
        mine = replace(mine, cost=min(mine.cost, mine.capacity), charge_denied=True)
        mine, key, lag_ms, outcome = self._outcome(mine, now_ms, _silent_us(asked, now_us))
        return [_Local(place, mine, key, lag_ms, outcome)] if outcome.allowed or outcome.costs_denied else []

    # ---- what is owed to the store

    @property
    def owes(self) -> bool:
        return bool(self.debts)

    def owed(self, now_ms: int, keys_most: int) -> list[BucketCall]:
        """See :meth:`Debts.sums`."""
        return self.debts.sums(now_ms, keys_most)

    def paid(self, call: BucketCall) -> None:
        self.debts.paid(call)

    def postpone(self, call: BucketCall) -> None:
        self.debts.postpone(call)

    def release(self, call: BucketCall, now_ms: int) -> bool:
        """``call.holder`` gives its slots back: it has them here no longer, and they are not owed.

        False: it had none here.
        """
        functions = functions_of(call)
        if functions.renew is None:
            return False
        owed = self.debts.forget(call)
        key = functions.storage_key(call, now_ms) if owed is None else owed.key
        ending = functions.give_back(self._state(key, now_ms), call, fixed_share(call), now_ms)
        if ending is not None:
            self._store(key, ending, now_ms, 0)
        return ending is not None

    def _owe(self, unanswered: Sequence[Unanswered], charged: Sequence[_Local], now_ms: int) -> None:
        """All of ``charged`` are owed, those of one request and one call to the store together."""
        requests: dict[tuple[str, str], list[_Local]] = {}
        for item in charged:
            asked = unanswered[item.place]
            if not asked.owing:
                continue
            if asked.request:
                requests.setdefault((asked.request, tag_of(asked.call.key)), []).append(item)
            else:
                adds = functions_of(asked.call).renew is None
                self.debts.add(Debt(asked.call, item.mine, item.key), asked.call.cost, adds=adds)
        for (request, tag), items in requests.items():
            group = [asked for asked in unanswered if (asked.request, tag_of(asked.call.key)) == (request, tag)]
            # The store knows a request by all that it asks for: a part of it cannot be charged.
            if len(items) == len(group):
                debts = tuple(Debt(unanswered[item.place].call, item.mine, item.key) for item in items)
                self.debts.add_request(RequestDebt(request, debts, group[0].may_have_run, now_ms))

    def _used(self, mine: BucketCall, key: str, now_ms: int) -> int:
        """What was used of this node's own bucket and has not refilled; slots: what their holder has."""
        functions = functions_of(mine)
        if functions.storage_key(mine, now_ms) != key:
            return 0
        state = self._state(key, now_ms)
        if functions.renew is not None:
            return mine.cost if functions.renew(state, mine, fixed_share(mine), now_ms) is not None else 0
        peek = replace(mine, cost=0)
        held = self._states.get(key)
        if mine.refill is not None and held is not None:
            # The store answers by now: what would be earned here after the last use, its own bucket earns.
            state, now_ms = held.state, held.used_ms - held.lag_ms
        outcome = functions.decide(state, peek, fixed_share(peek), now_ms)
        return mine.capacity - outcome.left.verdict.remaining

    def _outcome(
        self, call: BucketCall, now_ms: int, silent_us: int | None
    ) -> tuple[BucketCall, str, int, Outcome]:
        functions = functions_of(call)
        key = functions.storage_key(call, now_ms)
        if key not in self._states and len(self._states) >= self._keys_most:
            self._purge(now_ms)
            if len(self._states) >= self._keys_most:
                # Full of buckets that limit: none of them is forgiven.  New keys of a rule share one bucket.
                call = replace(call, key="/".join(rule_of(call.key)))
                key = functions.storage_key(call, now_ms)
        held = self._states.get(key)
        lag_ms = 0
        if call.refill is not None and held is not None and not held.is_over(now_ms):
            since_ms = held.used_ms if silent_us is None else now_ms - silent_us // 1000
            lag_ms = held.lag_ms + max(0, since_ms - held.used_ms)
        at_ms = now_ms - lag_ms
        return call, key, lag_ms, functions.decide(self._state(key, at_ms), call, fixed_share(call), at_ms)

    def _state(self, key: str, at_ms: int) -> bytes | None:
        """``at_ms``: on the bucket's own clock."""
        held = self._states.get(key)
        return held.state if held is not None and held.ends_ms > at_ms else None

    def _store(self, key: str, ending: Ending, now_ms: int, lag_ms: int) -> None:
        held = self._states.get(key)
        if ending.state is not None:
            self._states[key] = _Held(ending.state, now_ms - lag_ms + ending.ttl_ms, lag_ms, now_ms)
        elif held is not None:
            # The silence until now has been counted.
            self._states[key] = replace(held, lag_ms=lag_ms, used_ms=now_ms)

    def _purge(self, now_ms: int) -> None:
        """Drop what is full again (or whose window is over), at most once a second."""
        if abs(now_ms - self._purged_at_ms) >= _PURGE_EVERY_MS:
            self._purged_at_ms = now_ms
            self._states = {key: held for key, held in self._states.items() if held.ends_ms + held.lag_ms > now_ms}

    def _share(self, call: BucketCall, server: str, now_us: int) -> tuple[int, ShareKind]:
        """The region's share of this key that may be used now: never above its base."""
        if call.sharing is Sharing.WHOLE:
            return SHARE_UNITS, ShareKind.WHOLE
        if call.sharing is Sharing.STATIC:
            return call.base, ShareKind.BASE
        if call.refill is None:
            return window_static(call.base), ShareKind.BASE  # which nobody else is granted
        known = self._known.get(call.key)
        if known is not None and known.fresh is None:
            known.fresh = now_us - known.answered_us <= self._gap_us
        bound_until_us = self._bound_by_server.get(server, self._bound_until_us)
        if known is not None and known.fresh:
            if now_us < known.session_end_us:
                return (known.share, known.kind) if known.share < call.base else (call.base, ShareKind.BASE)
            bound_until_us = max(bound_until_us, known.consent_end_us)
        if now_us < bound_until_us:
            return floor_of(call.base, call.floor), ShareKind.FLOOR
        return call.base, ShareKind.BASE

    def __len__(self) -> int:
        return len(self._states)

    @property
    def filled(self) -> tuple[int, int]:
        """Entries, and how many there may be."""
        return len(self._states), self._keys_most


def _silent_us(asked: Unanswered, now_us: int) -> int | None:
    return None if asked.silent_since_us is None else max(0, now_us - asked.silent_since_us)


def shed(call: BucketCall, told: Shed) -> Verdict:
    """The verdict of a rule whose check is shed: as the rule has ``told``, but never what no bucket would allow."""
    if (never := _never(call)) is not None:
        return never
    if told is Shed.DENY:
        return _denied(Reason.SHED, RETRY_MS)
    return Verdict(True, Reason.SHED, call.capacity, 0, 0, degraded=True)


def _never(call: BucketCall) -> Verdict | None:
    """The verdict of a call that no state of its bucket could allow."""
    if call.capacity == 0:
        return _denied(Reason.ZERO_LIMIT, None)
    if call.cost > call.largest:
        return _denied(Reason.EXCEEDS_CAPACITY, None)
    return None


def _without_state(call: BucketCall, mode: OnStoreFailure) -> Verdict | None:
    """The verdict that needs no bucket, if there is one."""
    if (never := _never(call)) is not None:
        return never
    if mode is OnStoreFailure.OPEN:
        return Verdict(True, Reason.OK, call.capacity, 0, 0, degraded=True)
    if mode is OnStoreFailure.CLOSED:
        return _denied(Reason.STORE_UNAVAILABLE, RETRY_MS)
    return None


def _denied(
    reason: Reason, retry_after_ms: int | None, share: int = SHARE_UNITS, kind: ShareKind = ShareKind.WHOLE
) -> Verdict:
    return Verdict(False, reason, 0, retry_after_ms, RETRY_MS, share, kind, degraded=True)


def _with_share(outcome: Outcome, share: int, kind: ShareKind) -> Outcome:
    def told(ending: Ending) -> Ending:
        verdict = replace(ending.verdict, share=share, share_kind=kind, degraded=True)
        return replace(ending, verdict=verdict)

    return replace(outcome, charged=told(outcome.charged), left=told(outcome.left))


def _part(call: BucketCall, share: int, nodes: int) -> BucketCall | None:
    """The call as this node's own limit: capacity and rate of ``share``, divided.  None: nothing of it is left."""
    held = region_capacity(call.capacity, share, call.regions) if call.sharing is Sharing.ADAPTIVE else call.part
    numbers = _part_numbers(held, call.refill, share, nodes)
    if numbers is None:
        return None
    capacity, refill = numbers
    return BucketCall(
        call.key,
        call.algorithm,
        capacity,
        refill,
        call.window_ms,
        call.cost,
        charge_denied=call.charge_denied,
        queue=call.queue,
        calendar=call.calendar,
        lease_ms=call.lease_ms,
        holder=call.holder,
    )


def node_part(call: BucketCall, nodes: int) -> tuple[int, Rate | None] | None:
    """Capacity and rate of one of ``nodes`` nodes, of a call whose share no message changes.  None: nothing."""
    share = SHARE_UNITS if call.sharing is Sharing.WHOLE else call.base
    mine = _part(call, share, max(1, nodes))
    return None if mine is None else (mine.capacity, mine.refill)


@lru_cache(maxsize=4096)
def _part_numbers(held: int, refill: Rate | None, share: int, nodes: int) -> tuple[int, Rate | None] | None:
    """``held``: what the region may hold of the capacity."""
    mine = held // nodes
    if mine == 0:
        return None
    if refill is None:
        return mine, None
    return mine, _rate_below(Fraction(refill.tokens * share, refill.period_ms * SHARE_UNITS * nodes), mine)


def _rate_below(rate: Fraction, capacity: int) -> Rate:
    """``rate`` (tokens a millisecond) as a bucket of ``capacity`` can hold it: exact, or the next one below.

    The slowest rates of all leave 2^53, but not the bytes of a bucket: here no double is at work.
    """
    exact = Rate(rate.numerator, rate.denominator)
    if exact.period_ms <= _LONGEST_PERIOD_MS and fits_exactly(capacity, exact):
        return exact
    period_ms = (LARGEST_EXACT_INTEGER // SHARE_UNITS - 1) // (
        2 * capacity + -(-rate.numerator // rate.denominator)
    )
    tokens = int(rate * period_ms)
    if tokens == 0:
        return Rate(1, min(-(-rate.denominator // rate.numerator), _LONGEST_PERIOD_MS))
    below = Fraction(tokens, period_ms)
    return Rate(below.numerator, below.denominator)
