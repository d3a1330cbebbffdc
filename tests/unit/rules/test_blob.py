"""The rules blob: one wrong domain keeps no other back, and is never taken for one without rules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from regional_limiter.rules import Source, encode_blob, parse_document, read_blob


def document(domain: str = "default", capacity: int = 10, **more: Any) -> dict[str, Any]:
    rule = {"id": "a", "match": {}, "capacity": capacity, "refill": "1/s", **more}
    return {"domain": domain, "rules": [rule]}


def blob(**entries: object) -> bytes:
    return json.dumps({"version": 7, "sets": entries}).encode()


def entry(domain: str, version: int = 7, **more: Any) -> dict[str, Any]:
    return {"version": version, "document": document(domain, **more)}


WRONG: list[Any] = [
    {"version": 7, "document": {"domain": "b", "rules": [{"id": "a"}]}},
    {"version": 7, "document": document("c")},
    {"version": 7, "document": None},
    {"version": "7", "document": document("b")},
    {"document": document("b")},
    {"version": 7},
    None,
    [],
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_domain_keeps_no_other_back_and_stays_named_when_read_again(wrong: Any) -> None:
    read = read_blob(blob(a=entry("a"), b=wrong), {})
    assert (list(read.sets), list(read.refused)) == (["a"], ["b"])
    again = read_blob(encode_blob(read.version, read.in_force), {})
    assert (list(again.sets), list(again.refused), again.version) == (["a"], ["b"], 7)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_set_leaves_the_known_one_in_force_also_for_whoever_reads_it_next(wrong: Any) -> None:
    known = read_blob(blob(b=entry("b", 3, capacity=33)), {}).sets
    read = read_blob(blob(b=wrong), known)
    assert list(read.refused) == ["b"]
    again = read_blob(encode_blob(read.version, read.in_force), {})
    assert [(one.version, one.rule_set.rules[0].capacity) for one in again.sets.values()] == [(3, 33)]
    assert not again.refused


def test_a_set_of_the_known_version_is_not_parsed_again() -> None:
    known = read_blob(blob(a=entry("a")), {}).sets
    assert read_blob(blob(a=entry("a", capacity=99)), known).sets["a"] is known["a"]


@pytest.mark.parametrize(
    "wrong", [b"", b"{", b"\xff", b"[]", b'{"sets": {}}', b'{"version": 1}', b'{"version": true, "sets": {}}']
)
def test_what_is_no_blob_is_refused_whole(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="not a rules blob"):
        read_blob(wrong, {})


def test_an_empty_blob_has_no_rules() -> None:
    read = read_blob(encode_blob(4, {}), {})
    assert (read.version, read.sets, read.refused) == (4, {}, {})


def test_the_source_travels_as_it_was_written() -> None:
    read = read_blob(encode_blob(7, {"a": Source(7, document("a"))}), {})
    assert read.sets["a"].source == Source(7, document("a"))


def test_everything_that_a_set_says_travels() -> None:
    whole = {
        "domain": "a",
        "regions": {"us": 2, "eu": 1},
        "defaults": {"tier": "free"},
        "subjects": [{"client_key": "acme", "set": {"tier": "gold"}}],
        "overrides": [
            {"rule": "first", "key": {"client_key": "é"}, "multiply": 2.5, "why": "launch"},
            {"rule": "first", "key": {"client_key": "b"}, "block": True},
            {"rule": "first", "key": {"client_key": "c"}, "unlimited": True},
        ],
        "rules": [
            {
                "id": "first",
                "match": {
                    "ip": {"cidr": ["203.0.113.0/24", "2001:db8::/32"]},
                    "size": {"min": 0.1, "max": 65536},
                    "country": {"not": ["DE", "A*"]},
                    "resource": ["GET /*", "x"],
                },
                "normalise": {"resource": ["trim"], "client_key": ["trim", "lower"]},
                "capacity": 5,
                "refill_per_second": 0.5,
                "stop": True,
                "priority": "low",
                "shed": "deny",
                "cost": {"attribute": "size", "per": 1024},
            },
            {"id": "q", "algorithm": "leaky_bucket", "capacity": 5, "leak": "1/s", "queue": True, "cost": 3},
            {
                "id": "m",
                "algorithm": "fixed_window",
                "limit": 5,
                "window": {"calendar": "month", "zone": "Asia/Tokyo"},
            },
            {"id": "c", "algorithm": "concurrency", "limit": 5, "lease": "30s"},
            {"id": "free", "unlimited": True},
        ],
    }
    known = read_blob(encode_blob(7, {"a": Source(7, whole)}), {}).sets["a"]
    assert known.rule_set == parse_document(whole)
    again = read_blob(encode_blob(7, {"a": known.source}), {}).sets["a"]
    assert again.rule_set == known.rule_set
    assert again.rule_set.overrides["first"]["é",].in_force.capacity == 12
