"""Handing a node's demand on to its region's agent, beside the checks.  I/O."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.store.base import CheckStore
from regional_limiter.usage import Demand

_log = logging.getLogger("apportion.node")

OFFER_EVERY_S = 0.02
OFFER_KEYS_MOST = 1000


class DemandOffers:
    """``reachable_point``: names a point that answers, None: there is none.

    ``task``: while there is demand to hand on.
    """

    def __init__(self, store: CheckStore, reachable_point: Callable[[], str | None]) -> None:
        self.task: asyncio.Task[None] | None = None
        self._store = store
        self._reachable_point = reachable_point
        self._demand = Demand()

    @property
    def dropped(self) -> int:
        return self._demand.dropped

    @property
    def filled(self) -> tuple[int, int]:
        """Keys with demand, and how many there may be."""
        return self._demand.filled

    def add(self, key: str, cost: int) -> None:
        self._demand.add(key, cost)
        if self.task is None:
            self.task = asyncio.get_running_loop().create_task(self._offer())

    async def _offer(self) -> None:
        """Hand on demand, at most every 20 ms, to any point that answers: the agent collects from all of them."""
        try:
            while self._demand:
                await asyncio.sleep(OFFER_EVERY_S)
                point = self._reachable_point()
                if point is None:
                    continue
                costs = self._demand.take(OFFER_KEYS_MOST)
                try:
                    await self._store.offer(point, costs)
                except StoreUnavailable as error:
                    if not error.may_have_run:
                        self._demand.put_back(costs)
        except Exception:
            _log.exception("handing on demand failed")
        finally:
            self.task = None
