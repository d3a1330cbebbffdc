"""A leader's desk for rules in a few lines: proposals through the real Rulebook, states and history out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from global_sync.changes import STORED_KINDS, decode_proposal, encode_history
from global_sync.rulebook import Rulebook, encode_state, stored_records
from global_sync.transport.base import HISTORY, PROPOSALS, RULES, SUBJECTS, Message
from global_sync.transport.memory import MemoryHub


class FakeLeader:
    """``decide`` is on unless ``asleep``; ``before_next`` runs just before the next proposal is decided."""

    def __init__(self, hub: MemoryHub, epoch: int = 1) -> None:
        self.book = Rulebook()
        self.asleep = False
        self.told_twice = False
        self._epoch = epoch
        self._transport = hub.transport("leader")

    async def run(self) -> None:
        reader = await self._transport.reader(PROPOSALS, "earliest")
        while True:
            for message in await reader.read(timeout_ms=200):
                if not self.asleep:
                    await self._decide(message)

    async def _decide(self, message: Message) -> None:
        outcome = self.book.decide(decode_proposal(message.value), message.offset)
        if outcome.accepted and outcome.proposal.kind in STORED_KINDS:
            keys, values = stored_records(outcome)
            await self._transport.send(SUBJECTS, values, keys=keys)
        elif outcome.accepted and outcome.domain in self.book.states():
            for key, value in encode_state(self.book, outcome.domain, self._epoch):
                await self._transport.send(RULES, [value], key=key)
        key, value = encode_history(outcome.history(self._epoch, at_ms=1_700_000_000_000))
        for _ in range(2 if self.told_twice else 1):
            await self._transport.send(HISTORY, [value], key=key)


@asynccontextmanager
async def leading(hub: MemoryHub) -> AsyncIterator[FakeLeader]:
    leader = FakeLeader(hub)
    task = asyncio.create_task(leader.run())
    try:
        yield leader
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
