"""A world that is well again is watched on, in one seed of ten."""

from __future__ import annotations

from typing import Any

import pytest

from regional_limiter.model.share import SHARE_UNITS

from . import healing
from .world import World, run

EVENTS = 30


def a_seed(watched_on: bool) -> int:
    return next(seed for seed in range(100) if healing.is_watched_on(seed) is watched_on)


def rounds(seed: int, monkeypatch: pytest.MonkeyPatch, breaks_after: int | None = None) -> tuple[int, list[str]]:
    """How many rounds the seed's world took to heal, and what did not.

    ``breaks_after``: so many rounds after all was well for the first time a node brings a base that nobody gave.
    """
    went, well_since, one_round = 0, 0, healing._round

    def counted(world: World, candidate: Any) -> None:
        nonlocal went, well_since
        one_round(world, candidate)
        went += 1
        if healing._is_well(world, candidate, world.configs[world.newest_config][world.domains[0]]):
            well_since = well_since or went
        if breaks_after is not None and well_since and went == well_since + breaks_after:
            node = world.plants[0].nodes[0]
            node.version, node.bases = node.version + 1, dict.fromkeys(world.domains, SHARE_UNITS)

    with monkeypatch.context() as patch:
        patch.setattr(healing, "_round", counted)
        found = healing.heal(run(seed, EVENTS))
    return went, found


def test_one_seed_in_ten_is_watched_on_and_always_the_same_ones() -> None:
    watched = [seed for seed in range(0, 20_000, 20) if healing.is_watched_on(seed)]
    assert 70 < len(watched) < 130
    assert any(healing.is_watched_on(seed) for seed in range(5000, 5020))


def test_a_world_that_is_not_watched_on_is_left_when_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    went, found = rounds(a_seed(watched_on=False), monkeypatch)
    longest, _ = rounds(a_seed(watched_on=True), monkeypatch)
    assert not found
    assert went < longest / 2


def test_what_goes_wrong_after_all_was_well_is_seen_in_a_world_that_is_watched_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seed = a_seed(watched_on=True)
    assert rounds(seed, monkeypatch)[1] == []
    _, found = rounds(seed, monkeypatch, breaks_after=20)
    assert any("shares=" in one for one in found), found
