"""One bucket of any kind, as a store keeps it, on a clock that the test moves."""

from __future__ import annotations

from dataclasses import replace

from regional_limiter.algorithms.registry import fixed_share, functions_of
from regional_limiter.model.decision import Verdict
from regional_limiter.store.base import BucketCall


class OneBucket:
    """``call`` has the rule's numbers; each check names its own cost and holder."""

    def __init__(self, call: BucketCall, now_ms: int) -> None:
        self.call = call
        self.now_ms = now_ms
        self._held: tuple[bytes, int] | None = None

    @property
    def state(self) -> bytes | None:
        return self._held[0] if self._held is not None and self.now_ms < self._held[1] else None

    def check(self, cost: int = 1, holder: str = "h") -> Verdict:
        call = replace(self.call, cost=cost, holder=holder)
        outcome = functions_of(call).decide(self.state, call, fixed_share(call), self.now_ms)
        ending = outcome.charged if cost and (outcome.allowed or outcome.costs_denied) else outcome.left
        self._keep(ending.state, ending.ttl_ms)
        return ending.verdict

    def refund(self, cost: int = 1, holder: str = "h") -> None:
        call = replace(self.call, cost=cost, holder=holder)
        ending = functions_of(call).give_back(self.state, call, fixed_share(call), self.now_ms)
        if ending is not None:
            self._keep(ending.state, ending.ttl_ms)

    def at(self, now_ms: int) -> OneBucket:
        """The same bucket at another time: what happens to it there does not happen here."""
        other = OneBucket(self.call, now_ms)
        other._held = self._held
        return other

    def _keep(self, state: bytes | None, ttl_ms: int) -> None:
        if state is not None:
            assert ttl_ms >= 1
            self._held = (state, self.now_ms + ttl_ms)
