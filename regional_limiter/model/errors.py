"""Every error that the limiter raises on purpose.

ApportionError
+-- InvalidCheck        the caller erred: a field of a check is wrong (422, names the field)
    +-- OtherRequest    the request's id is another one's, which asked for something else; nothing ran
+-- InvalidRules        the operator erred: a rule set is refused whole, with every fault by its place
+-- RulesUnavailable    a domain whose rules this node cannot read: its checks have no answer (503)
+-- StoreUnavailable    the store erred: no answer within the deadline, or a refusal
    +-- OtherWindows    the caller's windows are not those of the store's clock; nothing ran
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class ApportionError(Exception):
    """Base of the project's errors."""


class InvalidCheck(ApportionError):
    """A field of a request is wrong.  ``field`` is its path, ``expected`` says what would be right."""

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field}: {expected}")
        self.field = field
        self.expected = expected


class OtherRequest(InvalidCheck):
    """A ``request_id`` that came with another cost, or met other buckets, less than a minute ago."""

    def __init__(self) -> None:
        super().__init__("request_id", "one that asked for no other cost and met no other rules in the last minute")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a rule set: ``place`` like ``rules[3].refill``, ``problem`` says what would be right."""

    place: str
    problem: str


class InvalidRules(ApportionError):
    """A rule set is refused whole.  ``faults`` holds every fault, never only the first."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(f"{fault.place}: {fault.problem}" for fault in faults))
        self.faults = tuple(faults)


class RulesUnavailable(ApportionError):
    """The domain has rules that this node cannot read, and none in force.  ``problem``: what is wrong with them."""

    def __init__(self, domain: str, problem: str) -> None:
        super().__init__(f"the rules of {domain} cannot be read: {problem}")
        self.domain = domain
        self.problem = problem


class StoreUnavailable(ApportionError):
    """The store gave no answer.  ``may_have_run`` is False only when it is proven that nothing was executed.

    ``server``: which one was asked.  ``silent_since_us``: since when it has answered no check (steady clock).  Both
    may be unknown.  ``sub_bucket``: which one of a split key was asked; -1: the key is not split.
    """

    def __init__(self, cause: str, *, may_have_run: bool = True) -> None:
        super().__init__(cause)
        self.cause = cause
        self.may_have_run = may_have_run
        self.server = ""
        self.silent_since_us: int | None = None
        self.sub_bucket = -1


class OtherWindows(StoreUnavailable):
    """The windows of a calendar that came with a call are not around the store's clock, which is at ``time_ms``."""

    def __init__(self, time_ms: int) -> None:
        super().__init__("other_windows", may_have_run=False)
        self.time_ms = time_ms
