"""What a node allowed without the store and has yet to charge to it.  Pure.

Two kinds.  Of checks without an id the costs of a bucket are added up: they were never sent, so all of it is owed.
A check with an id is owed by itself, with the calls of its group as the store would have been asked for them: under
its id it is charged once, whether its call had run after all, it came again meanwhile, or it comes again later.

Neither is owed any longer as far as the node's own bucket has refilled (``used`` says what that still lacks), nor
when its window is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from regional_limiter.model.keys import tag_of
from regional_limiter.store.base import RECORD_MS, BucketCall

Used = Callable[[BucketCall, str, int], int]
"""(the call as this node's own limit, its key here, now in ms) -> what was used here and has not refilled."""

_AMBIGUOUS_FOR_MS = RECORD_MS - 10_000
"""A call that may have run is charged again only while the store would still know it."""


@dataclass(frozen=True, slots=True)
class Debt:
    """``call`` was allowed here as ``mine``, this node's own limit, under ``key``."""

    call: BucketCall
    mine: BucketCall
    key: str


@dataclass(frozen=True, slots=True)
class RequestDebt:
    """All that one call to the store was to ask for ``request``.  ``may_have_run``: perhaps it did."""

    request: str
    debts: tuple[Debt, ...]
    may_have_run: bool
    since_ms: int

    @property
    def calls(self) -> list[BucketCall]:
        return [debt.call for debt in self.debts]


class Debts:
    """At most ``most`` of each kind; what finds no room is ``dropped``, and counted."""

    def __init__(self, most: int, used: Used) -> None:
        self._most = most
        self._used = used
        self._sums: dict[str, tuple[Debt, int]] = {}
        self._requests: dict[tuple[str, str], RequestDebt] = {}
        self._charged: dict[str, int] = {}  # of buckets that still owe: what of their use has been charged
        self.dropped = 0

    def __bool__(self) -> bool:
        return bool(self._sums or self._requests)

    @property
    def filled(self) -> tuple[int, int]:
        """Entries, and how many there may be."""
        return len(self._sums), self._most

    # ---- what is owed

    def add(self, debt: Debt, cost: int, *, adds: bool) -> None:
        """``adds``: to what the bucket owes already, or in its place."""
        name = _name(debt.call)
        known = self._sums.get(name)
        if known is None and len(self._sums) >= self._most:
            self.dropped += 1
            return
        if known is not None and adds and known[0].key == debt.key:
            cost += known[1]
        self._sums[name] = (debt, min(cost, debt.call.capacity))

    def add_request(self, owed: RequestDebt) -> None:
        """A request that comes again while the store is silent is owed once."""
        place = (owed.request, tag_of(owed.debts[0].call.key))
        if place not in self._requests and len(self._requests) >= self._most:
            self.dropped += 1
            return
        before = self._requests.get(place)
        if before is not None and before.may_have_run:
            # The first may have been charged all the same, and is known there only for so long since then.
            owed = replace(owed, may_have_run=True, since_ms=before.since_ms)
        self._requests[place] = owed

    def forget(self, call: BucketCall) -> Debt | None:
        """``call.holder`` has given back what it had: it is not owed.  The debt, if there was one."""
        sum_owed = self._sums.pop(_name(call), None)
        found = None if sum_owed is None else sum_owed[0]
        for place, owed in list(self._requests.items()):
            for debt in owed.debts:
                if _name(debt.call) == _name(call):
                    found = debt
                    del self._requests[place]
        return found

    # ---- charging it

    def sums(self, now_ms: int, most: int) -> list[BucketCall]:
        """Calls that charge the sums, whether or not the bucket holds so much.

        ``paid`` or ``postpone`` ends each.
        """
        calls = []
        for name in list(self._sums)[:most]:
            debt, cost = self._sums[name]
            cost = min(cost, self._left(name, debt, now_ms))
            if cost > 0:
                calls.append(replace(debt.call, cost=cost, charge_denied=True))
            else:
                self._end(name)
        return calls

    def paid(self, call: BucketCall) -> None:
        """A call of ``sums`` has been charged.  What was allowed here since stays owed."""
        name = _name(call)
        known = self._sums.get(name)
        if known is None:
            return
        debt, cost = known
        if cost > call.cost:
            self._sums[name] = (debt, cost - call.cost)
            self._charged[name] = self._charged.get(name, 0) + call.cost
        else:
            self._end(name)

    def postpone(self, call: BucketCall) -> None:
        """A call of ``sums`` could not be sent: let others go first."""
        known = self._sums.pop(_name(call), None)
        if known is not None:
            self._sums[_name(call)] = known

    def requests(self, now_ms: int, most: int) -> list[RequestDebt]:
        """Requests to charge, the newest first: what has refilled was used by the oldest.

        ``settled`` ends each.
        """
        due: list[RequestDebt] = []
        left: dict[str, int] = {}
        for place, owed in reversed(list(self._requests.items())):
            if owed.may_have_run and now_ms - owed.since_ms >= _AMBIGUOUS_FOR_MS:
                self.dropped += 1
                del self._requests[place]
                continue
            names = [_name(debt.call) for debt in owed.debts]
            for name, debt in zip(names, owed.debts, strict=True):
                if name not in left:
                    left[name] = self._left(name, debt, now_ms)
            if not any(left[name] > 0 for name in names):
                del self._requests[place]
                continue
            for name, debt in zip(names, owed.debts, strict=True):
                left[name] -= debt.call.cost
            due.append(owed)
            if len(due) >= most:
                break
        return due

    def settled(self, owed: RequestDebt) -> None:
        """It has been charged, or there is nothing to charge any more."""
        self._requests.pop((owed.request, tag_of(owed.debts[0].call.key)), None)
        for debt in owed.debts:
            name = _name(debt.call)
            self._charged[name] = self._charged.get(name, 0) + debt.call.cost
        if not self._requests:
            self._charged = {name: cost for name, cost in self._charged.items() if name in self._sums}

    def _left(self, name: str, debt: Debt, now_ms: int) -> int:
        return self._used(debt.mine, debt.key, now_ms) - self._charged.get(name, 0)

    def _end(self, name: str) -> None:
        self._sums.pop(name, None)
        if not self._requests:
            self._charged.pop(name, None)


def _name(call: BucketCall) -> str:
    """What is owed is told apart by bucket, and where there are holders by holder."""
    return f"{call.key}\0{call.holder}" if call.holder else call.key
