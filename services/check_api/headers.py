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

from regional_limiter.model.decision import Answer, RuleVerdict

LARGEST_FIELD_INTEGER = 999_999_999_999_999
"""Structured fields hold integers of at most 15 digits (RFC 9651); larger numbers are told as this one."""

MAX_ITEMS = 16
"""Rules that one answer names in its headers."""

Header = tuple[bytes, bytes]


class HeaderMode(StrEnum):
    BOTH = "both"
    DRAFT_11 = "draft-11"
    LEGACY = "legacy"
    OFF = "off"


class LegacyReset(StrEnum):
    """X-RateLimit-Reset: seconds from now, or the seconds of the epoch at which the limit is whole again."""

    SECONDS = "seconds"
    EPOCH = "epoch"


def answer_headers(
    answer: Answer,
    mode: HeaderMode = HeaderMode.BOTH,
    legacy_reset: LegacyReset = LegacyReset.SECONDS,
    epoch_now_s: int = 0,
) -> list[Header]:
    """The headers of ``answer``.  ``epoch_now_s`` is used by ``LegacyReset.EPOCH`` alone."""
    headers: list[Header] = []
    if not answer.allowed and answer.retry_after_ms is not None:
        headers.append((b"retry-after", str(retry_after_s(answer.retry_after_ms)).encode()))
    if mode is HeaderMode.OFF:
        return headers
    shown = closest_first(answer)
    if not shown:
        return headers
    if mode is not HeaderMode.LEGACY:
        headers.append((b"ratelimit-policy", ", ".join(map(_policy, shown)).encode("ascii")))
        headers.append((b"ratelimit", ", ".join(map(_service_limit, shown)).encode("ascii")))
    if mode is not HeaderMode.DRAFT_11:
        headers.extend(_legacy(shown[0], legacy_reset, epoch_now_s))
    return headers


def retry_after_s(retry_after_ms: int) -> int:
    """Whole seconds, rounded up, at least 1: a caller that obeys is never too early."""
    return max(1, _seconds_up(retry_after_ms))


def closest_first(answer: Answer) -> list[RuleVerdict]:
    """The rules that headers may name, the tightest first: the named rule, denials by wait, then what is left.

    Equal ones stay in the order of the rule set.  At most ``MAX_ITEMS``.
    """
    visible = [item for item in answer.verdicts if item.in_headers]
    if len(visible) > 1:
        visible.sort(key=lambda item: _closeness(item, answer.rule))
    return visible[:MAX_ITEMS]


def _closeness(item: RuleVerdict, named: str | None) -> tuple[bool, bool, float, int]:
    verdict = item.verdict
    wait = float("inf") if verdict.retry_after_ms is None else verdict.retry_after_ms
    return item.rule != named, verdict.allowed, 0 if verdict.allowed else -wait, verdict.remaining


def _policy(item: RuleVerdict) -> str:
    text = f"{_string(item.rule)};q={_integer(item.limit)}"
    if item.window_ms is not None and item.window_ms > 0:
        text += f";w={_integer(_seconds_up(item.window_ms))}"
    if item.key_hash:
        text += f";pk=:{b64encode(item.key_hash).decode()}:"
    return text


def _service_limit(item: RuleVerdict) -> str:
    verdict = item.verdict
    return f"{_string(item.rule)};r={_integer(verdict.remaining)};t={_integer(_seconds_up(verdict.reset_after_ms))}"


def _legacy(item: RuleVerdict, legacy_reset: LegacyReset, epoch_now_s: int) -> Sequence[Header]:
    reset_s = _seconds_up(item.verdict.reset_after_ms)
    if legacy_reset is LegacyReset.EPOCH:
        reset_s += epoch_now_s
    return (
        (b"x-ratelimit-limit", str(item.limit).encode()),
        (b"x-ratelimit-remaining", str(item.verdict.remaining).encode()),
        (b"x-ratelimit-reset", str(reset_s).encode()),
    )


def _seconds_up(duration_ms: int) -> int:
    return -(-max(0, duration_ms) // 1000)


def _integer(value: int) -> int:
    return min(max(0, value), LARGEST_FIELD_INTEGER)


@lru_cache(maxsize=4096)
def _string(text: str) -> str:
    """A structured field string: printable ASCII, quotes and backslashes escaped, the rest a question mark."""
    plain = "".join(char if " " <= char <= "~" else "?" for char in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
