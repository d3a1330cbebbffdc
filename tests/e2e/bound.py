"""Does a run of admitted checks keep the bound of a global limit?

An admission is known to lie between the moment its check was sent and the moment its answer came.  For a window
(s, t] the checks that were surely admitted in it are those sent at s or later and answered by t; their cost must
not exceed ``burst + rate * (t - s) * (1 + slack)``.  So a violation found here is one, whatever the latencies.
"""

from __future__ import annotations

from collections.abc import Iterable


def worst_excess(admitted: Iterable[tuple[float, float]], burst: float, rate: float, slack: float = 0.001) -> float:
    """The largest excess over the bound in any window, in requests of cost 1 (<= 0: the bound holds).

    ``admitted``: (sent at, answered at) in seconds of one clock.
    """
    checks = list(admitted)
    allowed_rate = rate * (1 + slack)
    # A(t): answered by t.  B(s): sent before s.  Surely admitted in (s, t]: at least A(t) - B(s).
    events = sorted([(sent, 0) for sent, _ in checks] + [(answered, 1) for _, answered in checks])
    sent_before = answered_by = 0
    lowest = float("inf")
    worst = float("-inf")
    for at, is_answer in events:
        if is_answer:
            answered_by += 1
            worst = max(worst, answered_by - allowed_rate * at - lowest - burst)
        else:
            lowest = min(lowest, sent_before - allowed_rate * at)
            sent_before += 1
    return worst


def rate_between(admitted: Iterable[tuple[float, float]], start: float, end: float) -> float:
    """Admitted checks a second among those answered in [start, end)."""
    return sum(start <= answered < end for _, answered in admitted) / (end - start)
