"""Did all regions together keep the bound of a limit?  A checker that knows nothing of shares.  Pure.

In any t seconds at most C + R x t x (1 + 0.001) tokens are admitted (docs/semantics.md, "What the bound is").  All
intervals are looked at in one pass: with A(t) what was admitted until t, the worst excess is the largest
A(t) - R't - min over s <= t of (A(s-) - R's), less C.  Integers only.

The simulated world knows the moment of each decision.  Of a real one it is known to lie between the moment its
check was sent and the moment its answer came: with A(t) what was *answered* by t, and B(s) what was *sent* before
s, at least A(t) - B(s) were admitted in (s, t].  So an excess that is found is one, whatever the latencies.
"""

from __future__ import annotations

from regional_limiter.model.rule import Rate


class BoundChecker:
    """One key's admissions, in the order of their time.

    ``last_us``: the last one.  ``worst``: the largest excess so far in tokens (<= 0: the bound holds), and from
    ``worst_since_us`` to ``worst_at_us`` when.
    """

    def __init__(
        self,
        capacity: float,
        refill: Rate,
        earlier: BoundChecker | None = None,
        *,
        slack_per_mille: int = 1,
    ) -> None:
        """``earlier``: what was checked until now by other numbers; its worst stays the worst."""
        # Everything in 1/unit tokens, so that a microsecond's refill is an integer.
        self._unit = refill.period_ms * 1000 * 1000
        self._per_us = refill.tokens * (1000 + slack_per_mille)
        self._capacity = round(capacity * self._unit)
        self._refilled = 0
        self._answered = 0
        self._sent = 0
        self._lowest: int | None = None
        self._lowest_at_us = 0
        self._worst: int | None = None
        self._worst_before = earlier.worst if earlier is not None else float("-inf")
        self.last_us = 0
        self.worst_since_us = 0
        self.worst_at_us = 0
        self.admitted = 0

    def admit(self, at_us: int, cost: int) -> None:
        """``cost`` tokens were admitted at ``at_us``.  Raises ValueError when time goes back."""
        self.sent(at_us, cost)
        self.answered(at_us, cost)

    def sent(self, at_us: int, cost: int) -> None:
        """A check was sent that will be admitted: not before then.  Raises ValueError when time goes back."""
        self._go_on(at_us)
        before = self._sent - self._refilled
        if self._lowest is None or before < self._lowest:
            self._lowest, self._lowest_at_us = before, at_us
        self._sent += cost * self._unit

    def answered(self, at_us: int, cost: int) -> None:
        """The answer of one that was ``sent`` came: it was admitted by then.  Raises ValueError likewise."""
        self._go_on(at_us)
        self.admitted += cost
        self._answered += cost * self._unit
        lowest = self._lowest if self._lowest is not None else -self._refilled
        over = self._answered - self._refilled - lowest - self._capacity
        if self._worst is None or over > self._worst:
            self._worst, self.worst_since_us, self.worst_at_us = over, self._lowest_at_us, at_us

    def allow(self, at_us: int, tokens: float) -> None:
        """What may come on top in every interval around ``at_us``: charges lost by a promotion, and the like."""
        self.allow_from(at_us, tokens)
        self.allow_until(at_us, tokens)

    def allow_time(self, at_us: int, time_us: int) -> None:
        """The same for so much refill."""
        self.allow(at_us, self._per_us * time_us / self._unit)

    def allow_from(self, at_us: int, tokens: float, per_second: float = 0.0) -> None:
        """From now on, until :meth:`allow_until`: so much on top of every interval that meets that time, and
        ``per_second`` for as long as both last."""
        self._go_on(at_us)
        if self._lowest is None:
            self._lowest = self._sent - self._refilled
        self._answered -= round(tokens * self._unit)
        self._per_us += round(per_second * self._unit / 1_000_000)

    def allow_until(self, at_us: int, tokens: float, per_second: float = 0.0) -> None:
        """What :meth:`allow_from` has begun is over."""
        self._go_on(at_us)
        self._sent -= round(tokens * self._unit)
        self._per_us -= round(per_second * self._unit / 1_000_000)

    def _go_on(self, at_us: int) -> None:
        if self._lowest is None and not self._answered:
            self.last_us = at_us  # the first moment of all
        if at_us < self.last_us:
            raise ValueError(f"{at_us} us comes after {self.last_us} us")
        self._refilled += self._per_us * (at_us - self.last_us)
        self.last_us = at_us

    @property
    def capacity(self) -> float:
        return self._capacity / self._unit

    @property
    def worst(self) -> float:
        worst = self._worst if self._worst is not None else -self._capacity
        return max(worst / self._unit, self._worst_before)


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
