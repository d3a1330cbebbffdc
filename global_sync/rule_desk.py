"""The leader's desk for rules: proposals in, accepted state and history out, in log order.  [IO]

Every leader comes to the same outcomes, since the outcome depends only on the accepted state and the order of
the proposals.  What a late predecessor overwrites in the compacted topic, the leader writes again.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

import structlog

from global_sync.changes import (
    END_OVERRIDES,
    REGION_DESTROYED,
    STORED_KINDS,
    Proposal,
    decode_history,
    decode_proposal,
    encode_history,
    encode_proposal,
)
from global_sync.rule_states import RulesFold
from global_sync.rulebook import Outcome, Rulebook, encode_state, stored_records
from global_sync.transport.base import HISTORY, PROPOSALS, RULES, SUBJECTS, Message, RecordsMissed, Transport
from regional_limiter.model.errors import Fault

log = structlog.get_logger(__name__)


END_AGAIN_MS = 5_000
"""A proposal to end overrides that has ended none by then is made again, each time after twice as long: it may be
lost, or refused for what the set does not allow any more."""
END_AGAIN_MOST_MS = 3_600_000

HISTORY_LOOKED_AT = 50

Configuration = tuple[int, Mapping[str, Mapping[str, int]]]
EndRegion = Callable[[str], Awaitable[str | None]]
"""Ends a region for good by the leader's word; why not, or None once that word is in the log."""


@dataclass(frozen=True, slots=True)
class _EndProposed:
    """The version of a domain whose overrides were proposed to end, when, and how long that is waited for."""

    version: int
    at_ms: int
    wait_ms: int


class EndsProposed:
    """Which ends of overrides have been proposed: whether it is time to propose one (again)."""

    def __init__(self) -> None:
        self._by_domain: dict[str, _EndProposed] = {}

    def is_due(self, domain: str, version: int, now_ms: int) -> bool:
        """For ``version`` of a domain.  True: now, and counted as done."""
        last = self._by_domain.get(domain)
        wait_ms = END_AGAIN_MS
        if last is not None and last.version == version:
            if now_ms - last.at_ms < last.wait_ms:
                return False
            wait_ms = min(2 * last.wait_ms, END_AGAIN_MOST_MS)
        self._by_domain[domain] = _EndProposed(version, now_ms, wait_ms)
        return True


def _told_offset(message: Message) -> int | None:
    """Of the proposal that a record of the history is about; None where a newer version wrote it."""
    try:
        return decode_history(message.value).offset
    except ValueError:
        return None


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class RuleDesk:
    """``run`` serves proposals while ``lead`` is in force; ``configuration`` is what the shares need of rules.

    Rule sets are read, decided and written in a thread: ten thousand rules take seconds, and the leader's beats
    must not wait for them.
    """

    def __init__(self, transport: Transport, end_region: EndRegion) -> None:
        self._transport = transport
        self._end_region = end_region
        self._said_before = 0
        self._book = Rulebook()
        self._epoch = 0
        self._leading = asyncio.Event()
        self._restored = False
        self._told_until = -1
        self._configuration: Configuration = (0, {})
        self._ends_proposed = EndsProposed()
        self.accepted = 0
        self.refused = 0

    def lead(self, epoch: int) -> None:
        self._epoch = epoch
        self._restored = False
        self._leading.set()

    def rest(self) -> None:
        self._leading.clear()

    def configuration(self) -> Configuration:
        """(version, domain -> region -> base); version 0 while the accepted rules are not known."""
        return self._configuration if self._restored else (0, {})

    async def run(self) -> None:
        await self._leading.wait()
        epoch = self._epoch
        fold = await self._read_state()
        self._book = await asyncio.to_thread(Rulebook.restore, fold)
        self._configuration = self._book.configuration()
        rules = await self._transport.reader(RULES, fold.next_message)
        self._told_until = await self._last_told()
        proposals = await self._transport.reader(PROPOSALS, "earliest")
        self._said_before = await proposals.end_offset()
        self._restored = True
        log.info("rules restored", epoch=epoch, next_proposal=self._book.next_offset)
        try:
            while self._leading.is_set() and self._epoch == epoch:
                for message in await proposals.read(timeout_ms=100):
                    if message.offset >= self._book.next_offset and not await self._is_stored(message):
                        await self._decide(message, epoch)
                for message in await rules.read(timeout_ms=1):
                    await self._mend(message, epoch)
                await self._end_overrides()
        except RecordsMissed:
            log.info("proposals were trimmed, reading them again")
        finally:
            self._restored = self._restored and self._epoch == epoch
            await proposals.close()
            await rules.close()

    async def _read_state(self) -> RulesFold:
        fold = RulesFold()
        reader = await self._transport.reader(RULES, "earliest")
        try:
            end = await reader.end_offset()
            while reader.next_offset < end:
                for message in await reader.read(timeout_ms=200):
                    fold.take(message.value)
            fold.next_message = reader.next_offset
        finally:
            await reader.close()
        return fold

    async def _last_told(self) -> int:
        """The highest proposal whose outcome is among the last of the history: all that came before it is done."""
        end_reader = await self._transport.reader(HISTORY, "latest")
        try:
            end = await end_reader.end_offset()
        finally:
            await end_reader.close()
        last = -1
        reader = await self._transport.reader(HISTORY, max(0, end - HISTORY_LOOKED_AT))
        try:
            while reader.next_offset < end and (messages := await reader.read(timeout_ms=1_000)):
                last = max([last, *filter(None, map(_told_offset, messages))])
        finally:
            await reader.close()
        return last

    async def _is_stored(self, message: Message) -> bool:
        """Whether it is a change of stored subjects that a predecessor has done: a million are not written again.

        Of changes of sets the accepted state tells; what is stored leaves nothing there.
        """
        if message.offset >= self._told_until:
            return False
        proposal = await asyncio.to_thread(decode_proposal, message.value)
        return proposal.kind in STORED_KINDS

    async def _decide(self, message: Message, epoch: int) -> None:
        outcome = await asyncio.to_thread(self._decided, message)
        if outcome.accepted and outcome.proposal.kind == REGION_DESTROYED:
            outcome = await self._ended(outcome)
        self._configuration = self._book.configuration()
        # History first: should this leader end in between, the next one decides the same again and writes both.
        await self._write_history(outcome, epoch)
        if outcome.accepted:
            self.accepted += 1
            if outcome.proposal.kind in STORED_KINDS:
                await self._write_subjects(outcome)
            elif outcome.domain in self._book.states():  # who may is no part of any set
                await self._write_state(outcome.domain, epoch)
        else:
            self.refused += 1

    def _decided(self, message: Message) -> Outcome:
        return self._book.decide(decode_proposal(message.value), message.offset)

    async def _ended(self, outcome: Outcome) -> Outcome:
        """Whether a region may be said to be destroyed depends on when that is said.

        What was said to an earlier leader may have been refused then, and must not come true by a takeover.
        """
        problem: str | None = "was said before this leader led: say it again"
        if outcome.offset >= self._said_before:
            problem = await self._end_region(outcome.proposal.region or "")
        return outcome if problem is None else replace(outcome, accepted=False, faults=(Fault("region", problem),))

    async def _write_state(self, domain: str, epoch: int) -> None:
        for key, value in await asyncio.to_thread(encode_state, self._book, domain, epoch):
            await self._transport.send(RULES, [value], key=key)

    async def _write_subjects(self, outcome: Outcome) -> None:
        keys, values = await asyncio.to_thread(stored_records, outcome)
        await self._transport.send(SUBJECTS, values, keys=keys)

    async def _write_history(self, outcome: Outcome, epoch: int) -> None:
        key, value = encode_history(outcome.history(epoch, now_ms()))
        await self._transport.send(HISTORY, [value], key=key)

    async def _end_overrides(self) -> None:
        """Propose the end of what has ended, like anybody else: the outcome is one of the log, not of a clock."""
        now = now_ms()
        for domain in self._book.ended(now):
            if not self._ends_proposed.is_due(domain, self._book.states()[domain].version, now):
                continue
            proposal = Proposal(
                id=uuid.uuid4().hex,
                domain=domain,
                kind=END_OVERRIDES,
                ended_by_ms=now,
                author="apportion",
                origin="leader",
                reason="their time is over",
                at_ms=now,
            )
            await self._transport.send(PROPOSALS, [encode_proposal(proposal)], key=f"{domain}/".encode())

    async def _mend(self, message: Message, epoch: int) -> None:
        """A late predecessor's record stands last in a compacted topic: write the accepted state again."""
        stale = self._book.stale_domain(message.value, epoch)
        if stale is not None:
            log.warning("accepted rules written again", domain=stale)
            await self._write_state(stale, epoch)
