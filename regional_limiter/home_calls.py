"""What concerns a bucket that is in another region is asked there; all else is the region's own store's.  I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from regional_limiter.model.decision import Verdict
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.plan import DomainRules
from regional_limiter.store.base import BucketCall, CheckStore, Decided
from regional_limiter.submitting import InTasks

CAUSE = "home_unreachable"
"""Of a check whose home gave no answer."""
OTHER_REGION = "home_is_other_region"
"""Of a check at whose home's address nodes of another region answer."""


def rules_without_homes(domains: Mapping[str, DomainRules]) -> Mapping[str, frozenset[str]]:
    """By domain, the ids of the rules whose buckets are those of their region alone."""
    return {
        name: frozenset(rule.id for rule in rules.rule_set.rules if rule.homes is None)
        for name, rules in domains.items()
    }


class HomeStore(Protocol):
    """Asks the region that all ``calls`` of a question name (``BucketCall.elsewhere``); each as of CheckStore.

    Raises StoreUnavailable, with :data:`CAUSE`.
    """

    async def check(self, calls: Sequence[BucketCall], request_id: str | None = None) -> list[Verdict]: ...

    async def refund(
        self, calls: Sequence[BucketCall], request_id: str | None = None, turn: int | None = None
    ) -> None: ...

    async def renew(self, calls: Sequence[BucketCall]) -> list[bool]: ...

    async def release(self, calls: Sequence[BucketCall], request_id: str) -> list[bool]: ...

    async def drop(self, call: BucketCall) -> None: ...


class NoHomes:
    """Of a process that cannot ask other regions."""

    async def check(self, calls: Sequence[BucketCall], request_id: str | None = None) -> list[Verdict]:
        raise StoreUnavailable(CAUSE, may_have_run=False)

    async def refund(
        self, calls: Sequence[BucketCall], request_id: str | None = None, turn: int | None = None
    ) -> None:
        raise StoreUnavailable(CAUSE, may_have_run=False)

    async def renew(self, calls: Sequence[BucketCall]) -> list[bool]:
        raise StoreUnavailable(CAUSE, may_have_run=False)

    async def release(self, calls: Sequence[BucketCall], request_id: str) -> list[bool]:
        raise StoreUnavailable(CAUSE, may_have_run=False)

    async def drop(self, call: BucketCall) -> None:
        raise StoreUnavailable(CAUSE, may_have_run=False)


class ThereCall:
    """A check that another region is asked, prepared."""

    __slots__ = ("_prepared", "_tasks")

    def __init__(self, tasks: InTasks, calls: Sequence[BucketCall], request_id: str | None) -> None:
        self._tasks = tasks
        self._prepared: Any = tasks.prepare(calls, request_id)

    def is_crowded(self) -> bool:
        return self._tasks.is_crowded(self._prepared)

    def submit(self, done: Decided) -> None:
        self._tasks.submit(self._prepared, done)


ADDRESSES_MOST = 256
TASKS_MOST = 1024
"""Checks that wait for one address."""


class HomeCalls:
    """``deadline_s``: the most that another region may take to answer a check."""

    def __init__(self, store: CheckStore, there: HomeStore, deadline_s: float) -> None:
        self._here = store
        self._there = there
        self._deadline_s = deadline_s
        self._tasks: dict[str, InTasks] = {}

    def prepare(self, calls: Sequence[BucketCall], request_id: str | None) -> ThereCall:
        """``calls``: of one home."""
        there = calls[0].elsewhere
        assert there is not None
        return ThereCall(self._tasks_of(there.address), calls, request_id)

    def _tasks_of(self, address: str) -> InTasks:
        """Of each address its own: one that is silent fills no other's."""
        tasks = self._tasks.get(address)
        if tasks is None:
            if len(self._tasks) >= ADDRESSES_MOST:
                del self._tasks[next(iter(self._tasks))]
            tasks = self._tasks[address] = InTasks(self._there, self._deadline_s, TASKS_MOST, late=CAUSE)
        return tasks

    def of(self, call: BucketCall) -> CheckStore | HomeStore:
        """Who is asked about the bucket of ``call``."""
        return self._here if call.elsewhere is None else self._there
