"""Completes checks by what is known of their clients in the region's store, before rules are matched.  I/O.

What was looked up is kept for as long as the domain's set says; after half of that it is looked up again beside the
check.  Several checks of one client ask once.  A check waits for a bounded time, and goes on by what was known last
when no answer has come by then, or as if nothing were known: it is never refused for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic_ns

from regional_limiter.model.decision import Check
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.plan import ATTRIBUTES_MOST, DomainRules
from regional_limiter.store.subjects import SubjectFound, SubjectLookup
from regional_limiter.subject_cache import SubjectCache

_log = logging.getLogger("apportion.node")

UNDER_WAY_MOST = 1_000
"""Look-ups; a check that would need another one goes on without."""
NOT_FILLED_KEPT_US = 1_000_000
"""For how long it is kept that a client is in a part of the store that is being filled."""

Then = Callable[[Check], None]


@dataclass(slots=True)
class SubjectCounts:
    """``unanswered``: checks that went on without an answer; ``stale``: those of them that knew an older one."""

    kept: int = 0
    looked_up: int = 0
    unanswered: int = 0
    stale: int = 0


@dataclass(frozen=True, slots=True)
class _Domain:
    """``keep_us``: how old what is known may be.  ``names``: the attributes that its rules look at."""

    keep_us: int
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Completed:
    """What a check becomes by what is ``known``; kept with it.  ``generation``: no plan's."""

    domain: _Domain
    known: Mapping[str, str]
    check: Check
    generation: int = -1


@dataclass(slots=True)
class _UnderWay:
    waiting: list[Callable[[], None]] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None


class SubjectLookups:
    """``wait_s``: the most that a check waits.  ``store`` None: it keeps nothing of clients."""

    def __init__(self, store: SubjectLookup | None, wait_s: float, now_us: Callable[[], int] | None = None) -> None:
        self._store = store
        self._wait_s = wait_s
        self._now_us = now_us or (lambda: monotonic_ns() // 1000)
        self._domains: dict[str, _Domain] = {}
        self._cache = SubjectCache()
        self._under_way: dict[tuple[str, str], _UnderWay] = {}
        self.counts = SubjectCounts()

    @property
    def is_needed(self) -> bool:
        """Whether a domain's checks are completed at all."""
        return bool(self._domains)

    def use(self, domains: Mapping[str, DomainRules]) -> None:
        """Look up for those of ``domains`` whose sets say so."""
        self._domains = {}
        if self._store is None:
            return
        for name, rules in domains.items():
            stored = rules.rule_set.stored_subjects
            if stored is not None:
                measures = (rule.cost.attribute for rule in rules.rule_set.rules if not isinstance(rule.cost, int))
                self._domains[name] = _Domain(stored.keep_ms * 1000, rules.names.union(measures))
        if not self._domains:
            self._cache.clear()

    @property
    def kept(self) -> int:
        """Clients of whom it is kept what is known, or that nothing is."""
        return len(self._cache)

    def at_once(self, check: Check) -> Check | None:
        """The check as what is known completes it; None while that has to be looked up."""
        domain = self._domains.get(check.domain)
        client_key = check.attributes.get("client_key") if domain is not None else None
        if domain is None or client_key is None:
            return check
        looked = self._cache.get(check.domain, client_key)
        if looked is None:
            return None
        age_us = self._now_us() - looked.at_us
        if age_us > domain.keep_us:
            return None
        self.counts.kept += 1
        if 2 * age_us > domain.keep_us:
            self._look_up((check.domain, client_key), None)
        return _completed(check, domain, looked.attributes)

    def complete(self, check: Check, then: Then) -> None:
        """Look up, and go on with the check as what is known by then completes it.  ``then`` is called once.

        For a check that could not be completed :meth:`at_once`.
        """
        place = check.domain, check.attributes["client_key"]
        self._look_up(place, partial(self._go_on, check, then, self._now_us()))

    def known(self, check: Check) -> Check:
        """The check as what was looked up last completes it: for whoever cannot wait."""
        domain = self._domains.get(check.domain)
        looked = self._cache.get(check.domain, check.attributes.get("client_key", ""))
        return check if domain is None or looked is None else _completed(check, domain, looked.attributes)

    def _go_on(self, check: Check, then: Then, asked_us: int) -> None:
        looked = self._cache.get(check.domain, check.attributes["client_key"])
        if looked is None or looked.at_us < asked_us:
            self.counts.unanswered += 1
            self.counts.stale += looked is not None
        domain = self._domains.get(check.domain)
        then(check if domain is None or looked is None else _completed(check, domain, looked.attributes))

    def _look_up(self, place: tuple[str, str], waiting: Callable[[], None] | None) -> None:
        assert self._store is not None
        under_way = self._under_way.get(place)
        if under_way is None:
            if len(self._under_way) >= UNDER_WAY_MOST:
                if waiting is not None:
                    waiting()
                return
            under_way = self._under_way[place] = _UnderWay()
            if waiting is not None:
                under_way.waiting.append(waiting)
            self.counts.looked_up += 1
            self._store.look_up(*place, partial(self._answered, place, self._now_us()))
        elif waiting is not None:
            under_way.waiting.append(waiting)
        if under_way.waiting and under_way.timer is None and place in self._under_way:
            under_way.timer = asyncio.get_running_loop().call_later(self._wait_s, self._waited, under_way)

    def _waited(self, under_way: _UnderWay) -> None:
        under_way.timer = None
        _release(under_way)

    def _answered(self, place: tuple[str, str], asked_us: int, outcome: SubjectFound | StoreUnavailable) -> None:
        under_way = self._under_way.pop(place)
        if under_way.timer is not None:
            under_way.timer.cancel()
        if isinstance(outcome, SubjectFound):
            self._take(place, asked_us, outcome)
        _release(under_way)

    def _take(self, place: tuple[str, str], asked_us: int, found: SubjectFound) -> None:
        domain, client_key = place
        if not found.is_filled and not found.attributes:
            # What was known before the store lost it is better than nothing.
            if (looked := self._cache.get(domain, client_key)) is not None and looked.attributes:
                looked.at_us = self._until(domain, asked_us)
                return
            asked_us = self._until(domain, asked_us)
        try:
            self._cache.put(domain, client_key, found.attributes, asked_us)
        except ValueError as error:
            _log.error("what is known of a client of %s cannot be read: %s", domain, error)

    def _until(self, domain: str, asked_us: int) -> int:
        """A time such that what is kept by it is looked up again after a second."""
        keep_us = self._domains[domain].keep_us if domain in self._domains else 0
        return asked_us - max(0, keep_us - NOT_FILLED_KEPT_US)


def _completed(check: Check, domain: _Domain, known: Mapping[str, str]) -> Check:
    """The check with what is known of its client, as if it had named that; what it names itself wins."""
    if not known:
        return check
    before = check.asking
    if type(before) is _Completed and before.known is known and before.domain is domain:
        return before.check
    room = ATTRIBUTES_MOST - len(check.attributes)
    names = [name for name in known if name in domain.names and name not in check.attributes]
    made = replace(check, attributes={**check.attributes, **{name: known[name] for name in names[: max(0, room)]}})
    object.__setattr__(check, "asking", _Completed(domain, known, made))
    return made


def _release(under_way: _UnderWay) -> None:
    waiting, under_way.waiting = under_way.waiting, []
    for go_on in waiting:
        try:
            go_on()
        except Exception:
            _log.exception("a check whose client was looked up could not go on")
