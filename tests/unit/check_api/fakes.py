"""A limiter that answers what a test says, and an ASGI caller without a network."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from regional_limiter.lending import Brought, Lent
from regional_limiter.limiter import Done, Inspection, LimiterStatus, ShardStatus
from regional_limiter.model.decision import Answer, Check, Reason, RuleVerdict, ShareKind, Verdict
from regional_limiter.model.errors import InvalidCheck, RulesUnavailable
from regional_limiter.model.rule import Algorithm
from services.check_api.app import NodeApp, NodeOptions, create_app

ALLOWED = Answer(True, Reason.NO_RULE, None, None, 0, 0, None, False)


def rule_verdict(
    rule: str = "orders-free",
    *,
    allowed: bool = True,
    reason: Reason | None = None,
    limit: int = 20,
    remaining: int = 7,
    retry_after_ms: int | None = 0,
    reset_after_ms: int = 11_200,
    window_ms: int | None = None,
    key_hash: bytes = b"",
    share_kind: ShareKind = ShareKind.WHOLE,
    share: int = 10_000,
    in_headers: bool = True,
) -> RuleVerdict:
    said = reason or (Reason.OK if allowed else Reason.LIMITED)
    verdict = Verdict(allowed, said, remaining, retry_after_ms, reset_after_ms, share, share_kind)
    return RuleVerdict(rule, limit, verdict, window_ms, key_hash, in_headers)


def answer_of(*verdicts: RuleVerdict, degraded: bool = False) -> Answer:
    """An answer that names the first verdict."""
    first = verdicts[0]
    return Answer(
        all(item.verdict.allowed for item in verdicts),
        first.verdict.reason,
        first.limit,
        first.verdict.remaining,
        first.verdict.retry_after_ms,
        first.verdict.reset_after_ms,
        first.rule,
        degraded,
        verdicts,
    )


@dataclass
class FakeLimiter:
    answer: Answer | Exception = ALLOWED
    ready: bool = True
    refund_error: Exception | None = None
    checks: list[Check] = field(default_factory=list)
    peeks: list[Check] = field(default_factory=list)
    refunds: list[Check] = field(default_factory=list)
    resets: list[Check] = field(default_factory=list)
    renewals: list[Check] = field(default_factory=list)
    releases: list[Check] = field(default_factory=list)
    lendings: list[tuple[Check, int, Brought | None]] = field(default_factory=list)
    lent: Lent = field(default_factory=Lent)
    held: bool = True
    shards: tuple[ShardStatus, ...] = (ShardStatus("127.0.0.1:7001/1", "closed"),)
    degraded: dict[str, int] = field(default_factory=dict)
    refused_domains: dict[str, str] = field(default_factory=dict)

    async def check(self, check: Check) -> Answer:
        self.checks.append(check)
        return self._say()

    async def peek(self, check: Check) -> Answer:
        self.peeks.append(check)
        return self._say()

    async def refund(self, check: Check) -> None:
        self.refunds.append(check)
        if self.refund_error is not None:
            raise self.refund_error

    async def renew(self, check: Check) -> bool:
        self.renewals.append(check)
        if self.refund_error is not None:
            raise self.refund_error
        return self.held

    async def release(self, check: Check) -> bool:
        self.releases.append(check)
        if self.refund_error is not None:
            raise self.refund_error
        return self.held

    def submit(self, check: Check, done: Done) -> None:
        """Answers before it returns; an error that callers foresee is raised, any other one is told."""
        self.checks.append(check)
        if isinstance(self.answer, InvalidCheck | RulesUnavailable):
            raise self.answer
        done(self.answer)

    async def lend(self, check: Check, want: int, brought: Brought | None) -> Lent:
        self.lendings.append((check, want, brought))
        if self.refund_error is not None:
            raise self.refund_error
        return self.lent

    def knows(self, domain: str) -> bool:
        return True

    async def reset(self, check: Check) -> list[str]:
        self.resets.append(check)
        if self.refund_error is not None:
            raise self.refund_error
        return ["rl:{t}:default/orders-free:u"]

    async def inspect(self, check: Check) -> list[Inspection]:
        answer = await self.peek(check)
        return [
            Inspection(item.rule, f"rl:{{t}}:default/{item.rule}:u", Algorithm.GCRA, item.limit, item.verdict, 1500)
            for item in answer.verdicts
        ]

    def status(self) -> LimiterStatus:
        return LimiterStatus(7, 4, self.shards, self.degraded, refused_domains=self.refused_domains)

    def _say(self) -> Answer:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@dataclass(frozen=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def node_of(limiter: FakeLimiter, **options: Any) -> NodeApp:
    return create_app(limiter, NodeOptions(region="us-east", node="us-east-1", **options))


async def call(
    app: Callable[..., Any],
    method: str,
    path: str,
    body: bytes | list[bytes] = b"",
    *,
    query: bytes = b"",
    headers: dict[str, str] | None = None,
) -> Response:
    """One request.  ``body`` in parts arrives in as many messages."""
    parts = body if isinstance(body, list) else [body]
    incoming = [
        {"type": "http.request", "body": part, "more_body": index + 1 < len(parts)}
        for index, part in enumerate(parts)
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return incoming.pop(0) if incoming else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query,
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        "client": ("127.0.0.1", 50000),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    assert [message["type"] for message in sent[:1]] == ["http.response.start"]
    content = b"".join(message.get("body", b"") for message in sent[1:])
    names = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Response(sent[0]["status"], names, content)
