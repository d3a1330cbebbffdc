"""One run: a world and the models beside it, driven by one trace.  [W]"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from global_sync.agent import Agent
from global_sync.allocation.demand import DemandEstimator
from global_sync.simulation import World
from global_sync.transport.base import LOG, REPORTS
from regional_limiter.model.decision import Check
from regional_limiter.model.share import ProtocolTimes, bases_by_weight
from services.simulator.baselines import MODELS, Ideal, Limit, Model
from services.simulator.measure import LOW_LOAD, Convergence, Counts
from services.simulator.traces import Trace, arrivals

TICK_S = 0.005
SAMPLE_S = 0.5

CHECK = Check("default", {})

Fault = Callable[[World, Sequence[Model]], None]


@dataclass(frozen=True, slots=True)
class Setting:
    """``delays_ms``: one way to the hub.  ``weights``: of the bases.  ``rate``, ``capacity``: the limit.

    ``random``: requests come as chance brings them; otherwise evenly spaced.  ``faults``: (seconds, what happens).
    ``claims``: region -> how many times its demand it claims.  ``measured_from_s``: nothing before it counts.
    """

    delays_ms: Mapping[str, int]
    trace: Trace
    seconds: float
    rate: int = 1000
    capacity: int = 100
    weights: Mapping[str, int] | None = None
    random: bool = True
    seed: int = 1
    faults: Sequence[tuple[float, Fault]] = ()
    claims: Mapping[str, int] = field(default_factory=dict)
    measured_from_s: float = 0.0
    with_models: bool = True
    times: ProtocolTimes = field(default_factory=ProtocolTimes)

    @property
    def document(self) -> dict[str, object]:
        rule = {
            "id": "limit",
            "match": {},
            "key": [],
            "algorithm": "token_bucket",
            "capacity": self.capacity,
            "refill": f"{self.rate}/s",
            "scope": "global",
        }
        weights = dict(self.weights or dict.fromkeys(self.delays_ms, 1))
        return {"domain": "default", "regions": weights, "rules": [rule]}

    @property
    def bases(self) -> dict[str, int]:
        return bases_by_weight(self.weights or dict.fromkeys(self.delays_ms, 1))


@dataclass(frozen=True, slots=True)
class Sample:
    """Half a second of it: rates that were offered and admitted, and the shares, by region in order."""

    at_s: float
    offered: tuple[float, ...]
    admitted: tuple[float, ...]
    shares: tuple[int, ...]


@dataclass(slots=True)
class Outcome:
    """``counts``: by name, of the real code first.  ``messages``: sync messages a second; ``bytes`` likewise.

    ``shares_most``: the largest sum of the shares in force that was seen, ``shares``: those at the end.
    ``problems``: invariants and bounds that did not hold (none: that is the promise).
    """

    counts: dict[str, Counts]
    ideal: int
    convergence: Convergence
    samples: list[Sample]
    messages: dict[str, float]
    bytes_a_second: float
    shares_most: int
    shares: tuple[int, ...]
    problems: list[str]

    def utilisation(self, name: str) -> float:
        return self.counts[name].admitted / self.ideal if self.ideal else 1.0


APPORTION = "apportion"


def simulate(setting: Setting) -> Outcome:
    """Run it from rest.  The same setting gives the same outcome."""
    return _Run(setting).run()


class _Run:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._names = list(setting.delays_ms)
        self._random = Random(setting.seed)
        self._carry = [0.0] * len(self._names)
        delays_us = {name: 1000 * delay for name, delay in setting.delays_ms.items()}
        bases = [setting.bases[name] for name in self._names]
        limit = Limit(setting.rate, setting.capacity, list(delays_us.values()), bases)
        self._world = World(delays_us, setting.document, seed=setting.seed, times=setting.times, judged_every_us=0)
        self._ideal = Ideal(limit)
        self._models: list[Model] = [model(limit) for model in MODELS] if setting.with_models else []
        self._ideal_admitted = 0
        self._counts = {name: self._new_counts() for name in [APPORTION, *(one.name for one in self._models)]}
        self._convergence = Convergence(bases, setting.rate)
        self._shares_most = 0
        self._key = ""
        self._samples: list[Sample] = []
        self._sampled_s = 0.0
        self._offered = [0] * len(self._names)
        self._admitted = [0] * len(self._names)

    def _new_counts(self) -> Counts:
        return Counts(self._setting.rate, self._setting.capacity, by_region=[0] * len(self._names))

    def run(self) -> Outcome:
        setting, world = self._setting, self._world
        world.settle()
        for name, times in setting.claims.items():
            for running in world.regions[name].agents:
                running.agent.demand = Boasting(running.agent, times)
        node = world.regions[self._names[0]].nodes[0]
        self._key = node.planner.plan(CHECK).steps[0].key
        start_us = world.now_us
        before = self._traffic()
        faults = sorted(setting.faults, key=lambda item: item[0])
        ticks = round(setting.seconds / TICK_S)
        for tick in range(1, ticks + 1):
            at_s = tick * TICK_S
            world.run_until(start_us + round(at_s * 1_000_000))
            while faults and faults[0][0] <= at_s:
                faults.pop(0)[1](world, self._models)
            self._tick(at_s)
        messages, size = (after - was for after, was in zip(self._traffic(), before, strict=True))
        return Outcome(
            counts=self._counts,
            ideal=self._ideal_admitted,
            convergence=self._convergence,
            samples=self._samples,
            messages={
                APPORTION: messages / setting.seconds,
                **{one.name: one.messages / setting.seconds for one in self._models},
            },
            bytes_a_second=size / setting.seconds,
            shares_most=self._shares_most,
            shares=self._shares(),
            problems=[*map(str, world.problems()), *world.failures],
        )

    def _traffic(self) -> tuple[int, int]:
        """(messages, bytes) that the hub has taken in for the shares."""
        hub = self._world.hub
        return hub.messages[LOG] + hub.messages[REPORTS], hub.bytes[LOG] + hub.bytes[REPORTS]

    def _shares(self) -> tuple[int, ...]:
        return tuple(self._world.shares(self._key).values())

    def _tick(self, at_s: float) -> None:
        """What is asked for in the tick that ends now comes now."""
        setting, world, now_us = self._setting, self._world, self._world.now_us
        rates = [setting.trace(place, at_s - TICK_S) for place in range(len(self._names))]
        is_low = sum(rates) < LOW_LOAD * setting.rate
        measured = at_s >= setting.measured_from_s
        for model in self._models:
            model.step(now_us)
        for counts in self._counts.values():
            counts.tick(at_s)
        for place in self._turn(rates):
            ideal = self._ideal.check(place, now_us)
            allowed = bool(world.check(self._names[place], CHECK))
            self._offered[place] += 1
            self._admitted[place] += allowed
            others = [(model.name, model.check(place, now_us)) for model in self._models]
            if measured:
                self._ideal_admitted += ideal
                for name, passed in [(APPORTION, allowed), *others]:
                    self._counts[name].count(place, passed, is_low, ideal)
        shares = self._shares()
        self._shares_most = max(self._shares_most, sum(shares))
        self._convergence.tick(at_s, rates, shares)
        if at_s - self._sampled_s >= SAMPLE_S:
            self._sample(at_s, shares)

    def _turn(self, rates: Sequence[float]) -> list[int]:
        """Places of the requests of a tick, in the order in which they come."""
        places: list[int] = []
        for place, rate in enumerate(rates):
            if self._setting.random:
                count = arrivals(self._random, rate * TICK_S)
            else:
                self._carry[place] += rate * TICK_S
                count = int(self._carry[place])
                self._carry[place] -= count
            places += [place] * count
        self._random.shuffle(places)
        return places

    def _sample(self, at_s: float, shares: tuple[int, ...]) -> None:
        passed_s = at_s - self._sampled_s
        offered = tuple(count / passed_s for count in self._offered)
        admitted = tuple(count / passed_s for count in self._admitted)
        self._samples.append(Sample(at_s, offered, admitted, shares))
        self._sampled_s = at_s
        self._offered = [0] * len(self._names)
        self._admitted = [0] * len(self._names)


class Boasting(DemandEstimator):
    """Takes in several times what was asked for."""

    def __init__(self, agent: Agent, times: int) -> None:
        super().__init__(agent.rules.refill_of, agent.side.held)
        self._times = times

    def offer(self, key: str, cost: int, now_us: int) -> None:
        super().offer(key, cost * self._times, now_us)
