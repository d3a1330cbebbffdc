"""Our HTTP/2 against the package ``h2``: whatever it says we understand, whatever we say it accepts."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from struct import pack
from typing import Any

import h2.settings
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.rls.http2 import connection as http2
from services.rls.http2.bounds import RESETS_MOST, STREAMS_MOST
from services.rls.http2.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    frame,
    go_away,
    literal,
)
from services.rls.messages import METHOD
from services.rls.methods import Unary
from tests.unit.rls.http2_peer import Clock, Peer, echo

MESSAGES = st.binary(max_size=40) | st.integers(0, 20_000).map(lambda size: b"m" * size)
STEPS = st.one_of(
    st.tuples(st.just("ask"), MESSAGES, st.sampled_from([(), (("grpc-timeout", "19m"),), (("x-id", "1"),)])),
    st.tuples(st.just("ask again"), st.integers(0, 99)),
    st.tuples(st.just("abandon"), MESSAGES),
    # Smaller ones take more turns than a peer has, and more window updates than a caller may send without asking.
    st.tuples(st.just("window"), st.just(0) | st.integers(2000, 300_000)),
    st.tuples(st.just("frames"), st.sampled_from([16_384, 20_000, 100_000])),
    st.tuples(st.just("table"), st.integers(0, 4096)),
    st.tuples(st.just("ping")),
    st.tuples(st.just("exchange"), st.integers(1, 5000)),
)


def run(work: Any) -> None:
    asyncio.run(work)


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=30))
@example([("window", 1), ("ask", b"m" * 40, ())])
@example([("table", 0), ("ask again", 0), ("table", 245), ("table", 245), ("ask", b"", ()), ("ask again", 0)])
def test_every_call_is_answered_whatever_else_is_said(steps: list[Any]) -> None:
    async def talk() -> None:
        peer = Peer()
        asked: dict[int, bytes] = {}
        abandoned: set[int] = set()
        pings = 0
        await peer.exchange()
        for step in steps:
            if step[0] == "ask":
                extra = [(name, f"{value}{len(asked)}") for name, value in step[2]]
                asked[peer.ask(step[1], extra=extra)] = step[1]
            elif step[0] == "ask again":
                asked[peer.ask(b"L%d" % step[1])] = b"L%d" % step[1]
            elif step[0] == "abandon":
                number = peer.ask(step[1], end=False)
                peer.client.reset_stream(number)
                abandoned.add(number)
            elif step[0] == "window":
                peer.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: step[1]})
            elif step[0] == "frames":
                peer.client.update_settings({h2.settings.SettingCodes.MAX_FRAME_SIZE: step[1]})
            elif step[0] == "table":
                # Told the same size twice before it has written anything, the package forgets to tell it us.
                if peer.client.encoder.header_table_size != step[1]:
                    peer.client.encoder.header_table_size = step[1]
            elif step[0] == "ping":
                peer.client.ping(b"12345678")
                pings += 1
            await peer.exchange(pieces=step[1] if step[0] == "exchange" else 1 << 20)
        # What waits for a window gets one.
        peer.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 1 << 20})
        await peer.exchange()
        for number, message in asked.items():
            told = peer.told[number]
            assert told.headers[":status"] == "200"
            assert told.ended
            if message[:1] == b"F":
                assert told.trailers == {} or told.trailers["grpc-status"] == "5"
            else:
                assert told.message == message * 10
                assert told.trailers == {"grpc-status": "0"}
        assert peer.pongs == pings
        assert peer.goaway is None
        assert peer.noted.errors == []
        assert not peer.connection._streams.open

    run(talk())


def recorded() -> bytes:
    """The bytes of an ordinary talk."""

    async def talk() -> bytes:
        peer = Peer()
        for number in range(4):
            peer.ask(b"x" * number, extra=[("x-id", str(number))])
        peer.client.ping(b"12345678")
        peer.ask(b"L" * 300)
        return bytes(peer.client.data_to_send())

    return asyncio.run(talk())


RECORDED = recorded()


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 400))
def test_no_bytes_bring_it_out_of_step(seed: int, changes: int, pieces: int) -> None:
    """Mutated talks end with a farewell, or with answers; never with an exception."""

    async def talk() -> None:
        chance = random.Random(seed)
        data = bytearray(RECORDED)
        for _ in range(changes):
            at = chance.randrange(len(PREFACE), len(data))
            kind = chance.randrange(3)
            if kind == 0:
                data[at] = chance.randrange(256)
            elif kind == 1:
                del data[at : at + chance.randrange(1, 9)]
            else:
                data[at:at] = chance.randbytes(chance.randrange(1, 9))
        peer = Peer()
        for start in range(0, len(data), pieces):
            if not peer.transport.closed:
                peer.connection.data_received(bytes(data[start : start + pieces]))
            await asyncio.sleep(0)
        assert peer.noted.errors == []
        peer.connection.connection_lost(None)
        assert not peer.connection._streams.open

    run(talk())


# ---- guards


def opened(number: int, block: bytes = b"") -> bytes:
    """A head that asks for the method, as literals."""
    headers = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": METHOD.encode(),
        b"content-type": b"application/grpc",
    }
    made = b"".join(literal(name, value) for name, value in headers.items())
    return frame(HEADERS, END_HEADERS, number, made + block)


async def raw(*frames: bytes) -> Peer:
    peer = Peer(upgrade=False)
    peer.connection.data_received(PREFACE + frame(SETTINGS, 0, 0))
    for one in frames:
        if not peer.transport.closed:
            peer.connection.data_received(one)
    await asyncio.sleep(0)
    return peer


def farewell(peer: Peer) -> int | None:
    """The code of the last frame, if that is a GOAWAY."""
    at = peer.transport.written.rfind(b"\x07\x00\x00\x00\x00\x00")
    return None if at < 0 else int.from_bytes(peer.transport.written[at + 10 : at + 14], "big")


async def test_streams_that_are_opened_and_reset_at_once_end_the_connection() -> None:
    peer = await raw(
        *(opened(n) + frame(RST_STREAM, 0, n, pack(">I", 8)) for n in range(1, 2 * RESETS_MOST + 9, 2))
    )
    assert (peer.transport.closed, farewell(peer)) == (True, ENHANCE_YOUR_CALM)


async def test_callers_that_give_up_now_and_then_are_let_be() -> None:
    body = frame(DATA, END_STREAM, 0, b"\x00\x00\x00\x00\x00")
    frames = []
    for number in range(1, 8 * RESETS_MOST, 4):
        frames.append(opened(number) + frame(RST_STREAM, 0, number, pack(">I", 8)))
        frames.append(opened(number + 2) + body[:5] + (number + 2).to_bytes(4, "big") + body[9:])
    peer = await raw(*frames)
    assert not peer.transport.closed


@pytest.mark.parametrize(
    "idle",
    [
        frame(PING, 0, 0, b"12345678"),
        frame(SETTINGS, 0, 0),
        frame(PRIORITY, 0, 1, b"\x00\x00\x00\x03\x00"),
        frame(77, 0, 1),
    ],
    ids=["ping", "settings", "priority", "unknown"],
)
async def test_frames_that_ask_for_nothing_end_the_connection_in_the_end(idle: bytes) -> None:
    few = await raw(idle * 1000)
    assert not few.transport.closed
    many = await raw(*[idle * 100] * 110)
    assert (many.transport.closed, farewell(many)) == (True, ENHANCE_YOUR_CALM)


async def test_a_head_in_endless_pieces_ends_the_connection() -> None:
    start = frame(HEADERS, 0, 1, b"")
    small = await raw(start, *[frame(CONTINUATION, 0, 1, b"")] * 20)
    assert farewell(small) == ENHANCE_YOUR_CALM
    large = await raw(start, *[frame(CONTINUATION, 0, 1, b"x" * 16_000)] * 4)
    assert farewell(large) == ENHANCE_YOUR_CALM


async def test_a_head_beyond_the_bound_is_told_so_and_the_connection_goes_on() -> None:
    peer = Peer()
    large = peer.ask(b"", extra=[(f"x-{i}", "y" * 900) for i in range(20)])
    small = peer.ask(b"abc")
    await peer.exchange()
    assert peer.told[large].headers[":status"] == "431"
    assert peer.told[small].message == b"abc" * 10


async def test_more_data_than_the_window_ends_the_stream() -> None:
    """Of a call that is no gRPC's, so that nothing else is held against its data."""
    head = b"".join(
        literal(name, value) for name, value in ((b":method", b"PUT"), (b":scheme", b"http"), (b":path", b"/"))
    )
    peer = await raw(frame(HEADERS, END_HEADERS, 1, head), *[frame(DATA, 0, 1, b"x" * 16_000)] * 9)
    assert frame(RST_STREAM, 0, 1, pack(">I", 3)) in peer.transport.written


async def test_more_streams_than_agreed_are_refused_and_may_be_asked_again() -> None:
    peer = await raw(*(opened(number) for number in range(1, 2 * STREAMS_MOST + 3, 2)))
    assert peer.transport.written.endswith(frame(RST_STREAM, 0, 2 * STREAMS_MOST + 1, pack(">I", 7)))
    assert not peer.transport.closed


async def test_a_caller_that_does_not_read_may_not_ask() -> None:
    peer = await raw()
    peer.connection.pause_writing()
    assert peer.transport.reading_paused
    peer.connection.resume_writing()
    assert not peer.transport.reading_paused


async def test_what_is_not_http2_is_told_so() -> None:
    peer = Peer(upgrade=False)
    peer.connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
    assert peer.transport.closed
    assert b"this is not HTTP/2" in peer.transport.written


# ---- ends


async def test_a_node_that_leaves_answers_what_is_open_and_refuses_the_rest() -> None:
    ends: list[Any] = []
    peer = Peer({METHOD: Unary(lambda data, ended: ends.append(ended))})
    await peer.exchange()
    number = peer.ask(b"a")
    await peer.exchange()
    # By its bytes: the package takes nothing more after a farewell.
    written = peer.transport.written
    peer.connection.go_away()
    await asyncio.sleep(0)
    assert written == go_away(2**31 - 1, 0)
    peer.connection.data_received(opened(3))
    peer.connection.leave()
    peer.connection.data_received(opened(5))
    await asyncio.sleep(0)
    assert written.endswith(go_away(3, 0) + frame(RST_STREAM, 0, 5, pack(">I", 7)))
    peer.connection.data_received(frame(DATA, END_STREAM, 3, b"\x00\x00\x00\x00\x01b"))
    ends[0](b"told")
    assert not peer.transport.closed
    ends[1](b"told")
    assert peer.transport.closed
    assert written.count(b"told") == 2
    assert number == 1


async def test_an_answer_to_a_call_that_is_gone_is_nothing() -> None:
    ends: list[Any] = []
    peer = Peer({METHOD: Unary(lambda data, ended: ends.append(ended))})
    number = peer.ask(b"a")
    await peer.exchange()
    peer.client.reset_stream(number)
    await peer.exchange()
    ends[0](b"late")
    await peer.exchange()
    assert number not in peer.told
    other = peer.ask(b"b")
    await peer.exchange()
    peer.connection.connection_lost(None)
    ends[1](b"late")
    assert other not in peer.told


async def test_who_says_nothing_is_asked_and_then_left() -> None:
    clock = Clock()
    silent = Peer(upgrade=False, clock=clock)
    there, gone = Peer(clock=clock), Peer(clock=clock)
    await there.exchange()
    await gone.exchange()
    clock.advance(http2.PREFACE_WITHIN_S)  # at once, as when the process was kept from running
    assert not silent.transport.closed
    for _ in range(4):
        clock.advance(http2.PREFACE_WITHIN_S / 5)
    assert (silent.transport.closed, there.transport.closed, gone.transport.closed) == (True, False, False)
    clock.advance(http2.PING_AFTER_S)
    await asyncio.sleep(0)  # what is said in one turn of the loop leaves in the next
    assert frame(PING, 0, 0, b"anybody?") in gone.transport.written
    for _ in range(3):
        await there.exchange()  # answers
        clock.advance(http2.PING_AFTER_S)
        await asyncio.sleep(0)
    assert (there.transport.closed, gone.transport.closed) == (False, True)
    there.connection.connection_lost(None)


@pytest.mark.parametrize(
    ("message", "status", "words"),
    [(b"F", "5", "no: 100 %25 %C3%A4h"), (b"x" * 70_000, "8", "a message may have at most 65536 bytes")],
)
async def test_a_call_that_fails_says_why(message: bytes, status: str, words: str) -> None:
    peer = Peer()
    await peer.exchange()
    number = peer.ask(message)
    await peer.exchange()
    told = peer.told[number]
    assert told.headers["grpc-status"] == status
    assert told.headers["grpc-message"] == words


def test_the_echo_of_these_tests_is_an_echo() -> None:
    told: list[Any] = []
    echo(b"a", told.append)
    assert told == [b"a" * 10]


async def test_a_connection_that_has_ended_is_freed_without_the_collector_which_seldom_runs() -> None:
    gc.disable()
    try:
        peer = Peer()
        await peer.exchange()
        peer.ask(b"hello")
        await peer.exchange()
        ended = weakref.ref(peer.connection)
        peer.connection.connection_lost(None)
        del peer.connection
        assert ended() is None
    finally:
        gc.enable()
