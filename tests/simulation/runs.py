"""Many seeds at once, and one of them again: how the commands and the tests run the simulated worlds.

Two kinds of worlds.  ``shares`` (world.py): the pure protocol alone, at the mercy of its seed, thousands of events
a second.  ``system`` (global_sync/simulation): the real processes, stores, nodes and requests.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, MutableMapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path

import structlog

from global_sync.simulation.faults import Act, Scenario
from global_sync.simulation.play import TIMES, Played, play
from global_sync.simulation.shrink import fewer, shrink

from .cast import Cast
from .healing import heal
from .mutants import MUTANTS
from .world import World, run

EVENTS = 140
HEAL_EACH = 20
SHARES_A_BATCH = 100
SYSTEM_A_BATCH = 4
DIRECTORY = Path(".local/simulation")


@dataclass(frozen=True, slots=True)
class Job:
    """Seeds ``first`` to ``end`` - 1 of a kind.  ``heal_each``: in each so-manyth the faults end, and it heals."""

    kind: str
    first: int
    end: int
    events: int = EVENTS
    mutant: str = ""
    heal_each: int = HEAL_EACH


@dataclass(slots=True)
class Done:
    """What came of a job: seed -> what was wrong, and what happened how often."""

    job: Job
    wrong: dict[int, str] = field(default_factory=dict)
    counted: Counter[str] = field(default_factory=Counter)


ERRORS: list[str] = []
"""What processes of simulated worlds have logged as an error."""


def be_quiet() -> None:
    """The processes' own log says what they do all the time: only errors are kept, in ``ERRORS``."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR), processors=[_keep_error]
    )


def _keep_error(logger: object, level: str, event: MutableMapping[str, object]) -> str:
    ERRORS.append(f"{event.get('event')} {event.get('loop', '')} {sys.exc_info()[1]!r}")
    raise structlog.DropEvent


def do(job: Job) -> Done:
    be_quiet()
    done = Done(job)
    for seed in range(job.first, job.end):
        heals = bool(job.heal_each) and seed % job.heal_each == 0
        wrong = _shares(job, seed, heals, done) if job.kind == "shares" else _system(seed, heals, done)
        if wrong:
            done.wrong[seed] = wrong
    return done


def _cast(mutant: str) -> Cast:
    return MUTANTS[mutant] if mutant else Cast()


def _shares(job: Job, seed: int, heals: bool, done: Done) -> str:
    world = run(seed, job.events, _cast(job.mutant))
    found = str(world.found) if world.found else ""
    if heals and not found:
        found = "; ".join(heal(world))
    done.counted += world.counted
    return found


def _system(seed: int, heals: bool, done: Done) -> str:
    scenario = Scenario.draw(seed, TIMES.consent_us)
    ERRORS.clear()
    played = play(scenario, heals=heals)
    done.counted.update(one.what for one in scenario.acts)
    return said(played)


def said(played: Played) -> str:
    broken = [f"{one.invariant} at {one.at_us} us: {one.key} {one.found}" for one in played.broken]
    return "; ".join([*broken, *played.unhealed, *ERRORS[:3]])


def jobs(kind: str, first: int, end: int, **options: object) -> Iterator[Job]:
    size = SHARES_A_BATCH if kind == "shares" else SYSTEM_A_BATCH
    for begin in range(first, end, size):
        yield Job(kind, begin, min(end, begin + size), **options)  # type: ignore[arg-type]


def do_all(work: Sequence[Job], processes: int | None = None) -> Generator[Done, None, None]:
    """Every job, on every core; in their order."""
    with ProcessPoolExecutor(
        processes, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN)
    ) as pool:
        yield from pool.map(do, work)


class Progress:
    """A line that tells how far it is; only where somebody looks."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.bad = total, 0, 0
        self.began = time.monotonic()

    def add(self, count: int, bad: int) -> None:
        self.done += count
        self.bad += bad
        if sys.stderr.isatty():
            filled = 40 * self.done // max(1, self.total)
            left_s = (time.monotonic() - self.began) / self.done * (self.total - self.done)
            line = f"\r[{'#' * filled}{'.' * (40 - filled)}] {self.done}/{self.total} seeds, {self.bad} bad, "
            print(f"{line}{left_s / 60:.0f} min left ", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if sys.stderr.isatty():
            print(file=sys.stderr)


# ---- a seed that failed


def shorter_shares(seed: int, events: int, mutant: str = "") -> list[int]:
    """The events of the seed's world that it takes to fail."""
    cast = _cast(mutant)

    def fails(only: Sequence[int]) -> bool:
        return bool(run(seed, events, cast, only).found)

    last = next((n + 1 for n, world in enumerate(_growing(seed, events, cast)) if world.found), events)
    return fewer(range(last), fails)


def _growing(seed: int, events: int, cast: Cast) -> Iterator[World]:
    world = World(seed, cast)
    for number in range(events):
        world.step(number)
        world.check()
        yield world


def shorter_system(scenario: Scenario) -> Scenario:
    heals = not play(scenario, heals=False)
    return shrink(scenario, lambda candidate: bool(play(candidate, heals=heals)), tries_most=120)


def write_scenario(scenario: Scenario, directory: Path = DIRECTORY) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"system-{scenario.seed}.json"
    path.write_text(json.dumps(asdict(scenario), indent=1))
    return path


def read_scenario(path: Path) -> Scenario:
    document = json.loads(path.read_text())
    return Scenario(**{**document, "acts": tuple(Act(**one) for one in document["acts"])})


def as_text(scenario: Scenario) -> Iterator[str]:
    """A schedule to read."""
    yield (
        f"{scenario.regions} regions, {scenario.nodes} nodes and {scenario.shards} shards each, "
        f"burst {scenario.burst}, {scenario.per_second}/s, drift {scenario.drift_ppm} ppm"
    )
    for one in scenario.acts:
        where, for_s = f"r{one.region % scenario.regions}", one.for_us / 1e6
        yield f"{one.at_us / 1e6:8.3f} s  {where}  {one.what} ({one.which}) for {for_s:.3f} s"


def replay_shares(seed: int, events: int, only: Iterable[int] | None, mutant: str) -> tuple[str, list[str]]:
    """(what was found, what happened)."""
    told: list[str] = []
    world = run(seed, events, _cast(mutant), only, told)
    return (str(world.found) if world.found else ""), told


def with_fixed_hashes(arguments: Sequence[str]) -> None:
    """Sets of texts have an order of their own in each process, unless it is told which: begin again with that."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *arguments], environment)
