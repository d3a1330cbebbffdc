"""What Prometheus reads of the control API: how it reads the topics, and what became of changes."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.metrics import CallbackOptions, Observation

from services.control_api.knowledge import Hub
from services.feed_metrics import add_feed
from services.telemetry import Exposition, observed


def hub_metrics(hub: Hub) -> Exposition:
    exposition = Exposition("control-api")
    meter = exposition.meter
    add_feed(meter, hub.feed)
    gauge = meter.create_observable_gauge
    gauge("ratelimit.rules.version", [observed(hub.book.newest)], "", "Newest accepted rules that were read")
    gauge("ratelimit.proposals.pending", [observed(lambda: hub.proposer.pending)], "", "Changes without an outcome")

    def outcomes(_: CallbackOptions) -> Iterable[Observation]:
        for accepted, count in list(hub.proposer.outcomes_read.items()):
            yield Observation(count, {"accepted": str(accepted).lower()})

    meter.create_observable_counter(
        "ratelimit.proposals.outcomes", [outcomes], "", "Outcomes read, ours and others'"
    )
    return exposition
