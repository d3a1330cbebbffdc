"""What concerns a bucket that is in another region is asked there; all else is the region's own store's.  I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from regional_limiter.model.decision import Verdict
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.store.base import BucketCall, CheckStore, Decided
from regional_limiter.submitting import InTasks

CAUSE = "home_unreachable"
"""Of a check whose home gave no answer."""


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


class HomeCalls:
    """``deadline_s``: the most that another region may take to answer a check."""

    def __init__(self, store: CheckStore, there: HomeStore, deadline_s: float) -> None:
        self._here = store
        self._there = there
        self._tasks = InTasks(there, deadline_s)

    def prepare(self, calls: Sequence[BucketCall], request_id: str | None) -> ThereCall:
        return ThereCall(self._tasks, calls, request_id)

    def of(self, call: BucketCall) -> CheckStore | HomeStore:
        """Who is asked about the bucket of ``call``."""
        return self._here if call.elsewhere is None else self._there
