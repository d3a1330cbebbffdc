"""python -m tests.simulation FIRST END [--steps N] [--mutant M] [--heal]: run seeds FIRST to END - 1."""

from __future__ import annotations

import argparse
from collections import Counter

from .cast import Cast
from .world import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("end", type=int)
    parser.add_argument("--steps", type=int, default=3000)
    options = parser.parse_args()
    bad, counted = 0, Counter()
    for seed in range(options.first, options.end):
        world = run(seed, options.steps, Cast())
        counted += world.counted
        if world.found:
            bad += 1
            print("BAD", seed, world.found, flush=True)
    seeds = max(1, options.end - options.first)
    print(f"{seeds} seeds of {options.steps} events, {bad} bad;", end=" ")
    print({what: round(number / seeds, 1) for what, number in sorted(counted.items())})
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
