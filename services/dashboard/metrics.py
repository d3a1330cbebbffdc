"""What Prometheus reads of the dashboard: how it reads the topics, and who looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from opentelemetry.metrics import CallbackOptions, Observation

from services.dashboard.board import Board
from services.dashboard.stream import Broadcaster
from services.feed_metrics import add_feed
from services.telemetry import Exposition, observed


def board_metrics(board: Board, broadcaster: Broadcaster) -> Exposition:
    exposition = Exposition("dashboard")
    meter = exposition.meter
    add_feed(meter, board.feed)
    meter.create_observable_gauge("ratelimit.page.streams", [observed(lambda: len(broadcaster))], "", "Open pages")
    words = "What the busiest key of a global rule asks for on average, by what the rule lets through for ever"
    meter.create_observable_gauge("ratelimit.rule.nearness", [_nearness(board)], "1", words)
    dropped = observed(lambda: broadcaster.dropped)
    meter.create_observable_counter(
        "ratelimit.page.frames_dropped", [dropped], "", "Frames that a page did not take"
    )
    return exposition


def _nearness(board: Board) -> Callable[[CallbackOptions], Iterator[Observation]]:
    def observe(_: CallbackOptions) -> Iterator[Observation]:
        for (domain, rule), part in board.nearness().items():
            yield Observation(part, {"domain": domain, "rule": rule})

    return observe
