"""Did all regions together keep the bound of a limit?  A checker that knows nothing of shares.  Pure.

In any t seconds at most C + R x t x (1 + 0.001) tokens are admitted (docs/semantics.md, "What the bound is").  All
intervals are looked at in one pass: with A(t) what was admitted until t, the worst excess is the largest
A(t) - R't - min over s <= t of (A(s-) - R's), less C.  Integers only.
"""

from __future__ import annotations

from regional_limiter.model.rule import Rate

_SLACK_DENOMINATOR = 1000
"""R' = R x (1 + 1/1000)."""


class BoundChecker:
    """One key's admissions, in the order of their time.

    ``last_us``: the last one.  ``worst``: the largest excess so far in tokens (<= 0: the bound holds), and
    ``worst_at_us`` when it was reached.
    """

    def __init__(self, capacity: int, refill: Rate, earlier: BoundChecker | None = None) -> None:
        """``earlier``: what was checked until now by other numbers; its worst stays the worst."""
        # Everything in 1/unit tokens, so that a microsecond's refill is an integer.
        self._unit = refill.period_ms * 1000 * _SLACK_DENOMINATOR
        self._per_us = refill.tokens * (_SLACK_DENOMINATOR + 1)
        self._capacity = capacity * self._unit
        self._used = 0
        self._lowest: int | None = None
        self._worst = -self._capacity
        self._worst_before = earlier.worst if earlier is not None else float("-inf")
        self.last_us = 0
        self.worst_at_us = 0
        self.admitted = 0

    def admit(self, at_us: int, cost: int) -> None:
        """``cost`` tokens were admitted at ``at_us``.  Raises ValueError when time goes back."""
        if at_us < self.last_us:
            raise ValueError(f"{at_us} us comes after {self.last_us} us")
        self.last_us = at_us
        self.admitted += cost
        before = self._used - self._per_us * at_us
        if self._lowest is None or before < self._lowest:
            self._lowest = before
        self._used += cost * self._unit
        over = before + cost * self._unit - self._lowest - self._capacity
        if over > self._worst:
            self._worst, self.worst_at_us = over, at_us

    def allow(self, at_us: int, tokens: float) -> None:
        """What may come on top in every interval around ``at_us``: charges lost by a promotion, and the like."""
        if self._lowest is None:
            self._lowest = -self._per_us * at_us
        self._used -= round(tokens * self._unit)

    def allow_time(self, at_us: int, time_us: int) -> None:
        """The same for so much refill."""
        self.allow(at_us, self._per_us * time_us / self._unit)

    @property
    def capacity(self) -> float:
        return self._capacity / self._unit

    @property
    def worst(self) -> float:
        return max(self._worst / self._unit, self._worst_before)


class WindowBound:
    """One window of one key: what all regions together were admitted, against the limit."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.admitted = 0
        self.allowed = 0
        self.last_us = 0

    def admit(self, at_us: int, cost: int) -> None:
        self.last_us = at_us
        self.admitted += cost

    def allow(self, tokens: int) -> None:
        """What may come on top: charges lost by a promotion, and the like."""
        self.allowed += tokens

    @property
    def worst(self) -> int:
        """So many tokens too many (<= 0: the bound holds)."""
        return self.admitted - self.capacity - self.allowed
