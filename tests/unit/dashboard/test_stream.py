"""One stream per tab: bounded, and a slow tab costs nobody else anything."""

from __future__ import annotations

import pytest

from services.dashboard.stream import SUBSCRIBERS_MOST, WAITING_MOST, Broadcaster, TooManySubscribers


def broadcaster() -> Broadcaster:
    return Broadcaster(lambda: '{"frame":"tick"}', lambda: '{"frame":"hello"}')


async def test_a_new_tab_is_told_everything_first_and_then_each_frame() -> None:
    source = broadcaster()
    subscriber = source.subscribe()
    events = source.events(subscriber)
    first = await anext(events)
    source.publish()
    second = await anext(events)
    assert (first.event, first.raw_data) == ("hello", '{"frame":"hello"}')
    assert (second.event, second.raw_data, second.id) == ("tick", '{"frame":"tick"}', "1")
    source.leave(subscriber)
    source.publish()
    assert len(source) == 0


async def test_a_tab_that_takes_nothing_keeps_the_newest_frames_only() -> None:
    source = broadcaster()
    subscriber = source.subscribe()
    for _ in range(WAITING_MOST + 3):
        source.publish()
    taken = [await subscriber.get() for _ in range(WAITING_MOST)]
    assert [event.id for event in taken if event] == ["4", "5", "6", "7", "8"]
    assert source.dropped == 3


async def test_one_tab_too_many_is_refused() -> None:
    source = broadcaster()
    for _ in range(SUBSCRIBERS_MOST):
        source.subscribe()
    with pytest.raises(TooManySubscribers):
        source.subscribe()


async def test_streams_end_when_the_process_does() -> None:
    source = broadcaster()
    events = source.events(source.subscribe())
    await anext(events)
    source.close()
    with pytest.raises(StopAsyncIteration):
        await anext(events)
    with pytest.raises(TooManySubscribers):
        source.subscribe()


async def test_a_frame_that_fails_does_not_end_the_stream() -> None:
    frames = iter([ValueError("no frame"), "{}"])

    def tick() -> str:
        frame = next(frames)
        if isinstance(frame, ValueError):
            raise frame
        return frame

    source = Broadcaster(tick, lambda: "{}")
    subscriber = source.subscribe()
    source.publish()
    source.publish()
    event = await subscriber.get()
    assert event is not None
    assert event.id == "1"
