"""One run: a world and the models beside it, driven by one trace.  [W]"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from global_sync.transport.base import LOG, REPORTS
from regional_limiter.model.decision import Check
from regional_limiter.model.share import ProtocolTimes, bases_by_weight
from services.simulator.baselines import MODELS, Ideal, Limit, Model
from services.simulator.measure import LOW_LOAD, Convergence, Counts
from services.simulator.traces import Trace, arrivals
from services.simulator.virtual_loop import VirtualLoop, run
from services.simulator.world import World

TICK_S = 0.005
SAMPLE_S = 0.5

Fault = Callable[[World, Sequence[Model]], Awaitable[None] | None]


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

    ``shares_most``: the largest sum of the shares in force that was seen.
    """

    counts: dict[str, Counts]
    ideal: int
    convergence: Convergence
    samples: list[Sample]
    messages: dict[str, float]
    bytes_a_second: float
    shares_most: int
    shares: tuple[int, ...]

    def utilisation(self, name: str) -> float:
        return self.counts[name].admitted / self.ideal if self.ideal else 1.0


APPORTION = "apportion"


def simulate(setting: Setting) -> Outcome:
    """Run it from rest.  The same setting gives the same outcome."""
    return run(lambda loop: _Run(loop, setting).run())


class _Run:
    def __init__(self, loop: VirtualLoop, setting: Setting) -> None:
        self._loop = loop
        self._setting = setting
        self._names = list(setting.delays_ms)
        self._random = Random(setting.seed)
        self._carry = [0.0] * len(self._names)
        limit = Limit(
            setting.rate,
            setting.capacity,
            [1000 * delay for delay in setting.delays_ms.values()],
            [setting.bases[name] for name in self._names],
        )
        self._ideal = Ideal(limit)
        self._models: list[Model] = [model(limit) for model in MODELS] if setting.with_models else []
        self._ideal_admitted = 0
        self._counts = {name: self._new_counts() for name in [APPORTION, *(one.name for one in self._models)]}
        self._convergence = Convergence(limit.bases, setting.rate)
        self._shares_most = 0
        self._samples: list[Sample] = []
        self._sampled_s = 0.0
        self._offered = [0] * len(self._names)
        self._admitted = [0] * len(self._names)

    def _new_counts(self) -> Counts:
        return Counts(self._setting.rate, self._setting.capacity, by_region=[0] * len(self._names))

    async def run(self) -> Outcome:
        setting = self._setting
        async with World(self._loop, setting.delays_ms, setting.document, setting.times) as world:
            for name, times in setting.claims.items():
                world.regions[name].claim = times
            start_s = self._loop.time()
            before = world.traffic()
            faults = sorted(setting.faults, key=lambda item: item[0])
            at_s = 0.0
            while at_s < setting.seconds:
                await asyncio.sleep(TICK_S)
                before_s, at_s = at_s, self._loop.time() - start_s
                while faults and faults[0][0] <= at_s:
                    happened = faults.pop(0)[1](world, self._models)
                    if happened is not None:
                        await happened
                self._tick(world, before_s, at_s)
            traffic = world.traffic()
            shares = self._shares(world)
        return Outcome(
            counts=self._counts,
            ideal=self._ideal_admitted,
            convergence=self._convergence,
            samples=self._samples,
            messages={
                APPORTION: sum(traffic[t][0] - before[t][0] for t in (LOG, REPORTS)) / setting.seconds,
                **{one.name: one.messages / setting.seconds for one in self._models},
            },
            bytes_a_second=sum(traffic[t][1] - before[t][1] for t in (LOG, REPORTS)) / setting.seconds,
            shares_most=self._shares_most,
            shares=shares,
        )

    def _shares(self, world: World) -> tuple[int, ...]:
        check = Check("default", {})
        return tuple(region.share(region.key_of(check)) for region in world.regions.values())

    def _tick(self, world: World, before_s: float, at_s: float) -> None:
        setting, now_us = self._setting, self._loop.now_us()
        rates = [setting.trace(place, before_s) for place in range(len(self._names))]
        is_low = sum(rates) < LOW_LOAD * setting.rate
        measured = at_s >= setting.measured_from_s
        for model in self._models:
            model.step(now_us)
        for counts in self._counts.values():
            counts.tick(at_s)
        check = Check("default", {})
        for place in self._turn(rates, at_s - before_s):
            ideal = self._ideal.check(place, now_us)
            allowed = world.regions[self._names[place]].check(check)
            self._offered[place] += 1
            self._admitted[place] += allowed
            others = [(model.name, model.check(place, now_us)) for model in self._models]
            if measured:
                self._ideal_admitted += ideal
                for name, passed in [(APPORTION, allowed), *others]:
                    self._counts[name].count(place, passed, is_low, ideal)
        shares = self._shares(world)
        self._shares_most = max(self._shares_most, sum(shares))
        self._convergence.tick(at_s, rates, shares)
        if at_s - self._sampled_s >= SAMPLE_S:
            self._sample(at_s, shares)

    def _turn(self, rates: Sequence[float], tick_s: float) -> list[int]:
        """Places of the requests of a tick, in the order in which they come."""
        places: list[int] = []
        for place, rate in enumerate(rates):
            if self._setting.random:
                count = arrivals(self._random, rate * tick_s)
            else:
                self._carry[place] += rate * tick_s
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
