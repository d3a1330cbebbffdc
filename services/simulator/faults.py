"""What may happen during a run, to the real code and to the models alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from global_sync.simulation import World
from services.simulator.baselines import Model
from services.simulator.run import Fault


def cut(regions: Sequence[str]) -> Fault:
    """The links of these regions carry nothing any more."""
    return _links(regions, World.cut, is_cut=True)


def heal(regions: Sequence[str]) -> Fault:
    return _links(regions, World.heal, is_cut=False)


def _links(regions: Sequence[str], act: Callable[[World, str], None], *, is_cut: bool) -> Fault:
    def happen(world: World, models: Sequence[Model]) -> None:
        names = list(world.regions)
        for region in regions:
            act(world, region)
            for model in models:
                model.cut(names.index(region), is_cut)

    return happen


def kill_leader(world: World, _: Sequence[Model]) -> None:
    """The process that leads ends without a word."""
    world.crash_leader()
