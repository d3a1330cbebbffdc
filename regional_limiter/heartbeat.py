"""A node's beat: touch every enforcement point often, say how the node is, hear what is new.  I/O.

Every point is touched at least every third of the gap, also when no check comes: a variable that nobody has
called for longer than the gap is born anew (``model/enforcement.py``, E1), which would cost the region its leases.
A point that does not answer delays no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.nodes_seen import NodesSeen
from regional_limiter.store.base import CheckStore, NodeBeat, TouchReply

_log = logging.getLogger("apportion.node")


class Heartbeat:
    """Touches until stopped.  ``on_reply(point, reply)`` is called with every answer."""

    def __init__(
        self,
        store: CheckStore,
        every_s: float,
        beat: Callable[[], NodeBeat],
        on_reply: Callable[[str, TouchReply], None],
    ) -> None:
        self._store = store
        self._every_s = every_s
        self._beat = beat
        self._on_reply = on_reply
        self._loop_task: asyncio.Task[None] | None = None
        self._touching: dict[str, asyncio.Task[None]] = {}
        self._answers: dict[str, bool] = {}
        self._nodes_seen = NodesSeen()

    # ---- what is known

    @property
    def points(self) -> dict[str, bool]:
        """Every point, and whether it answered when it was last touched."""
        return self._answers

    def reachable_point(self) -> str | None:
        return next((point for point, answered in self._answers.items() if answered), None)

    def nodes_most(self) -> int:
        """The most nodes that were alive together lately, as the points saw it; at least this one."""
        return self._nodes_seen.most()

    def begin_with(self, nodes: int) -> None:
        """So many nodes there were when an earlier process of this one was told last."""
        self._nodes_seen.begin_with(nodes)

    # ---- life

    def start(self) -> None:
        self._loop_task = asyncio.get_running_loop().create_task(self._run(), name="heartbeat")

    async def stop(self) -> None:
        """End the beat with one last touch of every point, which carries the last totals."""
        if self._loop_task is None:
            return
        self._loop_task.cancel()
        await asyncio.gather(self._loop_task, *self._touching.values(), return_exceptions=True)
        self._loop_task = None
        try:
            points = list(self._answers) or await self._store.points()
        except StoreUnavailable:
            points = []
        beat = self._beat()
        await asyncio.gather(*(self._touch(point, beat) for point in points))

    async def _run(self) -> None:
        next_at = monotonic()
        while True:
            try:
                await self._touch_all()
            except StoreUnavailable:
                self._answers = dict.fromkeys(self._answers, False)
            except Exception:
                _log.exception("the heartbeat failed")
            # A late turn is not made up for: the next one is due a whole interval after it.
            next_at = max(next_at + self._every_s, monotonic())
            await asyncio.sleep(next_at - monotonic())

    async def _touch_all(self) -> None:
        points = await self._store.points()
        self._answers = {point: self._answers.get(point, False) for point in points}
        beat = self._beat()
        for point in points:
            if point not in self._touching:
                task = asyncio.get_running_loop().create_task(self._touch(point, beat))
                self._touching[point] = task
                task.add_done_callback(lambda _, point=point: self._touching.pop(point, None))  # type: ignore[misc]

    async def _touch(self, point: str, beat: NodeBeat) -> None:
        try:
            reply = await self._store.touch(point, beat)
        except StoreUnavailable:
            answered = False
        except Exception:
            _log.exception("touching %s failed", point)
            answered = False
        else:
            answered = True
            self._nodes_seen.note(int(monotonic() * 1e6), reply.nodes)
            self._on_reply(point, reply)
        if point in self._answers:
            self._answers[point] = answered
