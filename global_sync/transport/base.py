"""The contract of the transport between regions: ordered topics of bytes.

``kafka.py`` fulfils it with Apache Kafka, ``memory.py`` within one process (embedded mode, and with faults for
tests).  A send that raises TransportUnavailable may still be written later: a time-out is not a failure, and
every record that we send is harmless when late, lost or repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from regional_limiter.durations import Durations

LOG = "rl.log"
REPORTS = "rl.reports"
PROPOSALS = "rl.proposals"
RULES = "rl.rules"
HISTORY = "rl.history"
USAGE = "rl.usage"
SUBJECTS = "rl.subjects"

IN_FLIGHT: Mapping[str, int] = {REPORTS: 4}
"""Sends of a topic that one transport has under way at a time, where it is more than one: order is no matter there.

A report that waited for the answer to the one before would be late by a whole round trip over an ocean."""

Start = Literal["earliest", "latest"] | int


class TransportUnavailable(Exception):
    """No acknowledgement within the deadline, or no connection."""


class RecordsMissed(Exception):
    """The reader's position has been trimmed away, or lies beyond the end: start again from ``earliest``, as a new
    process."""


@dataclass(frozen=True, slots=True)
class Message:
    """One record of a topic.  ``timestamp_ms`` is the broker's or producer's wall clock (for display only)."""

    topic: str
    offset: int
    key: bytes | None
    value: bytes
    timestamp_ms: int


class Reader(Protocol):
    """Reads one partition in order, without a group.  ``next_offset`` is the offset to be read next."""

    next_offset: int

    async def read(self, timeout_ms: int) -> list[Message]:
        """The next messages, at most a bounded batch; empty when none came within ``timeout_ms``.

        Raises RecordsMissed when the position was trimmed away or is beyond the end, TransportUnavailable when
        nothing has been heard of the broker for longer than the transport's own watchdog allows.
        """
        ...

    async def end_offset(self) -> int:
        """The offset after the last message now (to know when a start-up read has caught up)."""
        ...

    async def close(self) -> None: ...


class Sends(NamedTuple):
    """What is counted as one.  ``system``: what carries them, in OpenTelemetry's words.  ``error``: the name of
    what they failed with; "" where the broker has them."""

    system: str
    topic: str
    error: str = ""


class Transport(Protocol):
    @property
    def took(self) -> Mapping[Sends, Durations]:
        """How long sends took until the broker had them, or they were given up."""
        ...

    async def start(self) -> None: ...

    async def send(
        self,
        topic: str,
        values: list[bytes],
        *,
        key: bytes | None = None,
        keys: Sequence[bytes] | None = None,
        timeout_ms: int = 3000,
    ) -> list[int]:
        """Append in this order (one after another, none repeated); the offsets.  Raises TransportUnavailable.

        ``key``: of all of them; ``keys``: one of each, in its place.  Sends of a topic follow one another, but for
        those of ``IN_FLIGHT``.
        """
        ...

    async def reader(self, topic: str, start: Start) -> Reader: ...

    def behind(self) -> dict[str, int]:
        """By topic: how many messages come after the place of that open reader which is furthest behind, as far as
        is known without asking.  A topic of which nothing is known is not in it."""
        ...

    async def delete_before(self, topic: str, offset: int) -> None: ...

    async def close(self) -> None: ...


def furthest_behind(readers: Iterable[tuple[str, int | None]]) -> dict[str, int]:
    """``readers``: the topic of each, and how many messages come after its place."""
    found: dict[str, int] = {}
    for topic, count in readers:
        if count is not None:
            found[topic] = max(count, found.get(topic, 0))
    return found


def keys_for(values: Sequence[bytes], key: bytes | None, keys: Sequence[bytes] | None) -> Sequence[bytes | None]:
    """A key for each of ``values``.  Raises ValueError when ``keys`` are not as many."""
    if keys is None:
        return [key] * len(values)
    if len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys for {len(values)} values")
    return keys
