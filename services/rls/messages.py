"""What a gateway asks and is told: Envoy's rate limit service, version 3, as values.  Pure.

``wire.py`` reads and writes them as protobuf, ``protojson.py`` as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

SERVICE: Final = "envoy.service.ratelimit.v3.RateLimitService"
METHOD: Final = f"/{SERVICE}/ShouldRateLimit"

MESSAGE_BYTES_MOST: Final = 64 * 1024
DESCRIPTORS_MOST: Final = 64
ENTRIES_MOST: Final = 32
UINT32_MOST: Final = 2**32 - 1

OK: Final = 1
OVER_LIMIT: Final = 2


class Unit(IntEnum):
    """A window by the name that Envoy gives it; months and years are 30 and 365 days."""

    UNKNOWN = 0
    SECOND = 1
    MINUTE = 2
    HOUR = 3
    DAY = 4
    MONTH = 5
    YEAR = 6
    WEEK = 7


UNIT_MS: Final = {
    Unit.SECOND: 1000,
    Unit.MINUTE: 60_000,
    Unit.HOUR: 3_600_000,
    Unit.DAY: 86_400_000,
    Unit.WEEK: 7 * 86_400_000,
    Unit.MONTH: 30 * 86_400_000,
    Unit.YEAR: 365 * 86_400_000,
}
UNIT_OF_MS: Final = {span_ms: int(unit) for unit, span_ms in UNIT_MS.items()}


class BadRequest(Exception):
    """A request that cannot be read, or is wrong.  ``field`` is its path, ``expected`` says what would be right."""

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field}: {expected}" if field else expected)
        self.field = field
        self.expected = expected


class Override(NamedTuple):
    """A limit that the request brings along, in place of what is configured."""

    requests_per_unit: int
    unit: int


class Descriptor(NamedTuple):
    """``hits``: None where it goes by the request's.  ``negative``: the hits are given back."""

    entries: tuple[tuple[str, str], ...]
    override: Override | None = None
    hits: int | None = None
    negative: bool = False


class Request(NamedTuple):
    """``hits``: what each descriptor costs that does not say; 0 is 1."""

    domain: str
    descriptors: tuple[Descriptor, ...]
    hits: int = 0


class Limit(NamedTuple):
    """``unit`` 0: a limit that is no window of Envoy's."""

    requests_per_unit: int
    unit: int
    name: str


class Status(NamedTuple):
    """What one descriptor is told.  ``limit`` None: none applies."""

    code: int
    limit: Limit | None = None
    remaining: int = 0
    reset_ms: int = 0


class Response(NamedTuple):
    """``headers``: for the caller of the gateway.  ``metadata``: for the gateway's logs and filters; None: none."""

    code: int
    statuses: Sequence[Status]
    headers: Sequence[tuple[str, str]] = ()
    metadata: dict[str, str | bool | int] | None = None
