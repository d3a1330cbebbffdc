"""The formats of one line of text: nginx's and Apache's combined, Envoy's default, AWS's load balancer.  Pure.

Each is one pattern.  What a client sent stands in quotes, and a quote in it is escaped (``\\"``, ``\\x22``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from services.rehearsal.formats.base import Unreadable
from services.rehearsal.formats.timestamps import Minutes

NO_REQUEST = "no request in it"
NOT_OF_FORMAT = "not of this format"
NO_TIME = "no time that can be read"

_QUOTED = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
_REQUEST = (
    r'"(?:([A-Za-z_-]{1,32}) ([^" \\]*(?:\\.[^" \\]*)*)(?: [^"\\]*(?:\\.[^"\\]*)*)?'
    r'|[^"\\]*(?:\\.[^"\\]*)*)"'
)
"""Two groups, empty where what the client sent is no request."""
_CLF_TIME = r"\[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d [-+]\d{4})\]"
_COMBINED = rf"(\S+) \S+ (.*?) {_CLF_TIME} {_REQUEST} (\d{{3}}) (\S+)(?: {_QUOTED} {_QUOTED}(?: {_QUOTED})?)?"


class TextLines:
    """Lines that ``pattern`` reads; ``names`` are those of its groups, ``time`` among them."""

    absent: str | None = "-"

    def __init__(
        self,
        pattern: str,
        names: str,
        *,
        time_ms: Callable[[str], int],
        times_whole_s: bool,
        more: Callable[[dict[str, str | None]], None] = lambda fields: None,
        derived: tuple[str, ...] = (),
    ) -> None:
        self._match = re.compile(pattern, re.ASCII).match
        self._names = tuple(names.split())
        self._time_ms = time_ms
        self._more = more
        self.times_whole_s = times_whole_s
        self.fields: tuple[str, ...] | None = (
            *(name for name in self._names if not name.startswith("_")),
            *derived,
            "path",
            "query",
        )

    def read(self, line: str) -> tuple[int, Mapping[str, str | None]]:
        found = self._match(line)
        if found is None:
            raise Unreadable(NOT_OF_FORMAT)
        fields: dict[str, str | None] = dict(zip(self._names, found.groups(), strict=True))
        target = fields["target"]
        if not target or fields["method"] == "-":
            raise Unreadable(NO_REQUEST, is_of_format=True)
        self._more(fields)
        try:
            time_ms = self._time_ms(fields["time"] or "")
        except (ValueError, OverflowError):
            raise Unreadable(NO_TIME) from None
        if target[0] != "/":
            target = without_origin(target)
        path, _, query = target.partition("?")
        fields["path"], fields["query"] = path, query
        return time_ms, fields


def without_origin(target: str) -> str:
    """``http://host:80/a?b`` as ``/a?b``; what is no such address stays."""
    scheme, mark, rest = target.partition("://")
    if not mark or "/" in scheme or "?" in scheme:
        return target
    slash = rest.find("/")
    return rest[slash:] if slash >= 0 else "/"


def _last_forwarded(fields: dict[str, str | None]) -> None:
    """Envoy appends whom it was called by: the last entry is the one that no client can forge."""
    forwarded = fields["forwarded_for"]
    fields["ip"] = forwarded.rpartition(",")[2].strip() if forwarded else None


def _bare_address(fields: dict[str, str | None]) -> None:
    address = fields["ip"]
    if address is not None and address[0] == "[":
        fields["ip"] = address[1:-1]
    created = fields.pop("_created")
    if created and created != "-":
        fields["time"] = created


_minutes = Minutes()

COMBINED = TextLines(
    _COMBINED,
    "ip user time method target status bytes referer user_agent forwarded_for",
    time_ms=_minutes.clf_ms,
    times_whole_s=True,
)
"""Also the common format, which has neither referer nor user agent; more fields at the end do not matter."""

VHOST = TextLines(
    rf"(\S+):\d+ {_COMBINED}",
    "host ip user time method target status bytes referer user_agent forwarded_for",
    time_ms=_minutes.clf_ms,
    times_whole_s=True,
)
"""Apache's vhost_combined."""

ENVOY = TextLines(
    rf"\[([^\]]+)\] {_REQUEST} (\d+)" + 5 * r" (\S+)" + 5 * f" {_QUOTED}",
    "time method target status flags bytes_received bytes duration_ms upstream_ms"
    " forwarded_for user_agent request_id host upstream",
    time_ms=_minutes.iso_ms,
    times_whole_s=False,
    more=_last_forwarded,
    derived=("ip",),
)

ALB = TextLines(
    rf"(\S+) (\S+) (\S+) (\S+):\d+ (\S+) (\S+) (\S+) (\S+) (\S+) (\S+) (\d+) (\d+) {_REQUEST} {_QUOTED}"
    rf" (\S+) (\S+) (\S+) {_QUOTED} {_QUOTED} {_QUOTED} (\S+) (\S+)",
    "type time elb ip upstream request_s upstream_s response_s status upstream_status bytes_received bytes"
    " method target user_agent tls_cipher tls_protocol target_group trace_id host certificate priority _created",
    time_ms=_minutes.iso_ms,
    times_whole_s=False,
    more=_bare_address,
)
"""The time is the request's creation, not the answer's."""
