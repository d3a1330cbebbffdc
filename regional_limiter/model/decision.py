"""One check, one bucket's verdict, one answer.  Pure and frozen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import IntEnum, StrEnum
from typing import Any

from regional_limiter.model.value import value

COST_MOST = 2**31 - 1
VALUE_BYTES_MOST = 1024


class Reason(StrEnum):
    OK = "ok"
    NO_RULE = "no_rule"
    LIMITED = "limited"
    SOFT_LIMITED = "soft_limited"
    EXCEEDS_CAPACITY = "exceeds_capacity"
    ZERO_LIMIT = "zero_limit"
    BLOCKED = "blocked"
    STORE_UNAVAILABLE = "store_unavailable"
    SHED = "shed"


class ShareKind(IntEnum):
    """Where a share comes from.  WHOLE: a rule of region scope (always 10,000)."""

    WHOLE = 0
    LEASE = 1
    BASE = 2
    FLOOR = 3


@value
class Check:
    """A question: may this happen now?  ``attributes`` holds client_key and resource too.

    ``lease_id``: under which name slots are taken; None: the request's id, or a new one.
    ``asking`` is what whoever was asked made of it, to be asked again: no part of the question.
    """

    domain: str
    attributes: Mapping[str, str]
    cost: int = 1
    request_id: str | None = None
    lease_id: str | None = None
    asking: Any = field(default=None, init=False, compare=False, repr=False)


@value
class Verdict:
    """What one bucket says.

    ``remaining``: tokens that this region could allow now, rounded down, in [0, capacity].
    ``retry_after_ms``: 0 when allowed; None when waiting does not help.
    ``reset_after_ms``: until the bucket is full again, or its window ends.
    ``wait_ms``: until it is this request's turn (only of a queue, and only when allowed).
    ``share``: the share that decided (10,000 for region scope); ``session_left_us`` and ``consent_left_us``
    are counted from the store's reading of its clock (0 when not alive).
    ``replayed``: the answer that the same request already had; charged, and counted, then.  ``turn``: how often
    the bucket's store was asked by this request before.  ``held_before``: slots that the holder of an allowed check
    had already.
    """

    allowed: bool
    reason: Reason
    remaining: int
    retry_after_ms: int | None
    reset_after_ms: int
    share: int = 10_000
    share_kind: ShareKind = ShareKind.WHOLE
    session_left_us: int = 0
    consent_left_us: int = 0
    degraded: bool = False
    replayed: bool = False
    wait_ms: int = 0
    turn: int = 0
    held_before: int = 0


@value
class RuleVerdict:
    """A verdict and the rule that it belongs to (``limit``: the rule's whole limit)."""

    rule: str
    limit: int
    verdict: Verdict
    window_ms: int | None = None
    key_hash: bytes = b""
    in_headers: bool = True


@value
class Answer:
    """The combined answer of a check.  ``rule`` is the tightest one, None when no rule matched.

    ``wait_ms``: how long an allowed request should be held back, for the slowest of its queues.
    ``lease_id``: under which name slots were taken, for ``lease_ms`` at least; None: none were.
    """

    allowed: bool
    reason: Reason
    limit: int | None
    remaining: int | None
    retry_after_ms: int | None
    reset_after_ms: int
    rule: str | None
    degraded: bool
    verdicts: tuple[RuleVerdict, ...] = field(default=())
    wait_ms: int = 0
    lease_id: str | None = None
    lease_ms: int | None = None
