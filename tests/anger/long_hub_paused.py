"""Real brokers lose one another while three regions lend: the bound holds, and lending goes on.

``long_hub_of_three.py`` has more of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.anger.brokers import Brokers
from tests.anger.three_brokers import BY_THEMSELVES, leader_of, regions
from tests.anger.world import RATE, SESSION_S, lends

pytestmark = [pytest.mark.timeout(600), BY_THEMSELVES]


async def test_a_leading_broker_that_is_paused_for_longer_than_sessions_last_is_gone_round(
    brokers: Brokers, tmp_path: Path
) -> None:
    async with regions(brokers, tmp_path) as (world, _):
        paused = await leader_of(brokers)
        brokers.freeze(paused)
        try:
            await world.offer("us-east", 1.5 * RATE, SESSION_S + 1)
            # Sessions that lasted from before the pause are over: what is lent now was renewed by the others.
            await lends(world, "eu-west")
            assert await leader_of(brokers) != paused
        finally:
            brokers.thaw(paused)
        # It comes back with what it had under way, and believes that it leads.
        await lends(world, "us-east")
