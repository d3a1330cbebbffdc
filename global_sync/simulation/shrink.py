"""Make a run that fails shorter, as long as it still fails.  Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from global_sync.simulation.faults import Act, Scenario

_T = TypeVar("_T")

TRIES_MOST = 400


class _Tries:
    """Asks whether something fails, so often and no more."""

    def __init__(self, most: int) -> None:
        self.left = most

    def fails(self, ask: Callable[[], bool]) -> bool:
        if self.left <= 0:
            return False
        self.left -= 1
        return ask()


def fewer(items: Sequence[_T], fails: Callable[[Sequence[_T]], bool], tries_most: int = TRIES_MOST) -> list[_T]:
    """A part of ``items``, in their order, that fails and of which (as far as was tried) nothing can be left out.

    Delta debugging: halves are left out first, then ever smaller parts (Zeller and Hildebrandt, 2002).
    """
    tries = _Tries(tries_most)
    left, parts = list(items), 2
    while left:
        size = -(-len(left) // parts)
        for begin in range(0, len(left), size):
            shorter = left[:begin] + left[begin + size :]
            if tries.fails(lambda shorter=shorter: fails(shorter)):  # type: ignore[misc]
                left, parts = shorter, max(2, parts - 1)
                break
        else:
            if size == 1 or tries.left <= 0:
                return left
            parts = min(len(left), 2 * parts)
    return left


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool], tries_most: int = TRIES_MOST) -> Scenario:
    """The same failure with fewer and shorter acts, in a smaller world."""
    acts = fewer(scenario.acts, lambda kept: fails(replace(scenario, acts=tuple(kept))), tries_most)
    scenario = replace(scenario, acts=tuple(acts))
    tries = _Tries(tries_most // 4)
    for simpler in _SIMPLER:
        candidate = simpler(scenario)
        if candidate != scenario and tries.fails(lambda candidate=candidate: fails(candidate)):  # type: ignore[misc]
            scenario = candidate
    for place in range(len(scenario.acts)):
        for shorter in _shorter(scenario.acts[place]):
            acts = list(scenario.acts)
            acts[place] = shorter
            candidate = replace(scenario, acts=tuple(acts))
            if tries.fails(lambda candidate=candidate: fails(candidate)):  # type: ignore[misc]
                scenario = candidate
                break
    return scenario


def _shorter(act: Act) -> Iterator[Act]:
    """The shortest first."""
    for part in (10, 3, 2):
        yield replace(act, for_us=act.for_us // part)


_SIMPLER: tuple[Callable[[Scenario], Scenario], ...] = (
    lambda scenario: replace(scenario, drift_ppm=0),
    lambda scenario: replace(scenario, shards=1),
    lambda scenario: replace(scenario, nodes=1),
    lambda scenario: replace(scenario, regions=2),
    lambda scenario: replace(
        scenario, over_us=max((act.at_us + act.for_us for act in scenario.acts), default=0) + 1_000_000
    ),
)
