"""One run: start the world, load it, break it round by round, let it recover, and judge.  [IO]"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.faults import Faults, NotNow
from tests.chaos.judge import LIMITS, Verdict, judge
from tests.chaos.load import Stream, skewed, written
from tests.chaos.schedule import REGIONS, Fault, Round, rounds
from tests.chaos.schedule import written as schedule_written
from tests.chaos.shards import shard_of
from tests.chaos.world import World, wait_for

HOT_KEYS, MANY_KEYS, MANY_DRAWS = 2, 300, 2000
HOT_RATES = {"us-east": 75.0, "eu-west": 45.0, "ap-south": 25.0}
"""Of all hot keys: together more than their limit, in unequal parts, so that shares must move."""
MANY_RATE = 60.0
RECOVERED_S = 120.0
"""Until every region is in session again, after all faults are over and all processes started."""
STEADY_S = 6.0
BEGINS_S = 2.0
USED_LEAST = 0.5
"""In the end the hot keys get at least this part of their limit: at the floor they would get a fiftieth of it."""


@dataclass(frozen=True)
class Plan:
    """``schedule``: these rounds, else those of the seed until ``seconds`` are over."""

    directory: Path
    seconds: float
    seed: int
    time_scale: float
    kinds: Sequence[str]
    schedule: Sequence[Round] | None = None


@dataclass
class Report:
    """``faults``: how many of each kind.  ``not_now``: how many could not begin.  ``recoveries``: the slowest after
    each kind, in seconds after everything was started again."""

    verdict: Verdict
    faults: Counter[str]
    not_now: int
    recoveries: dict[str, float]
    problems: list[str] = field(default_factory=list)


def run(plan: Plan) -> Report:
    """Raises NoNamespaces, StartFailed, InstallFailed, TimeoutError when the world does not come up."""
    world, problems = World(plan.directory, plan.time_scale), []
    faults, recoveries = Faults(world), dict[str, float]()
    log, done = plan.directory / "answers.jsonl", list[Round]()
    try:
        world.start()
        load = _start_load(world, plan.directory / "load.json", log)
        time.sleep(BEGINS_S)
        for one in _rounds(plan):
            done.append(one)
            (plan.directory / "schedule.json").write_text(schedule_written(done))
            problems += _round(world, faults, one, recoveries, len(done))
        time.sleep(max(0.0, max((excuse.end for excuse in faults.excuses), default=0.0) - time.monotonic()))
        time.sleep(STEADY_S)
        ended = time.monotonic()
        load.send_signal(signal.SIGTERM)
        if load.wait(20) != 0:
            problems.append("the load ended with an error")
        problems += [f"{name} has ended by itself" for name in world.ended()]
    finally:
        world.save_logs()
    (plan.directory / "excuses.json").write_text(json.dumps([asdict(excuse) for excuse in faults.excuses]))
    (plan.directory / "faults.json").write_text(
        json.dumps([[a, b, asdict(fault)] for a, b, fault in faults.done], indent=1)
    )
    verdict = judge(rows(log), faults.excuses, shard_of)
    struck = Counter(fault.kind for _, _, fault in faults.done)
    problems += verdict.problems + nothing_done(struck, verdict.checks) + _unused(log, ended)
    return Report(verdict, struck, faults.not_now, recoveries, problems)


def nothing_done(struck: Counter[str], checks: int) -> list[str]:
    """A run that broke nothing, or asked nothing, shows nothing."""
    problems = [] if struck.total() else ["no fault happened"]
    return problems if checks else [*problems, "nothing was checked"]


def rows(log: Path) -> Iterator[dict[str, Any]]:
    with log.open() as file:
        yield from map(json.loads, file)


def _rounds(plan: Plan) -> Iterator[Round]:
    if plan.schedule is not None:
        yield from plan.schedule
        return
    end = time.monotonic() + plan.seconds
    yield from itertools.takewhile(lambda _: time.monotonic() < end, rounds(plan.seed, plan.time_scale, plan.kinds))


def _round(world: World, faults: Faults, one: Round, recoveries: dict[str, float], number: int) -> list[str]:
    with ThreadPoolExecutor(len(one)) as pool:
        notes = list(pool.map(lambda fault: _strike(faults, fault), one))
    began = time.monotonic()
    problems = []
    faults.end_round()
    world.mend()
    faults.mended()
    mended = time.monotonic()
    try:
        wait_for(world.is_whole, RECOVERED_S, "every region in session, and a leader")
    except TimeoutError as error:
        problems.append(f"round {number}, {' and '.join(notes)}: {error}")
    took = time.monotonic() - mended
    for fault in one:
        recoveries[fault.kind] = max(recoveries.get(fault.kind, 0.0), took)
    print(
        f"{number}: {'; '.join(notes)}; started again in {mended - began:.1f} s, then whole after {took:.1f} s",
        flush=True,
    )
    return problems


def _strike(faults: Faults, fault: Fault) -> str:
    time.sleep(fault.after_s)
    told = f"{fault.kind} of {fault.region} {fault.seconds:g} s"
    try:
        faults.strike(fault)
    except NotNow as error:
        return f"({error})"
    return told


def _start_load(world: World, spec: Path, log: Path) -> subprocess.Popen[bytes]:
    many = skewed(MANY_KEYS, MANY_DRAWS, seed=1)
    streams = []
    for region in REGIONS:
        hot = [f"hot-{number}" for number in range(HOT_KEYS)]
        streams.append(Stream(region, "hot", world.nodes(region), hot, HOT_RATES[region]))
        streams.append(Stream(region, "many", world.nodes(region), many, MANY_RATE))
    spec.write_text(written(streams))
    with (world.directory / "load.log").open("wb") as said:
        return subprocess.Popen([sys.executable, "-m", "tests.chaos.load", str(spec), str(log)], stderr=said)


def _unused(log: Path, ended: float) -> list[str]:
    """Hot keys that get less than their limit although all is whole again."""
    since = ended - STEADY_S / 2
    admitted = Counter(
        row["key"]
        for row in rows(log)
        if row["rule"] == "hot" and row["allowed"] and since <= row["answered_at"] < ended
    )
    rates = {f"hot-{number}": admitted[f"hot-{number}"] / (STEADY_S / 2) for number in range(HOT_KEYS)}
    least = USED_LEAST * LIMITS["hot"].rate
    return [f"{key}: in the end {rate:.0f}/s are allowed" for key, rate in rates.items() if rate < least]
