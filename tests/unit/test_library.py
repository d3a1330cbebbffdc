"""The library's text and wire."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from regional_limiter.algorithms.registry import functions_of
from regional_limiter.model.decision import Reason, ShareKind, Verdict
from regional_limiter.model.enforcement import BASE, Write, WriteReply
from regional_limiter.model.rule import Algorithm, CalendarUnit, CalendarWindow, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store import library as wire
from regional_limiter.store.base import BucketCall, NodeBeat, RuleTotals, Sharing, TouchReply

CALL = BucketCall("rl:{t}:d/r:ü", Algorithm.TOKEN_BUCKET, 20, Rate(1, 100), None, 3, domain="d")


def test_the_version_follows_the_text_and_is_in_every_name() -> None:
    library = wire.build_library(ProtocolTimes())
    assert library == wire.build_library(ProtocolTimes())
    assert library.version != wire.build_library(ProtocolTimes.scaled(0.5)).version
    assert library.text.startswith(f"#!lua name={library.name}\n")
    assert set(library.functions) == set(wire.FUNCTIONS)
    assert all(name.endswith(library.version) for name in library.functions.values())
    assert not re.search(r"@[A-Z_]+@|--@", library.text)


def test_production_has_no_door_for_another_clock() -> None:
    production = wire.build_library(ProtocolTimes()).text
    assert "redis.call('TIME')" in production
    assert "table.remove" not in production
    assert "PXAT" not in production
    test = wire.build_library(ProtocolTimes(), test_clock=True).text
    assert "redis.call('TIME')" not in test
    assert "'PX'" not in test


def test_no_number_that_both_languages_need_is_left_open_or_written_twice() -> None:
    text = wire.build_library(ProtocolTimes()).text
    assert re.findall(r"@[A-Z_]+@", text) == []
    folder = Path(wire.__file__).with_name("functions")
    for part in folder.glob("*.lua"):
        assert re.findall(r"(?<!\d)(?:10000|9007199254740991|30000|60000|5000000)(?!\d)", part.read_text()) == []


def test_no_function_may_run_on_a_replica() -> None:
    assert "no-writes'" not in wire.build_library(ProtocolTimes()).text


def test_a_check_travels_as_keys_and_decimal_strings() -> None:
    keys, arguments = wire.encode_check([CALL])
    assert keys == ["rl:{t}:d/r:ü".encode()]
    assert arguments == [b"1", b"3", b"1 20 1,100 0 0 1 10000 0 10000 0 0 d"]
    keys, _ = wire.encode_check([CALL], "r1")
    assert len(keys) == 3
    assert all(key.startswith(b"rl:{t}:") for key in keys)


@pytest.mark.parametrize(
    ("fields", "suffix"),
    [
        ({"algorithm": Algorithm.TOKEN_BUCKET, "refill": Rate(1, 100)}, ""),
        ({"algorithm": Algorithm.GCRA, "refill": Rate(1, 100)}, ""),
        ({"algorithm": Algorithm.LEAKY_BUCKET, "refill": Rate(1, 100)}, ""),
        ({"algorithm": Algorithm.FIXED_WINDOW, "window_ms": 1000}, ":1700000000"),
        ({"algorithm": Algorithm.FIXED_WINDOW, "calendar": CalendarWindow(CalendarUnit.HOUR)}, ":1699999200000"),
        ({"algorithm": Algorithm.SLIDING_WINDOW_COUNTER, "window_ms": 1000}, ":c"),
        ({"algorithm": Algorithm.SLIDING_WINDOW_LOG, "window_ms": 1000}, ":l"),
        ({"algorithm": Algorithm.CONCURRENCY, "lease_ms": 1000, "holder": "one"}, ":h"),
    ],
)
def test_the_key_that_is_declared_is_the_one_that_is_read(fields: dict[str, Any], suffix: str) -> None:
    """Redis looks for it to tell where a call belongs while a slot moves."""
    usual: dict[str, Any] = {"capacity": 20, "refill": None, "window_ms": None, "cost": 1}
    call = BucketCall("rl:{t}:d/r:u", **{**usual, **fields})
    now_ms = 1_700_000_000_123
    assert call.key + suffix == functions_of(call).storage_key(call, now_ms)
    for keys, _ in (wire.encode_check([call], "r", now_ms), wire.encode_refund([call], None, now_ms)):
        assert keys[0].decode() == call.key + suffix


def test_a_tag_has_one_record_a_request_which_tells_what_was_asked() -> None:
    other = BucketCall("rl:{t}:d/r:v", Algorithm.TOKEN_BUCKET, 20, Rate(1, 100), None, 3)
    asked = ([CALL], [other], [CALL, other], [replace(CALL, cost=4)])
    assert len({wire.record_key(calls, r) for calls in asked for r in ("a", "b")}) == 2
    assert len({wire.asked_digest(calls) for calls in asked}) == 4
    assert wire.asked_digest([replace(CALL, capacity=7)]) == wire.asked_digest([CALL])
    assert {wire.encode_check(calls, "a")[1][-1] for calls in asked} == set(map(wire.asked_digest, asked))
    assert len({wire.charge_key(call, r) for call in (CALL, other) for r in ("a", "b")}) == 4


def test_one_bucket_twice_in_a_call_is_refused_not_charged_once() -> None:
    with pytest.raises(ValueError, match="twice"):
        wire.encode_check([CALL, CALL])


@pytest.mark.parametrize(
    "wrong",
    [
        BucketCall("rl:{t}:d/r:u", Algorithm.TOKEN_BUCKET, 1, None, None, 1),
        BucketCall("rl:{t}:d/r:u", Algorithm.FIXED_WINDOW, 1, None, None, 1),
        BucketCall("rl:{t}:d/r:u", Algorithm.SLIDING_WINDOW_LOG, 1, None, 1000, 1, sharing=Sharing.ADAPTIVE),
    ],
)
def test_a_limit_without_its_numbers_is_refused(wrong: BucketCall) -> None:
    with pytest.raises(ValueError):
        wire.encode_check([wrong])


def test_replies_are_read() -> None:
    assert wire.decode_check([1, 0, 5, 0, 70, 9000, 1, 11, 12, 2, 2, 0, -1, 0, 10_000, 0, 0, 0]) == [
        Verdict(True, Reason.OK, 5, 0, 70, 9000, ShareKind.LEASE, 11, 12),
        Verdict(False, Reason.EXCEEDS_CAPACITY, 0, None, 0, replayed=True),
    ]
    assert wire.decode_write([1, b"n", 9, 8, 7, 6]) == WriteReply(True, "n", 9, 8, 7, 6)
    assert wire.decode_touch([9, 3, 2, 1, 7, 1, b"d", 5000]) == TouchReply(9, 3, 2, {"d": 5000}, 1, 7)
    assert wire.decode_fetch_rules([-1, b""]) == (-1, b"")
    collected = wire.decode_collect([4, 1, b"k", 7, wire.encode_touch(beat())[1][1], 30])
    assert (collected.demand, collected.rules_version) == ({"k": 7}, 4)
    assert [(seen.beat, seen.age_us) for seen in collected.beats] == [(beat(), 30)]


def beat() -> NodeBeat:
    return NodeBeat("n", "i", "a:1", 1, -1, {"d/r": RuleTotals(2**60, 1)}, {"rl:{t}:d/r:u": RuleTotals(1)})


def test_a_beat_of_an_older_node_is_still_read() -> None:
    old = {"node": "n", "incarnation": "i", "address": "a", "rules_version": 1, "base_version": 2}
    collected = wire.decode_collect([4, 0, msgspec.msgpack.encode(old), 30])
    assert [seen.beat.library for seen in collected.beats] == [""]


def test_a_write_carries_leases_and_bases() -> None:
    write = Write("n", "i", 3, 4, 5, True, {"k": BASE, "j": 7}, False, 6, {"d": 8})
    assert wire.encode_write(write) == (
        [],
        [b"n", b"i", b"3", b"4", b"5", b"1", b"0", b"6", b"2", b"k", b"-1", b"j", b"7", b"d", b"8"],
    )
