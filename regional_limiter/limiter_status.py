"""What a node tells of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from regional_limiter.shadow import ShadowCount
from regional_limiter.subject_lookups import SubjectCounts
from regional_limiter.token_lease_table import LeaseCounts


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One enforcement point as this node sees it.

    ``breaker``: open while checks are refused without being sent, else closed.  ``answers``: to the last touch.
    """

    point: str
    breaker: str
    answers: bool = True


@dataclass(frozen=True, slots=True)
class LimiterStatus:
    """What a node tells of itself.  ``degraded``: degraded decisions, by cause ("floor": by the store; "shed": the
    store was not asked, since it was asked too much).
    Versions: -1 unknown.

    ``refused_domains``: domain -> why its newest rules are not in force here.  ``leases``: tokens taken ahead.
    ``shadows``: by ``domain/rule``.  ``subjects``: how checks came to know of their clients what is stored.
    ``tables``: by name, how many entries a table has and may have.
    """

    rules_version: int
    base_version: int
    shards: Sequence[ShardStatus] = ()
    degraded: dict[str, int] = field(default_factory=dict)
    refused_sets: int = 0
    refused_domains: Mapping[str, str] = field(default_factory=dict)
    refunds_dropped: int = 0
    debts_dropped: int = 0
    demand_dropped: int = 0
    shadows: Mapping[str, ShadowCount] = field(default_factory=dict)
    leases: LeaseCounts = field(default_factory=LeaseCounts)
    subjects: SubjectCounts = field(default_factory=SubjectCounts)
    tables: Mapping[str, tuple[int, int]] = field(default_factory=dict)
