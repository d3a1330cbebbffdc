"""Which classes play: the real ones, or one of them with a rule broken (see ``mutants.py``)."""

from __future__ import annotations

from dataclasses import dataclass, field

from global_sync.protocol.leader import LeaderSide
from global_sync.protocol.region import RegionSide
from global_sync.simulation.parts import Parts
from regional_limiter.model.enforcement import Enforcement


@dataclass(frozen=True)
class Cast:
    """``parts``: of the whole system, for schedules that play there.

    ``broken``: a rule is broken on purpose, so schedules skip what they assert of their own set-up.
    """

    region: type[RegionSide] = RegionSide
    leader: type[LeaderSide] = LeaderSide
    enforcement: type[Enforcement] = Enforcement
    parts: Parts = field(default_factory=Parts)
    broken: str = ""
