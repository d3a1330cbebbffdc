"""Leases as the log grants them: what the page shows must add up at every position of the log."""

from __future__ import annotations

import pytest

from global_sync.protocol.messages import Beat, Kind, LeaseRecord, Mark, Record, Snapshot, Welcome, WindowGrant
from regional_limiter.model.enforcement import BASE
from services import granted as module
from services.granted import SAID_MOST, Granted

KEY = "rl:{0}:default/r:k"


def lease(n: int, kind: Kind, value: int, *, session: int = 1, epoch: int = 1, region: str = "us") -> LeaseRecord:
    return LeaseRecord(epoch, n, KEY, region, session, kind, value)


def welcome(n: int, session: int, low: dict[str, int] | None = None, *, region: str = "us") -> Welcome:
    return Welcome(1, n, region, "agent", session, 1, low or {})


def snapshot(number: int, ledger: dict[str, dict[str, tuple[tuple[tuple[int, int], int, int], ...]]]) -> Snapshot:
    return Snapshot(
        epoch=1, number=number, part=0, parts=1, sessions=(), current={"us": 1}, agents={}, version=1, bases={},
        done_version=1, booked={}, ledger=ledger,
    )  # fmt: skip


def fold(*records: Record) -> Granted:
    granted = Granted()
    for at, record in enumerate(records):
        granted.take(record, at * 1000)
    return granted


def test_without_a_session_no_share_is_known() -> None:
    assert fold(Mark(1, "x", 0)).share("us", KEY) is None


def test_a_new_session_is_at_base_but_for_what_its_welcome_holds_low() -> None:
    granted = fold(Mark(1, "x", 0), welcome(1, 1, {KEY: 700}))
    assert (granted.share("us", KEY), granted.share("us", "other")) == (700, BASE)


def test_a_grow_sets_and_a_keep_never_raises() -> None:
    start = (Mark(1, "x", 0), welcome(1, 1))
    assert fold(*start, lease(2, Kind.GROW, 6000)).share("us", KEY) == 6000
    assert fold(*start, lease(2, Kind.GROW, 4000), lease(3, Kind.KEEP, 6000)).share("us", KEY) == 4000
    assert fold(*start, lease(2, Kind.GROW, 4000), lease(3, Kind.KEEP, 100)).share("us", KEY) == 100


def test_repeats_late_records_and_those_of_an_old_session_change_nothing() -> None:
    late = (lease(3, Kind.GROW, 9000), lease(2, Kind.GROW, 1000), lease(9, Kind.GROW, 1, session=0))
    assert fold(Mark(1, "x", 0), welcome(1, 1), lease(3, Kind.GROW, 500), *late).share("us", KEY) == 500


def test_records_of_a_deposed_leader_are_void() -> None:
    granted = fold(Mark(1, "x", 0), welcome(1, 1), Mark(2, "y", 0), lease(2, Kind.GROW, 9000), Mark(1, "z", 0))
    assert granted.share("us", KEY) == BASE
    assert granted.epoch == 2


def test_a_snapshot_forgets_what_it_does_not_name() -> None:
    before = (Mark(1, "x", 0), welcome(1, 1), lease(2, Kind.GROW, 6000))
    kept = {KEY: {"us": (((1, 1), 3000, 1), ((1, 2), 6000, 1), ((1, 1), 9999, 0))}}
    assert fold(*before, snapshot(1, kept)).share("us", KEY) == 6000
    assert fold(*before, snapshot(1, {})).share("us", KEY) == BASE


def test_a_reader_that_begins_at_a_snapshot_knows_the_shares() -> None:
    granted = fold(snapshot(3, {KEY: {"us": (((1, 7), 1234, 1),)}}), Beat(1, 5, {"us": (1, 4)}))
    assert (granted.share("us", KEY), granted.epoch, granted.beat_ms) == (1234, 1, 1000)
    assert granted.keys() == {KEY}


def test_what_is_taken_back_may_still_be_followed_by_who_has_not_been_heard_since() -> None:
    granted = fold(Mark(1, "x", 0), welcome(1, 1), lease(2, Kind.GROW, 6000), lease(3, Kind.KEEP, 100))
    assert granted.share("us", KEY) == 100
    assert granted.most("us", KEY, 2500, since_ms=2_999) == 6000, "read here at 3,000 ms"
    assert granted.most("us", KEY, 2500, since_ms=3_000) == 100


def test_before_its_first_record_a_key_was_at_base_and_may_still_be() -> None:
    granted = fold(Mark(1, "x", 0), welcome(1, 1), lease(2, Kind.KEEP, 100))
    assert granted.most("us", KEY, 2500, since_ms=1_999) == 2500
    assert granted.most("us", "other", 2500, since_ms=0) == 2500


def test_a_new_session_ends_what_the_old_one_allowed_only_for_who_is_heard_in_it() -> None:
    granted = fold(Mark(1, "x", 0), welcome(1, 1), lease(2, Kind.GROW, 6000), welcome(3, 2, {KEY: 700}))
    assert granted.most("us", KEY, 2500, since_ms=2_000) == 6000
    assert granted.most("us", KEY, 2500, since_ms=3_000) == 700


def test_a_snapshot_names_all_that_may_still_be_followed() -> None:
    before = (Mark(1, "x", 0), welcome(1, 1), lease(2, Kind.GROW, 6000), lease(3, Kind.KEEP, 100))
    open_still = {KEY: {"us": (((1, 2), 6000, 1), ((1, 3), 100, 1))}}
    acknowledged = {KEY: {"us": (((1, 3), 100, 1),)}}
    assert fold(*before, snapshot(1, open_still)).most("us", KEY, 2500, since_ms=0) == 6000
    assert fold(*before, snapshot(1, acknowledged)).most("us", KEY, 2500, since_ms=0) == 100
    assert fold(snapshot(1, open_still)).most("us", KEY, 2500, since_ms=-1) == 6000


def test_what_may_be_followed_is_bounded_and_the_largest_stays() -> None:
    falling = [lease(n, Kind.KEEP, 6000 - n) for n in range(3, 50)]
    granted = fold(Mark(1, "x", 0), welcome(1, 1), lease(2, Kind.GROW, 6000), *falling)
    assert granted.most("us", KEY, 2500, since_ms=0) == 6000
    assert len(granted._regions["us"].leases[KEY]) <= SAID_MOST


def test_windows_that_are_over_make_room_and_then_the_oldest_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEYS_MOST", 2)
    granted = fold(Mark(1, "x", 0))

    def window(key: str, end_ms: int, now_ms: int) -> None:
        granted.take(WindowGrant(1, now_ms, key, "us", 1, end_ms, 7), now_ms)

    window("over", 1_000, 10)
    window("long", 9_000, 20)
    window("new", 9_000, 2_000)
    assert [granted.of_window(key, 2_000) for key in ("long", "new")] == [{"us": 7}, {"us": 7}]
    window("newer", 9_000, 3_000)
    assert [granted.of_window(key, 3_000) for key in ("long", "new", "newer")] == [{}, {"us": 7}, {"us": 7}]
