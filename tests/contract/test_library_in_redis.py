"""The production library in a real server: what it costs, what it refuses, what it leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from random import Random
from time import time_ns

import pytest
import redis

from regional_limiter.model.decision import Verdict
from regional_limiter.model.enforcement import BASE, Write
from regional_limiter.model.keys import bucket_key
from regional_limiter.model.rule import Algorithm, CalendarUnit, CalendarWindow, Rate, Rule
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store import library as wire
from regional_limiter.store.base import BucketCall, NodeBeat, Sharing
from tests.contract.redis_server import RedisServer

LIBRARY = wire.build_library(ProtocolTimes())
BYTES_A_BUCKET = 135
BYTES_A_GCRA = 110


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


def call_of(name: str = "r", **fields: object) -> BucketCall:
    usual: dict[str, object] = {"capacity": 20, "refill": Rate(1, 3_600_000), "window_ms": None, "cost": 1}
    usual["algorithm"] = Algorithm.TOKEN_BUCKET
    return BucketCall(f"rl:{{t}}:d/{name}:u", **{**usual, **fields})  # type: ignore[arg-type]


def check(server: RedisServer, *calls: BucketCall, request_id: str | None = None) -> list[Verdict]:
    return wire.decode_check(reply_to(server, *calls, request_id=request_id))


def reply_to(server: RedisServer, *calls: BucketCall, request_id: str | None = None) -> list[int]:
    reply = server.call(LIBRARY, "check", wire.encode_check(calls, request_id, time_ns() // 1_000_000))
    return [int(number) for number in reply]


def test_a_reply_is_brief_exactly_where_all_allow_at_once_and_follow_no_share(server: RedisServer) -> None:
    bucket, window = call_of(), call_of("w", algorithm=Algorithm.FIXED_WINDOW, refill=None, window_ms=86_400_000)
    assert len(reply_to(server, bucket)) == 2
    assert len(reply_to(server, bucket, window)) == 4
    assert [verdict.remaining for verdict in check(server, bucket, window)] == [17, 18]
    static = call_of("s", sharing=Sharing.STATIC, regions=2, base=5000)
    queue = call_of("q", algorithm=Algorithm.LEAKY_BUCKET, queue=True)
    check(server, queue)
    for calls in ((call_of(cost=21),), (bucket, call_of("b", cost=21)), (bucket, static), (bucket, queue)):
        assert len(reply_to(server, *calls)) == 9 * len(calls)
    assert len(reply_to(server, bucket, request_id="r")) == 9


def test_a_live_bucket_takes_at_most_135_bytes(server: RedisServer) -> None:
    rule = Rule("orders-free", "default", (), ("client_key",), Algorithm.TOKEN_BUCKET, 20, Rate(1, 100), None)
    key = bucket_key(rule, {"client_key": "user:42"}, b"secret")
    for refill, capacity in ((Rate(1, 100), 20), (Rate(1, 600), 100), (Rate(1, 10), 1000)):
        call = BucketCall(key, Algorithm.TOKEN_BUCKET, capacity, refill, None, 3)
        server.client.delete(key)
        check(server, call)
        assert server.client.memory_usage(key) <= BYTES_A_BUCKET


def test_a_live_gcra_takes_at_most_110_bytes(server: RedisServer) -> None:
    rule = Rule("orders-free", "default", (), ("client_key",), Algorithm.GCRA, 20, Rate(1, 100), None)
    key = bucket_key(rule, {"client_key": "user:42"}, b"secret")
    usual = ((1, 100), 20), ((1, 600), 100), ((1, 10), 1000), ((7, 1000), 1000), ((1, 3600), 1000), ((1, 6000), 10)
    for refill, capacity in usual:
        call = BucketCall(key, Algorithm.GCRA, capacity, Rate(*refill), None, capacity)
        server.client.delete(key)
        check(server, call)
        assert server.client.object("encoding", key) == b"int"
        assert server.client.memory_usage(key) <= BYTES_A_GCRA


def test_windows_that_are_not_around_the_servers_clock_are_refused_before_anything_is_done(
    server: RedisServer,
) -> None:
    calendar = CalendarWindow(CalendarUnit.DAY, "Europe/Berlin")
    daily = call_of("day", algorithm=Algorithm.FIXED_WINDOW, refill=None, calendar=calendar)
    by_length = call_of("length", algorithm=Algorithm.FIXED_WINDOW, refill=None, window_ms=86_400_000)
    seconds, micros = server.client.time()
    now_ms = seconds * 1000 + micros // 1000
    # By a day off, the edges of a calendar are around the clock still.
    for window, function, off_days in product((daily, by_length), ("check", "refund"), (-3, -1, 1, 3)):
        encoded = wire.encode_check([call_of(), window], "r", now_ms + off_days * 86_400_000)
        with pytest.raises(redis.ResponseError, match=rf"^{wire.OTHER_WINDOWS} \d+") as caught:
            server.call(LIBRARY, function, encoded)
        assert abs(int(str(caught.value).split()[1]) - now_ms) < 60_000
        assert server.client.dbsize() == 0


def test_every_key_has_an_end_and_a_peek_makes_none(server: RedisServer) -> None:
    random = Random(1)
    sharing = {"regions": 3, "domain": "d", "base_version": 2, "base": 3333}
    for number in range(300):
        adaptive = random.random() < 0.3
        call = call_of(
            f"r{random.randrange(40)}",
            refill=Rate(random.choice((1, 7, 1000)), random.choice((1, 100, 86_400))),
            capacity=random.choice((0, 1, 5, 1000)),
            cost=random.choice((0, 1, 1, 1, 7)),
            charge_denied=random.random() < 0.3,
            **(sharing | {"sharing": Sharing.ADAPTIVE} if adaptive else {}),
        )
        window = BucketCall(f"rl:{{t}}:d/w{number % 7}:u", Algorithm.FIXED_WINDOW, 9, None, 60_000, 1)
        check(server, call, window, request_id=f"r{number}" if random.random() < 0.2 else None)
        server.call(LIBRARY, "refund", wire.encode_refund([call], "x" if random.random() < 0.2 else None))
    keys = list(server.client.scan_iter())
    assert len(keys) > 30
    assert all(server.client.pttl(key) != -1 for key in keys)  # -1: no end; -2: gone meanwhile
    server.client.flushall()
    check(server, call_of(cost=0), request_id="r")
    assert server.client.dbsize() == 0


def test_fifty_threads_are_charged_exactly(server: RedisServer) -> None:
    call = call_of(capacity=100, refill=Rate(1, 86_400_000))
    with ThreadPoolExecutor(50) as pool:
        allowed = pool.map(lambda _: check(server, call)[0].allowed, range(200))
    assert sum(allowed) == 100


def test_when_memory_is_full_checks_stop_and_shares_go_on(server: RedisServer) -> None:
    check(server, call_of())
    server.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            check(server, call_of("new"))
        write = Write("n", "", 1, 1, 0, True, {"k": BASE}, True, 1, {"d": 1})
        assert wire.decode_write(server.call(LIBRARY, "write", wire.encode_write(write))).instance == "n"
        server.call(LIBRARY, "refund", wire.encode_check([call_of()]))
        server.call(LIBRARY, "touch", wire.encode_touch(NodeBeat("n", "i", "", 0, 0)))
        server.call(LIBRARY, "offer", wire.encode_offer({"k": 1}))
        server.call(LIBRARY, "collect", wire.encode_collect())
        server.call(LIBRARY, "publish_rules", wire.encode_publish_rules(1, b"x"))
        server.call(LIBRARY, "fetch_rules", wire.encode_fetch_rules())
    finally:
        server.client.config_set("maxmemory", 0)


def test_a_limit_that_cannot_be_read_is_an_error_and_charges_nothing(server: RedisServer) -> None:
    keys, arguments = wire.encode_check([call_of("a"), call_of("b")])
    arguments[-1] = b"1 2 3"
    with pytest.raises(redis.ResponseError, match="cannot be read"):
        server.call(LIBRARY, "check", (keys, arguments))
    assert server.client.dbsize() == 0


def test_the_variable_is_lost_when_the_library_is_replaced_and_buckets_are_not(server: RedisServer) -> None:
    check(server, call_of())
    server.call(LIBRARY, "publish_rules", wire.encode_publish_rules(7, b"x"))
    server.load(LIBRARY)
    assert wire.decode_fetch_rules(server.call(LIBRARY, "fetch_rules", wire.encode_fetch_rules())) == (-1, b"")
    assert check(server, call_of())[0].remaining == 18


def test_two_versions_live_side_by_side_with_a_variable_each(server: RedisServer) -> None:
    other = wire.build_library(ProtocolTimes.scaled(2))
    server.load(other)
    server.call(other, "publish_rules", wire.encode_publish_rules(7, b"x"))
    assert server.call(LIBRARY, "fetch_rules", wire.encode_fetch_rules()) == [-1, b""]
    check(server, call_of())
    reply = [int(number) for number in server.call(other, "check", wire.encode_check([call_of()]))]
    assert wire.decode_check(reply)[0].remaining == 18


def test_a_thousand_and_first_node_is_refused_not_a_known_one_forgotten(server: RedisServer) -> None:
    for number in range(1000):
        server.call(LIBRARY, "touch", wire.encode_touch(NodeBeat(f"n{number}", "i", "", 0, 0)))
    with pytest.raises(redis.ResponseError, match="too many nodes"):
        server.call(LIBRARY, "touch", wire.encode_touch(NodeBeat("another", "i", "", 0, 0)))
    server.call(LIBRARY, "touch", wire.encode_touch(NodeBeat("n0", "i", "", 0, 0)))
    collected = wire.decode_collect(server.call(LIBRARY, "collect", wire.encode_collect()))
    assert len(collected.beats) == 1000
