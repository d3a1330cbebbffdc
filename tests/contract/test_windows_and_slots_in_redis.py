"""Sliding windows and slots as the production library keeps them: what they cost, and that they end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from regional_limiter.algorithms.sliding_window_log import memory_bytes_most
from regional_limiter.model.decision import Verdict
from regional_limiter.model.rule import Algorithm
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store import library as wire
from regional_limiter.store.base import BucketCall
from tests.contract.redis_server import RedisServer

LIBRARY = wire.build_library(ProtocolTimes())
KEY = "rl:{AbCdEfGh}:default/orders-free:user%3A42"
HOUR_MS = 3_600_000
COUNTER, LOG = Algorithm.SLIDING_WINDOW_COUNTER, Algorithm.SLIDING_WINDOW_LOG
BYTES_OF_COUNTS = 152
BYTES_A_SLOT, BYTES_A_SLOT_OF_MANY = 30, 140


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def server(running: RedisServer) -> RedisServer:
    running.client.flushall()
    running.client.function_flush()
    running.load(LIBRARY)
    return running


def window(algorithm: Algorithm, limit: int, window_ms: int = HOUR_MS, cost: int = 1) -> BucketCall:
    return BucketCall(KEY, algorithm, limit, None, window_ms, cost)


def slots(limit: int, holder: str, cost: int = 1) -> BucketCall:
    return BucketCall(KEY, Algorithm.CONCURRENCY, limit, None, None, cost, lease_ms=HOUR_MS, holder=holder)


def check(server: RedisServer, *calls: BucketCall, request_id: str | None = None) -> list[Verdict]:
    reply = server.call(LIBRARY, "check", wire.encode_check(calls, request_id))
    return wire.decode_check([int(number) for number in reply])


def fill(server: RedisServer, calls: list[BucketCall]) -> None:
    pipe = server.client.pipeline(transaction=False)
    for call in calls:
        keys, arguments = wire.encode_check([call])
        pipe.fcall(LIBRARY.functions["check"], 1, *keys, *arguments)
    pipe.execute()


def memory(server: RedisServer, suffix: str) -> int:
    used = server.client.memory_usage(KEY + suffix, samples=0)
    assert isinstance(used, int)
    return used


def test_two_counts_take_as_much_whatever_they_are(server: RedisServer) -> None:
    for limit, window_ms, cost in ((1, 1000, 1), (9 * 10**11, 366 * 86_400_000, 2**31 - 1)):
        server.client.flushall()
        check(server, window(COUNTER, limit, window_ms, cost))
        assert memory(server, ":c") <= BYTES_OF_COUNTS


@pytest.mark.parametrize("limit", [1, 10, 1000, 5000])
def test_a_full_log_takes_no_more_than_its_rule_is_said_to(server: RedisServer, limit: int) -> None:
    call = window(LOG, limit)
    most = memory_bytes_most(limit, HOUR_MS)
    # As if each unit had been charged in a millisecond of its own.
    entries = [(10**12 + number, number + 1) for number in range(limit)]
    packed = [time_ms.to_bytes(6, "little") + end.to_bytes(6, "little") for time_ms, end in [(0, 0), *entries]]
    server.client.rpush(KEY + ":l", *packed)
    assert check(server, replace(call, cost=0))[0].remaining == limit
    assert most / 2 <= memory(server, ":l") <= most


def test_a_slot_takes_a_few_dozen_bytes_and_one_of_a_crowd_a_hundred_odd(server: RedisServer) -> None:
    fill(server, [slots(5000, f"h{number}") for number in range(100)])
    assert memory(server, ":h") <= 200 + 100 * BYTES_A_SLOT
    fill(server, [slots(5000, f"h{number}") for number in range(1000)])
    assert memory(server, ":h") <= 1000 * BYTES_A_SLOT_OF_MANY


def commands(server: RedisServer) -> int:
    stats = server.client.info("commandstats")
    outer = ("cmdstat_info", "cmdstat_fcall", "cmdstat_config|resetstat")
    return sum(told["calls"] for name, told in stats.items() if name not in outer)


@pytest.mark.parametrize("held", [10, 3000])
def test_the_work_of_a_check_does_not_grow_with_what_is_held(server: RedisServer, held: int) -> None:
    """Counted in commands, which cost a logarithm at most; a denial bisects a log, so it costs a few more."""
    fill(server, [slots(held, f"h{number}") for number in range(held - 1)])
    fill(server, [window(LOG, held)] * (held - 1))
    for calls, most in (
        ([slots(held, "last")], 9),
        ([slots(held, "denied")], 6),
        ([window(LOG, held)], 6),
        ([window(LOG, held)], 4 + held.bit_length()),
    ):
        server.client.config_resetstat()
        check(server, *calls)
        assert commands(server) <= most


def test_every_key_has_an_end_and_a_peek_makes_none(server: RedisServer) -> None:
    random = Random(1)
    for number in range(300):
        calls = [
            replace(
                call,
                key=f"rl:{{t}}:d/r{random.randrange(30)}:{place}",
                cost=random.choice((0, 1, 1, 2, 7)),
                charge_denied=random.random() < 0.3,
            )
            for place, call in enumerate((window(COUNTER, 3), window(LOG, 3), slots(3, f"h{number % 7}")))
        ]
        check(server, *calls, request_id=f"r{number}" if random.random() < 0.2 else None)
        server.call(LIBRARY, "refund", wire.encode_check([random.choice(calls)]))
        server.call(LIBRARY, "renew", wire.encode_check(calls[2:]))
    keys = list(server.client.scan_iter())
    assert len(keys) > 60
    assert all(server.client.pttl(key) != -1 for key in keys)  # -1: no end; -2: gone meanwhile
    server.client.flushall()
    for call in (window(COUNTER, 3, cost=0), window(LOG, 3, cost=0), slots(3, "", cost=0)):
        check(server, call, request_id="r")
    assert server.client.dbsize() == 0


def test_what_is_given_back_leaves_no_key(server: RedisServer) -> None:
    for call in (window(COUNTER, 3), window(LOG, 3), slots(3, "a")):
        check(server, call)
        server.call(LIBRARY, "refund", wire.encode_check([call]))
    assert [key for key in server.client.scan_iter() if server.client.pttl(key) > 1] == []
