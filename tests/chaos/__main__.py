"""``make chaos``: the whole system in network namespaces, broken at random for a while, and what must hold.

python -m tests.chaos [--seconds 1200] [--seed 1] [--schedule FILE] [--only KIND,...]

Ends with one line of figures, and with exit code 1 when anything did not hold, 2 when it could not be run at all.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from datetime import date
from pathlib import Path

from infra.install import InstallFailed
from infra.processes import StartFailed
from tests.chaos.network import NoNamespaces, enter, is_inside
from tests.chaos.run import Plan, Report, run
from tests.chaos.schedule import KINDS, read

DIRECTORY = Path(".local") / "chaos"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=1200.0, help="of faults; start and end come on top")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1 / 3, help="of the share protocol's times")
    parser.add_argument("--schedule", type=Path, help="these rounds instead of those of the seed")
    parser.add_argument("--only", default="", help="kinds of faults, separated by commas")
    parser.add_argument("--directory", type=Path, default=DIRECTORY, help="for logs; emptied first")
    options = parser.parse_args()
    kinds = [kind.strip() for kind in options.only.split(",") if kind.strip()] or list(KINDS)
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"--only: unknown: {', '.join(sorted(unknown))}; known: {', '.join(KINDS)}")
    if options.seconds <= 0:
        parser.error("--seconds: must be above 0")
    try:
        if not is_inside():
            return enter(sys.argv[1:])
        schedule = None if options.schedule is None else read(options.schedule.read_text())
        directory = options.directory.resolve()
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        report = run(Plan(directory, options.seconds, options.seed, options.scale, kinds, schedule))
    except (NoNamespaces, InstallFailed, StartFailed, TimeoutError, OSError, ValueError) as error:
        print(f"chaos: could not be run: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("chaos: ended before its end; nothing is left running", file=sys.stderr)
        return 130
    for problem in report.problems[:20]:
        print("WRONG", problem)
    print(line(report, options.seed), flush=True)
    return 1 if report.problems else 0


def line(report: Report, seed: int) -> str:
    verdict, slowest = report.verdict, max(report.recoveries.values(), default=0.0)
    figures = {
        "faults": sum(report.faults.values()),
        "not_now": report.not_now,
        "checks": verdict.checks,
        "degraded": verdict.degraded,
        "of_stopped_nodes_unanswered": verdict.excused,
        "worst_wait_ms": round(verdict.worst_wait_s * 1000),
        "slowest_recovery_s": round(slowest, 1),
        "worst_excess": round(verdict.worst, 1),
        "violations": len(report.problems),
    }
    return f"chaos seed={seed} date={date.today()} " + " ".join(f"{k}={v}" for k, v in figures.items())


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
