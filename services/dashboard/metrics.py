"""What Prometheus reads of the dashboard: how it reads the topics, and who looks."""

from __future__ import annotations

from services.dashboard.board import Board
from services.dashboard.stream import Broadcaster
from services.feed_metrics import add_feed
from services.telemetry import Exposition, observed


def board_metrics(board: Board, broadcaster: Broadcaster) -> Exposition:
    exposition = Exposition("dashboard")
    meter = exposition.meter
    add_feed(meter, board.feed)
    meter.create_observable_gauge("ratelimit.page.streams", [observed(lambda: len(broadcaster))], "", "Open pages")
    dropped = observed(lambda: broadcaster.dropped)
    meter.create_observable_counter(
        "ratelimit.page.frames_dropped", [dropped], "", "Frames that a page did not take"
    )
    return exposition
