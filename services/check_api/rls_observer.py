"""What a node counts of its gRPC calls."""

from __future__ import annotations

from services.check_api.app import NodeApp
from services.rls.messages import METHOD
from services.rls.methods import Observer


class RlsObserver(Observer):
    """Calls are counted beside requests, by the method's path and gRPC's status code."""

    def __init__(self, app: NodeApp) -> None:
        self._app = app

    def served(self, code: int, duration_s: float) -> None:
        self._app.counts.called(METHOD, code, duration_s)

    def unexpected(self, error: Exception) -> None:
        self._app.note_unexpected(error)
