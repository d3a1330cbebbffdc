"""Buckets of ``distribution: home`` over the network: asking another region's nodes, and answering theirs.  [IO]"""

from __future__ import annotations

import asyncio
import importlib
import ssl
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from regional_limiter.home_calls import CAUSE
from regional_limiter.model.decision import Verdict
from regional_limiter.model.errors import OtherRequest, StoreUnavailable
from regional_limiter.store.base import BucketCall
from services.check_api.check_limiter import HomeLimiter
from services.check_api.home_wire import (
    HOME_PATH,
    Act,
    Told,
    decode_question,
    decode_told,
    encode_question,
    encode_told,
    token_of,
)

if TYPE_CHECKING:
    import httpx

CONNECTIONS_MOST = 64
KEPT_S = 2.0
"""Connections that rest for longer may have been closed by the other side, which a request would find too late."""


class HomeClient:
    """Asks other regions.  ``secret``: the deployment's key secret.  ``tls``: None: as the system knows servers.

    ``client``: None: one is made when it is first needed.
    """

    def __init__(
        self,
        secret: bytes,
        deadline_s: float,
        tls: Callable[[], ssl.SSLContext] | None = None,
        client: httpx.AsyncClient | None = None,
    ) -> None:
        self._headers = {"authorization": f"Bearer {token_of(secret)}", "content-type": "application/msgpack"}
        self._deadline_s = deadline_s
        self._tls = tls
        self._client = client
        self._making = asyncio.Lock()

    async def check(self, calls: Sequence[BucketCall], request_id: str | None = None) -> list[Verdict]:
        told = await self._ask("check", calls, request_id)
        if len(told.verdicts) != len(calls):
            raise StoreUnavailable(CAUSE)
        return told.verdicts

    async def refund(
        self, calls: Sequence[BucketCall], request_id: str | None = None, turn: int | None = None
    ) -> None:
        await self._ask("refund", calls, request_id, turn)

    async def renew(self, calls: Sequence[BucketCall]) -> list[bool]:
        return (await self._ask("renew", calls)).held

    async def release(self, calls: Sequence[BucketCall], request_id: str) -> list[bool]:
        return (await self._ask("release", calls, request_id)).held

    async def drop(self, call: BucketCall) -> None:
        await self._ask("drop", [call])

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _ask(
        self, act: Act, calls: Sequence[BucketCall], request_id: str | None = None, turn: int | None = None
    ) -> Told:
        """Once: a question whose answer was missed may have been charged."""
        there = calls[0].elsewhere
        assert there is not None
        if not there.address:
            raise StoreUnavailable(CAUSE, may_have_run=False)
        client, unsent = await self._connected()
        body = encode_question(act, calls, request_id, turn)
        try:
            answer = await client.post(f"{there.address}{HOME_PATH}", content=body, headers=self._headers)
        except unsent:
            raise StoreUnavailable(CAUSE, may_have_run=False) from None
        except Exception as error:
            raise StoreUnavailable(CAUSE) from error
        if answer.status_code != 200:
            # A node that has not begun, or another service: nothing was done by either.
            raise StoreUnavailable(CAUSE, may_have_run=answer.status_code >= 500)
        try:
            told = decode_told(answer.content)
        except ValueError as error:
            raise StoreUnavailable(CAUSE) from error
        if told.other_request:
            raise OtherRequest
        if told.silent:
            raise StoreUnavailable(CAUSE, may_have_run=told.may_have_run)
        return told

    async def _connected(self) -> tuple[httpx.AsyncClient, tuple[type[Exception], ...]]:
        """The client, and the errors of what was never sent."""
        async with self._making:
            # Only who has such rules waits for its import.
            module: Any = await asyncio.to_thread(importlib.import_module, "httpx")
            if self._client is None:
                limits = module.Limits(max_connections=CONNECTIONS_MOST, keepalive_expiry=KEPT_S)
                verify = True if self._tls is None else self._tls()
                self._client = module.AsyncClient(timeout=self._deadline_s, limits=limits, verify=verify)
        return self._client, (module.ConnectError, module.ConnectTimeout, module.PoolTimeout)


async def answer_home(limiter: HomeLimiter, body: bytes) -> bytes:
    """What is said to a node of another region.  Raises WrongQuestion."""
    question, calls = decode_question(body)
    try:
        told = await _done(limiter, question.act, calls, question.request_id, question.turn)
    except OtherRequest:
        told = Told(other_request=True)
    except StoreUnavailable as error:
        told = Told(silent=error.cause or "silent", may_have_run=error.may_have_run)
    return encode_told(told)


async def _done(
    limiter: HomeLimiter, act: Act, calls: list[BucketCall], request_id: str | None, turn: int | None
) -> Told:
    if act == "check":
        return Told(verdicts=await limiter.check_here(calls, request_id))
    if act == "renew":
        return Told(held=await limiter.renew_here(calls))
    if act == "release":
        return Told(held=await limiter.release_here(calls, request_id or ""))
    if act == "drop":
        for call in calls:
            await limiter.drop_here(call)
    else:
        await limiter.refund_here(calls, request_id, turn)
    return Told()
