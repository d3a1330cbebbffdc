"""Which limit would have denied at most so many per cent of what a rule was asked.

While a rehearsal runs, what each rule is asked is noted in a file (20 bytes a check); then limits are tried on it
with the algorithm itself: twice the present one and so on until one is large enough, then by halving what lies
between.  Buckets keep the time in which they fill: capacity and rate grow together.

A key that one limit never denies is never denied by a larger one, so it need not be tried again; and that a limit
does not deny a key is mostly found out with little work (``suspects.py``): left are the few keys that decide.
The least limit is found to the unit up to a hundred, beyond to one in a hundred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from struct import Struct
from typing import IO

from regional_limiter.algorithms.registry import fixed_share, functions_of
from regional_limiter.model.rule import Rule, RuleSet
from regional_limiter.rules import limit_in_words
from regional_limiter.rules.faults import Faults
from regional_limiter.rules.numbers import FIELDS, amount_field, asked_rate, read_numbers
from regional_limiter.store.base import BucketCall
from regional_limiter.store.bucket_table import BucketTable
from services.rehearsal.replay import call_of
from services.rehearsal.suspects import suspects

_ASKED = Struct("<qqI")
"""When in ms, a hash of the key, and the cost."""
_RECORDS_A_READ = 10_000
_FINE = 100
_LIMIT_MOST = 2**40
_DENIED_KEYS_MOST = 1_000_000


class Asked:
    """What one rule was asked, in a file that ``opened`` makes."""

    def __init__(self, opened: Callable[[], IO[bytes]]) -> None:
        self._file = opened()
        self.checks = 0

    def note(self, now_ms: int, key: str, cost: int) -> None:
        self._file.write(_ASKED.pack(now_ms, hash(key), cost))
        self.checks += 1

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """(time in ms, hash of the key, cost), as they were asked."""
        self._file.seek(0)
        while block := self._file.read(_RECORDS_A_READ * _ASKED.size):
            yield from _ASKED.iter_unpack(block)

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class Suggestion:
    """``fields``: the numbers to write into the rule; None: ``problem`` says why there are none."""

    rule: Rule
    checks: int
    fields: dict[str, object] | None
    in_words: str | None
    denied: int | None
    problem: str | None = None


class Notes:
    """What the rules of a set were asked: those that limit, for keys without an override."""

    def __init__(self, rule_set: RuleSet, opened: Callable[[], IO[bytes]]) -> None:
        self._asked = {id(rule): (rule, Asked(opened)) for rule in rule_set.rules}

    def note(self, rule: Rule, now_ms: int, key: str, cost: int) -> None:
        """``rule`` as it is in force for ``key``: that of an override, or of a canary, is not noted."""
        found = self._asked.get(id(rule))
        if found is not None and cost:
            found[1].note(now_ms, key, cost)

    def suggestions(self, percent: float, buckets_most: int) -> Iterator[Suggestion]:
        """One for each rule that was asked anything; its file is closed then."""
        for rule, asked in self._asked.values():
            if asked.checks:
                yield suggest(rule, asked, percent, buckets_most)
            asked.close()


def suggest(rule: Rule, asked: Asked, percent: float, buckets_most: int) -> Suggestion:
    """The least limit under which ``rule`` alone would have denied at most ``percent`` of what it was asked."""
    if rule.capacity == 0:
        return _none(rule, asked, "a limit of 0 has nothing to scale")
    most_denied = int(asked.checks * Fraction(str(percent)) / 100)
    trial = _Trial(rule, asked, buckets_most)
    too_small, enough, denied = 0, rule.capacity, trial.denied(rule.capacity)
    if denied is None:
        return _none(rule, asked, "its numbers are at the bound of what can be held")
    while denied > most_denied:
        too_small, enough = enough, 2 * enough
        tried = trial.denied(enough)
        if tried is None or enough > _LIMIT_MOST:
            return _none(rule, asked, f"{too_small:,} still denies {denied:,}, and larger ones cannot be held")
        denied = tried
    while enough - too_small > max(1, enough // _FINE):
        between = (too_small + enough) // 2 if too_small else max(1, enough // 2)
        tried = trial.denied(between)
        if tried is None or tried > most_denied:
            too_small = between
        else:
            enough, denied = between, tried
    fields = numbers_for(rule, enough)
    scaled = _scaled(rule, enough)
    words = limit_in_words(scaled) if scaled is not None else None
    return Suggestion(rule, asked.checks, fields, words, denied)


def _none(rule: Rule, asked: Asked, problem: str) -> Suggestion:
    return Suggestion(rule, asked.checks, None, None, None, problem)


class _Trial:
    """Tries limits of one rule; knows which keys the largest limit that was too small has denied."""

    def __init__(self, rule: Rule, asked: Asked, buckets_most: int) -> None:
        self._rule = rule
        self._asked = asked
        self._buckets_most = buckets_most
        self._from = 0
        self._keys: set[int] | None = None

    def denied(self, amount: int) -> int | None:
        """How many checks a limit of ``amount`` denies.  None: it cannot be held."""
        scaled = _scaled(self._rule, amount)
        if scaled is None:
            return None
        call = call_of(scaled)
        functions, share = functions_of(call), fixed_share(call)
        known = self._keys if amount >= self._from else None
        found = suspects(scaled, self._asked, known, self._buckets_most)
        only = known if found is None else found
        if only is not None and not only:
            return 0
        calls: dict[int, BucketCall] = {}
        buckets = BucketTable(self._buckets_most)
        denied, keys = 0, set()
        for now_ms, key, cost in self._asked:
            if only is not None and key not in only:
                continue
            call = calls.get(cost) or calls.setdefault(cost, replace(call, cost=cost))
            group = functions.storage_key(call, now_ms)
            name = f"{key}{group}"
            outcome = functions.decide(buckets.get(name, group, now_ms), call, share, now_ms)
            if not outcome.allowed:
                denied += 1
                keys.add(key)
            ending = outcome.charged if outcome.allowed or outcome.costs_denied else outcome.left
            if ending.state is not None:
                buckets.put(name, group, ending.state, ending.ttl_ms, now_ms)
        if amount >= self._from and not buckets.merged and len(keys) <= _DENIED_KEYS_MOST:
            self._from, self._keys = amount, keys
        return denied


def numbers_for(rule: Rule, amount: int) -> dict[str, object]:
    """The fields of a rule whose amount is ``amount``; a rate goes with it, so that it fills in the same time."""
    fields: dict[str, object] = {amount_field(rule.algorithm): amount}
    if rule.refill is not None:
        name = FIELDS[rule.algorithm][1]
        asked = asked_rate(Faults(), "", rule.source) or Fraction(rule.refill.tokens, rule.refill.period_ms)
        a_second = asked * 1000 * amount / rule.capacity
        unit = "s" if a_second.denominator == 1 else f"{a_second.denominator}s"
        fields[name] = f"{a_second.numerator}/{unit}"
    return fields


def _scaled(rule: Rule, amount: int) -> Rule | None:
    """The rule with these numbers.  None: they cannot be held."""
    if amount == rule.capacity:
        return rule
    other = ("refill", "refill_per_second") if rule.refill is not None else ()
    source = {name: text for name, text in rule.source.items() if name not in other} | numbers_for(rule, amount)
    faults = Faults()
    held = read_numbers(faults, "", source, rule.algorithm)
    return None if faults.count else replace(rule, **held._asdict(), source=source)
