"""What a node counts on the way of a check: plain integers and arrays of buckets.

Labels are rules, outcomes and routes: never a key, a user or an address of a caller; every table has a bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from regional_limiter.durations import Durations, Exemplar
from regional_limiter.model.decision import Answer

SERIES_MOST = 4096
OTHER = "_other"
"""The label of what came after a table was full."""


ALLOWED, DENIED = "allowed", "denied"

Series = tuple[str, str, str, str]
"""Domain, rule, outcome (allowed or denied) and reason."""


@dataclass(frozen=True, slots=True)
class StoreCalls:
    """What a store counts of the calls of checks, by server: how long they took, how many had no reply.  ``slots``:
    which of the cluster's hash slots a server serves, as half-open ranges."""

    took: Mapping[str, Durations] = field(default_factory=dict)
    unanswered: Mapping[str, int] = field(default_factory=dict)
    slots: Callable[[str], Sequence[tuple[int, int]]] = lambda _: ()


class Counts:
    """The counters of one node.  Every method is called on the event loop and takes a few hundred nanoseconds."""

    def __init__(self) -> None:
        self.checks: dict[Series, int] = {}
        self.degraded_answers = 0
        self.answers_at_floor = 0
        """Of the degraded ones: the store decided all of it."""
        self.repeated = 0
        """Answers that a request with an id had been given before."""
        self.unexpected_errors = 0
        self.durations: dict[tuple[str, str, int], Durations] = {}
        self.calls: dict[tuple[str, int], Durations] = {}
        """Of gRPC, by method and status code."""
        self.unknown_domains = 0
        """Requests of gateways for a domain that has no rules here."""
        self.quota_events: Mapping[str, int] = {}
        """Of the rate limit quota service, by what happened; the service's own."""

    def checked(self, domain: str, answer: Answer) -> None:
        """A check has been answered.  A domain is a label only if one of its rules was named."""
        verdicts = answer.verdicts
        if verdicts and verdicts[0].verdict.replayed and all(item.verdict.replayed for item in verdicts):
            self.repeated += 1
            return
        rule = answer.rule
        reason = answer.reason._value_  # what .value looks up, at a seventh of its price
        outcome = ALLOWED if answer.allowed else DENIED
        self.count((domain, rule, outcome, reason) if rule is not None else ("", "", outcome, reason))
        if answer.degraded:
            self.degraded_answers += 1
            if not any(item.verdict.degraded for item in answer.verdicts):
                self.answers_at_floor += 1

    def count(self, series: Series) -> None:
        """One more of ``series``: all that there is to count of an answer that is not degraded."""
        known = self.checks.get(series)
        if known is not None:
            self.checks[series] = known + 1
            return
        if len(self.checks) >= SERIES_MOST:
            series = (OTHER, OTHER, *series[2:])
        self.checks[series] = self.checks.get(series, 0) + 1

    def missed_domain(self) -> None:
        """A gateway has asked about a domain that has no rules here."""
        self.unknown_domains += 1

    def called(self, method: str, code: int, duration_s: float) -> None:
        """A gRPC call has ended with ``code``."""
        durations = self.calls.get((method, code))
        if durations is None:
            durations = self.calls.setdefault((method, code), Durations())
        durations.record(duration_s)

    def served(self, method: str, route: str, status: int, duration_s: float) -> None:
        """A request has been answered.  ``method`` and ``route`` come from our own tables, not from callers."""
        key = (method, route, status)
        durations = self.durations.get(key)
        if durations is None:
            durations = self.durations[key] = Durations()
        durations.counts[bisect_left(durations.bounds_s, duration_s)] += 1
        durations.sum_s += duration_s

    def exemplify(self, method: str, route: str, status: int, exemplar: Exemplar) -> None:
        """A request that :meth:`served` has counted is one whose trace is kept."""
        durations = self.durations.get((method, route, status))
        if durations is not None:
            durations.exemplify(exemplar)
