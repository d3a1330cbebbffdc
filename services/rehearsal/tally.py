"""What a rehearsal counts: by rule, by key, over time.  Pure; every table is bounded.

Keys are counted from when they are first seen.  When their table is full, those that were never denied go first,
then those denied least: a key that is left is counted right, unless it had been dropped before, and the report says
how many were.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nlargest

from services.rehearsal.replay import Decided, Identity

KEYS_MOST = 100_000
BINS_MOST = 240
FIRST_STEP_MS = 1000


@dataclass(slots=True)
class RuleCount:
    """``denied``: a shadow rule would have, a soft one let pass.  ``alone``: and no other rule did."""

    checks: int = 0
    denied: int = 0
    alone: int = 0


@dataclass(slots=True)
class Bin:
    """One step of time.  ``by_rule``: denied, by the rule's place."""

    checks: int = 0
    denied: int = 0
    by_rule: dict[int, int] = field(default_factory=dict)

    def add(self, other: Bin) -> None:
        self.checks += other.checks
        self.denied += other.denied
        for place, count in other.by_rule.items():
            self.by_rule[place] = self.by_rule.get(place, 0) + count


class OverTime:
    """Counts in steps that double whenever there are more than ``BINS_MOST`` of them."""

    def __init__(self) -> None:
        self.step_ms = FIRST_STEP_MS
        self._bins: dict[int, Bin] = {}
        self._until_ms = 0
        self._bin = Bin()

    def at(self, now_ms: int) -> Bin:
        """The bin of ``now_ms``, which never goes back."""
        if now_ms >= self._until_ms:
            self._turn(now_ms)
        return self._bin

    def _turn(self, now_ms: int) -> None:
        while self._bins and now_ms // self.step_ms - min(self._bins) >= BINS_MOST:
            self._halve()
        number = now_ms // self.step_ms
        self._bin = self._bins.setdefault(number, Bin())
        self._until_ms = (number + 1) * self.step_ms

    def _halve(self) -> None:
        self.step_ms *= 2
        merged: dict[int, Bin] = {}
        for number, counted in self._bins.items():
            merged.setdefault(number // 2, Bin()).add(counted)
        self._bins = merged

    def bins(self) -> list[tuple[int, Bin]]:
        """(start in ms, counts), every step from the first to the last."""
        if not self._bins:
            return []
        numbers = range(min(self._bins), max(self._bins) + 1)
        return [(number * self.step_ms, self._bins.get(number, Bin())) for number in numbers]


class Keys:
    """How often each key asked and was denied, by rule; at most ``most`` of them."""

    def __init__(self, most: int = KEYS_MOST) -> None:
        self._most = most
        self._counts: dict[tuple[int, Identity], list[int]] = {}
        self.forgotten = 0

    def count(self, place: int, identity: Identity, denied: bool) -> None:
        key = (place, identity)
        counts = self._counts.get(key)
        if counts is None:
            if len(self._counts) >= self._most:
                self._make_room()
            counts = self._counts[key] = [0, 0]
        counts[0] += 1
        if denied:
            counts[1] += 1

    def _make_room(self) -> None:
        """Half of the table goes: the least denied, of those the ones that asked least."""
        kept = nlargest(self._most // 2, self._counts.items(), key=lambda item: (item[1][1], item[1][0]))
        self.forgotten += len(self._counts) - len(kept)
        self._counts = dict(kept)

    def most_denied(self, most: int) -> list[tuple[int, Identity, int, int]]:
        """(place of the rule, identity, checks, denied), the most denied first."""
        found = ((key, counts) for key, counts in self._counts.items() if counts[1])
        top = nlargest(most, found, key=lambda item: (item[1][1], item[1][0], str(item[0])))
        return [(place, identity, asked, denied) for (place, identity), (asked, denied) in top]

    def denied_by_rule(self) -> dict[int, int]:
        """How many keys each rule denied at least once, of those still known."""
        found: dict[int, int] = {}
        for (place, _), (_, denied) in self._counts.items():
            if denied:
                found[place] = found.get(place, 0) + 1
        return found


class Tally:
    """Everything that is counted of one rule set.  Times are those of the log and never go back."""

    def __init__(self, rules: int, keys_most: int = KEYS_MOST) -> None:
        self.checks = 0
        self.denied = 0
        self.no_rule = 0
        self.by_rule = [RuleCount() for _ in range(rules)]
        self.keys = Keys(keys_most)
        self.over_time = OverTime()

    def count(self, now_ms: int, decided: Decided) -> None:
        self.checks += 1
        now = self.over_time.at(now_ms)
        now.checks += 1
        if not decided.met:
            self.no_rule += 1
        denying = []
        for met in decided.met:
            counted = self.by_rule[met.place]
            counted.checks += 1
            self.keys.count(met.place, met.identity, met.denied)
            if met.denied:
                denying.append(met.place)
                counted.denied += 1
                now.by_rule[met.place] = now.by_rule.get(met.place, 0) + 1
        if not decided.allowed:
            self.denied += 1
            now.denied += 1
        if len(denying) == 1:
            self.by_rule[denying[0]].alone += 1
