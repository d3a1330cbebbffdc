"""Slots that are held, or were asked for in vain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from apportion._types import Answer, NoAnswer

_Json = dict[str, Any]


class _Base:
    """``answer``: to the acquisition.  ``lease_id``: under which name the slots are held."""

    def __init__(self, answer: Answer, lease: _Json) -> None:
        self.answer = answer
        self.lease_id = str(lease["lease_id"])
        self._lease = lease
        # Where nobody answered, slots may have been taken nevertheless.
        self._may_hold = answer.allowed or not answer.decided

    @property
    def allowed(self) -> bool:
        return self.answer.allowed


class Lease(_Base):
    """Held by ``with`` and released at its end, once.  A caller that dies is rid of it when the lease is over."""

    def __init__(self, answer: Answer, lease: _Json, send: Callable[..., _Json]) -> None:
        super().__init__(answer, lease)
        self._send = send

    def renew(self) -> bool:
        """Hold on for another ``answer.lease_ms``, from now.  False: nothing is held any more.

        Raises InvalidRequest, and NoAnswer: it may or may not have happened.
        """
        return self._send("POST", "/v1/renew", True, json=self._lease).get("held") is True

    def release(self) -> bool:
        """Free the slots now; whether any were held.  Raises as :meth:`renew` does."""
        released = self._send("POST", "/v1/release", True, json=self._lease).get("released") is True
        self._may_hold = False
        return released

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release what may be held.  If nobody answers, the end of the lease does it."""
        if self._may_hold:
            try:
                self.release()
            except NoAnswer:
                pass


class AsyncLease(_Base):
    """:class:`Lease` with ``await``: ``async with await client.acquire(...) as lease``."""

    def __init__(self, answer: Answer, lease: _Json, send: Callable[..., Awaitable[_Json]]) -> None:
        super().__init__(answer, lease)
        self._send = send

    async def renew(self) -> bool:
        """See :meth:`Lease.renew`."""
        return (await self._send("POST", "/v1/renew", True, json=self._lease)).get("held") is True

    async def release(self) -> bool:
        """See :meth:`Lease.release`."""
        released = (await self._send("POST", "/v1/release", True, json=self._lease)).get("released") is True
        self._may_hold = False
        return released

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release what may be held.  If nobody answers, the end of the lease does it."""
        if self._may_hold:
            try:
                await self.release()
            except NoAnswer:
                pass
