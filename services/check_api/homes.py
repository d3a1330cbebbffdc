"""Buckets of ``distribution: home`` over the network: asking another region's nodes, and answering theirs.  [IO]

Each address has connections and a breaker of its own: a home that is silent takes nothing from the others.
"""

from __future__ import annotations

import asyncio
import importlib
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from regional_limiter.home_calls import ADDRESSES_MOST, CAUSE, OTHER_REGION
from regional_limiter.model.decision import Verdict
from regional_limiter.model.errors import OtherRequest, StoreUnavailable
from regional_limiter.model.home import Elsewhere
from regional_limiter.model.keys import rule_of
from regional_limiter.store.base import BucketCall
from regional_limiter.store.breaker import Breaker
from services.check_api.check_limiter import HomeLimiter
from services.check_api.home_wire import (
    HOME_PATH,
    Act,
    Told,
    WrongQuestion,
    decode_question,
    decode_told,
    encode_question,
    encode_told,
    token_of,
)
from services.tls import LOOK_EVERY_S

if TYPE_CHECKING:
    import httpx

_T = TypeVar("_T")

CONNECTIONS_MOST = 64
"""To one address."""
KEPT_S = 2.0
"""Connections that rest for longer may have been closed by the other side, which a request would find too late."""
FAILURES = 3
"""Without an answer between them: then the address is only tried once in a while."""


@dataclass(slots=True)
class _Home:
    """``module``: that of ``client``.  ``context``: what the client was made with, as of ``looked_s``."""

    module: Any
    client: httpx.AsyncClient
    context: ssl.SSLContext | None
    looked_s: float
    breaker: Breaker


class HomeClient:
    """Asks other regions.  ``secret``: the deployment's key secret.  ``deadline_s``: of a whole question.

    ``tls``: the context of new connections; None: as the system knows servers.  ``client``: None: one is made for
    each address when it is first needed.
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
        self._homes: dict[str, _Home] = {}
        self._leaving: set[asyncio.Task[None]] = set()

    async def check(self, calls: Sequence[BucketCall], request_id: str | None = None) -> list[Verdict]:
        return _one_each((await self._ask("check", calls, request_id)).verdicts, calls)

    async def refund(
        self, calls: Sequence[BucketCall], request_id: str | None = None, turn: int | None = None
    ) -> None:
        await self._ask("refund", calls, request_id, turn)

    async def renew(self, calls: Sequence[BucketCall]) -> list[bool]:
        return _one_each((await self._ask("renew", calls)).held, calls)

    async def release(self, calls: Sequence[BucketCall], request_id: str) -> list[bool]:
        return _one_each((await self._ask("release", calls, request_id)).held, calls)

    async def drop(self, call: BucketCall) -> None:
        await self._ask("drop", [call])

    async def close(self) -> None:
        homes, self._homes = self._homes, {}
        for home in homes.values():
            await home.client.aclose()
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    async def _ask(
        self, act: Act, calls: Sequence[BucketCall], request_id: str | None = None, turn: int | None = None
    ) -> Told:
        """Once: a question whose answer was missed may have been charged."""
        there = calls[0].elsewhere
        assert there is not None
        if not there.address:
            raise StoreUnavailable(CAUSE, may_have_run=False)
        body = encode_question(there.region, act, calls, request_id, turn)
        try:
            async with asyncio.timeout(self._deadline_s):
                home = await self._home(there.address)
                answer = await self._post(home, there, body)
        except TimeoutError as error:
            raise StoreUnavailable(CAUSE) from error
        if answer.status_code != 200:
            cause = OTHER_REGION if answer.status_code == 421 else CAUSE
            # A node that has not begun, or another service: nothing was done by either.
            raise StoreUnavailable(cause, may_have_run=answer.status_code >= 500)
        try:
            told = decode_told(answer.content)
        except ValueError as error:
            raise StoreUnavailable(CAUSE) from error
        if told.other_request:
            raise OtherRequest
        if told.silent:
            raise StoreUnavailable(CAUSE, may_have_run=told.may_have_run)
        return told

    async def _post(self, home: _Home, there: Elsewhere, body: bytes) -> httpx.Response:
        """Any answer tells the breaker that somebody is there."""
        started_s = monotonic()
        if not home.breaker.admits(started_s):
            raise StoreUnavailable(CAUSE, may_have_run=False)
        module = home.module
        try:
            answer = await home.client.post(f"{there.address}{HOME_PATH}", content=body, headers=self._headers)
        except module.PoolTimeout:  # whoever holds the connections will say what became of them
            raise StoreUnavailable(CAUSE, may_have_run=False) from None
        except (Exception, asyncio.CancelledError) as error:
            home.breaker.failed(started_s, monotonic())
            if isinstance(error, asyncio.CancelledError):  # by the deadline of whoever asks
                raise
            unsent = isinstance(error, module.ConnectError | module.ConnectTimeout)
            raise StoreUnavailable(CAUSE, may_have_run=not unsent) from error
        home.breaker.succeeded()
        return answer

    async def _home(self, address: str) -> _Home:
        """With connections by the certificates of now, or of a second ago."""
        home = self._homes.get(address)
        if home is not None and (self._tls is None or monotonic() - home.looked_s < LOOK_EVERY_S):
            return home
        if home is not None:
            # The others go on as before, while one looks.
            home.looked_s = monotonic()
            context = await asyncio.to_thread(self._context)
            if context is home.context:
                return home
        async with self._making:
            known = self._homes.get(address)
            if known is not None and known is not home:
                return known
            made = await asyncio.to_thread(self._made)
            if home is not None:
                made.breaker = home.breaker
            self._keep(address, made)
            return made

    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context() if self._tls is None else self._tls()

    def _made(self) -> _Home:
        """In a thread: only who has such rules waits for the import, and certificates are read from files."""
        module: Any = importlib.import_module("httpx")
        context, client = None, self._client
        if client is None:
            context = self._context()
            deadline_s = self._deadline_s
            client = module.AsyncClient(
                # Shorter than the whole: what was never sent is then known as such.
                timeout=module.Timeout(deadline_s, connect=deadline_s / 2, pool=deadline_s / 2),
                limits=module.Limits(max_connections=CONNECTIONS_MOST, keepalive_expiry=KEPT_S),
                verify=context,
                trust_env=False,
            )
        breaker = Breaker(FAILURES, within_s=max(1.0, 10 * self._deadline_s))
        assert client is not None
        return _Home(module, client, context, monotonic(), breaker)

    def _keep(self, address: str, home: _Home) -> None:
        before = self._homes.pop(address, None)
        if before is None and len(self._homes) >= ADDRESSES_MOST:
            before = self._homes.pop(next(iter(self._homes)))
        self._homes[address] = home
        if before is not None and before.client is not self._client:
            task = asyncio.get_running_loop().create_task(self._leave(before.client))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _leave(self, client: httpx.AsyncClient) -> None:
        """Close ``client`` once nobody can be waiting for an answer through it."""
        try:
            await asyncio.sleep(2 * self._deadline_s)
        finally:
            await client.aclose()


async def answer_home(limiter: HomeLimiter, region: str, body: bytes) -> bytes:
    """What is said to a node of another region by one of ``region``.  Raises WrongQuestion and OtherRegion."""
    question, calls = decode_question(body, region)
    for domain, rule in {rule_of(call.key) for call in calls}:
        if not limiter.is_asked_here(domain, rule):
            raise WrongQuestion(f"rule {rule} of {domain} has no homes")
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


def _one_each(said: list[_T], calls: Sequence[BucketCall]) -> list[_T]:
    """An answer of another length says nothing of the calls: as little as none."""
    if len(said) != len(calls):
        raise StoreUnavailable(CAUSE)
    return said
