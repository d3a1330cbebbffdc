"""Whose bucket a check meets, and what becomes of counts, limits and tables on a node: each named after its report.

Beside the tests of their parts: addresses of strangers (fastify-rate-limit#7, express-rate-limit#502) in
``tests/unit/check_api/test_authorize.py`` and ``tests/unit/test_planner.py``, odd keys and bounds of bodies
(django-ratelimit#3) in ``test_bodies.py`` and ``test_limiter.py``, refused sets (kgateway#2832) in
``test_parse_rules.py``, ``test_limiter.py`` and ``test_process.py``, metric series (ratelimit#1132) in
``test_metrics.py``, calendars (kong#9581, ratelimit#1206) in ``tests/unit/test_calendar.py``, totals that are told
again (clickhouse#7259, kafka-pixy#62, haproxy#1497) in ``tests/unit/test_node_usage.py``, and what needs a real
cluster in ``tests/contract``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from time import time_ns
from typing import Any

import pytest

from regional_limiter.fallback import Fallback, Unanswered, shed
from regional_limiter.in_process import in_memory
from regional_limiter.model.decision import Check, Reason
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.model.rule import Algorithm, OnStoreFailure, Rate, Shed
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import BucketCall
from regional_limiter.store.library import build_library, decode_check, encode_check
from regional_limiter.store.memory import MemoryPoint, MemoryStore
from tests.contract.redis_server import RedisServer
from tests.unit.limiter_store import PromptStore, allow, blob_of, check, rule, running

DAY = {"algorithm": "fixed_window", "window": "1d"}


def asked(attributes: Mapping[str, str], cost: int = 1) -> Check:
    return Check("default", attributes, cost)


# ---- whose bucket


async def test_long2ice_fastapi_limiter_41_each_route_with_a_parameter_has_its_own_bucket() -> None:
    rules = {
        "rules": [
            {"id": "a", "match": {"resource": "GET /a/*"}, "limit": 5, **DAY},
            {"id": "b", "match": {"resource": "GET /b/*"}, "limit": 5, **DAY},
        ]
    }
    async with in_memory(rules) as limiter:
        for _ in range(5):
            assert (await limiter.check(asked({"client_key": "u", "resource": "GET /a/1"}))).allowed
        last = await limiter.check(asked({"client_key": "u", "resource": "GET /b/1"}))
        sibling = await limiter.check(asked({"client_key": "u", "resource": "GET /a/2"}))
    assert (last.allowed, last.remaining) == (True, 4)
    assert not sibling.allowed, "another parameter is no other route"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"to": "x@y.co", "url": "mtest"}, {"to": "x@y.com", "url": "test"}),
        ({"to": "a,b", "url": "c"}, {"to": "a", "url": "b,c"}),
        ({"to": "a", "url": ""}, {"to": "", "url": "a"}),
        ({"to": "a", "url": "!"}, {"to": "a"}),
        ({"to": "a%2Cb", "url": "c"}, {"to": "a,b", "url": "c"}),
        ({"to": "#a", "url": "c"}, {"to": "a", "url": "c"}),
        ({"to": "x" * 500 + "a", "url": "c"}, {"to": "x" * 500, "url": "ac"}),
    ],
)
@pytest.mark.parametrize("hashed", [False, True])
async def test_access_nyc_517_no_two_identities_meet_in_one_bucket(
    one: dict[str, str], other: dict[str, str], hashed: bool
) -> None:
    rules = {"rules": [{"id": "mail", "key": ["to", "url"], "hash_key": hashed, "limit": 1, **DAY}]}
    async with in_memory(rules) as limiter:
        assert (await limiter.check(asked(one))).allowed
        assert (await limiter.check(asked(other))).allowed
        assert not (await limiter.check(asked(one))).allowed


# ---- a limit of zero, on every path


@pytest.mark.parametrize("mode", list(OnStoreFailure))
def test_spring_cloud_gateway_168_and_new_api_1026_a_limit_of_zero_denies_without_the_store(
    mode: OnStoreFailure,
) -> None:
    call = BucketCall("rl:{t}:default/r:u", Algorithm.TOKEN_BUCKET, 0, Rate(1, 1000), None, 1)
    for owing in (False, True):
        (verdict,) = Fallback().decide([Unanswered(call, mode, owing)], now_ms=0, now_us=0, nodes=1, charge=True)
        assert (verdict.allowed, verdict.reason, verdict.retry_after_ms) == (False, Reason.ZERO_LIMIT, None)
    for told in Shed:
        assert shed(call, told).reason is Reason.ZERO_LIMIT


@pytest.mark.parametrize("more", [{}, {"split": 4}, {"on_store_failure": "open"}, {"priority": "low"}])
async def test_spring_cloud_gateway_168_and_new_api_1026_a_limit_of_zero_denies_through_a_node(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    store = MemoryStore(lambda: time_ns() // 1000, ProtocolTimes())
    async with running(store, tmp_path, blob_of(rule("a", capacity=0, **more))) as limiter:
        for _ in range(2):
            answer = await limiter.check(check())
            assert (answer.reason, answer.retry_after_ms) == (Reason.ZERO_LIMIT, None)
            store.cut("memory:1/1")


# ---- what a node has counted


async def test_gubernator_global_go_what_was_allowed_since_the_last_beat_is_told_before_a_node_ends(
    tmp_path: Path,
) -> None:
    store = MemoryStore(lambda: time_ns() // 1000, ProtocolTimes())
    async with running(store, tmp_path, blob_of(rule("a", capacity=100, refill="1/h"))) as limiter:
        for _ in range(40):
            assert (await limiter.check(check())).allowed
        await limiter.stop()
        collected = await store.collect("memory:1/1")
    (seen,) = collected.beats
    assert (seen.beat.usage["default/a"].allowed, seen.beat.usage["default/a"].denied) == (40, 0)


async def test_gubernator_global_go_what_was_decided_without_the_store_is_charged_before_a_node_ends(
    tmp_path: Path,
) -> None:
    """Its sibling: not only what was counted, also what is owed."""
    store = PromptStore(default=StoreUnavailable("disconnected", may_have_run=False))
    async with running(store, tmp_path, blob_of(rule("a", capacity=100, refill="1/h"))) as limiter:
        for number in range(40):
            await limiter.check(check(request_id=f"r{number}" if number % 2 else None))
        store.default = allow()
        sent = len(store.checks)
        await limiter.stop()
    charged = store.checks[sent:]
    assert sum(call.cost for calls, _ in charged for call in calls) == 40
    assert len({request for _, request in charged}) == 21


# ---- tables and keys


def test_better_auth_7161_a_table_of_many_keys_stays_below_its_bound_and_forgives_none() -> None:
    point = MemoryPoint(ProtocolTimes(), buckets_most=1000)
    start_us = 20_000 * 86_400_000_000

    def call(name: object, cost: int = 1) -> BucketCall:
        return BucketCall(f"rl:{{t}}:default/w:u{name}", Algorithm.FIXED_WINDOW, 5, None, 1000, cost)

    spent = call("spent", 5)
    for number in range(20_000):
        point.check(start_us, [call(number)])
        if number == 10_000:
            point.check(start_us, [spent])
        assert len(point.buckets) <= 1000
    assert not point.check(start_us, [spent])[0].allowed, "what was used up when it had to go stays used up"
    point.purge(start_us + 10_000_000)
    assert len(point.buckets) == 0
    assert point.check(start_us + 10_000_000, [call(1, 0)])[0].remaining == 5
    assert len(point.buckets) == 0


@pytest.mark.parametrize("kind", [Algorithm.FIXED_WINDOW, Algorithm.TOKEN_BUCKET])
def test_alisaifee_limits_14_a_key_that_is_found_without_an_end_gets_one(
    server: RedisServer, kind: Algorithm
) -> None:
    library = build_library(ProtocolTimes())
    server.client.flushall()
    server.load(library)
    bucket = kind is Algorithm.TOKEN_BUCKET
    call = BucketCall(
        "rl:{t}:default/r:u", kind, 5, Rate(1, 60_000) if bucket else None, None if bucket else 60_000, 1
    )

    def left() -> int:
        keys, arguments = encode_check([call], None, time_ns() // 1_000_000)
        reply = list(server.client.fcall(library.functions["check"], len(keys), *keys, *arguments))
        (verdict,) = decode_check(reply)
        assert verdict.allowed
        return verdict.remaining

    assert left() == 4
    (key,) = server.client.keys("*")
    assert server.client.persist(key)
    assert server.client.pttl(key) == -1
    assert left() == 3
    assert all(0 < server.client.pttl(name) <= 300_000 for name in server.client.keys("*"))


async def test_letsencrypt_boulder_7780_a_hundred_at_once_on_a_new_key_through_a_node_get_ten() -> None:
    for split in ({}, {"split": 5}):
        rules = {"rules": [{"id": "a", "capacity": 10, "refill": "1/h", **split}]}
        async with in_memory(rules) as limiter:
            answers = await asyncio.gather(*(limiter.check(asked({"client_key": "new"})) for _ in range(100)))
        assert sum(answer.allowed for answer in answers) == 10
