"""All regions in one process, in memory: the same limiter, agent, leader and protocol, without Redis or Kafka.  [W]

For a laptop, and for tests of what stands around the pure parts.  Nothing survives the process, and one process is
no proof against the failure of any: it says so wherever it shows itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from global_sync.agent import Agent, monotonic_us
from global_sync.changes import PUT_SET, Proposal, encode_proposal
from global_sync.leader import Leader
from global_sync.transport.base import PROPOSALS
from global_sync.transport.memory import MemoryHub, MemoryTransport
from regional_limiter.limiter import Limiter
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.rules import parse_document
from regional_limiter.store.memory import MemoryStore

POINTS_A_REGION = 2


@dataclass(slots=True)
class EmbeddedRegion:
    """One region of the process."""

    name: str
    store: MemoryStore
    transport: MemoryTransport
    limiter: Limiter
    agent: Agent
    leader: Leader


class Embedded:
    """Regions that share one in-memory hub.  ``hub.cut(region)`` cuts a region's link, ``hub.heal`` mends it."""

    def __init__(
        self, regions: list[str], times: ProtocolTimes, state_dir: Path, addresses: Mapping[str, str] | None = None
    ) -> None:
        self.hub = MemoryHub()
        self.regions = {
            name: self._region(name, rank, times, state_dir / name, (addresses or {}).get(name, ""))
            for rank, name in enumerate(regions)
        }

    def _region(self, name: str, rank: int, times: ProtocolTimes, state_dir: Path, address: str) -> EmbeddedRegion:
        points = [f"{name}:{number}/memory" for number in range(1, POINTS_A_REGION + 1)]
        store = MemoryStore(monotonic_us, times, points)
        transport = self.hub.transport(name)
        # The secret only keeps strangers from steering keys to a shard: here there is nothing to steer.
        limiter = Limiter(
            name, store, b"embedded-embedded", state_dir, times, node=f"{name}-1", address=address, deadline_s=1.0
        )
        agent = Agent(name, store, transport, times, state_dir)
        return EmbeddedRegion(name, store, transport, limiter, agent, Leader(transport, times, rank))

    async def start(self) -> None:
        for region in self.regions.values():
            await region.transport.start()
            await region.agent.start()
            await region.leader.start()
            await region.limiter.start()

    async def put_rules(self, document: Mapping[str, object]) -> None:
        """Propose a whole set.  Raises InvalidRules; the leader accepts it when there is one."""
        rule_set = parse_document(document)
        proposal = Proposal(
            id=str(uuid4()), domain=rule_set.domain, kind=PUT_SET, document=dict(document), author="embedded"
        )
        transport = self.hub.transport("operator")
        await transport.send(PROPOSALS, [encode_proposal(proposal)], key=rule_set.domain.encode())

    async def stop(self) -> None:
        for region in self.regions.values():
            await region.limiter.stop()
            await region.agent.stop()
            await region.leader.stop()
            await region.transport.close()
            await region.store.close()
