"""Split keys over one enforcement point, with the clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from regional_limiter.model.decision import Verdict
from regional_limiter.model.errors import OtherRequest, StoreUnavailable
from regional_limiter.split_calls import SplitCalls
from regional_limiter.store.base import BucketCall, Decided, ReturnedLease, TokenLease
from tests.contract.points import Point, States


class _AtPoint:
    """As much of a store as split keys need.  ``silent``: the shards of these sub-buckets do not answer."""

    def __init__(self, point: Point) -> None:
        self.point = point
        self.now_us = 0
        self.silent: set[str] = set()
        self.asked: list[str] = []

    def prepare(self, calls: Sequence[BucketCall], request_id: str | None) -> Any:
        return calls, request_id

    def is_crowded(self, prepared: Any) -> bool:
        return False

    def submit(self, prepared: Any, done: Decided) -> None:
        try:
            outcome: list[Verdict] | Exception = self._check(*prepared)
        except (OtherRequest, StoreUnavailable) as error:
            outcome = error
        done(outcome)

    def _check(self, calls: Sequence[BucketCall], request_id: str | None) -> list[Verdict]:
        self.asked.append(calls[0].key)
        if calls[0].key in self.silent:
            raise StoreUnavailable("disconnected", may_have_run=False)
        return self.point.check(self.now_us, calls, request_id)

    async def check(self, calls: Sequence[BucketCall], request_id: str | None = None) -> list[Verdict]:
        return self._check(calls, request_id)

    async def refund(
        self, calls: Sequence[BucketCall], request_id: str | None = None, turn: int | None = None
    ) -> None:
        self.point.refund(self.now_us, calls, request_id, turn)

    async def lease(self, call: BucketCall, want: int, returned: Sequence[ReturnedLease] = ()) -> TokenLease:
        return self.point.lease(self.now_us, call, want, returned)


class SplitPoint:
    """What a node asks of split keys, as functions of the point's time.  ``nodes`` of them take turns."""

    def __init__(self, point: Point, nodes: int = 1) -> None:
        self.store = _AtPoint(point)
        self.nodes = []
        for number in range(nodes):
            node = SplitCalls(self.store, self.store, 1.0, self._now_us)  # type: ignore[arg-type]
            node._begin = number
            self.nodes.append(node)

    def _now_us(self) -> int:
        return self.store.now_us

    def check(
        self, now_us: int, calls: Sequence[BucketCall], request_id: str | None = None, node: int = 0
    ) -> list[Verdict]:
        """One group as another, one after the other: nothing is given back here."""
        self.store.now_us = now_us
        outcomes: list[list[Verdict] | Exception] = []
        for call in calls:
            self.nodes[node].submit(self.nodes[node].prepare([call], request_id), outcomes.append)
        assert len(outcomes) == len(calls)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return [verdict for outcome in outcomes if isinstance(outcome, list) for verdict in outcome]

    def refund(
        self, now_us: int, calls: Sequence[BucketCall], request_id: str | None = None, node: int = 0
    ) -> None:
        self.store.now_us = now_us
        asyncio.run(self.nodes[node].refund(calls, request_id))

    def charge(self, now_us: int, call: BucketCall, node: int = 0) -> None:
        self.store.now_us = now_us
        asyncio.run(self.nodes[node].charge(call))

    def lease(
        self, now_us: int, call: BucketCall, want: int, returned: Sequence[ReturnedLease] = (), node: int = 0
    ) -> TokenLease:
        self.store.now_us = now_us
        return asyncio.run(self.nodes[node].lease(call, want, returned))

    def renew(self, now_us: int, calls: Sequence[BucketCall]) -> list[bool]:
        raise AssertionError("no kind with leases is split")

    def states(self, now_us: int) -> States:
        return self.store.point.states(now_us)
