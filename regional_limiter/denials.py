"""Denials that a node remembers for a moment, so that one client's flood of checks does not reach the store.  Pure.

A bucket that denied a cost denies it again until ``retry_after_ms``.  That is remembered for 100 ms at most, since
a refund or a larger share may end the wait sooner, and for the same cost only, since another has another wait.
Allowances are never remembered, nor denials of slots: others give theirs back at any time, and one holder's denial
is not another's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from regional_limiter.model.decision import Reason, Verdict
from regional_limiter.model.rule import Algorithm
from regional_limiter.store.base import BucketCall

REMEMBERED_US = 100_000


@dataclass(frozen=True, slots=True)
class _Denial:
    verdict: Verdict
    cost: int
    asked_us: int
    ends_us: int


class Denials:
    """At most ``keys_most`` of them; when it is full all are forgotten, which only costs calls."""

    def __init__(self, keys_most: int = 10_000) -> None:
        self._keys_most = keys_most
        self.known: dict[str, _Denial] = {}
        """By key; some of them may be over."""

    @property
    def filled(self) -> tuple[int, int]:
        """Entries, and how many there may be."""
        return len(self.known), self._keys_most

    def remember(self, call: BucketCall, verdict: Verdict, asked_us: int) -> None:
        """``asked_us``: this machine's steady clock before the call."""
        retry_after_ms = verdict.retry_after_ms
        if verdict.reason is not Reason.LIMITED or call.charge_denied or verdict.degraded or not retry_after_ms:
            return
        if call.algorithm is Algorithm.CONCURRENCY:
            return
        if len(self.known) >= self._keys_most:
            self.known.clear()
        ends_us = asked_us + min(retry_after_ms * 1000, REMEMBERED_US)
        self.known[call.key] = _Denial(verdict, call.cost, asked_us, ends_us)

    def verdict(self, call: BucketCall, now_us: int) -> Verdict | None:
        """The denial that still holds for this call."""
        denial = self.known.get(call.key)
        if denial is None or call.cost != denial.cost:
            return None
        if now_us >= denial.ends_us:
            del self.known[call.key]
            return None
        passed_ms = (now_us - denial.asked_us) // 1000
        then = denial.verdict
        return replace(
            then,
            retry_after_ms=max(1, (then.retry_after_ms or 0) - passed_ms),
            reset_after_ms=max(0, then.reset_after_ms - passed_ms),
        )

    def forget(self, key: str) -> None:
        self.known.pop(key, None)

    def clear(self) -> None:
        self.known.clear()
