"""What a picture takes and refuses, and that what it shows of a key's shares adds up."""

from __future__ import annotations

import pytest

from global_sync import codec
from global_sync.protocol.messages import Kind, LeaseRecord, Mark, Record, Welcome
from global_sync.transport.base import LOG, Message
from regional_limiter.model.enforcement import BASE
from regional_limiter.model.share import ProtocolTimes
from services.health import RegionHealth, RegionProbe
from services.picture import Picture, usage_document

KEY = "rl:{0}:default/r:k"
BASES = {"us": 3334, "eu": 3333, "ap": 3333}
IN_SESSION = [{"session_left_ms": 5000, "consent_left_ms": 5000}]
CONSENT_ONLY = [{"session_left_ms": 0, "consent_left_ms": 5000}]


@pytest.mark.parametrize("value", [b"{", b"[]", b"{}", b'{"region": "us"}'])
def test_what_is_no_usage_message_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError):
        usage_document(value)


def lease(n: int, region: str, kind: Kind, value: int) -> LeaseRecord:
    return LeaseRecord(1, n, KEY, region, 1, kind, value)


def shown(*records: Record, points: dict[str, list[dict[str, int]]] | None = None) -> dict[str, int | None]:
    """The shares after a MARK, a WELCOME for each region, and ``records``; ``points``: other than in session."""
    picture = Picture(BASES, ProtocolTimes())
    begin: list[Record] = [Mark(1, "x", 0)]
    begin += [Welcome(1, n, region, "agent", 1, 1, {}) for n, region in enumerate(BASES, 1)]
    for at, record in enumerate([*begin, *records]):
        picture.take(Message(LOG, at, None, codec.encode_records([record]), at), at)
    regions = [
        RegionHealth(name, "ok", 0, points=[dict(point) for point in (points or {}).get(name, IN_SESSION)])
        for name in BASES
    ]
    return picture.shares(KEY, BASES, regions, adaptive=True, now_ms=1000)


def test_what_the_leader_waits_for_is_said() -> None:
    leader = {"leading": True, "waiting_for_bases": {"a": {"us": 5000}}, "waiting_for_floors": {"b": {"eu": 500}}}
    told = Picture(BASES, ProtocolTimes()).sentences([], 0, 0, 0, {"us": RegionProbe((), None, leader, 0)})
    texts = [one.template for one in told if one.template.startswith("The new")]
    assert texts == [
        "The new bases of domain a wait until us (50.0 %) has left its old base.",
        "The new floors of domain b wait until eu (5.0 %) has left its old floor.",
    ]


def test_without_records_all_are_at_their_bases() -> None:
    assert shown() == BASES


def test_room_that_a_region_made_without_a_record_is_taken_from_the_record_that_is_older() -> None:
    # eu and ap lowered themselves to 333 each; the leader wrote only the grow that this made room for.
    assert shown(lease(4, "us", Kind.GROW, 9334)) == {"us": 9334, "eu": 0, "ap": 666}
    # The newest said of eu is after the grow of us: what is too much is given by ap, and then by us.
    after = lease(5, "eu", Kind.GROW, 600)
    assert shown(lease(4, "us", Kind.GROW, 9334), after) == {"us": 9334, "eu": 600, "ap": 66}


def test_what_is_within_the_whole_is_shown_as_the_log_says_it() -> None:
    kept = [lease(4, "eu", Kind.KEEP, 100), lease(5, "ap", Kind.KEEP, 200), lease(6, "us", Kind.GROW, 9700)]
    assert shown(*kept) == {"us": 9700, "eu": 100, "ap": 200}
    back = [*kept, lease(7, "us", Kind.KEEP, 4000), lease(8, "eu", Kind.GROW, BASE)]
    assert shown(*back) == {"us": 4000, "eu": 3333, "ap": 200}


def test_a_region_out_of_session_gives_nothing_that_it_did_not_promise() -> None:
    """It is at its floor while its consent lives, and what is too much is taken of those that have records."""
    shares = shown(lease(4, "us", Kind.GROW, 9334), points={"eu": CONSENT_ONLY})
    assert shares["eu"] is not None
    assert 0 < shares["eu"] < BASES["eu"]
    assert sum(share or 0 for share in shares.values()) == 10_000
    assert shares["us"] == 9334
