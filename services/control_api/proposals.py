"""A change of rules from its proposal to its outcome.  [IO]

Who proposes waits, bounded, until the leader's outcome has come back through the history.  No answer in time is
not a refusal: the proposal may still be accepted, so both errors name its id.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from global_sync.changes import CHANGE_BYTES_MOST, History, Proposal, encode_proposal
from global_sync.transport.base import PROPOSALS, Transport, TransportUnavailable
from services.clock import wall_ms

WAIT_S = 3.0
PENDING_MOST = 200
AUDITED_MOST = 64
"""Kinds of changes that are counted: a refused one may be called anything."""


class NotProposed(Exception):
    """Kafka does not answer.  The proposal may still be written, and accepted, later."""

    def __init__(self, proposal: str, cause: str) -> None:
        super().__init__(cause)
        self.proposal = proposal


class NoOutcome(Exception):
    """Proposed, but no outcome in time: no leader just now, or the history is not readable."""

    def __init__(self, proposal: str) -> None:
        super().__init__("no outcome in time")
        self.proposal = proposal


class TooLarge(Exception):
    """The change would not fit into a record of the log."""


class TooManyPending(Exception):
    """As many changes as this process tracks wait for their outcome."""


class Proposer:
    """Sends proposals and matches outcomes with them; ``take`` is fed the history."""

    def __init__(self, transport: Transport, wait_s: float = WAIT_S) -> None:
        self._transport = transport
        self._wait_s = wait_s
        self._pending: dict[str, asyncio.Future[History]] = {}
        self.outcomes_read = {True: 0, False: 0}
        self.audited: dict[tuple[str, bool], int] = {}
        """Outcomes read by kind of change, and whether it was accepted."""

    @property
    def pending(self) -> int:
        return len(self._pending)

    def take(self, outcome: History) -> None:
        """An outcome, each once."""
        self.outcomes_read[outcome.accepted] += 1
        asked = (outcome.kind, outcome.accepted)
        if asked not in self.audited and len(self.audited) >= AUDITED_MOST:
            asked = ("_other", outcome.accepted)
        self.audited[asked] = self.audited.get(asked, 0) + 1
        waiting = self._pending.get(outcome.id)
        if waiting is not None and not waiting.done():
            waiting.set_result(outcome)

    async def propose(self, domain: str, kind: str, **change: Any) -> History:
        """The outcome of a change (the fields of a Proposal).  Raises NotProposed, NoOutcome, TooManyPending,
        and TooLarge.
        """
        if len(self._pending) >= PENDING_MOST:
            raise TooManyPending
        proposal = Proposal(id=uuid.uuid4().hex, domain=domain, kind=kind, at_ms=wall_ms(), **change)
        value = encode_proposal(proposal)
        if len(value) > CHANGE_BYTES_MOST:
            raise TooLarge(f"a change of {len(value):,} bytes; at most {CHANGE_BYTES_MOST:,} fit")
        waiting: asyncio.Future[History] = asyncio.get_running_loop().create_future()
        self._pending[proposal.id] = waiting
        try:
            return await asyncio.wait_for(self._send_and_wait(proposal, value, waiting), self._wait_s)
        except TransportUnavailable as error:
            raise NotProposed(proposal.id, str(error)) from error
        except TimeoutError:
            raise NoOutcome(proposal.id) from None
        finally:
            del self._pending[proposal.id]

    async def _send_and_wait(self, proposal: Proposal, value: bytes, waiting: asyncio.Future[History]) -> History:
        key = f"{proposal.domain}/{proposal.rule_id or ''}".encode()
        timeout_ms = max(1, int(self._wait_s * 800))  # before the wait as a whole ends: the two errors differ
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._transport.send(PROPOSALS, [value], key=key, timeout_ms=timeout_ms)
        except TimeoutError as error:
            raise TransportUnavailable("no acknowledgement in time") from error
        return await waiting
