"""Which classes the world is made of: the real ones, or one of them with a rule broken on purpose, for tests."""

from __future__ import annotations

from dataclasses import dataclass

from global_sync.agent import Agent
from global_sync.simulation.redis import RegionStore
from regional_limiter.fallback import Fallback
from regional_limiter.model.enforcement import Enforcement
from regional_limiter.nodes_seen import NodesSeen
from regional_limiter.token_lease_table import TokenLeaseTable


@dataclass(frozen=True, slots=True)
class Parts:
    enforcement: type[Enforcement] = Enforcement
    fallback: type[Fallback] = Fallback
    nodes_seen: type[NodesSeen] = NodesSeen
    token_leases: type[TokenLeaseTable] = TokenLeaseTable
    store: type[RegionStore] = RegionStore
    agent: type[Agent] = Agent
