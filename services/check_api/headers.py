"""Rate limit headers of an answer.  Pure.

``draft-11``: RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-11, one item a rule, the
closest first.  ``legacy``: X-RateLimit-Limit, -Remaining, -Reset of the first of those rules.  ``both`` sends the
two, which then describe the same rule; ``off`` sends neither.  Retry-After does not depend on the mode.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from regional_limiter.model.decision import Answer, Reason, RuleVerdict

LARGEST_FIELD_INTEGER = 999_999_999_999_999
"""Structured fields hold integers of at most 15 digits (RFC 9651); larger numbers are told as this one."""

ITEMS_MOST = 16
"""Rules that one answer names in its headers."""

Header = tuple[bytes, bytes]

Lines = bytes
"""Header lines as they go out, each with its end: nothing has to be put together for every answer but numbers."""


def as_lines(*headers: Header) -> Lines:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def as_headers(lines: Lines) -> list[Header]:
    """The lines of :func:`as_lines` as ASGI takes them."""
    return [(name, value) for name, _, value in (line.partition(b": ") for line in lines.split(b"\r\n")[:-1])]


class HeaderMode(StrEnum):
    BOTH = "both"
    DRAFT_11 = "draft-11"
    LEGACY = "legacy"
    OFF = "off"


class LegacyReset(StrEnum):
    """X-RateLimit-Reset: seconds from now, or the seconds of the epoch at which the limit is whole again."""

    SECONDS = "seconds"
    EPOCH = "epoch"


# In Python 3.11 to name a member costs 0.2 us, and these are named for every answer.
_OFF, _LEGACY, _DRAFT_11 = HeaderMode.OFF, HeaderMode.LEGACY, HeaderMode.DRAFT_11
_EPOCH = LegacyReset.EPOCH
_SOFT_LIMITED = Reason.SOFT_LIMITED

_LEGACY_LINES = b"x-ratelimit-limit: %d\r\nx-ratelimit-remaining: %d\r\nx-ratelimit-reset: %d\r\n"


def answer_lines(
    answer: Answer,
    mode: HeaderMode = HeaderMode.BOTH,
    legacy_reset: LegacyReset = LegacyReset.SECONDS,
    epoch_now_s: int = 0,
) -> Lines:
    """The headers of ``answer``.  ``epoch_now_s`` is used by ``LegacyReset.EPOCH`` alone."""
    lines = b""
    if not answer.allowed and answer.retry_after_ms is not None:
        lines = b"retry-after: %d\r\n" % retry_after_s(answer.retry_after_ms)
    if answer.reason is _SOFT_LIMITED:
        lines += b"ratelimit-soft: 1\r\n"
    if mode is _OFF:
        return lines
    shown = closest_first(answer)
    if not shown:
        return lines
    if mode is not _LEGACY:
        policies, limits = _policy(shown[0]), _service_limit(shown[0])
        for item in shown[1:]:
            policies += b", " + _policy(item)
            limits += b", " + _service_limit(item)
        lines += b"ratelimit-policy: %b\r\nratelimit: %b\r\n" % (policies, limits)
    if mode is not _DRAFT_11:
        lines += _legacy(shown[0], legacy_reset, epoch_now_s)
    return lines


class HeaderItem(NamedTuple):
    """What headers say of one rule, as formats: ``policy`` takes the hash of its key in base64, ``limit`` what is
    left and the seconds to its reset, ``legacy`` the same."""

    policy: bytes
    limit: bytes
    legacy: bytes

    @classmethod
    def of(cls, rule: str, limit: int, window_ms: int | None) -> HeaderItem:
        policy = _policy_text(rule, limit, window_ms, b"").replace(b"%", b"%%") + b";pk=:%b:"
        name = _string(rule).replace(b"%", b"%%")
        return cls(policy, name + b";r=%d;t=%d", _LEGACY_LINES.replace(b"%d", b"%d" % limit, 1))


def allowed_format(items: Sequence[HeaderItem], mode: HeaderMode) -> bytes:
    """A format of what :func:`answer_lines` says of an answer that allows; ``items`` the closest first.

    It takes: the hash of each item, then left and seconds of each, but for ``legacy``; then both of the first, but
    for ``draft-11``.  Nothing where headers are off.
    """
    if mode is _OFF:
        return b""
    lines = b""
    if mode is not _LEGACY:
        policies, limits = (b", ".join([item[field] for item in items]) for field in (0, 1))
        lines = b"ratelimit-policy: %b\r\nratelimit: %b\r\n" % (policies, limits)
    return lines if mode is _DRAFT_11 else lines + items[0].legacy


def retry_after_s(retry_after_ms: int) -> int:
    """Whole seconds, rounded up, at least 1: a caller that obeys is never too early."""
    return max(1, _seconds_up(retry_after_ms))


def closest_first(answer: Answer) -> list[RuleVerdict]:
    """The rules that headers may name, the tightest first: the named rule, denials by wait, then what is left.

    Equal ones stay in the order of the rule set.  At most ``ITEMS_MOST``.
    """
    visible = [item for item in answer.verdicts if item.in_headers]
    if len(visible) < 2:
        return visible
    if answer.allowed:
        visible.sort(key=_remaining)
    else:
        visible.sort(key=lambda item: _closeness(item, answer.rule))
    return visible[:ITEMS_MOST]


def _remaining(item: RuleVerdict) -> int:
    return item.verdict.remaining


def _closeness(item: RuleVerdict, named: str | None) -> tuple[bool, bool, float, int]:
    verdict = item.verdict
    wait = float("inf") if verdict.retry_after_ms is None else verdict.retry_after_ms
    return item.rule != named, verdict.allowed, 0 if verdict.allowed else -wait, verdict.remaining


def _policy(item: RuleVerdict) -> bytes:
    return _policy_of(item.rule, item.limit, item.window_ms, item.key_hash)


def _policy_text(rule: str, limit: int, window_ms: int | None, key_hash: bytes) -> bytes:
    text = b"%b;q=%d" % (_string(rule), _integer(limit))
    if window_ms is not None and window_ms > 0:
        text += b";w=%d" % _integer(_seconds_up(window_ms))
    if key_hash:
        text += b";pk=:%b:" % b64encode(key_hash)
    return text


_policy_of = lru_cache(maxsize=4096)(_policy_text)


def _service_limit(item: RuleVerdict) -> bytes:
    verdict = item.verdict
    remaining, reset_s = _integer(verdict.remaining), _integer(_seconds_up(verdict.reset_after_ms))
    return b"%b;r=%d;t=%d" % (_string(item.rule), remaining, reset_s)


def _legacy(item: RuleVerdict, legacy_reset: LegacyReset, epoch_now_s: int) -> Lines:
    verdict = item.verdict
    reset_s = _seconds_up(verdict.reset_after_ms)
    if legacy_reset is _EPOCH:
        reset_s += epoch_now_s
    return _LEGACY_LINES % (item.limit, verdict.remaining, reset_s)


def _seconds_up(duration_ms: int) -> int:
    return -(-duration_ms // 1000) if duration_ms > 0 else 0


def _integer(value: int) -> int:
    return value if 0 <= value <= LARGEST_FIELD_INTEGER else max(0, min(value, LARGEST_FIELD_INTEGER))


@lru_cache(maxsize=4096)
def _string(text: str) -> bytes:
    """A structured field string: printable ASCII, quotes and backslashes escaped, the rest a question mark."""
    plain = "".join(char if " " <= char <= "~" else "?" for char in text)
    return b'"%b"' % plain.replace("\\", "\\\\").replace('"', '\\"').encode("ascii")
