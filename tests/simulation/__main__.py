"""The simulated worlds from the command line.

python -m tests.simulation seeds [--shares A-B] [--system A-B]   run seeds and every directed schedule
python -m tests.simulation long [--seeds N]                      the same with very many seeds; goes on where it was
python -m tests.simulation replay shares SEED [--only 3,17]      one seed again, with what happened
python -m tests.simulation replay system SEED|FILE
python -m tests.simulation mutants                               which schedule notices which broken rule
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from global_sync.simulation.faults import Scenario
from global_sync.simulation.play import TIMES, play

from . import runs, very_many
from .cast import Cast
from .kills import table
from .mutants import MUTANTS
from .schedules import SCHEDULES

STATE = runs.DIRECTORY / "long.json"


def main(arguments: list[str]) -> int:
    runs.with_fixed_hashes(arguments)
    runs.be_quiet()
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    seeds = commands.add_parser("seeds", help="run seeds of both worlds, and every directed schedule")
    seeds.add_argument("--shares", type=_range, default=(0, 2000), metavar="A-B", help="0-1999 unless said")
    seeds.add_argument("--system", type=_range, default=(0, 40), metavar="A-B", help="0-39 unless said")
    seeds.add_argument("--events", type=int, default=runs.EVENTS, help="of a world of shares (%(default)s)")
    seeds.add_argument("--mutant", choices=sorted(MUTANTS), default="", help="break this rule")
    seeds.add_argument("--processes", type=int)
    seeds.set_defaults(act=run_seeds)

    long = commands.add_parser("long", help="very many seeds; may be ended and goes on where it was")
    long.add_argument("--seeds", type=int, default=1_000_000, help="of shares alone (%(default)s)")
    long.add_argument("--events", type=int, default=runs.EVENTS)
    long.add_argument("--processes", type=int)
    long.add_argument("--minutes", type=float, default=0, help="end after so long (0: when all are done)")
    long.add_argument("--state", type=Path, default=STATE, help="where it is kept what was run (%(default)s)")
    long.set_defaults(act=very_many.run_long)

    replay = commands.add_parser("replay", help="one seed, or one written schedule, again")
    replay.add_argument("kind", choices=("shares", "system"))
    replay.add_argument("what", help="a seed, or the file of a schedule of the system")
    replay.add_argument("--events", type=int, default=runs.EVENTS)
    replay.add_argument("--only", type=lambda text: [int(one) for one in text.split(",")], default=None)
    replay.add_argument("--mutant", choices=sorted(MUTANTS), default="")
    replay.add_argument("--shrink", action="store_true", help="look for a shorter one that fails as well")
    replay.set_defaults(act=run_replay)

    commands.add_parser("mutants", help="which schedule notices which broken rule").set_defaults(act=run_mutants)
    options = parser.parse_args(arguments)
    result: int = options.act(options)
    return result


def _range(text: str) -> tuple[int, int]:
    """``5-9`` -> (5, 10); ``7`` -> (7, 8); ``none`` -> (0, 0)."""
    if text == "none":
        return 0, 0
    first, _, last = text.partition("-")
    return int(first), int(last or first) + 1


def run_seeds(options: argparse.Namespace) -> int:
    work = [
        *runs.jobs("shares", *options.shares, events=options.events, mutant=options.mutant),
        *([] if options.mutant else runs.jobs("system", *options.system, heal_each=4)),
    ]
    progress, counted, wrong = runs.Progress(sum(job.end - job.first for job in work)), Counter[str](), []
    for done in runs.do_all(work, options.processes):
        progress.add(done.job.end - done.job.first, len(done.wrong))
        counted += done.counted
        wrong += [(done.job, seed, what) for seed, what in done.wrong.items()]
    progress.end()
    schedules = {number: schedule(Cast()) for number, schedule in SCHEDULES.items()} if not options.mutant else {}
    failed = {number: bad for number, bad in schedules.items() if bad}
    print("what happened, how often:", dict(sorted(counted.items())))
    for number, bad in failed.items():
        print(f"BAD schedule {number} ({SCHEDULES[number].__name__}): {bad}")
    for job, seed, what in wrong:
        print(f"BAD {job.kind} seed {seed}: {what}")
    if wrong:
        explain(*wrong[0][:2])
    print(
        f"{progress.total} seeds, {len(wrong)} bad; {len(schedules)} directed schedules, {len(failed)} bad; "
        f"{time.monotonic() - progress.began:.0f} s"
    )
    return 1 if wrong or failed else 0


def explain(job: runs.Job, seed: int) -> None:
    """A short schedule that fails like this seed, and how to see it again."""
    if job.kind == "shares":
        only = runs.shorter_shares(seed, job.events, job.mutant)
        if not runs.replay_shares(seed, job.events, only, job.mutant)[0]:
            print("it fails only when the faults end: replay the seed to see it")
            return
        _, told = runs.replay_shares(seed, job.events, only, job.mutant)
        print(f"the shortest found that fails like seed {seed}, {len(only)} events:")
        print("\n".join(f"  {line}" for line in told))
        broken = f" --mutant {job.mutant}" if job.mutant else ""
        numbers = ",".join(map(str, only))
        print(f"again: python -m tests.simulation replay shares {seed} --only {numbers}{broken}")
        return
    scenario = runs.shorter_system(Scenario.draw(seed, TIMES.consent_us))
    print(f"the shortest found that fails like seed {seed}:")
    print("\n".join(f"  {line}" for line in runs.as_text(scenario)))
    print(f"again: python -m tests.simulation replay system {runs.write_scenario(scenario)}")


def run_replay(options: argparse.Namespace) -> int:
    if options.kind == "shares":
        job = runs.Job("shares", int(options.what), int(options.what) + 1, options.events, options.mutant, 1)
        if options.shrink:
            explain(job, int(options.what))
            return 1
        found, told = runs.replay_shares(int(options.what), options.events, options.only, options.mutant)
        print("\n".join(told))
        found = found or ("; ".join(runs.do(job).wrong.values()) if options.only is None else "")
        print(found or "nothing is wrong")
        return 1 if found else 0
    is_file = not options.what.isdigit()
    scenario = (
        runs.read_scenario(Path(options.what)) if is_file else Scenario.draw(int(options.what), TIMES.consent_us)
    )
    if options.shrink:
        scenario = runs.shorter_system(scenario)
        print(f"written to {runs.write_scenario(scenario)}")
    print("\n".join(runs.as_text(scenario)))
    found = runs.said(play(scenario))
    print(found or "nothing is wrong")
    return 1 if found else 0


def run_mutants(options: argparse.Namespace) -> int:
    rows = table()
    for row in rows:
        print(f"{row.mutant:22} {row.schedule:4}  {row.name if row.killed else 'NOT NOTICED by ' + row.name}")
    alive = [row.mutant for row in rows if not row.killed]
    print(f"{len(rows)} broken rules, {len(rows) - len(alive)} noticed by a directed schedule" + _not(alive))
    return 1 if alive else 0


def _not(alive: list[str]) -> str:
    return f"; not: {', '.join(alive)}" if alive else ""


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
