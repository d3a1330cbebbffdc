"""``GET /v1/explain``: which rules a check meets and why, how its buckets stand here, what it would be told now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from regional_limiter.limiter import Explained, ExplainedStep
from regional_limiter.model.decision import COST_MOST, Check, ShareKind
from regional_limiter.model.errors import Fault
from regional_limiter.rules import limit_in_words
from regional_limiter.rules.judged import Judged
from services.check_api.bodies import Refused, parse_peek

EXPLAIN_PATH: Final = "/v1/explain"
OTHERS_MOST: Final = 100
"""Rules that do not apply and are told one by one: those that come closest."""


def parse_explain(query: bytes) -> Check:
    """The check of ``client_key=…&resource=…&cost=…&attributes.tier=…``; cost 1 unless it says another.

    Raises Refused.
    """
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=1000)
    except (UnicodeDecodeError, ValueError):
        parse_peek(query)  # which says what is wrong
        raise
    costs = [value for name, value in pairs if name == "cost"]
    rest = [pair for pair in pairs if pair[0] != "cost"]
    check, _ = parse_peek(urlencode(rest).encode())
    if not costs:
        return replace(check, cost=1)
    text = costs[0]
    if len(costs) > 1 or not (text.isascii() and text.isdigit() and len(text) < 12) or int(text) > COST_MOST:
        raise Refused(422, [Fault("cost", f"must be one whole number from 0 to {COST_MOST}")])
    return replace(check, cost=int(text))


def explain_body(explained: Explained, check: Check, region: str, node: str, rules_version: int) -> dict[str, Any]:
    """Plain JSON.  ``next``: what the check would be told if it came now; nothing was charged to find out."""
    steps = {step.bucket.rule: step for step in explained.steps}
    applying = [one for one in explained.rules if one.applies]
    others = sorted((one for one in explained.rules if not one.applies), key=lambda one: len(one.why_not))
    told = explained.foretold
    return {
        "region": region,
        "node": node,
        "domain": check.domain,
        "rules_version": rules_version,
        "cost": check.cost,
        "attributes": {
            name: {"value": text, "given": name in check.attributes}
            for name, text in sorted(explained.attributes.items())
        },
        "next": {
            "allowed": told.allowed,
            "reason": told.reason.value,
            "rule": told.rule,
            "retry_after_ms": told.retry_after_ms,
            "why": told.in_words,
        },
        "rules": [_rule(one, steps.get(one.rule.id)) for one in applying],
        "others": _others(others[:OTHERS_MOST]),
        "others_left_out": max(0, len(others) - OTHERS_MOST),
    }


def _rule(one: Judged, step: ExplainedStep | None) -> dict[str, Any]:
    rule = one.rule
    shown: dict[str, Any] = {
        "rule": rule.id,
        "limit": limit_in_words(rule),
        "mode": rule.mode.value,
        "scope": rule.scope.value,
        "key": list(rule.key),
        "override": one.overridden,
        "blocked": rule.blocked,
        "unlimited": rule.unlimited,
        "bucket": None,
    }
    if step is None:
        return shown
    bucket, told = step.bucket, step.foretold
    verdict = bucket.verdict
    is_shared = verdict.share_kind is not ShareKind.WHOLE
    shown["canary"] = step.is_canary
    shown["bucket"] = {
        "key": bucket.key,
        "algorithm": bucket.algorithm.value,
        "limit": bucket.limit,
        "remaining": verdict.remaining,
        "reset_after_ms": verdict.reset_after_ms,
        "ttl_ms": bucket.ttl_ms,
        "degraded": verdict.degraded,
        "share": verdict.share_kind.name.lower() if is_shared else None,
        "share_units": verdict.share if is_shared else None,
        "session_left_ms": verdict.session_left_us // 1000 if is_shared else None,
        "consent_left_ms": verdict.consent_left_us // 1000 if is_shared else None,
        "leased_here": step.leased,
        "lease_left_ms": step.lease_left_us // 1000,
    }
    shown["next"] = {
        "allowed": told.allowed,
        "reason": told.reason.value,
        "retry_after_ms": told.retry_after_ms,
        "why": told.in_words,
    }
    return shown


def _others(others: Sequence[Judged]) -> list[dict[str, Any]]:
    return [
        {
            "rule": one.rule.id,
            "limit": limit_in_words(one.rule),
            "why_not": list(one.why_not),
            "override": one.overridden,
        }
        for one in others
    ]
