"""How long sends to topics took, as metrics tell it."""

from __future__ import annotations

from global_sync.transport.base import LOG, Sends
from regional_limiter.durations import Durations
from services.feed_metrics import sends_seen


def test_sends_that_failed_are_told_apart_and_none_is_said_to_be_kafkas_that_is_not() -> None:
    took = {
        sends: Durations()
        for sends in (Sends("kafka", LOG), Sends("kafka", LOG, "TimeoutError"), Sends("memory", LOG))
    }
    for count, durations in enumerate(took.values(), 1):
        for _ in range(count):
            durations.record(0.5)
    sent = {"messaging.operation.name": "send", "messaging.destination.name": LOG}
    assert [(labels, sum(seen.counts)) for labels, seen in sends_seen(took)] == [
        ({"messaging.system": "kafka", **sent}, 1),
        ({"messaging.system": "kafka", **sent, "error.type": "TimeoutError"}, 2),
        ({"messaging.system": "memory", **sent}, 3),
    ]
