"""From an Answer to the bytes of a response.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from regional_limiter.limiter import Inspection
from regional_limiter.model.decision import Answer, RuleVerdict, ShareKind, Verdict


class AnswerBody(msgspec.Struct):
    """The body of an answer: these fields, in this order.

    ``wait_ms``: only where a queue lets a request wait for its turn.  ``lease_id`` and ``lease_ms``: only where
    slots were taken, under that name and for so long; an acquisition tells them always, ``lease_ms`` null for none.
    """

    allowed: bool
    limit: int | None
    remaining: int | None
    retry_after_ms: int | None
    reset_after_ms: int
    rule: str | None
    reason: str
    degraded: bool
    wait_ms: int | UnsetType = UNSET
    lease_id: str | UnsetType = UNSET
    lease_ms: int | UnsetType | None = UNSET


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
    wait_ms: int | UnsetType = UNSET


class DetailedBody(AnswerBody, kw_only=True):
    """``share``: what kind of share decided the named rule, null unless that is global."""

    share: str | None
    verdicts: list[VerdictBody]


class ErrorBody(msgspec.Struct):
    """What stands in the place of an answer that a check of a batch did not get: a problem (RFC 9457)."""

    error: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]


_ANSWER_OR_ERROR = {
    "oneOf": [{"$ref": f"#/components/schemas/{body.__name__}"} for body in (AnswerBody, ErrorBody)]
}


class BatchAnswerBody(msgspec.Struct):
    """The answers of a batch, in the order of its checks."""

    answers: list[Annotated[Any, msgspec.Meta(extra_json_schema=_ANSWER_OR_ERROR)]]


class InspectionBody(msgspec.Struct):
    """How one bucket stands.  ``ttl_ms``: null when the store does not keep it, which is as good as new.

    ``share``, ``share_units``, ``session_left_ms``, ``consent_left_ms``: null unless the rule is global.
    """

    rule: str
    key: str
    algorithm: str
    limit: int
    remaining: int
    reset_after_ms: int
    ttl_ms: int | None
    share: str | None
    share_units: int | None
    session_left_ms: int | None
    consent_left_ms: int | None
    degraded: bool


class InspectBody(msgspec.Struct):
    """Every bucket that a check with this identity meets, in the order of the rule set."""

    domain: str
    buckets: list[InspectionBody]


_encode = msgspec.json.Encoder().encode


def encode_answer(answer: Answer) -> bytes:
    """The body of an answer."""
    return _encode(_answer_body(answer))


def encode_acquired(answer: Answer, lease_id: str) -> bytes:
    """The body of the answer to an acquisition under ``lease_id``."""
    return _encode(_answer_body(answer, lease_id, answer.lease_ms))


def encode_error(problem: bytes) -> bytes:
    """What stands for an answer in a batch.  ``problem``: the body that tells what is wrong."""
    return _encode(ErrorBody(msgspec.Raw(problem)))


def encode_batch(bodies: Sequence[bytes]) -> bytes:
    """The body of a batch, which holds those of its answers."""
    return b'{"answers":[%b]}' % b",".join(bodies)


def encode_inspection(domain: str, buckets: Sequence[Inspection]) -> bytes:
    """The body of an inspection."""
    return _encode(InspectBody(domain, [_inspection_body(bucket) for bucket in buckets]))


def encode_reset(keys: Sequence[str]) -> bytes:
    """The body of a reset: the buckets that are full again."""
    return _encode({"reset": keys})


def encode_held(held: bool) -> bytes:
    """The body of a renewal's answer."""
    return _encode({"held": held})


def encode_released(released: bool) -> bytes:
    """The body of a release's answer."""
    return _encode({"released": released})


def _answer_body(
    answer: Answer, lease_id: str | UnsetType = UNSET, lease_ms: int | UnsetType | None = UNSET
) -> AnswerBody:
    if answer.lease_id is not None:
        lease_id, lease_ms = answer.lease_id, answer.lease_ms
    return AnswerBody(
        answer.allowed,
        answer.limit,
        answer.remaining,
        answer.retry_after_ms,
        answer.reset_after_ms,
        answer.rule,
        answer.reason,
        answer.degraded,
        answer.wait_ms or UNSET,
        lease_id,
        lease_ms,
    )


def _inspection_body(bucket: Inspection) -> InspectionBody:
    verdict = bucket.verdict
    kind, units = _share_of(verdict)
    is_global = kind is not None
    return InspectionBody(
        bucket.rule,
        bucket.key,
        bucket.algorithm,
        bucket.limit,
        verdict.remaining,
        verdict.reset_after_ms,
        bucket.ttl_ms,
        kind,
        units,
        verdict.session_left_us // 1000 if is_global else None,
        verdict.consent_left_us // 1000 if is_global else None,
        verdict.degraded,
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
            answer.wait_ms or UNSET,
            UNSET if answer.lease_id is None else answer.lease_id,
            UNSET if answer.lease_id is None else answer.lease_ms,
            share=named,
            verdicts=verdicts,
        )
    )


def _verdict_body(item: RuleVerdict) -> VerdictBody:
    verdict = item.verdict
    kind, units = _share_of(verdict)
    return VerdictBody(
        item.rule,
        verdict.allowed,
        verdict.reason.value,
        item.limit,
        verdict.remaining,
        verdict.retry_after_ms,
        verdict.reset_after_ms,
        kind,
        units,
        verdict.degraded,
        verdict.wait_ms or UNSET,
    )


def _share_of(verdict: Verdict) -> tuple[str, int] | tuple[None, None]:
    """(kind, units) of a global rule's share."""
    if verdict.share_kind is ShareKind.WHOLE:
        return None, None
    return verdict.share_kind.name.lower(), verdict.share
