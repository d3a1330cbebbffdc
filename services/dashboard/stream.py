"""One event stream per tab: a new tab gets everything it needs, then a frame a second.  [IO]

A frame is built and encoded once for all tabs.  A tab that does not take its frames loses them, not the others;
there is nothing to catch up on, since every frame says how things are now.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

import structlog
from fastapi.sse import ServerSentEvent

log = structlog.get_logger(__name__)

SUBSCRIBERS_MOST = 100
WAITING_MOST = 5
STEP_S = 1.0


class TooManySubscribers(Exception):
    """As many tabs as this process serves are open."""


class Broadcaster:
    """``tick`` and ``hello`` make the frames as JSON text."""

    def __init__(self, tick: Callable[[], str], hello: Callable[[], str]) -> None:
        self._tick = tick
        self._hello = hello
        self._number = 0
        self._subscribers: set[Subscriber] = set()
        self._closed = False
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._subscribers)

    async def run(self) -> None:
        """A frame a second, also when nobody looks: the past is kept for those who come later."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            self.publish()
            due = max(due + STEP_S, loop.time())
            await asyncio.sleep(due - loop.time())

    def publish(self) -> None:
        try:
            frame = self._tick()
        except Exception:
            # A page that stands still says so itself; the next frame may well succeed.
            log.exception("frame failed")
            return
        self._number += 1
        for subscriber in self._subscribers:
            self.dropped += subscriber.put(ServerSentEvent(event="tick", raw_data=frame, id=str(self._number)))

    def close(self) -> None:
        """End all streams: the process is about to stop."""
        self._closed = True
        for subscriber in self._subscribers:
            subscriber.end()

    def subscribe(self) -> Subscriber:
        """Raises TooManySubscribers."""
        if self._closed or len(self._subscribers) >= SUBSCRIBERS_MOST:
            raise TooManySubscribers
        subscriber = Subscriber()
        self._subscribers.add(subscriber)
        return subscriber

    def leave(self, subscriber: Subscriber) -> None:
        self._subscribers.discard(subscriber)

    async def events(self, subscriber: Subscriber) -> AsyncIterator[ServerSentEvent]:
        yield ServerSentEvent(event="hello", raw_data=self._hello(), id=str(self._number), retry=1000)
        while (event := await subscriber.get()) is not None:
            yield event


class Subscriber:
    """One tab's waiting frames."""

    def __init__(self) -> None:
        self._waiting: deque[ServerSentEvent] = deque(maxlen=WAITING_MOST)
        self._wake = asyncio.Event()
        self._ended = False

    def put(self, event: ServerSentEvent) -> int:
        """The number of frames that had to go for this one."""
        lost = int(len(self._waiting) == WAITING_MOST)
        self._waiting.append(event)
        self._wake.set()
        return lost

    def end(self) -> None:
        self._ended = True
        self._wake.set()

    async def get(self) -> ServerSentEvent | None:
        while not self._waiting:
            if self._ended:
                return None
            self._wake.clear()
            await self._wake.wait()
        return self._waiting.popleft()
