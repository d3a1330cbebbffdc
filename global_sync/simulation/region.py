"""One region of the simulated world: Redis, nodes, link, and the processes of its sync service.  Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from global_sync.agent import Agent
from global_sync.leader import Leader
from global_sync.protocol.leader import LeaderSide
from global_sync.protocol.region import RegionSide
from global_sync.simulation.links import Link
from global_sync.simulation.node import Node
from global_sync.simulation.process import Process
from global_sync.simulation.redis import RegionRedis, RegionStore


@dataclass(slots=True)
class AgentProcess:
    """The real agent, its process, and what it sees of its Redis."""

    process: Process
    store: RegionStore
    agent: Agent

    @property
    def side(self) -> RegionSide:
        return self.agent.side


@dataclass(slots=True)
class LeaderProcess:
    """The real candidate leader and its process.  ``link``: its own way to the hub."""

    process: Process
    leader: Leader
    link: Link

    @property
    def side(self) -> LeaderSide:
        return self.leader.side


@dataclass(slots=True)
class Region:
    """``agents``: the active one, a standby, one that was thought dead."""

    name: str
    link: Link
    redis: RegionRedis
    nodes: list[Node]
    agents: list[AgentProcess] = field(default_factory=list)
    candidates: list[LeaderProcess] = field(default_factory=list)
    turn: int = 0

    def next_node(self) -> Node | None:
        """The nodes in turn; None while none of them is running."""
        for _ in self.nodes:
            self.turn += 1
            node = self.nodes[self.turn % len(self.nodes)]
            if node.ready and not node.frozen:
                return node
        return None
