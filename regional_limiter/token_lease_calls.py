"""The calls that a node's :class:`TokenLeaseTable` finds due, made beside the checks.  I/O."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import monotonic_ns
from typing import Protocol

from regional_limiter.model.decision import Verdict
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.store.base import Allowed, BucketCall, ReturnedLease, TokenLease
from regional_limiter.token_lease_table import Ask, LeaseCounts, TokenLeaseTable

_log = logging.getLogger("apportion.node")

SWEEP_EVERY_S = 0.01
STOP_WAIT_S = 1.0

Heard = Callable[[BucketCall, TokenLease, int, int], None]
"""(call, what the store said, when it was asked, when it answered), times in us of the steady clock."""


class Lender(Protocol):
    """Who gives token leases and takes them back."""

    async def lease(self, call: BucketCall, want: int, returned: Sequence[ReturnedLease] = ()) -> TokenLease:
        """See CheckStore.lease."""
        ...


class TokenLeaseCalls:
    """``deadline_s``: the most that a call for a lease may take.  ``heard`` is told every answer."""

    def __init__(self, lender: Lender, deadline_s: float, heard: Heard) -> None:
        self.table = TokenLeaseTable()
        self._lender = lender
        self._deadline_s = deadline_s
        self._heard = heard
        self._calls: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None

    def spend(self, calls: Sequence[BucketCall], now_us: int) -> list[Verdict] | None:
        """The verdicts of a check that leases decide; None: ask the store."""
        table = self.table
        if not table.holds:
            return None
        verdicts = table.spend(calls, now_us)
        if table.due:
            self._call()
        return verdicts

    def spend_plainly(self, calls: Sequence[BucketCall], now_us: int) -> Allowed | None:
        """:meth:`spend` for rules of region scope."""
        table = self.table
        if len(calls) != 1:
            verdicts = self.spend(calls, now_us)
            if verdicts is None:
                return None
            return Allowed([one.remaining for one in verdicts], [one.reset_after_ms for one in verdicts])
        lease = table.take(calls[0], now_us)
        if table.due:
            self._call()
        if lease is None:
            return None
        return Allowed([lease.remaining + lease.unspent], [lease.reset_after_ms(now_us)])

    def note(self, calls: Sequence[BucketCall], verdicts: Sequence[Verdict]) -> None:
        """The store has decided a check, every rule of which may be leased from."""
        now_us = monotonic_ns() // 1000
        table = self.table
        for call, verdict in zip(calls, verdicts, strict=True):
            table.note(call, verdict, now_us)
        if table.due:
            self._call()

    def note_allowed(self, calls: Sequence[BucketCall], left: Sequence[int], now_us: int) -> None:
        """:meth:`note` of what the store has allowed: rules of region scope, of which so much is left."""
        table = self.table
        if len(calls) == 1:
            table.note_allowed(calls[0], left[0], now_us)
        else:
            for call, remaining in zip(calls, left, strict=True):
                table.note_allowed(call, remaining, now_us)
        if table.due:
            self._call()

    def clear(self) -> None:
        """The rules changed."""
        self.table.clear()

    def held(self, key: str, now_us: int) -> tuple[int, int]:
        """(tokens of ``key`` that may still be spent here, for how long in us)."""
        return self.table.held(key, now_us)

    def counts(self) -> LeaseCounts:
        return self.table.counts()

    async def stop(self) -> None:
        """Bring everything back; what is still being asked for comes first, since it has to go back as well."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        if self._calls:
            await asyncio.wait(self._calls, timeout=STOP_WAIT_S)
        await asyncio.gather(*(self._lease(ask) for ask in self.table.bring_all_back()))

    # ---- in the background

    def _call(self) -> None:
        loop = asyncio.get_running_loop()
        for ask in self.table.asks():
            task = loop.create_task(self._lease(ask))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        if self._sweeping is None:
            self._sweeping = loop.create_task(self._sweep())

    async def _lease(self, ask: Ask) -> None:
        asked_us = monotonic_ns() // 1000
        try:
            async with asyncio.timeout(self._deadline_s):
                lease = await self._lender.lease(ask.call, ask.want, ask.returned)
        except (StoreUnavailable, TimeoutError):
            self.table.failed(ask, monotonic_ns() // 1000)
        except Exception:
            self.table.failed(ask, monotonic_ns() // 1000)
            _log.exception("a token lease failed")
        else:
            now_us = monotonic_ns() // 1000
            self.table.granted(ask, lease, asked_us, now_us)
            self._heard(ask.call, lease, asked_us, now_us)

    async def _sweep(self) -> None:
        try:
            while self.table.busy:
                await asyncio.sleep(SWEEP_EVERY_S)
                self.table.sweep(monotonic_ns() // 1000)
                if self.table.due:
                    self._call()
        except Exception:
            _log.exception("looking after token leases failed")
        finally:
            self._sweeping = None
