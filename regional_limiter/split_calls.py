"""What concerns a split key is asked of its sub-buckets, and what is in another region is asked there; everything
else goes to the store as it is.  I/O.

A check asks one sub-bucket at a time, since each that allows has charged: first where most was seen left, and when
it denies the next one, until none is left to ask or the time is over.  A request with an id goes the same way on
every node, so that the one that charged it then answers it again.  A call that may have run ends the check as it
would for one bucket: another one could be charged as well.  With an id any sub-bucket that is silent does: another
node may reach it, and charge it there.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic_ns
from typing import Any, TypeVar
from zlib import crc32

from regional_limiter.home_calls import HomeCalls, NoHomes, ThereCall
from regional_limiter.model.decision import Verdict
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.store.base import (
    BucketCall,
    CheckStore,
    Decided,
    DecidedPlainly,
    PlainStore,
    ReturnedLease,
    SubmittingStore,
    TokenLease,
)
from regional_limiter.sub_buckets import SubBuckets, spread, sub_call
from regional_limiter.submitting import all_of

_T = TypeVar("_T")

KEYS_MOST = 10_000
"""Split keys of which a node remembers what it saw; one that it forgot counts as full."""


class _Split:
    """One check of a split key, prepared: for each sub-bucket when it is first asked."""

    __slots__ = ("_prepared", "_submitting", "buckets", "call", "request_id")

    def __init__(
        self, buckets: SubBuckets, call: BucketCall, request_id: str | None, submitting: SubmittingStore
    ) -> None:
        self.buckets = buckets
        self.call = call
        self.request_id = request_id
        self._submitting = submitting
        self._prepared: list[Any] = [None] * call.split

    def at(self, place: int) -> Any:
        prepared = self._prepared[place]
        if prepared is None:
            calls = [sub_call(self.call, place)]
            prepared = self._prepared[place] = self._submitting.prepare(calls, self.request_id)
        return prepared


class SplitCalls:
    """``deadline_s``: of a whole check, after half of which no other sub-bucket is asked.

    ``now_us``: a steady clock.
    """

    def __init__(
        self,
        store: CheckStore,
        submitting: SubmittingStore,
        deadline_s: float,
        now_us: Callable[[], int] = lambda: monotonic_ns() // 1000,
        homes: HomeCalls | None = None,
    ) -> None:
        self._store = store
        self._homes = HomeCalls(store, NoHomes(), deadline_s) if homes is None else homes
        self._submitting = submitting
        self._plain = submitting.submit_plainly if isinstance(submitting, PlainStore) else None
        self._try_for_us = round(deadline_s * 500_000)
        self._now_us = now_us
        self._known: dict[str, SubBuckets] = {}
        self._begin = secrets.randbelow(2**16)

    def _buckets_of(self, call: BucketCall) -> SubBuckets:
        known = self._known.get(call.key)
        if known is None or len(known.parts) != call.split or sum(known.parts) != call.capacity:
            self._known.pop(call.key, None)
            if len(self._known) >= KEYS_MOST:
                del self._known[next(iter(self._known))]
            known = self._known[call.key] = SubBuckets(call.capacity, call.split, self._begin)
        return known

    @property
    def filled(self) -> tuple[int, int]:
        """Entries, and how many there may be."""
        return len(self._known), KEYS_MOST

    # ---- a check (SubmittingStore)

    def prepare(self, calls: Sequence[BucketCall], request_id: str | None) -> Any:
        """``calls``: those of one group.  A split key is alone in its group, since its tag is its own."""
        if calls[0].elsewhere is not None:
            return self._homes.prepare(calls, request_id)
        if calls[0].split == 1:
            return self._submitting.prepare(calls, request_id)
        return _Split(self._buckets_of(calls[0]), calls[0], request_id, self._submitting)

    def is_crowded(self, prepared: Any) -> bool:
        if type(prepared) is ThereCall:
            return prepared.is_crowded()
        if type(prepared) is not _Split:
            return self._submitting.is_crowded(prepared)
        return all(self._submitting.is_crowded(prepared.at(place)) for place in range(prepared.call.split))

    def submit_plainly(self, prepared: Any, done: DecidedPlainly) -> None:
        """See PlainStore.  Nothing that is asked in another region comes here: it is not plain."""
        if self._plain is not None and type(prepared) is not _Split:
            self._plain(prepared, done)
        else:
            self.submit(prepared, done)

    def submit(self, prepared: Any, done: Decided) -> None:
        if type(prepared) is ThereCall:
            prepared.submit(done)
        elif type(prepared) is not _Split:
            self._submitting.submit(prepared, done)
        elif prepared.call.cost:
            _Try(prepared, self._submitting, self._now_us, self._try_for_us, done).go_on()
        else:
            _Look(prepared, self._submitting, done).go_on()

    # ---- calls that are awaited

    async def charge(self, call: BucketCall) -> None:
        """Charge what was decided elsewhere, whether or not it is there.  Raises StoreUnavailable: it is not."""
        try:
            await self._store.check([call])
        except StoreUnavailable as error:
            if not error.may_have_run:
                raise

    async def settle(self, calls: Sequence[BucketCall], request_id: str) -> None:
        """Charge a request that was allowed elsewhere, whether or not it is there, and once under its id.

        When it comes again, it is known as allowed.
        """
        allowed = [replace(call, charge_denied=True, was_allowed=True) for call in calls]
        await self._store.check(allowed, request_id)

    async def refund(
        self, calls: Sequence[BucketCall], request_id: str | None = None, turn: int | None = None
    ) -> None:
        """See CheckStore.refund.  Of a split key without an id, where most is used, as it is seen just now."""
        if calls[0].split == 1:
            await self._homes.of(calls[0]).refund(calls, request_id, turn)
            return
        call = calls[0]
        parts = [sub_call(call, place) for place in range(call.split)]
        costs = [call.cost] * call.split
        if request_id is None and call.cost < call.capacity:
            seen = await all_of(self._store.check([replace(part, cost=0)]) for part in parts)
            used = [part.capacity - verdicts[0].remaining for part, verdicts in zip(parts, seen, strict=True)]
            costs = spread(call.cost, used)
        back = [replace(part, cost=cost) for part, cost in zip(parts, costs, strict=True) if cost]
        await all_of(self._store.refund([part], request_id, turn) for part in back)

    async def renew(self, calls: Sequence[BucketCall]) -> list[bool]:
        """See CheckStore.renew.  Of a kind that is never split."""
        return await self._homes.of(calls[0]).renew(calls)

    async def release(self, calls: Sequence[BucketCall], request_id: str) -> list[bool]:
        """See CheckStore.release."""
        return await self._homes.of(calls[0]).release(calls, request_id)

    async def drop(self, call: BucketCall) -> None:
        await all_of(map(self._homes.of(call).drop, _parts(call)))

    async def ttl_ms(self, call: BucketCall) -> int | None:
        """See CheckStore.ttl_ms; also None of a bucket in another region."""
        if call.elsewhere is not None:
            return None
        told = await all_of(map(self._store.ttl_ms, _parts(call)))
        return max((ttl_ms for ttl_ms in told if ttl_ms is not None), default=None)

    async def lease(self, call: BucketCall, want: int, returned: Sequence[ReturnedLease] = ()) -> TokenLease:
        """See CheckStore.lease.  A node has one lease a key, so what it returns is of where it took last."""
        if call.split == 1:
            return await self._store.lease(call, want, returned)
        buckets = self._buckets_of(call)
        place = buckets.leased_from if returned and buckets.leased_from >= 0 else -1
        if place < 0:
            place = buckets.best(1, (), self._now_us())
        lease = await self._store.lease(sub_call(call, place), want, returned)
        now_us = self._now_us()
        buckets.leased_from = place if lease.tokens else -1
        buckets.saw_left(place, lease.remaining, lease.reset_after_ms, now_us)
        return replace(lease, remaining=lease.remaining + buckets.others_left(place, now_us))


class _Try:
    """A check that costs, on its way from one sub-bucket to the next."""

    __slots__ = (
        "_buckets",
        "_done",
        "_ends_us",
        "_failure",
        "_now_us",
        "_split",
        "_submitting",
        "_tried",
        "_verdicts",
    )

    def __init__(
        self,
        split: _Split,
        submitting: SubmittingStore,
        now_us: Callable[[], int],
        for_us: int,
        done: Decided,
    ) -> None:
        self._split = split
        self._buckets = split.buckets
        self._submitting = submitting
        self._now_us = now_us
        self._ends_us = now_us() + for_us
        self._done = done
        self._tried: list[int] = []
        self._verdicts: list[Verdict] = []
        self._failure: StoreUnavailable | None = None

    def go_on(self) -> None:
        now_us = self._now_us()
        place = self._next(now_us) if not self._tried or now_us < self._ends_us else -1
        if place >= 0:
            self._tried.append(place)
            self._submitting.submit(self._split.at(place), self._decided)
        elif self._verdicts:
            self._done([self._buckets.denied(self._verdicts, self._failure is not None, now_us)])
        else:
            self._done(self._failure or StoreUnavailable("deadline"))

    def _next(self, now_us: int) -> int:
        call, request_id = self._split.call, self._split.request_id
        if request_id is None:
            return self._buckets.best(call.cost, self._tried, now_us)
        way = _way(self._buckets, call.cost, request_id)
        return way[len(self._tried)] if len(self._tried) < len(way) else -1

    def _decided(self, outcome: list[Verdict] | Exception) -> None:
        place, now_us = self._tried[-1], self._now_us()
        if isinstance(outcome, list):
            verdict = outcome[0]
            self._buckets.saw(place, verdict, now_us)
            if verdict.allowed:
                self._done([self._buckets.allowed(place, verdict, now_us)])
                return
            self._verdicts.append(verdict)
        elif isinstance(outcome, StoreUnavailable):
            self._buckets.silent(place, now_us)
            outcome.sub_bucket = place
            if outcome.may_have_run or self._split.request_id is not None:
                self._done(outcome)
                return
            self._failure = self._failure or outcome
        else:
            self._done(outcome)
            return
        self.go_on()


class _Look:
    """A check of cost 0: all sub-buckets at once."""

    __slots__ = ("_done", "_failure", "_left", "_split", "_submitting", "_verdicts")

    def __init__(self, split: _Split, submitting: SubmittingStore, done: Decided) -> None:
        self._split = split
        self._submitting = submitting
        self._done = done
        self._left = split.call.split
        self._verdicts: list[Verdict] = []
        self._failure: Exception | None = None

    def go_on(self) -> None:
        for place in range(self._split.call.split):
            self._submitting.submit(self._split.at(place), self._decided)

    def _decided(self, outcome: list[Verdict] | Exception) -> None:
        self._left -= 1
        if isinstance(outcome, list):
            self._verdicts += outcome
        elif self._failure is None or not isinstance(outcome, StoreUnavailable):
            self._failure = outcome
        if self._left:
            return
        failure = self._failure
        if failure is not None and (not self._verdicts or not isinstance(failure, StoreUnavailable)):
            self._done(failure)
        else:
            self._done([self._split.buckets.peeked(self._verdicts, failure is not None)])


def _way(buckets: SubBuckets, cost: int, request_id: str) -> list[int]:
    """The sub-buckets that a request with an id asks, in order; what each node saw would lead it elsewhere."""
    split = len(buckets.parts)
    way = [(crc32(request_id.encode()) + step) % split for step in range(split)]
    return [place for place in way if buckets.parts[place] >= cost] or way[:1]


def _parts(call: BucketCall) -> list[BucketCall]:
    return [call] if call.split == 1 else [sub_call(call, place) for place in range(call.split)]
