"""What the control API's metrics read, and on which thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

from global_sync.transport.base import PROPOSALS, Sends
from regional_limiter.durations import Durations
from services.control_api.metrics import hub_metrics

SENDS = Sends("kafka", PROPOSALS)


class OfOneThread(dict[Sends, Durations]):
    """Notes who goes through it: a transport adds to it while others may look."""

    def __init__(self) -> None:
        super().__init__({SENDS: Durations()})
        self.read_by: set[int] = set()

    def __iter__(self) -> Iterator[Sends]:
        self.read_by.add(threading.get_ident())
        return super().__iter__()

    def keys(self):  # type: ignore[no-untyped-def]
        self.read_by.add(threading.get_ident())
        return super().keys()

    def items(self):  # type: ignore[no-untyped-def]
        self.read_by.add(threading.get_ident())
        return super().items()


async def test_what_sends_took_is_read_on_the_loop_and_told_from_another_thread() -> None:
    took = OfOneThread()
    feed = SimpleNamespace(topics={}, silent_ms=lambda _: None, behind=dict)
    proposer = SimpleNamespace(pending=0, outcomes_read={}, audited={})
    hub = SimpleNamespace(
        feed=feed, transport=SimpleNamespace(took=took), book=SimpleNamespace(newest=lambda: 1), proposer=proposer
    )
    exposition = hub_metrics(hub, {})  # type: ignore[arg-type]
    try:
        took[SENDS].record(0.2)
        text = (await exposition.told()).text.decode()
    finally:
        exposition.close()
    assert 'messaging_destination_name="rl.proposals"' in text
    assert took.read_by == {threading.get_ident()}
