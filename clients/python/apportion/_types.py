"""What the client says and raises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

OnNoAnswer = Literal["allow", "deny", "raise"]
"""What a check is when no node answers in time: open, closed, or the caller's to decide."""


class ApportionError(Exception):
    """Base of the client's errors."""


class InvalidRequest(ApportionError):
    """The request was refused.  ``status``: 400 to 499; ``problem``: the body of the refusal."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(str(problem.get("detail") or f"status {status}"))
        self.status = status
        self.problem = dict(problem)


class NoAnswer(ApportionError):
    """No decision: no connection, no answer in time, or an answer that is none."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a batch."""

    client_key: str
    resource: str
    cost: int = 1
    attributes: Mapping[str, str] | None = None
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A decision.

    ``limit`` and ``remaining`` are None when no rule matched.  ``retry_after_ms`` is 0 when allowed, None when
    waiting does not help.  ``decided`` False: nobody answered, and ``on_no_answer`` decided (``reason``
    ``no_answer``).  ``degraded``: answered without the region's store, or at the floor.  ``wait_ms``: how long a
    queue wants an allowed request to be held back.  ``lease_id``: under which name slots are held, for
    ``lease_ms``; None: none are.  ``headers``: the rate limit headers that came with it, to be handed on (a check
    that went out in a batch has none).
    """

    allowed: bool
    reason: str
    limit: int | None = None
    remaining: int | None = None
    retry_after_ms: int | None = 0
    reset_after_ms: int = 0
    rule: str | None = None
    degraded: bool = False
    decided: bool = True
    wait_ms: int = 0
    lease_id: str | None = None
    lease_ms: int | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)
