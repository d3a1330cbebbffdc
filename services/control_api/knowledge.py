"""Everything that the control API knows: what it has read of the topics, and whom it can ask.  [IO]"""

from __future__ import annotations

from global_sync.transport.base import HISTORY, LOG, RULES, USAGE, Message, Transport
from services.accepted_rules import Book
from services.clock import wall_ms
from services.control_api.proposals import Proposer
from services.control_api.totals import UsageTotals
from services.feed import USAGE_BEFORE_END, Feed, Handler
from services.picture import Picture, usage_document
from services.probes import Probes
from services.settings import HubSettings

HISTORY_BEFORE_END = -1_000


class Hub:
    """``run`` follows the topics until cancelled."""

    def __init__(self, transport: Transport, settings: HubSettings, mode: str = "kafka") -> None:
        self.mode = mode
        self.transport = transport
        self.settings = settings
        self.book = Book(sorted(settings.regions))
        self.picture = Picture(settings.regions, settings.times())
        self.totals = UsageTotals()
        self.proposer = Proposer(transport)
        self.probes = Probes(settings.regions)
        handlers: dict[str, Handler] = {
            RULES: self._take_rules,
            HISTORY: self.proposer.take,
            LOG: self._take,
            USAGE: self._take,
        }
        self.feed = Feed(transport, handlers, {USAGE: USAGE_BEFORE_END, HISTORY: HISTORY_BEFORE_END})

    async def run(self) -> None:
        await self.transport.start()
        await self.feed.run()

    async def close(self) -> None:
        await self.probes.close()

    def why_not_ready(self) -> str | None:
        """None when the accepted rules have been read and Kafka answered lately."""
        return self.feed.why_not_ready(RULES, "the accepted rules")

    async def rules_known(self, timeout_s: float = 3.0) -> bool:
        """Whether the accepted rules have been read to their end once."""
        return await self.feed.caught_up(RULES, timeout_s=timeout_s)

    def _take_rules(self, message: Message) -> None:
        self.book.take(message)
        self._take(message)

    def _take(self, message: Message) -> None:
        live = self.feed.topics[message.topic].caught_up.is_set()
        self.picture.take(message, wall_ms(), live=live)
        if message.topic == USAGE:
            self.totals.take(usage_document(message.value))
