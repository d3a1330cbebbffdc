"""A store that answers what a test says, and a running limiter over it (or over any store)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import Check, Reason, ShareKind, Verdict
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.model.keys import rule_of
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import (
    BucketCall,
    CheckStore,
    Decided,
    NodeBeat,
    ReturnedLease,
    TokenLease,
    TouchReply,
)

POINT = "10.0.0.1:7001/v"

Outcome = Verdict | StoreUnavailable


def allow(remaining: int = 5, share: int = 10_000, kind: ShareKind = ShareKind.WHOLE, **left: Any) -> Verdict:
    return Verdict(True, Reason.OK, remaining, 0, 1000, share, kind, **left)


def deny(retry_after_ms: int | None = 500, reason: Reason = Reason.LIMITED) -> Verdict:
    return Verdict(False, reason, 0, retry_after_ms, 1000)


NO_LEASE = TokenLease(0, 0, 0, 0, 0, 0, 10_000, ShareKind.WHOLE, 0, 0)


@dataclass
class FakeStore:
    """``says``: rule id -> outcome.  A group with a failing rule fails as a whole."""

    says: dict[str, Outcome] = field(default_factory=dict)
    default: Outcome = field(default_factory=allow)
    checks: list[tuple[list[BucketCall], str | None]] = field(default_factory=list)
    refunds: list[tuple[list[BucketCall], str | None]] = field(default_factory=list)
    releases: list[tuple[list[BucketCall], str]] = field(default_factory=list)
    drops: list[BucketCall] = field(default_factory=list)
    leases: list[tuple[BucketCall, int, tuple[ReturnedLease, ...]]] = field(default_factory=list)
    leased: TokenLease | StoreUnavailable = NO_LEASE
    offers: list[tuple[str, dict[str, int]]] = field(default_factory=list)
    beats: list[NodeBeat] = field(default_factory=list)
    refund_error: Exception | None = None
    touch_error: Exception | None = None
    reply: TouchReply = field(default_factory=lambda: TouchReply(0, -1, -1, {}, 1))
    blob: bytes = b""
    stuck: asyncio.Event | None = None
    version: str = "v"
    broken: bool = False
    crowded: bool = False
    on_touch: Callable[[], None] = lambda: None
    offered: asyncio.Event = field(default_factory=asyncio.Event)
    touched: asyncio.Event = field(default_factory=asyncio.Event)

    async def check(self, calls: Sequence[BucketCall], request_id: str | None = None) -> list[Verdict]:
        self.checks.append((list(calls), request_id))
        if self.stuck is not None:
            await self.stuck.wait()
        return self.told(calls)

    def told(self, calls: Sequence[BucketCall]) -> list[Verdict]:
        verdicts = []
        for call in calls:
            outcome = self.says.get(rule_of(call.key)[1], self.default)
            if isinstance(outcome, StoreUnavailable):
                raise outcome
            verdicts.append(outcome)
        return verdicts

    async def refund(
        self, calls: Sequence[BucketCall], request_id: str | None = None, turn: int | None = None
    ) -> None:
        self.refunds.append((list(calls), request_id))
        if self.refund_error is not None:
            raise self.refund_error

    async def renew(self, calls: Sequence[BucketCall]) -> list[bool]:
        if self.refund_error is not None:
            raise self.refund_error
        return [True] * len(calls)

    async def release(self, calls: Sequence[BucketCall], request_id: str) -> list[bool]:
        self.releases.append((list(calls), request_id))
        if self.refund_error is not None:
            raise self.refund_error
        return [bool(call.holder) for call in calls]

    async def drop(self, call: BucketCall) -> None:
        self.drops.append(call)

    async def ttl_ms(self, call: BucketCall) -> int | None:
        if self.refund_error is not None:
            raise self.refund_error
        return 1234

    async def lease(self, call: BucketCall, want: int, returned: Sequence[ReturnedLease] = ()) -> TokenLease:
        self.leases.append((call, want, tuple(returned)))
        if isinstance(self.leased, StoreUnavailable):
            raise self.leased
        credited = sum(back.unspent for back in returned)
        return replace(self.leased, tokens=self.leased.tokens if want else 0, credited=credited)

    def breaker_open(self, point: str) -> bool:
        return self.broken

    async def points(self) -> Sequence[str]:
        return [POINT]

    async def touch(self, point: str, beat: NodeBeat) -> TouchReply:
        self.beats.append(beat)
        self.touched.set()
        if self.touch_error is not None:
            raise self.touch_error
        return self.reply

    async def offer(self, point: str, demand: Mapping[str, int]) -> None:
        self.offers.append((point, dict(demand)))
        self.offered.set()

    async def fetch_rules(self, point: str) -> tuple[int, bytes]:
        return self.reply.rules_version, self.blob

    async def close(self) -> None:
        pass


class PromptStore(FakeStore):
    """Answers a check before :meth:`submit` returns: nothing else runs meanwhile."""

    def prepare(self, calls: Sequence[BucketCall], request_id: str | None) -> Any:
        return list(calls), request_id

    def is_crowded(self, prepared: Any) -> bool:
        return self.crowded

    def submit(self, prepared: Any, done: Decided) -> None:
        self.checks.append(prepared)
        done(self.told(prepared[0]))


TIMES = ProtocolTimes.scaled(0.05)


def rule(rule_id: str, **fields: Any) -> dict[str, Any]:
    return {"id": rule_id, "match": {}, "key": ["client_key"], "capacity": 10, "refill": "1/s", **fields}


def blob_of(*rules: dict[str, Any], version: int = 1, domain: str = "default", **of_set: Any) -> bytes:
    document = {"domain": domain, "regions": {"us": 1, "eu": 1}, "rules": list(rules), **of_set}
    return json.dumps({"version": version, "sets": {domain: {"version": version, "document": document}}}).encode()


def check(client: str = "alice", cost: int = 1, **more: Any) -> Check:
    return Check("default", {"client_key": client, "resource": "GET /", **more.pop("attributes", {})}, cost, **more)


def limiter_of(store: CheckStore, directory: Path, times: ProtocolTimes = TIMES, **more: Any) -> Limiter:
    return Limiter("us", store, b"0123456789abcdef", directory, times, node="n1", **more)


@asynccontextmanager
async def running(
    store: CheckStore, directory: Path, blob: bytes | None, bases: dict[str, Any] | None = None, **more: Any
) -> AsyncIterator[Limiter]:
    """A limiter that finds ``blob`` and ``bases`` on its disk."""
    own = directory / "node-n1"
    own.mkdir(parents=True, exist_ok=True)
    if blob is not None:
        (own / "rules.json").write_bytes(blob)
    if bases is not None:
        (own / "bases.json").write_text(json.dumps(bases))
    limiter = limiter_of(store, directory, **more)
    await limiter.start()
    try:
        yield limiter
    finally:
        await limiter.stop()
