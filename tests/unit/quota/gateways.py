"""A gateway as Envoy is one: a grant is a bucket that begins full, and ends ``ttl_ms`` after it came."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from services.quota.ledger import Grant


@dataclass
class Gateway:
    ttl_ms: int
    grant: Grant | None = None
    level: Fraction = Fraction(0)
    at_ms: int = 0
    ends_ms: int = 0

    def told(self, grant: Grant, now_ms: int) -> None:
        self._earn(now_ms)
        if grant != self.grant:
            self.grant, self.level = grant, Fraction(grant.tokens)
        self.ends_ms = now_ms + self.ttl_ms

    def spend(self, wanted: int, now_ms: int) -> int:
        """Asked for as much as ``wanted``, it lets so much through."""
        self._earn(now_ms)
        spent = min(wanted, int(self.level))
        self.level -= spent
        return spent

    def _earn(self, now_ms: int) -> None:
        if now_ms >= self.ends_ms:
            self.grant, self.level = None, Fraction(0)
        if self.grant is not None:
            rate = Fraction(self.grant.fill, self.grant.every_s * 1000)
            self.level = min(Fraction(self.grant.tokens), self.level + rate * (now_ms - self.at_ms))
        self.at_ms = now_ms
