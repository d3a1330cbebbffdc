"""Messages of Envoy's rate limit service that tell an allowance: nearly all that are told.

What such a message says beside its two numbers is the same for every check of a key.  It is kept with what is
asked for that key, and only the numbers are put in.  An allowance that is not of this kind (of several rules, or
with numbers that have no place in it) has no short way: it is told as every other answer (``service.py``).  Pure.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Final, NamedTuple

from regional_limiter.model.decision import Reason
from regional_limiter.model.rule import Rule
from regional_limiter.plan import Asking, Step
from regional_limiter.store.base import Allowed
from services.check_api.counts import ALLOWED, Series
from services.check_api.headers import HeaderItem, HeaderMode, allowed_format
from services.rls.messages import UINT32_MOST, UNIT_OF_MS, Limit
from services.rls.wire import field_bytes, header_bytes, limit_bytes, number_bytes

_LEFT, _RESET_S = 0, 1
_NUMBERS_IN: Final = {
    b"ratelimit": (_LEFT, _RESET_S),
    b"x-ratelimit-remaining": (_LEFT,),
    b"x-ratelimit-reset": (_RESET_S,),
}
_MILLISECONDS: Final = (b"", *(b"\x10" + number_bytes(ms * 1_000_000) for ms in range(1, 1000)))
"""The nanoseconds of a Duration, by milliseconds."""


_HASH_BYTES: Final = 8


class _Header(NamedTuple):
    """``name``: the field of a HeaderValue.  ``value``: a format of the ``numbers``."""

    name: bytes
    value: bytes
    numbers: tuple[int, ...]


class _Told(NamedTuple):
    """What is kept with an asking.  ``owner``: who keeps it.  ``headers``: whole fields, or one to be filled in.
    ``status`` None: there is no short way."""

    owner: Allowances
    series: Series
    status: bytes | None
    headers: tuple[bytes | _Header, ...]


class Allowances:
    """``mode``: the headers that messages carry."""

    def __init__(self, mode: HeaderMode) -> None:
        self._mode = mode

    def told(self, allowed: Allowed) -> tuple[Series, bytes] | None:
        """A RateLimitResponse, and the series of the counts that it belongs to; None: there is no short way."""
        told: _Told | None = allowed.asking.told
        if told is None or told.owner is not self:
            told = self._learnt(allowed.asking)
        _, series, status, headers = told
        if status is None:
            return None
        (left,), (reset_ms,) = allowed.left, allowed.reset_after_ms
        if not 0 <= left <= UINT32_MOST or not 0 <= reset_ms <= UINT32_MOST:
            return None
        seconds, milliseconds = divmod(reset_ms, 1000)
        duration = _MILLISECONDS[milliseconds]
        if seconds:
            duration = b"\x08%b%b" % (number_bytes(seconds), duration)
        if left:
            status = b"%b\x18%b\x22%c%b" % (status, number_bytes(left), len(duration), duration)
        else:
            status = b"%b\x22%c%b" % (status, len(duration), duration)
        message = b"\x08\x01\x12%b%b" % (number_bytes(len(status)), status)
        numbers = (left, seconds + 1 if milliseconds else seconds)
        for header in headers:
            if isinstance(header, bytes):
                message += header
            else:
                name, value, places = header
                text = value % (numbers if len(places) == 2 else numbers[places[0]])
                message += field_bytes(0x1A, name + field_bytes(0x12, text))
        return series, message

    def _learnt(self, asking: Asking) -> _Told:
        step: Step = asking.plan.steps[0]
        rule = step.rule
        series: Series = (rule.domain, rule.id, ALLOWED, Reason.OK.value)
        told = _Told(self, series, None, ())
        if len(asking.plan.steps) == 1 and (len(step.key_hash) == _HASH_BYTES or not rule.headers):
            told = _Told(self, series, _status(rule), self._headers(step) if rule.headers else ())
        asking.told = told
        return told

    def _headers(self, step: Step) -> tuple[bytes | _Header, ...]:
        rule = step.rule
        lines = allowed_format([HeaderItem.of(rule.id, rule.capacity, rule.window_ms)], self._mode)
        headers: list[bytes | _Header] = []
        for line in lines.split(b"\r\n")[:-1]:
            name, _, value = line.partition(b": ")
            if name in _NUMBERS_IN:
                headers.append(_Header(field_bytes(0x0A, name), value, _NUMBERS_IN[name]))
            else:
                known = value % b64encode(step.key_hash) if b"%b" in value else value
                headers.append(header_bytes(name, known))
        return tuple(headers)


def _status(rule: Rule) -> bytes:
    """The fields of a DescriptorStatus that do not change."""
    unit = UNIT_OF_MS.get(rule.window_ms or 0, 0)
    return b"\x08\x01" + limit_bytes(Limit(min(rule.capacity, UINT32_MOST), unit, rule.id))
