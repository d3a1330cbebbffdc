"""Envoy's messages of quotas <-> our words.  Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from envoy.service.rate_limit_quota.v3 import rlqs_pb2
from envoy.type.v3 import ratelimit_strategy_pb2
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from regional_limiter.model.decision import Check
from services.quota.desk import BucketId, Told
from services.quota.ledger import Grant
from services.rls.naming import KEYS, keys_text
from services.rls.rpc import INVALID_ARGUMENT, Failed

SERVICE: Final = "envoy.service.rate_limit_quota.v3.RateLimitQuotaService"
METHOD: Final = f"/{SERVICE}/StreamRateLimitQuotas"
ACTIONS_MOST: Final = 500
"""In one message."""


def read_reports(data: bytes) -> rlqs_pb2.RateLimitQuotaUsageReports:
    """Raises Failed."""
    try:
        return rlqs_pb2.RateLimitQuotaUsageReports.FromString(data)
    except DecodeError:
        raise Failed(INVALID_ARGUMENT, "the message is not a RateLimitQuotaUsageReports") from None


def bucket_of(domain: str, usage: rlqs_pb2.RateLimitQuotaUsageReports.BucketQuotaUsage) -> BucketId:
    return domain, tuple(sorted(usage.bucket_id.bucket.items()))


def check_of(bucket: BucketId) -> Check:
    """The requests of a bucket as a check: its pairs are attributes, and ``descriptor.keys`` its sorted keys."""
    domain, pairs = bucket
    attributes = dict(pairs)
    attributes[KEYS] = keys_text(tuple(attributes))
    return Check(domain, attributes, 1)


def write_response(told: Iterable[Told], ttl_s: int) -> bytes:
    """``ttl_s``: how long a gateway keeps a grant; Envoy takes whole seconds."""
    response = rlqs_pb2.RateLimitQuotaResponse()
    for one in told:
        action = response.bucket_action.add()
        for name, value in one.bucket[1]:
            action.bucket_id.bucket[name] = value
        if one.grant is None:
            action.abandon_action.SetInParent()
        else:
            assignment = action.quota_assignment_action
            assignment.assignment_time_to_live.seconds = ttl_s
            assignment.rate_limit_strategy.CopyFrom(_strategy(one.grant))
    return bytes(response.SerializeToString())


def _strategy(grant: Grant) -> ratelimit_strategy_pb2.RateLimitStrategy:
    strategy = ratelimit_strategy_pb2.RateLimitStrategy()
    if not grant.tokens:
        strategy.blanket_rule = ratelimit_strategy_pb2.RateLimitStrategy.DENY_ALL
        return strategy
    bucket = strategy.token_bucket
    bucket.max_tokens = grant.tokens
    bucket.tokens_per_fill.value = grant.fill
    bucket.fill_interval.seconds = grant.every_s
    # Envoy 1.40 compares only the nanoseconds of two intervals to see whether a bucket has changed, and reckons
    # with whole seconds.  So other seconds have other nanoseconds, which make it slower by less than 10^-6.
    bucket.fill_interval.nanos = grant.every_s % 10**6 if grant.every_s > 1 else 0
    return strategy
