from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable

import pytest
import uvloop

from services.patient_timer import patient_timeout

MOST_S = 0.2


async def test_what_does_not_come_is_not_waited_for() -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with patient_timeout(MOST_S):
            await asyncio.Event().wait()
    assert time.monotonic() - began >= MOST_S


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_had_come_during_a_stall_of_the_process_is_read(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def read() -> bytes:
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            async with patient_timeout(MOST_S):
                theirs.sendall(b"body")
                time.sleep(2 * MOST_S)  # noqa: ASYNC251 - the stall
                body = await reader.readexactly(4)
            writer.close()
            return body

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(read()) == b"body"


async def test_nothing_is_left_behind() -> None:
    async with patient_timeout(MOST_S):
        pass
    await asyncio.sleep(2 * MOST_S)
