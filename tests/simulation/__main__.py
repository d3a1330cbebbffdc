"""Run seeds FIRST to END - 1 of the simulation, or one to replay it.

python -m tests.simulation FIRST END [--steps N] [--mutant NAME] [--heal EACH]
"""

from __future__ import annotations

import argparse
from collections import Counter

from .cast import Cast
from .healing import heal
from .mutants import MUTANTS
from .world import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--mutant", choices=sorted(MUTANTS))
    parser.add_argument(
        "--heal", type=int, default=0, help="in each so-manyth seed the faults end: what heals not?"
    )
    options = parser.parse_args()
    cast = MUTANTS[options.mutant] if options.mutant else Cast()
    bad = 0
    counted: Counter[str] = Counter()
    for seed in range(options.first, options.end):
        world = run(seed, options.steps, cast)
        problems: list[object] = [world.found] if world.found else []
        if options.heal and seed % options.heal == 0 and not problems:
            problems += heal(world)
        counted += world.counted
        if problems:
            bad += 1
            print("BAD", seed, problems, flush=True)
        if (seed - options.first) % 100 == 99:
            print(f"{seed - options.first + 1} seeds, {bad} bad", flush=True)
    seeds = max(1, options.end - options.first)
    print(f"{seeds} seeds of {options.steps} events, {bad} bad;", end=" ")
    print({what: round(number / seeds, 1) for what, number in sorted(counted.items())})
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
