"""How a process reads the topics that it follows, for its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from global_sync.transport.base import Sends
from regional_limiter.durations import Durations, Seen
from services.feed import Feed
from services.telemetry import Labels

SENDING = "messaging.client.operation.duration"
SENDING_WORDS = "Until the broker had what was sent to a topic; with `error.type`: until it was given up, and why"

BEHIND = "Messages after the place of the reader that is furthest behind, as the broker last said"


def behind_of(read: Callable[[], Mapping[str, int]]) -> Callable[[CallbackOptions], Iterable[Observation]]:
    """``read``: messages by topic."""
    return lambda _: [Observation(count, {"topic": topic}) for topic, count in read().items()]


def sends_seen(took: Mapping[Sends, Durations]) -> Sequence[tuple[Labels, Seen]]:
    """``took``: of a transport.  On the event loop."""
    return [(_send_labels(sends), durations.seen()) for sends, durations in took.items()]


def _send_labels(sends: Sends) -> Labels:
    labels = {
        "messaging.system": sends.system,
        "messaging.operation.name": "send",
        "messaging.destination.name": sends.topic,
    }
    return {**labels, "error.type": sends.error} if sends.error else labels


def add_feed(meter: Meter, feed: Feed) -> None:
    """Silence and malformed records, by topic."""

    def silence(_: CallbackOptions) -> Iterable[Observation]:
        for topic in feed.topics:
            if (silent_ms := feed.silent_ms(topic)) is not None:
                yield Observation(silent_ms / 1000, {"topic": topic})

    def malformed(_: CallbackOptions) -> Iterable[Observation]:
        for topic, state in feed.topics.items():
            yield Observation(state.malformed, {"topic": topic})

    meter.create_observable_gauge("ratelimit.topic.behind", [behind_of(feed.behind)], "{record}", BEHIND)
    meter.create_observable_gauge("ratelimit.topic.silence", [silence], "s", "Since a read last succeeded")
    meter.create_observable_counter("ratelimit.topic.malformed", [malformed], "{record}", "Records not taken")
