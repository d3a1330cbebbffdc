"""One rule set over a log, or two of them beside each other.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from regional_limiter.model.errors import InvalidCheck
from regional_limiter.model.rule import RuleSet
from services.rehearsal.replay import BUCKETS_MOST, Decided, Replay
from services.rehearsal.suggest import Notes
from services.rehearsal.tally import KEYS_MOST, Keys, Tally


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may be remembered of each rule set."""

    keys_most: int = KEYS_MOST
    buckets_most: int = BUCKETS_MOST


class Rehearsed:
    """One rule set: its replay and what was counted."""

    def __init__(self, rule_set: RuleSet, bounds: Bounds, notes: Notes | None = None) -> None:
        self.rule_set = rule_set
        self.replay = Replay(rule_set, bounds.buckets_most, notes.note if notes is not None else None)
        self.tally = Tally(len(rule_set.rules), bounds.keys_most)

    def take(self, now_ms: int, attributes: Mapping[str, str], cost: int) -> Decided:
        """Raises InvalidCheck."""
        decided = self.replay.decide(now_ms, attributes, cost)
        self.tally.count(now_ms, decided)
        return decided


class Difference:
    """Checks that only one of two sets denied, and the keys of the rules that did."""

    def __init__(self, keys_most: int) -> None:
        self.newly_denied = 0
        self.newly_allowed = 0
        self.denied_by_both = 0
        self.keys_denied = Keys(keys_most)
        self.keys_allowed = Keys(keys_most)

    def take(self, proposed: Decided, current: Decided) -> None:
        if proposed.allowed and current.allowed:
            return
        if not proposed.allowed and not current.allowed:
            self.denied_by_both += 1
        elif current.allowed:
            self.newly_denied += 1
            _count_denying(self.keys_denied, proposed)
        else:
            self.newly_allowed += 1
            _count_denying(self.keys_allowed, current)


def _count_denying(keys: Keys, decided: Decided) -> None:
    for met in decided.met:
        if met.denied:
            keys.count(met.place, met.identity, True)


class Rehearsal:
    """``proposed`` and, if there is one, ``current`` over the same requests, each from nothing used.

    ``notes``: takes down what the rules of ``proposed`` are asked.
    """

    def __init__(
        self,
        proposed: RuleSet,
        current: RuleSet | None = None,
        bounds: Bounds | None = None,
        notes: Notes | None = None,
    ) -> None:
        bounds = bounds or Bounds()
        self.bounds = bounds
        self.proposed = Rehearsed(proposed, bounds, notes)
        self.current = Rehearsed(current, bounds) if current is not None else None
        self.difference = Difference(bounds.keys_most) if current is not None else None
        self.refused: Counter[str] = Counter()
        self.from_ms: int | None = None
        self.until_ms = 0

    @property
    def names(self) -> set[str]:
        """The attributes that the sets ask for."""
        names = self.proposed.replay.names
        return names | self.current.replay.names if self.current is not None else names

    def run(self, requests: Iterable[tuple[int, tuple[Mapping[str, str], int]]]) -> None:
        """``requests``: (time in ms, (attributes, cost)), times never going back."""
        proposed, current, difference = self.proposed, self.current, self.difference
        for now_ms, (attributes, cost) in requests:
            if self.from_ms is None:
                self.from_ms = now_ms
            self.until_ms = now_ms
            try:
                decided = proposed.take(now_ms, attributes, cost)
                if current is not None and difference is not None:
                    difference.take(decided, current.take(now_ms, attributes, cost))
            except InvalidCheck as error:
                self.refused[str(error)] += 1
