"""The two clients.  Building requests and reading answers is shared; only the waiting differs."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Self

import httpx

from apportion._batching import AsyncBatcher, Batcher, Said
from apportion._leases import AsyncLease, Lease
from apportion._token_lease_table import Identity
from apportion._types import Answer, Check, InvalidRequest, NoAnswer, OnNoAnswer

DEFAULT_TIMEOUT_S: Final = 0.1
TRIES_MOST: Final = 5
_HANDED_ON: Final = (
    "ratelimit-policy",
    "ratelimit",
    "ratelimit-soft",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "retry-after",
)

_Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    """What both clients take; :class:`Client` says what each means."""

    timeout_s: float
    on_no_answer: OnNoAnswer
    domain: str
    token: str | None
    tries: int
    batching: bool


class _Base:
    """``url``: a node, or the balancer in front of the region's nodes."""

    def __init__(self, url: str, options: Options) -> None:
        if options.on_no_answer not in ("allow", "deny", "raise"):
            raise ValueError("on_no_answer must be allow, deny or raise")
        if not 1 <= options.tries <= TRIES_MOST:
            raise ValueError(f"tries must be 1 to {TRIES_MOST}")
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {options.token}"} if options.token else {}
        self._domain = options.domain
        self._on_no_answer = options.on_no_answer
        self._tries = options.tries
        self._timeout_s = options.timeout_s

    def _repeatable(self, check: Check) -> Check:
        """The same check with an id, if this client may send it again."""
        if self._tries == 1 or check.request_id is not None or check.cost == 0:
            return check
        return replace(check, request_id=secrets.token_hex(16))

    def _body(
        self,
        client_key: str,
        resource: str,
        cost: float | None,
        attributes: Mapping[str, str] | None,
        request_id: str | None,
    ) -> _Json:
        if isinstance(cost, float) and not math.isfinite(cost):
            cost = None  # JSON has no word for it, and a body that is none would spoil a whole batch
        body: _Json = {"client_key": client_key, "resource": resource, "cost": cost, "domain": self._domain}
        if attributes:
            body["attributes"] = dict(attributes)
        if request_id is not None:
            body["request_id"] = request_id
        return body

    def _body_of(self, check: Check) -> _Json:
        return self._body(check.client_key, check.resource, check.cost, check.attributes, check.request_id)

    def _lease(
        self, client_key: str, resource: str, attributes: Mapping[str, str] | None, lease_id: str | None
    ) -> _Json:
        """What names a lease.  The id is made here, so that it can be released whether or not an answer comes."""
        lease = self._body(client_key, resource, 0, attributes, None)
        del lease["cost"]
        lease["lease_id"] = secrets.token_hex(16) if lease_id is None else lease_id
        return lease

    def _batch(self, checks: Sequence[Check]) -> _Json:
        return {"checks": [self._body_of(check) for check in checks]}

    def _items(self, document: _Json, checks: Sequence[Check]) -> list[Said]:
        """What became of each check of a batch: one that only the node failed has NoAnswer in its place."""
        items = document.get("answers")
        if not isinstance(items, list) or len(items) != len(checks):
            raise NoAnswer("the answer does not fit the batch")
        return [_item(item if isinstance(item, dict) else {}) for item in items]

    def _settled(self, said: Said) -> Answer | InvalidRequest:
        return self._missing(said) if isinstance(said, NoAnswer) else said

    def _batched(self, said: Said) -> Answer:
        """The answer to a check that went out with others.  Raises InvalidRequest and NoAnswer."""
        if isinstance(said, Answer):
            return said
        raise said

    def _lending(self, identity: Identity, want: int, back: _Json | None) -> _Json:
        client_key, resource, attributes = identity
        body: _Json = {"client_key": client_key, "resource": resource, "domain": self._domain, "want": want}
        if attributes:
            body["attributes"] = dict(attributes)
        return body if back is None else {**body, "back": back}

    def _query(self, client_key: str, resource: str, attributes: Mapping[str, str] | None) -> dict[str, str]:
        query = {"client_key": client_key, "resource": resource, "domain": self._domain}
        return query | {f"attributes.{name}": value for name, value in (attributes or {}).items()}

    def _missing(self, cause: NoAnswer) -> Answer:
        """Nobody answered: what this client was told to make of that."""
        if self._on_no_answer == "raise":
            raise cause
        allowed = self._on_no_answer == "allow"
        return Answer(allowed, "no_answer", retry_after_ms=0 if allowed else 1000, degraded=True, decided=False)


def _read(response: httpx.Response) -> _Json:
    """The JSON of a 200.  Raises InvalidRequest for what the caller did wrong, NoAnswer for all else."""
    try:
        document = response.json()
    except ValueError:
        document = None
    known: _Json = document if isinstance(document, dict) else {}
    status = response.status_code
    if status == 200 and known:
        known["headers"] = tuple((name, value) for name, value in response.headers.items() if name in _HANDED_ON)
        return known
    # 408 and 429 come from what stands between; they are no verdict on the request.
    if 400 <= status < 500 and status not in (408, 429):
        raise InvalidRequest(status, known)
    raise NoAnswer(f"status {status}: {known.get('detail', 'no decision')}")


def _answer(document: _Json) -> Answer:
    if not isinstance(document.get("allowed"), bool):
        raise NoAnswer("the answer has no decision")
    return Answer(
        allowed=document["allowed"],
        reason=str(document.get("reason", "")),
        limit=document.get("limit"),
        remaining=document.get("remaining"),
        retry_after_ms=document.get("retry_after_ms"),
        reset_after_ms=document.get("reset_after_ms") or 0,
        rule=document.get("rule"),
        degraded=bool(document.get("degraded")),
        wait_ms=document.get("wait_ms") or 0,
        lease_id=document.get("lease_id") if document.get("lease_ms") else None,
        lease_ms=document.get("lease_ms"),
        headers=document.get("headers", ()),
    )


def _item(item: _Json) -> Said:
    problem = item.get("error")
    if not isinstance(problem, dict):
        try:
            return _answer(item)
        except NoAnswer as cause:
            return cause
    status = problem.get("status")
    if isinstance(status, int) and 400 <= status < 500:
        return InvalidRequest(status, problem)
    return NoAnswer(f"status {status}: {problem.get('detail', 'no decision')}")


def _not_text(error: UnicodeEncodeError) -> InvalidRequest:
    return InvalidRequest(422, {"detail": f"a value cannot be sent as UTF-8: {error.reason}"})


def _no_answer(error: Exception) -> NoAnswer:
    return NoAnswer(str(error) or type(error).__name__)


class Client(_Base):
    """Blocking.  One per process: it keeps connections, and threads may share it.

    ``timeout_s`` bounds each wait: for a connection, for sending, for each part of the answer.
    ``on_no_answer``: ``allow`` (default) lets traffic through while no node answers, ``deny`` is for what must
    never run unlimited, such as logins; ``raise`` raises NoAnswer.
    ``tries``: how often a request is sent at most while no answer comes, each time at once.  1 (default): nothing
    is sent twice.  With more a check gets an id that stays the same over its tries, so that it is charged once; a
    node asks its store about every such check, also of a hot key.
    ``batching``: checks that are asked for at the same time go out in one request.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        on_no_answer: OnNoAnswer = "allow",
        domain: str = "default",
        token: str | None = None,
        tries: int = 1,
        batching: bool = False,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(url, Options(timeout_s, on_no_answer, domain, token, tries, batching))
        self._batcher = Batcher(self._ask_each) if batching else None
        self._http = httpx.Client(timeout=timeout_s, headers=self._headers, transport=transport, trust_env=False)

    def check(
        self,
        client_key: str,
        resource: str,
        *,
        cost: int = 1,
        attributes: Mapping[str, str] | None = None,
        request_id: str | None = None,
    ) -> Answer:
        """May this happen now?  Charges ``cost`` when it may.  Raises InvalidRequest."""
        return self.ask(Check(client_key, resource, cost, attributes, request_id))

    def ask(self, check: Check) -> Answer:
        """:meth:`check` of what a :class:`Check` holds."""
        check = self._repeatable(check)
        try:
            if self._batcher is not None:
                return self._batched(self._batcher.ask(check, self._timeout_s * self._tries))
            may_repeat = check.request_id is not None or check.cost == 0
            return _answer(self._send("POST", "/v1/check", may_repeat, json=self._body_of(check)))
        except NoAnswer as cause:
            return self._missing(cause)

    def check_batch(self, checks: Sequence[Check]) -> list[Answer | InvalidRequest]:
        """Ask for up to 1,000 independent checks at once; an answer for each, in their order.

        A check that is wrong has InvalidRequest in its place and costs the others nothing.  Raises InvalidRequest
        when the batch itself is refused.

        With ``on_no_answer="raise"`` one check without an answer raises NoAnswer for all of them; the others may
        have been charged nevertheless.
        """
        checks = [self._repeatable(check) for check in checks]
        try:
            said = self._ask_each(checks)
        except NoAnswer as cause:
            return [self._missing(cause) for _ in checks]
        return [self._settled(one) for one in said]

    def _ask_each(self, checks: Sequence[Check]) -> list[Said]:
        """Raises InvalidRequest and NoAnswer for all of them."""
        document = self._send("POST", "/v1/check:batch", self._tries > 1, json=self._batch(checks))
        return self._items(document, checks)

    def peek(self, client_key: str, resource: str, *, attributes: Mapping[str, str] | None = None) -> Answer:
        """What is left, without taking any of it.  Raises InvalidRequest."""
        try:
            return _answer(
                self._send("GET", "/v1/peek", True, params=self._query(client_key, resource, attributes))
            )
        except NoAnswer as cause:
            return self._missing(cause)

    def refund(
        self,
        client_key: str,
        resource: str,
        *,
        cost: int = 1,
        attributes: Mapping[str, str] | None = None,
        request_id: str | None = None,
    ) -> None:
        """Give back what a check took.  Raises InvalidRequest, and NoAnswer: it may or may not have happened."""
        body = self._body(client_key, resource, cost, attributes, request_id)
        self._send("POST", "/v1/refund", request_id is not None, json=body)

    def acquire(
        self,
        client_key: str,
        resource: str,
        *,
        cost: int = 1,
        attributes: Mapping[str, str] | None = None,
        lease_id: str | None = None,
    ) -> Lease:
        """Take slots of every concurrency rule that this meets, and charge its other rules: all or none.

        Under a ``lease_id`` that already holds slots they are renewed, and no second one is taken; by default it is
        new.  A denied acquisition is a lease too, whose ``allowed`` is False.  Raises InvalidRequest.
        """
        lease = self._lease(client_key, resource, attributes, lease_id)
        try:
            answer = _answer(self._send("POST", "/v1/acquire", True, json={**lease, "cost": cost}))
        except NoAnswer as cause:
            answer = self._missing(cause)
        return Lease(answer, lease, self._send)

    def _send(self, method: str, path: str, may_repeat: bool, **content: Any) -> _Json:
        for _ in range(self._tries - 1 if may_repeat else 0):
            try:
                return self._send_once(method, path, content)
            except NoAnswer:
                continue
        return self._send_once(method, path, content)

    def _send_once(self, method: str, path: str, content: Mapping[str, Any]) -> _Json:
        try:
            return _read(self._http.request(method, self._url + path, **content))
        except httpx.HTTPError as error:
            raise _no_answer(error) from error
        except UnicodeEncodeError as error:
            raise _not_text(error) from error

    def lend_tokens(self, identity: Identity, want: int, back: _Json | None) -> _Json:
        """What a node lends; see :mod:`apportion.token_leases`.  Raises InvalidRequest and NoAnswer."""
        # Never sent again: what is brought back twice could be taken twice.
        return self._send("POST", "/v1/token-lease", False, json=self._lending(identity, want, back))

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(_Base):
    """:class:`Client` with ``await``.  ``timeout_s`` bounds the whole request, or each try of it."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        on_no_answer: OnNoAnswer = "allow",
        domain: str = "default",
        token: str | None = None,
        tries: int = 1,
        batching: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(url, Options(timeout_s, on_no_answer, domain, token, tries, batching))
        self._batcher = AsyncBatcher(self._ask_each) if batching else None
        self._http = httpx.AsyncClient(
            timeout=timeout_s, headers=self._headers, transport=transport, trust_env=False
        )

    async def check(
        self,
        client_key: str,
        resource: str,
        *,
        cost: int = 1,
        attributes: Mapping[str, str] | None = None,
        request_id: str | None = None,
    ) -> Answer:
        """May this happen now?  Charges ``cost`` when it may.  Raises InvalidRequest."""
        return await self.ask(Check(client_key, resource, cost, attributes, request_id))

    async def ask(self, check: Check) -> Answer:
        """:meth:`check` of what a :class:`Check` holds."""
        check = self._repeatable(check)
        try:
            if self._batcher is not None:
                return self._batched(await self._batcher.ask(check))
            may_repeat = check.request_id is not None or check.cost == 0
            return _answer(await self._send("POST", "/v1/check", may_repeat, json=self._body_of(check)))
        except NoAnswer as cause:
            return self._missing(cause)

    async def check_batch(self, checks: Sequence[Check]) -> list[Answer | InvalidRequest]:
        """Ask for up to 1,000 independent checks at once; an answer for each, in their order.

        A check that is wrong has InvalidRequest in its place and costs the others nothing.  Raises InvalidRequest
        when the batch itself is refused.

        With ``on_no_answer="raise"`` one check without an answer raises NoAnswer for all of them; the others may
        have been charged nevertheless.
        """
        checks = [self._repeatable(check) for check in checks]
        try:
            said = await self._ask_each(checks)
        except NoAnswer as cause:
            return [self._missing(cause) for _ in checks]
        return [self._settled(one) for one in said]

    async def _ask_each(self, checks: Sequence[Check]) -> list[Said]:
        """Raises InvalidRequest and NoAnswer for all of them."""
        document = await self._send("POST", "/v1/check:batch", self._tries > 1, json=self._batch(checks))
        return self._items(document, checks)

    async def peek(self, client_key: str, resource: str, *, attributes: Mapping[str, str] | None = None) -> Answer:
        """What is left, without taking any of it.  Raises InvalidRequest."""
        query = self._query(client_key, resource, attributes)
        try:
            return _answer(await self._send("GET", "/v1/peek", True, params=query))
        except NoAnswer as cause:
            return self._missing(cause)

    async def refund(
        self,
        client_key: str,
        resource: str,
        *,
        cost: int = 1,
        attributes: Mapping[str, str] | None = None,
        request_id: str | None = None,
    ) -> None:
        """Give back what a check took.  Raises InvalidRequest, and NoAnswer: it may or may not have happened."""
        body = self._body(client_key, resource, cost, attributes, request_id)
        await self._send("POST", "/v1/refund", request_id is not None, json=body)

    async def acquire(
        self,
        client_key: str,
        resource: str,
        *,
        cost: int = 1,
        attributes: Mapping[str, str] | None = None,
        lease_id: str | None = None,
    ) -> AsyncLease:
        """Take slots of every concurrency rule that this meets, and charge its other rules: all or none.

        Under a ``lease_id`` that already holds slots they are renewed, and no second one is taken; by default it is
        new.  A denied acquisition is a lease too, whose ``allowed`` is False.  Raises InvalidRequest.
        """
        lease = self._lease(client_key, resource, attributes, lease_id)
        try:
            answer = _answer(await self._send("POST", "/v1/acquire", True, json={**lease, "cost": cost}))
        except NoAnswer as cause:
            answer = self._missing(cause)
        return AsyncLease(answer, lease, self._send)

    async def _send(self, method: str, path: str, may_repeat: bool, **content: Any) -> _Json:
        for _ in range(self._tries - 1 if may_repeat else 0):
            try:
                return await self._send_once(method, path, content)
            except NoAnswer:
                continue
        return await self._send_once(method, path, content)

    async def _send_once(self, method: str, path: str, content: Mapping[str, Any]) -> _Json:
        try:
            async with asyncio.timeout(self._timeout_s):
                return _read(await self._http.request(method, self._url + path, **content))
        except (httpx.HTTPError, TimeoutError) as error:
            raise _no_answer(error) from error
        except UnicodeEncodeError as error:
            raise _not_text(error) from error

    async def lend_tokens(self, identity: Identity, want: int, back: _Json | None) -> _Json:
        """What a node lends; see :mod:`apportion.token_leases`.  Raises InvalidRequest and NoAnswer."""
        # Never sent again: what is brought back twice could be taken twice.
        return await self._send("POST", "/v1/token-lease", False, json=self._lending(identity, want, back))

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
