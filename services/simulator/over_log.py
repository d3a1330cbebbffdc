"""A rule set over the requests of a log, in a geography: the real code on the log's own clock.  [W]

Only global rules play a part.  The same requests meet the same limits in one place (what there would be without any
distance) and in parts for good; the keys that were denied most meet the models of other ways as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from global_sync.simulation import World
from global_sync.simulation.parts import Parts
from global_sync.simulation.world import Decided
from global_sync.transport.base import LOG, REPORTS
from regional_limiter.model.decision import Check
from regional_limiter.model.enforcement import Enforcement
from regional_limiter.model.errors import InvalidCheck
from regional_limiter.model.keys import rule_of
from regional_limiter.model.rule import Algorithm, Distribution, Mode, RuleSet, Scope
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.rules import parse_document
from services.simulator.log_counts import ARRIVALS_MOST, Asked, Key
from services.simulator.one_point import OnePoint, split_for_good, undivided
from services.simulator.placing import Placing
from services.simulator.run import SAMPLE_S, Sample

KEYS_MOST = 200_000
WATCHED_MOST = 20

Request = tuple[int, tuple[Mapping[str, str], int]]
"""(ms since 1970, (attributes, cost)), times never going back."""

Cut = tuple[float, Sequence[str], bool]
"""(seconds, regions, whether their links are cut from then on, or whole)."""


@dataclass(frozen=True, slots=True)
class LogSetting:
    """``rule_set``: of global rules only, see :func:`simulated_part`.  ``delays_ms``: one way to the hub.

    ``seconds_most``: of the log, from its first request.  ``keys_most``: the run ends before there are more.
    """

    rule_set: RuleSet
    delays_ms: Mapping[str, int]
    placing: Placing
    seconds_most: float
    cuts: Sequence[Cut] = ()
    seed: int = 1
    times: ProtocolTimes = field(default_factory=ProtocolTimes)
    keys_most: int = KEYS_MOST
    arrivals_most: int = ARRIVALS_MOST


@dataclass(slots=True)
class LogOutcome:
    """``requests``: those decided; ``allowed``, ``at_once`` and ``parted`` of them.  ``ended_early``: why, if so.

    ``asked_by_region``: requests; ``by_region``: those allowed.

    ``shares_most``: the largest sum of shares in force that was seen of any key.  ``problems``: invariants and
    bounds that did not hold (none: that is the promise).  ``watched``: by key, its shares at each of ``samples``.
    """

    seconds: float
    requests: int
    allowed: int
    at_once: int
    parted: int
    by_rule: dict[str, Asked]
    keys: dict[str, Key]
    refused: Counter[str]
    unplaced: Counter[str]
    asked_by_region: list[int]
    by_region: list[int]
    messages_a_second: float
    bytes_a_second: float
    shares_most: int
    samples: list[Sample]
    watched: dict[str, list[tuple[int, ...]]]
    problems: list[str]
    ended_early: str = ""
    arrivals_kept: bool = True


class LongRunning(Enforcement):
    """A point that has run, with the same bases, for longer than any window lasts."""

    def _born(self, now_us: int):  # type: ignore[no-untyped-def]
        variable = super()._born(now_us)
        variable.born = -(2**62)
        return variable

    @staticmethod
    def _base_of_window(variable, domain: str, start_us: int) -> int:  # type: ignore[no-untyped-def]
        known = variable.bases.get(domain)
        return known.series.now if known is not None else 0


def simulated_part(rule_set: RuleSet, regions: Mapping[str, int]) -> tuple[RuleSet, dict[str, str]]:
    """The set's global rules that are in force, over ``regions``; and why each other rule is left out, by its id.

    Raises InvalidRules where a rule cannot be over so many regions.
    """
    left_out = {}
    for rule in rule_set.rules:
        if rule.scope is not Scope.GLOBAL:
            left_out[rule.id] = "of region scope: shares play no part"
        elif rule.mode is not Mode.ENFORCE:
            left_out[rule.id] = f"in {rule.mode.value} mode"
        elif rule.distribution is Distribution.HOME:
            left_out[rule.id] = "of distribution home: each key's home decides it whole, shares play no part"
        elif rule.algorithm is Algorithm.CONCURRENCY:
            left_out[rule.id] = "a log does not say when a slot would have been released"
    document = dict(rule_set.source)
    document["regions"] = dict(regions)
    document["rules"] = [
        {**rule, **_without(rule, left_out)} for rule in _listed(document, "rules") if rule["id"] not in left_out
    ]
    document["overrides"] = [one for one in _listed(document, "overrides") if one["rule"] not in left_out]
    document.pop("stored_subjects", None)
    return parse_document(document), left_out


def _without(rule: Mapping[str, object], left_out: Mapping[str, str]) -> dict[str, object]:
    replaced = rule.get("replaces")
    return {"replaces": [name for name in replaced if name not in left_out]} if isinstance(replaced, list) else {}


def _listed(document: Mapping[str, object], name: str) -> list[dict[str, object]]:
    listed = document.get(name) or []
    assert isinstance(listed, list)
    return listed


def simulate_log(setting: LogSetting, requests: Iterable[Request]) -> LogOutcome | None:
    """Run them.  The same setting and requests give the same outcome.  None: there are none."""
    rest = iter(requests)
    first = next(rest, None)
    return None if first is None else _LogRun(setting, first[0]).run(chain([first], rest))


class _LogRun:
    def __init__(self, setting: LogSetting, first_ms: int) -> None:
        self._setting = setting
        self._names = list(setting.delays_ms)
        self._first_ms = first_ms
        rule_set = setting.rule_set
        # From the beginning of the world to the first request: until all regions are in session.
        self._lead_us = 2 * setting.times.consent_us
        delays_us = {name: 1000 * delay for name, delay in setting.delays_ms.items()}
        self._world = World(
            delays_us,
            dict(rule_set.source),
            seed=setting.seed,
            times=setting.times,
            parts=Parts(enforcement=LongRunning),
            judged_every_us=0,
            began_us=1000 * first_ms - self._lead_us,
        )
        self._at_once = OnePoint(undivided(rule_set), "")
        parted = split_for_good(rule_set)
        self._parted = [OnePoint(parted, name) for name in self._names]
        self._cuts = sorted(setting.cuts, key=lambda cut: cut[0])
        self._seen: list[Decided] = []
        self._world.watchers.append(self._seen.append)
        self._requests = self._allowed = self._all_at_once = self._all_parted = 0
        self._keys: dict[str, Key] = {}
        self._arrivals = 0
        self._refused: Counter[str] = Counter()
        self._asked_by_region = [0] * len(self._names)
        self._by_region = [0] * len(self._names)
        self._shares_most = 0
        self._samples: list[Sample] = []
        self._watched: dict[str, list[tuple[int, ...]]] = {}
        self._sampled_s = 0.0
        self._offered_now = [0] * len(self._names)
        self._admitted_now = [0] * len(self._names)

    def run(self, requests: Iterable[Request]) -> LogOutcome:
        setting, world = self._setting, self._world
        world.settle()
        world.run_until(self._lead_us)
        self._start_us = world.now_us
        before = self._traffic()
        ended_early, end_s = "", 0.0
        for time_ms, (attributes, cost) in requests:
            at_s = (time_ms - self._first_ms) / 1000
            if at_s >= setting.seconds_most:
                ended_early, end_s = f"the log goes on after {setting.seconds_most:g} s", setting.seconds_most
                break
            if len(self._keys) >= setting.keys_most:
                ended_early = f"after {at_s:.0f} s there were {len(self._keys):,} keys, as many as are kept"
                break
            self._run_to(at_s)
            end_s = at_s
            try:
                self._request(time_ms, Check(setting.rule_set.domain, attributes, cost))
            except InvalidCheck as error:
                self._refused[str(error)] += 1
        seconds = max(end_s, SAMPLE_S)
        self._run_to(seconds)
        messages, size = (after - was for after, was in zip(self._traffic(), before, strict=True))
        by_rule = self._by_rule()
        return LogOutcome(
            seconds=seconds,
            requests=self._requests,
            allowed=self._allowed,
            at_once=self._all_at_once,
            parted=self._all_parted,
            by_rule=by_rule,
            keys=self._keys,
            refused=self._refused,
            unplaced=setting.placing.unplaced,
            asked_by_region=self._asked_by_region,
            by_region=self._by_region,
            messages_a_second=messages / seconds,
            bytes_a_second=size / seconds,
            shares_most=self._shares_most,
            samples=self._samples,
            watched=self._watched,
            problems=[*map(str, world.problems()), *world.failures],
            ended_early=ended_early,
            arrivals_kept=self._arrivals < setting.arrivals_most,
        )

    def _traffic(self) -> tuple[int, int]:
        """(messages, bytes) that the hub has taken in for the shares."""
        hub = self._world.hub
        return hub.messages[LOG] + hub.messages[REPORTS], hub.bytes[LOG] + hub.bytes[REPORTS]

    def _run_to(self, at_s: float) -> None:
        """Everything that is due by then: cuts, samples, and what the processes do."""
        while True:
            sample_s = self._sampled_s + SAMPLE_S
            cut_s = self._cuts[0][0] if self._cuts else float("inf")
            if min(sample_s, cut_s) > at_s:
                break
            self._advance(min(sample_s, cut_s))
            if cut_s <= sample_s:
                _, regions, is_cut = self._cuts.pop(0)
                for region in regions:
                    (self._world.cut if is_cut else self._world.heal)(region)
            else:
                self._sample(sample_s)
        self._advance(at_s)

    def _advance(self, at_s: float) -> None:
        self._world.run_until(self._start_us + round(at_s * 1_000_000))

    def _request(self, time_ms: int, check: Check) -> None:
        """Raises InvalidCheck, before anything is counted."""
        place = self._setting.placing.place(check.attributes)
        now_us = 1000 * time_ms
        at_once, plan, calls, whole = self._at_once.check(now_us, check)
        if not plan.met:
            return
        parted, *_ = self._parted[place].check(now_us, check)
        self._seen.clear()
        allowed = bool(self._world.check(self._names[place], check))
        self._requests += 1
        self._allowed += allowed
        self._all_at_once += at_once
        self._all_parted += parted
        self._asked_by_region[place] += 1
        self._by_region[place] += allowed
        self._offered_now[place] += 1
        self._admitted_now[place] += allowed
        denied = sum(not verdict.allowed for verdict in whole)
        for call, here, one in zip(calls, self._seen[0].verdicts, whole, strict=True):
            key = self._keys.get(call.key)
            if key is None:
                key = self._keys[call.key] = Key(name=call.key, call=call)
            key.count(call.cost, allowed, at_once, parted, at_once and not here.allowed)
            by_others = denied > (not one.allowed)
            if self._arrivals < self._setting.arrivals_most and not by_others:
                self._arrivals += 1
                key.note(now_us - 1000 * self._first_ms, place, call.cost, allowed)

    def _sample(self, at_s: float) -> None:
        passed_s = at_s - self._sampled_s
        offered = tuple(count / passed_s for count in self._offered_now)
        admitted = tuple(count / passed_s for count in self._admitted_now)
        for leader in self._world.newest_leaders():
            for name in leader.side.keys:
                shares = tuple(self._world.shares(name).values())
                self._shares_most = max(self._shares_most, sum(shares))
                if name not in self._watched and len(self._watched) < WATCHED_MOST:
                    self._watched[name] = [self._bases] * len(self._samples)
        for name, seen in self._watched.items():
            seen.append(tuple(self._world.shares(name).values()))
        self._samples.append(Sample(at_s, offered, admitted, ()))
        self._sampled_s = at_s
        self._offered_now = [0] * len(self._names)
        self._admitted_now = [0] * len(self._names)

    @property
    def _bases(self) -> tuple[int, ...]:
        return tuple(self._setting.rule_set.bases[name] for name in self._names)

    def _by_rule(self) -> dict[str, Asked]:
        for name, bound in self._world.bounds.items():
            self._exceeds(name, bound.worst)
        for (_, name, _), window in self._world.window_bounds.items():
            self._exceeds(name, window.worst)
        found = {rule.id: Asked() for rule in self._setting.rule_set.rules}
        for key in self._keys.values():
            total = found[rule_of(key.name)[1]]
            total.requests += key.requests
            total.tokens += key.tokens
            total.allowed += key.allowed
            total.at_once += key.at_once
            total.parted += key.parted
            total.false_rejects += key.false_rejects
            total.excess = max(total.excess, key.excess)
        return found

    def _exceeds(self, name: str, tokens: float) -> None:
        if name in self._keys:
            self._keys[name].excess = max(self._keys[name].excess, tokens)
