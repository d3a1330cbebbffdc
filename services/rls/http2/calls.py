"""Messages within the data of a stream, and calls of many messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, Protocol

from services.rls.messages import MESSAGE_BYTES_MOST
from services.rls.methods import Stream
from services.rls.rpc import RESOURCE_EXHAUSTED, UNIMPLEMENTED, Failed

_TOO_LARGE: Final = Failed(RESOURCE_EXHAUSTED, f"a message may have at most {MESSAGE_BYTES_MOST} bytes")
_COMPRESSED: Final = Failed(UNIMPLEMENTED, "messages are taken as they are, not compressed")


class MessageReader:
    """Cuts data into messages.  ``whole``: those that are; ``unread``: the beginning of another one."""

    __slots__ = ("unread", "whole")

    def __init__(self) -> None:
        self.whole: list[bytes] = []
        self.unread = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole with ``data``.  Raises Failed."""
        if self.unread:
            data = self.unread + data
        found: list[bytes] = []
        while len(data) >= 5:
            if data[0]:
                raise _COMPRESSED
            length = int.from_bytes(data[1:5], "big")
            if length > MESSAGE_BYTES_MOST:
                raise _TOO_LARGE
            if len(data) < 5 + length:
                break
            found.append(data[5 : 5 + length])
            data = data[5 + length :]
        self.unread = data
        self.whole += found
        return found


class Sender(Protocol):
    """What a call needs of its connection."""

    def send_head(self, number: int) -> None: ...

    def send_message(self, number: int, message: bytes) -> None: ...

    def is_blocked(self, number: int) -> bool: ...

    def end_call(self, number: int, error: Exception | None) -> None: ...

    def consumed(self, number: int, size: int) -> None: ...


class Call(Protocol):
    def feed(self, message: bytes) -> None: ...

    def end(self) -> None: ...

    def cancel(self) -> None: ...

    def room(self) -> None:
        """The caller has taken what was sent."""
        ...


class StreamCall:
    """A call of many messages, in a task.  What waits to be taken up is bounded by the stream's window."""

    def __init__(self, method: Stream, sender: Sender, number: int) -> None:
        self._sender = sender
        self._number = number
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(method))

    def feed(self, message: bytes) -> None:
        self._waiting.put_nowait(message)

    def end(self) -> None:
        self._waiting.put_nowait(None)

    def cancel(self) -> None:
        self._task.cancel()

    def room(self) -> None:
        self._room.set()

    async def _messages(self) -> AsyncIterator[bytes]:
        while (message := await self._waiting.get()) is not None:
            self._sender.consumed(self._number, len(message) + 5)
            yield message

    async def _run(self, method: Stream) -> None:
        sender, number = self._sender, self._number
        sender.send_head(number)
        try:
            async for message in method.call(self._messages()):
                while sender.is_blocked(number):
                    self._room.clear()
                    await self._room.wait()
                sender.send_message(number, message)
        except Exception as error:
            sender.end_call(number, error)
        else:
            sender.end_call(number, None)
