"""Which bases were in force when, by the log.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

from global_sync.protocol.messages import Record
from regional_limiter.model.share import domain_of_floor
from services.bases_seen import BasesSeen
from services.dashboard.past.share_steps import KEPT_MS

CHANGES_MOST = 200
"""Of one domain, the newest."""
CHANGES_OF_ALL_MOST = 10_000
"""Of all domains, the newest; besides them, of each the one that was in force before them."""


class BaseChange(NamedTuple):
    """From ``at_ms`` on, by the broker's clock, the log's version ``version`` of the bases: region -> units.

    Without any, the domain has had no rules from then on.
    """

    at_ms: int
    version: int
    bases: Mapping[str, int]


class BasesKept(NamedTuple):
    """All that is known, for a file.  ``version``: the newest that was in force; ``bases``: those that differ, each
    once; ``changes``: by domain at_ms, version and the place in ``bases``."""

    version: int
    bases: list[Mapping[str, int]]
    changes: dict[str, list[tuple[int, int, int]]]


class BasesOverTime:
    """``kept``: what is known of before.

    A version is in force from its DONE on: from there no region holds more than it says.
    """

    def __init__(self, kept: BasesKept | None = None) -> None:
        version, bases, changes = kept or BasesKept(0, [], {})
        self._version = version
        self._changes = {
            domain: [BaseChange(at_ms, of, bases[place]) for at_ms, of, place in those]
            for domain, those in changes.items()
        }
        self._seen = BasesSeen()
        self.changed = False
        """Whether there is more than when this was last set to False."""

    def state(self) -> BasesKept:
        bases: list[Mapping[str, int]] = []
        places: dict[int, int] = {}  # those of one version that are alike are one object
        changes: dict[str, list[tuple[int, int, int]]] = {}
        for domain, those in self._changes.items():
            for one in those:
                if id(one.bases) not in places:
                    places[id(one.bases)] = len(bases)
                    bases.append(one.bases)
            changes[domain] = [(one.at_ms, one.version, places[id(one.bases)]) for one in those]
        return BasesKept(self._version, bases, changes)

    def begin_anew(self) -> None:
        """What comes is another log, whose versions begin again; what was in force when stays true."""
        self._version, self._seen, self.changed = 0, BasesSeen(), True

    def take(self, record: Record, stamp_ms: int) -> None:
        """Records that were read before, as a log is read again from its beginning, change nothing."""
        self._seen.take(record)
        version = self._seen.done_version
        if version <= self._version or version != self._seen.version:
            return
        self._version = version
        alike: dict[tuple[tuple[str, int], ...], Mapping[str, int]] = {}
        rested = {domain: those for domain, those in self._seen.bases.items() if domain_of_floor(domain) is None}
        for domain in {**self._changes, **rested}:
            bases = dict(rested.get(domain, {}))
            self._change(
                domain, BaseChange(stamp_ms, version, alike.setdefault(tuple(sorted(bases.items())), bases))
            )
        if self.changed:
            self._let_go(stamp_ms - KEPT_MS)

    def _change(self, domain: str, change: BaseChange) -> None:
        changes = self._changes.get(domain, [])
        if change.bases == (changes[-1].bases if changes else {}):
            return
        self._changes[domain] = changes
        changes.append(change)
        del changes[:-CHANGES_MOST]
        self.changed = True

    def _let_go(self, before_ms: int) -> None:
        """What was in force no more since then; what is over the bound, the oldest first; domains that are left
        without any bases, after all that is told of them."""
        newest = sorted((one.at_ms for one in chain.from_iterable(self._changes.values())), reverse=True)
        if len(newest) > CHANGES_OF_ALL_MOST:
            before_ms = max(before_ms, newest[CHANGES_OF_ALL_MOST])
        for domain, changes in list(self._changes.items()):
            while len(changes) > 1 and changes[1].at_ms <= before_ms:
                del changes[0]
            if not changes[-1].bases and changes[-1].at_ms <= before_ms:
                del self._changes[domain]

    def at(self, domain: str, at_ms: int) -> BaseChange | None:
        """What was in force then; of a moment before all that is known, what is known first.  None: nothing."""
        changes = self._changes.get(domain)
        if not changes:
            return None
        return next((one for one in reversed(changes) if one.at_ms <= at_ms), changes[0])

    def between(self, domain: str, from_ms: int, until_ms: int) -> list[BaseChange]:
        """What came into force within (from, until): but for the first that is known, before which nothing is."""
        return [one for one in self._changes.get(domain, [])[1:] if from_ms < one.at_ms < until_ms]
