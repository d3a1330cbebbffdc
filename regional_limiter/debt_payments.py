"""Charging what was decided without the store, once it answers.  I/O."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from time import time_ns

from regional_limiter.debts import RequestDebt
from regional_limiter.fallback import Fallback
from regional_limiter.model.errors import OtherRequest, StoreUnavailable
from regional_limiter.split_calls import SplitCalls

_log = logging.getLogger("apportion.node")

PAY_EVERY_S = 0.5
OWED_AT_ONCE = 200


class DebtPayments:
    """Pays what ``fallback`` owes.

    ``task``: while something is owed.  ``stopping``: it tries a last time, at once.
    """

    def __init__(self, calls: SplitCalls, fallback: Fallback) -> None:
        self.task: asyncio.Task[None] | None = None
        self.stopping = asyncio.Event()
        self._calls = calls
        self._fallback = fallback

    def begin(self) -> None:
        """Something may have been decided locally just now."""
        if self._fallback.owes and self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._pay())

    async def _pay(self) -> None:
        """Charge what was decided without the store to its buckets, once they answer; a last time when stopped."""
        fallback = self._fallback
        try:
            is_last = False
            while fallback.owes and not is_last:
                with suppress(TimeoutError):
                    async with asyncio.timeout(PAY_EVERY_S):
                        is_last = await self.stopping.wait()
                now_ms = time_ns() // 1_000_000
                for owed in fallback.debts.requests(now_ms, OWED_AT_ONCE):
                    if await self._settle(owed):
                        fallback.debts.settled(owed)
                for call in fallback.owed(now_ms, OWED_AT_ONCE):
                    try:
                        await self._calls.charge(call)
                    except StoreUnavailable:
                        fallback.postpone(call)
                        continue
                    except Exception:
                        # One that cannot be charged must not keep the others unpaid.
                        _log.exception("what was decided locally cannot be charged")
                    fallback.paid(call)
        except Exception:
            _log.exception("charging what was decided locally failed")
        finally:
            self.task = None

    async def _settle(self, owed: RequestDebt) -> bool:
        """Charge what was decided locally for a request with an id; whether that is over."""
        try:
            await self._calls.settle(owed.calls, owed.request)
        except StoreUnavailable:
            return False
        except OtherRequest:
            return True  # its id has asked for something else since
        except Exception:
            _log.exception("what was decided locally for a request cannot be charged")
        return True
