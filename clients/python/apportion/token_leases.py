"""Deciding checks of hot keys inside the application, without asking anybody, within the same limit.

    async with AsyncClient("http://127.0.0.1:8101") as client, AsyncTokenLeases(client) as limiter:
        answer = await limiter.check("user:42", "POST /orders")

A key that is checked often takes tokens in advance, through a node, from the region's bucket; checks are then
decided here in about a microsecond.  All others are asked of a node as ever.  An application that is killed holds
back the tokens that it had taken for at most half a second; then they count as spent.

Taken are tokens of buckets (``token_bucket``) of at least 100, where one rule alone decides; see docs/clients.md.
``answer.remaining`` is what was known when they were taken.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from time import monotonic_ns
from types import TracebackType
from typing import Final, Self

from apportion._client import AsyncClient, Client
from apportion._token_lease_table import Key, LeaseCounts, Lending, Table, due, returning
from apportion._types import Answer, ApportionError

KEYS_MOST: Final = 1000
SWEEP_EVERY_S: Final = 0.01


class AsyncTokenLeases:
    """For one event loop.  ``client``: who is asked; it must outlive this."""

    def __init__(self, client: AsyncClient, *, keys_most: int = KEYS_MOST) -> None:
        self._client = client
        self._table = Table(keys_most)
        self._calls: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._is_closed = False

    async def check(
        self, client_key: str, resource: str, *, cost: int = 1, attributes: Mapping[str, str] | None = None
    ) -> Answer:
        """As :meth:`AsyncClient.check`."""
        key = self._table.key(client_key, resource, attributes)
        if key is not None and cost > 0:
            now_ns = monotonic_ns()
            answer = key.spend(cost, now_ns)
            if answer is not None:
                if key.unspent < key.renew_below or now_ns >= key.renew_at_ns:
                    self._begin(due(key, now_ns))
                return answer
        answer = await self._client.check(client_key, resource, cost=cost, attributes=attributes)
        if key is not None and cost > 0 and not self._is_closed:
            if not answer.allowed:
                # Somebody needs more than is left, and some of it may lie here.
                self._begin(returning(key))
            elif (want := key.note(answer, cost, monotonic_ns())) and self._table.knows(key):
                self._begin(Lending(key, want))
        return answer

    def counts(self) -> LeaseCounts:
        """Tokens taken, spent (of leases that have been brought back), returned and lost."""
        return replace(self._table.counts)

    async def aclose(self) -> None:
        """Bring everything back."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        while self._calls:
            await asyncio.gather(*self._calls, return_exceptions=True)
        for key in self._table.holding():
            self._begin(returning(key))
        while self._calls:
            await asyncio.gather(*self._calls, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _begin(self, lending: Lending | None) -> None:
        if lending is None:
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._call(lending))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        if self._sweeping is None and not self._is_closed:
            self._sweeping = loop.create_task(self._sweep())

    async def _call(self, lending: Lending) -> None:
        lent = None
        lending.begins(monotonic_ns())
        try:
            lent = await self._client.lend_tokens(lending.key.identity, lending.want, lending.back)
        except ApportionError:
            pass
        finally:
            following = lending.ended(lent, monotonic_ns(), self._table.counts)
        self._begin(following)

    async def _sweep(self) -> None:
        try:
            while self._table.is_busy:
                await asyncio.sleep(SWEEP_EVERY_S)
                for lending in self._table.sweep(monotonic_ns()):
                    self._begin(lending)
        finally:
            self._sweeping = None


class TokenLeases:
    """:class:`AsyncTokenLeases` for threads, which may share it.  Make it after the process has forked."""

    def __init__(self, client: Client, *, keys_most: int = KEYS_MOST) -> None:
        self._client = client
        self._table = Table(keys_most)
        self._lock = threading.Lock()
        self._due: list[Lending] = []
        self._wake = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="apportion token leases", daemon=True)
        self._thread.start()

    def check(
        self, client_key: str, resource: str, *, cost: int = 1, attributes: Mapping[str, str] | None = None
    ) -> Answer:
        """As :meth:`Client.check`."""
        with self._lock:
            key = self._table.key(client_key, resource, attributes)
            if key is not None and cost > 0:
                now_ns = monotonic_ns()
                answer = key.spend(cost, now_ns)
                if answer is not None:
                    if key.unspent < key.renew_below or now_ns >= key.renew_at_ns:
                        self._begin(due(key, now_ns))
                    return answer
        answer = self._client.check(client_key, resource, cost=cost, attributes=attributes)
        if key is not None and cost > 0:
            with self._lock:
                if not answer.allowed:
                    # Somebody needs more than is left, and some of it may lie here.
                    self._begin(returning(key))
                elif (want := key.note(answer, cost, monotonic_ns())) and self._may_take(key):
                    self._begin(Lending(key, want))
        return answer

    def _may_take(self, key: Key) -> bool:
        return not self._is_closed and self._table.knows(key)

    def counts(self) -> LeaseCounts:
        """Tokens taken, spent (of leases that have been brought back), returned and lost."""
        with self._lock:
            return replace(self._table.counts)

    def close(self) -> None:
        """Bring everything back."""
        with self._lock:
            self._is_closed = True
        self._wake.set()
        self._thread.join()
        with self._lock:
            for key in self._table.holding():
                self._begin(returning(key))
        while self._call_due():
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, lending: Lending | None) -> None:
        """With the lock: leave a call to the thread."""
        if lending is not None:
            self._due.append(lending)
            self._wake.set()

    # ---- in the thread

    def _run(self) -> None:
        while not self._is_closed:
            with self._lock:
                is_busy = self._table.is_busy or bool(self._due)
            self._wake.wait(SWEEP_EVERY_S if is_busy else None)
            with self._lock:
                self._wake.clear()
                self._due += self._table.sweep(monotonic_ns())
            self._call_due()

    def _call_due(self) -> bool:
        """Make the calls that are due; whether there were any."""
        with self._lock:
            lendings, self._due = self._due, []
        for lending in lendings:
            lent = None
            lending.begins(monotonic_ns())
            try:
                lent = self._client.lend_tokens(lending.key.identity, lending.want, lending.back)
            except ApportionError:
                pass
            finally:
                with self._lock:
                    self._begin(lending.ended(lent, monotonic_ns(), self._table.counts))
        return bool(lendings)
