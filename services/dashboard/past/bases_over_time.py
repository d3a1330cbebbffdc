"""Which bases were in force when, by the log.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from global_sync.protocol.messages import Record
from regional_limiter.model.share import domain_of_floor
from services.bases_seen import BasesSeen

CHANGES_MOST = 200
"""Of one domain, the newest."""


class BaseChange(NamedTuple):
    """From ``at_ms`` on, by the broker's clock, the log's version ``version`` of the bases: region -> units."""

    at_ms: int
    version: int
    bases: Mapping[str, int]


class BasesOverTime:
    """``state`` is all that is known, for a file; ``known``: what that said.

    A version is in force from its DONE on: from there no region holds more than it says.
    """

    def __init__(self, known: Mapping[str, Sequence[BaseChange]] | None = None) -> None:
        self._changes = {domain: list(changes) for domain, changes in (known or {}).items()}
        self._version = max((one[-1].version for one in self._changes.values() if one), default=0)
        self._seen = BasesSeen()
        self.changed = False
        """Whether there is more than when this was last set to False."""

    def state(self) -> dict[str, list[BaseChange]]:
        return self._changes

    def take(self, record: Record, stamp_ms: int) -> None:
        """Records that were read before, as a log is read again from its beginning, change nothing."""
        self._seen.take(record)
        version = self._seen.done_version
        if version <= self._version or version != self._seen.version:
            return
        self._version = version
        for domain, bases in self._seen.bases.items():
            if domain_of_floor(domain) is None:
                self._change(domain, BaseChange(stamp_ms, version, dict(bases)))

    def _change(self, domain: str, change: BaseChange) -> None:
        changes = self._changes.setdefault(domain, [])
        if changes and changes[-1].bases == change.bases:
            return
        changes.append(change)
        del changes[:-CHANGES_MOST]
        self.changed = True

    def at(self, domain: str, at_ms: int) -> BaseChange | None:
        """What was in force then; of a moment before all that is known, what is known first.  None: nothing."""
        changes = self._changes.get(domain)
        if not changes:
            return None
        return next((one for one in reversed(changes) if one.at_ms <= at_ms), changes[0])

    def between(self, domain: str, from_ms: int, until_ms: int) -> list[BaseChange]:
        """What came into force within (from, until): but for the first that is known, before which nothing is."""
        return [one for one in self._changes.get(domain, [])[1:] if from_ms < one.at_ms < until_ms]
