"""From an Answer to the bytes of a response.  Pure."""

from __future__ import annotations

import msgspec

from regional_limiter.model.decision import Answer, RuleVerdict, ShareKind


class AnswerBody(msgspec.Struct):
    """The body of an answer: these fields, in this order."""

    allowed: bool
    limit: int | None
    remaining: int | None
    retry_after_ms: int | None
    reset_after_ms: int
    rule: str | None
    reason: str
    degraded: bool


class VerdictBody(msgspec.Struct):
    """One rule's verdict.  ``share``: lease, base or floor for a global rule, else null."""

    rule: str
    allowed: bool
    reason: str
    limit: int
    remaining: int
    retry_after_ms: int | None
    reset_after_ms: int
    share: str | None
    share_units: int | None
    degraded: bool


class DetailedBody(AnswerBody):
    """``share``: what kind of share decided the named rule, null unless that is global."""

    share: str | None
    verdicts: list[VerdictBody]


_encode = msgspec.json.Encoder().encode


def encode_answer(answer: Answer) -> bytes:
    """The body of an answer."""
    return _encode(
        AnswerBody(
            answer.allowed,
            answer.limit,
            answer.remaining,
            answer.retry_after_ms,
            answer.reset_after_ms,
            answer.rule,
            answer.reason.value,
            answer.degraded,
        )
    )


def encode_detailed(answer: Answer) -> bytes:
    """The body of an answer with each rule's verdict."""
    verdicts = [_verdict_body(item) for item in answer.verdicts]
    named = next((item.share for item in verdicts if item.rule == answer.rule), None)
    return _encode(
        DetailedBody(
            answer.allowed,
            answer.limit,
            answer.remaining,
            answer.retry_after_ms,
            answer.reset_after_ms,
            answer.rule,
            answer.reason.value,
            answer.degraded,
            named,
            verdicts,
        )
    )


def _verdict_body(item: RuleVerdict) -> VerdictBody:
    verdict = item.verdict
    is_global = verdict.share_kind is not ShareKind.WHOLE
    return VerdictBody(
        item.rule,
        verdict.allowed,
        verdict.reason.value,
        item.limit,
        verdict.remaining,
        verdict.retry_after_ms,
        verdict.reset_after_ms,
        verdict.share_kind.name.lower() if is_global else None,
        verdict.share if is_global else None,
        verdict.degraded,
    )
