"""The figures that this project holds itself to, measured by the real code in one geography.  [W]

``python -m services.simulator.figures`` (``make sim-table``) prints them beside their targets.  A target that
distance or the protocol's times leave nobody (see :mod:`bounds`) is *out of reach*; what is reached must then come
near to what is left.  It ends with 1 when a figure is missed.  Five regions of equal weight, one-way delays to the
hub of 2, 32, 42, 78 and 100 ms, a limit of 1,000 a second with a burst of 100, requests evenly spaced: what chance
does to a cold region's three tokens is no matter of the shares.  Every run is watched for shares or requests above
the limit.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import structlog

from regional_limiter.model.share import SHARE_UNITS
from services.simulator import traces
from services.simulator.bounds import gifts, ideal_tokens, lost_by_a_jump, lost_by_moving
from services.simulator.faults import cut, heal, kill_leader
from services.simulator.measure import jain, percentile
from services.simulator.run import APPORTION, Outcome, Setting, simulate

DELAYS_MS = {"r1": 2, "r2": 32, "r3": 42, "r4": 78, "r5": 100}
NAMES = list(DELAYS_MS)
DELAYS_S = [delay / 1000 for delay in DELAYS_MS.values()]
RATE = 1000
CAPACITY = 100
HOT = 2
LONGEST_RTT_MS = 2 * max(DELAYS_MS.values())


NEAR = 0.01
"""So near to what is left at best a figure must come whose target is out of reach."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line.  ``bound``: what distance or the protocol's times leave at best, where that matters.

    ``met``: the target is reached, or it is out of reach and what is left is nearly reached.
    """

    order: int
    what: str
    target: str
    reached: str
    met: bool
    bound: str = ""
    out_of_reach: bool = False

    @property
    def verdict(self) -> str:
        if not self.met:
            return "missed"
        return "out of reach" if self.out_of_reach else ""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a case found, and by how much its runs were ever above the limit: shares, tokens."""

    figures: list[Figure]
    shares_over: int
    tokens_over: float
    problems: list[str]


def _setting(trace: traces.Trace, seconds: float, **more: object) -> Setting:
    settings: dict[str, object] = {"random": False, "with_models": False, **more}
    return Setting(DELAYS_MS, trace, seconds, rate=RATE, capacity=CAPACITY, **settings)  # type: ignore[arg-type]


def _at_least(order: int, what: str, least: float, value: float, bound: float | None = None) -> Figure:
    out_of_reach = bound is not None and bound < least
    met = value >= (bound - NEAR if bound is not None and out_of_reach else least)
    told = f"<= {bound:.3f}" if bound is not None else ""
    return Figure(order, what, f">= {least:.3f}", f"{value:.4f}", met, told, out_of_reach)


def _checked(figures: list[Figure], outcomes: Iterable[Outcome]) -> Checked:
    outcomes = list(outcomes)
    return Checked(
        figures,
        max(one.shares_most - SHARE_UNITS for one in outcomes),
        max(one.counts[APPORTION].excess for one in outcomes),
        [problem for one in outcomes for problem in one.problems],
    )


def _utilised(
    order: int,
    what: str,
    least: float,
    trace: traces.Trace,
    seconds: float,
    bound: float | None = None,
    **more: object,
) -> Checked:
    outcome = simulate(_setting(trace, seconds, **more))
    return _checked([_at_least(order, what, least, outcome.utilisation(APPORTION), bound)], [outcome])


# ---- the cases


def steady() -> Checked:
    trace = traces.steady(RATE, 5, HOT)
    return _utilised(1, "utilisation, steady hot region", 0.997, trace, 40, measured_from_s=5.0)


def _lost_from_rest(trace: traces.Trace, taker: int, at_s: float) -> float:
    """Tokens that must be lost when the region ``taker`` wants, at ``at_s``, what others do not use."""
    given = gifts([trace(place, at_s) for place in range(5)], RATE, taker)
    return lost_by_a_jump(taker, given, DELAYS_S, CAPACITY, SHARE_UNITS // 5)


def _from_rest(trace: traces.Trace, seconds: float, taker: int, at_s: float, moves: bool = False) -> float:
    """The utilisation that is left at best then.  ``moves``: shares then follow demand that changes steadily."""
    lost = _lost_from_rest(trace, taker, at_s)
    if moves:
        lost += lost_by_moving(trace, DELAYS_S, RATE, seconds)
    return 1 - lost / ideal_tokens(trace, 5, RATE, CAPACITY, seconds)


def on_off_5() -> Checked:
    trace = traces.on_off(RATE, HOT, 5.0)
    return _utilised(2, "utilisation, on/off every 5 s", 0.965, trace, 40, _from_rest(trace, 40, HOT, 0.0))


def on_off_30() -> Checked:
    trace = traces.on_off(RATE, HOT, 30.0)
    return _utilised(3, "utilisation, on/off every 30 s", 0.988, trace, 120, _from_rest(trace, 120, HOT, 0.0))


def follow_the_sun() -> Checked:
    trace = traces.follow_sun(RATE, 5)
    bound = _from_rest(trace, 120, 0, 0.0, moves=True)
    return _utilised(4, "utilisation, follow the sun", 0.992, trace, 120, bound)


def flash_crowd() -> Checked:
    trace = traces.flash(RATE, HOT)
    return _utilised(5, "utilisation, flash crowd", 0.995, trace, 120, _from_rest(trace, 120, HOT, 11.0))


def hot_region_cut() -> Checked:
    faults = [(20.0, cut([NAMES[HOT]])), (60.0, heal([NAMES[HOT]]))]
    part = 0.302
    # Its lease for a session, its floor until its consent ends, then its base: nobody else asks for the rest.
    lost_s = 10 * (part - 0.02 / 5) + 10 * (part - 1 / 5)
    trace = traces.even(RATE, HOT, 5, part)
    what = "utilisation, hot region cut 40 s of 80"
    return _utilised(6, what, 0.98, trace, 80, 1 - lost_s / 80, faults=faults)


def _hub_out(order: int, least: float, out_s: int, of_s: int) -> Checked:
    faults = [(30.0, cut(NAMES)), (30.0 + out_s, heal(NAMES))]
    trace = traces.steady(RATE, 5, HOT)
    # Leases for a session, then the floors (2 % of the bases) until the consents end, then the bases.
    low = 0.08
    lease_s, floor_s = min(out_s, 20), max(0, min(out_s, 30) - 20)
    base_s = max(0, out_s - 30)
    used_s = of_s - out_s + lease_s + floor_s * (5 * 0.02 * 0.2) + base_s * (0.2 + low)
    lost = _lost_from_rest(trace, HOT, 0.0)
    if base_s:
        # Back at the bases: the hot region says hello and is welcomed, and then everything moves once more.
        lost += lost - CAPACITY * 0.8 + RATE * (1 - low - 0.2) * 2 * DELAYS_MS[NAMES[HOT]] / 1000
    what = f"utilisation, hub out {out_s} s of {of_s}"
    return _utilised(order, what, least, trace, of_s, used_s / of_s - lost / (RATE * of_s), faults=faults)


def hub_out_15() -> Checked:
    return _hub_out(7, 0.99, 15, 100)


def hub_out_60() -> Checked:
    return _hub_out(8, 0.80, 60, 150)


def hub_out_300() -> Checked:
    return _hub_out(9, 0.49, 300, 400)


def cut_for_long() -> Checked:
    outcomes, shares = [], []
    for place, trace in ((4, traces.steady(RATE, 5, 4)), (1, traces.steady(RATE, 5, 3))):
        outcome = simulate(_setting(trace, 46, faults=[(8.0, cut([NAMES[place]]))]))
        outcomes.append(outcome)
        shares.append(outcome.shares[place])
    met = all(share == SHARE_UNITS // 5 for share in shares)
    reached = ", ".join(map(str, shares))
    figure = Figure(10, "share of a region cut for longer than its consent", "2000", reached, met)
    return _checked([figure], outcomes)


def low_load() -> Checked:
    sun = traces.follow_sun(RATE, 5, day_s=60.0)
    total = max(sum(sun(place, at_s) for place in range(5)) for at_s in range(60))
    # Not from rest: the first moment is a jump.
    trace: traces.Trace = lambda place, at_s: 0.85 * RATE * sun(place, at_s) / total  # noqa: E731
    outcome = simulate(_setting(trace, 60, measured_from_s=3.0))
    value = outcome.counts[APPORTION].false_rejects
    what = "false rejects while demand < 0.9 of the limit"
    return _checked([Figure(11, what, "<= 0.3 %", f"{100 * value:.3f} %", value <= 0.003)], [outcome])


_MOVES = (0, 1, 2, 3, 4, 0, 2, 4, 1, 3, 0, 3, 1, 4, 2, 0, 4, 3, 2, 1, 0)
"""Every region after every other, once."""


def convergence() -> Checked:
    outcomes = []
    for period_s in (2.37, 2.81):

        def moving(place: int, at_s: float, period_s: float = period_s) -> float:
            return 1.2 * RATE if place == _MOVES[int(at_s / period_s) % len(_MOVES)] else 0.04 * RATE

        outcomes.append(simulate(_setting(moving, period_s * len(_MOVES))))
    outcomes += [simulate(_setting(traces.flash(RATE, hot, first_s=1.5), 4.0)) for hot in range(5)]
    times_ms = [1000 * value for one in outcomes for value in one.convergence.times_s]
    unfinished = sum(one.convergence.unfinished for one in outcomes)
    half, most = percentile(times_ms, 0.5), percentile(times_ms, 0.99)
    delays = DELAYS_MS.values()
    trips = median(2 * (one + other) for one, other in combinations(delays, 2))
    farthest = 2 * sum(sorted(delays)[-2:])
    return _checked(
        [
            Figure(
                12,
                f"convergence to 95 % of fair, p50 of {len(times_ms)}",
                f"<= {LONGEST_RTT_MS + 60} ms",
                f"{half:.0f} ms",
                half <= LONGEST_RTT_MS + 60,
                f">= {trips:.0f} ms",
            ),
            Figure(
                13,
                "convergence to 95 % of fair, p99",
                f"<= {2 * LONGEST_RTT_MS + 150} ms",
                f"{most:.0f} ms" + (f", {unfinished} never" if unfinished else ""),
                most <= 2 * LONGEST_RTT_MS + 150 and not unfinished,
                f">= {farthest} ms",
            ),
        ],
        outcomes,
    )


def fairness() -> Checked:
    outcome = simulate(_setting(traces.overload(RATE, 5), 15, measured_from_s=5.0))
    value = jain(outcome.counts[APPORTION].by_region)
    return _checked([_at_least(14, "fairness when all are overloaded (Jain)", 0.999, value)], [outcome])


def boasting() -> Checked:
    trace = traces.overload(RATE, 5)
    plain = simulate(_setting(trace, 15, measured_from_s=5.0))
    boasts = simulate(_setting(trace, 15, measured_from_s=5.0, claims={NAMES[HOT]: 4}))
    before, after = (one.counts[APPORTION].by_region[HOT] for one in (plain, boasts))
    gain = after / before - 1
    figure = Figure(15, "gain of a region that claims 4x", "<= 1 %", f"{100 * gain:.2f} %", gain <= 0.01)
    return _checked([figure], [plain, boasts])


def leader_killed() -> Checked:
    """The load jumps in the moment in which the leader dies, so every share has to grow under the next one."""
    outcomes, times_s = [], []
    for number in range(10):
        at_s = 4.0 + 0.137 * number
        hot, next_hot = (4, 2) if number % 2 else (2, 4)

        def jumping(
            place: int, now_s: float, at_s: float = at_s, hot: int = hot, next_hot: int = next_hot
        ) -> float:
            return 1.2 * RATE if place == (hot if now_s < at_s else next_hot) else 0.02 * RATE

        outcome = simulate(_setting(jumping, at_s + 4.0, faults=[(at_s, kill_leader)], seed=number))
        outcomes.append(outcome)
        times_s.append(outcome.convergence.times_s[-1] if outcome.convergence.times_s else 99.0)
    still = simulate(_setting(traces.steady(RATE, 5, HOT), 14, faults=[(6.0, kill_leader)], measured_from_s=5.5))
    kept = still.utilisation(APPORTION)
    grown = percentile(times_s, 0.99)
    return _checked(
        [
            Figure(
                16, "growth again after the leader was killed, p99 of 10", "<= 2 s", f"{grown:.2f} s", grown <= 2.0
            ),
            _at_least(17, "utilisation around it, steady demand", 0.99, kept),
        ],
        [*outcomes, still],
    )


def quiet_key() -> Checked:
    nothing = simulate(_setting(lambda place, at_s: 0.0, 10))
    quiet = simulate(_setting(lambda place, at_s: 0.08 * RATE, 10))
    value = (quiet.bytes_a_second - nothing.bytes_a_second) * 10
    denied = quiet.counts[APPORTION].denied_when_low
    met = value <= 0 and not denied
    figure = Figure(18, "a key that keeps half of its base", "0 bytes", f"{max(0.0, value):.0f} bytes", met)
    return _checked([figure], [nothing, quiet])


CASES: tuple[Callable[[], Checked], ...] = (
    hub_out_300,
    hub_out_60,
    convergence,
    leader_killed,
    follow_the_sun,
    flash_crowd,
    on_off_30,
    hub_out_15,
    hot_region_cut,
    low_load,
    on_off_5,
    cut_for_long,
    steady,
    boasting,
    fairness,
    quiet_key,
)
"""The longest first, so that two processes end together."""


def _run(place: int) -> Checked:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    return CASES[place]()


def _all(places: list[int], jobs: int) -> Iterator[tuple[int, Checked]]:
    """As they end."""
    if jobs == 1:
        yield from ((place, _run(place)) for place in places)
        return
    with ProcessPoolExecutor(max_workers=jobs) as pool:
        waiting = {pool.submit(_run, place): place for place in places}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def table(only: str, jobs: int) -> int:
    """Print the table; the exit code."""
    places = [place for place, case in enumerate(CASES) if only in case.__name__]
    if not places:
        print(f"no case has {only!r} in its name: {', '.join(case.__name__ for case in CASES)}", file=sys.stderr)
        return 2
    found: list[Checked] = []
    for place, checked in _all(places, jobs):
        found.append(checked)
        print(f"{len(found)}/{len(places)} {CASES[place].__name__}", file=sys.stderr)
    figures = sorted((figure for one in found for figure in one.figures), key=lambda figure: figure.order)
    figures.insert(0, _over(found))
    width = max(len(figure.what) for figure in figures)
    print(f"{''.ljust(width)}  {'target':>12}  {'reached':>18}  {'at best':>10}")
    for figure in figures:
        line = f"{figure.what.ljust(width)}  {figure.target:>12}  {figure.reached:>18}  {figure.bound:>10}"
        print(f"{line}  {figure.verdict}".rstrip())
    verdicts = [figure.verdict for figure in figures]
    missed, beyond = verdicts.count("missed"), verdicts.count("out of reach")
    words = [f"{len(figures) - missed - beyond} of {len(figures)} figures reached"]
    words += [f"{beyond} out of reach (within {100 * NEAR:g} % of what is left)"] if beyond else []
    words += [f"{missed} missed"] if missed else []
    print(f"sim-table: {', '.join(words)}")
    return 1 if missed else 0


def _over(found: list[Checked]) -> Figure:
    shares = max(one.shares_over for one in found)
    tokens = max(one.tokens_over for one in found)
    problems = [problem for one in found for problem in one.problems]
    for problem in problems:
        print(problem, file=sys.stderr)
    reached = f"{max(0, shares)} units, {tokens:.0f} tokens"
    return Figure(0, "over the limit, in any run", "0", reached, shares <= 0 and tokens == 0 and not problems)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m services.simulator.figures", description=__doc__)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    arguments = parser.parse_args()
    return table(arguments.only, max(1, arguments.jobs))


if __name__ == "__main__":
    sys.exit(main())
