"""What Prometheus and a collector read of the control API: how it reads the topics, what was asked and changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from opentelemetry.metrics import CallbackOptions, Observation

from regional_limiter.durations import Seen
from services.control_api.knowledge import Hub
from services.feed_metrics import SENDING, SENDING_WORDS, add_feed, sends_seen
from services.telemetry import Exposition, Labels, bounded_series, observed
from services.timed_http import HttpDurations, seen_of


def hub_metrics(hub: Hub, durations: HttpDurations) -> Exposition:
    sent: Sequence[tuple[Labels, Seen]] = ()

    def look() -> None:
        nonlocal sent
        sent = sends_seen(hub.transport.took)

    exposition = Exposition("control-api", look=look)
    meter = exposition.meter
    exposition.histogram("http.server.request.duration", "Duration of requests", lambda: seen_of(dict(durations)))
    exposition.histogram(SENDING, SENDING_WORDS, lambda: sent)
    add_feed(meter, hub.feed)
    gauge, counter = meter.create_observable_gauge, meter.create_observable_counter
    gauge("ratelimit.rules.version", [observed(hub.book.newest)], "", "Newest accepted rules that were read")
    words = "Changes without an outcome"
    gauge("ratelimit.proposals.pending", [observed(lambda: hub.proposer.pending)], "{change}", words)

    def outcomes(_: CallbackOptions) -> Iterable[Observation]:
        for accepted, count in list(hub.proposer.outcomes_read.items()):
            yield Observation(count, {"accepted": str(accepted).lower()})

    def audited(_: CallbackOptions) -> Iterable[Observation]:
        rows = list(hub.proposer.audited.items())
        return bounded_series(
            ({"kind": kind, "accepted": str(accepted).lower()}, count) for (kind, accepted), count in rows
        )

    counter("ratelimit.proposals.outcomes", [outcomes], "{change}", "Outcomes read, ours and others'")
    words = "Entries of the history that were read: changes of rules and access tokens, by what was asked"
    counter("ratelimit.audit.entries", [audited], "{entry}", words)
    return exposition
