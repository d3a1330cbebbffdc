"""The leader's side on its own: what it appends, repeats and refuses, and that all of it is bounded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from global_sync.protocol import leader_state
from global_sync.protocol.leader import LeaderSide
from global_sync.protocol.messages import (
    Beat,
    Config,
    Done,
    Kind,
    LeaseRecord,
    Mark,
    Record,
    Report,
    Seq,
    Want,
    Welcome,
    WindowAsk,
    WindowGrant,
)
from regional_limiter.model.enforcement import BASE
from regional_limiter.model.share import ProtocolTimes, floor_name

TIMES = ProtocolTimes()
SECOND = 1_000_000
KEY = "rl:{0}:shop/all:a"
EVEN = {"shop": {"eu": 5000, "us": 5000}}


class Bench:
    """A leader whose appends land at once, and regions that answer as told."""

    def __init__(self) -> None:
        self.now = 1000 * SECOND
        self.log: list[Record] = []
        self.read = 0
        self.side = LeaderSide("c", ["eu", "us"], TIMES)
        self.basis = 0
        self.put([self.side.take_over(self.now, "nonce")])
        self.put(self.side.configure(self.now, 1, EVEN))
        self.put(self.side.done(self.now))

    def put(self, records: Iterable[Record]) -> list[Record]:
        landed = list(records)
        self.log += landed
        while self.read < len(self.log):
            self.side.on_record(self.now, self.log[self.read], self.read)
            self.read += 1
        return landed

    def report(self, region: str, session: int, settled: dict[str, tuple[tuple[int, int], int]] | None = None,
               agent: str = "", base_version: int = 3, echo: bool = True) -> list[Record]:  # fmt: skip
        self.basis += 1
        time = (self.side.epoch, self.now if echo else 0)
        report = Report(region, agent or region, session, self.basis, time, base_version, settled or {})
        return self.put(self.side.on_report(self.now, report))

    def open(self) -> Bench:
        for region in ("eu", "us"):
            self.report(region, 0)
            self.report(region, 1)
        return self


def test_nothing_is_said_before_the_mark_is_back() -> None:
    side = LeaderSide("c", ["eu"], TIMES)
    side.take_over(0, "n")
    report = Report("eu", "a", 0, 1, (0, 0), 0, {})
    said = [side.beat(1), side.configure(1, 1, EVEN), side.done(1), side.on_report(1, report), side.snapshot(1)]
    assert said == [[], [], [], [], []]
    assert side.pending


def test_a_hello_is_welcomed_once_and_the_welcome_repeated_when_it_seems_lost() -> None:
    bench = Bench()
    first = bench.report("eu", 0)
    assert [type(record) for record in first] == [Welcome]
    assert bench.report("eu", 0) == []
    bench.now += 2 * SECOND
    assert bench.report("eu", 0) == first
    assert bench.report("eu", 1) == []
    bench.now += 2 * SECOND
    assert bench.report("eu", 1) == []


def test_a_region_that_no_config_names_has_a_session_and_no_base() -> None:
    bench = Bench().open()
    assert len(bench.report("ap", 0)) == 1
    bench.report("ap", 1)
    assert bench.side.count(KEY, "ap", bench.now) == 0
    assert "ap" in bench.side.regions
    assert bench.side.live("ap", bench.now)


def test_shrink_answer_grow() -> None:
    bench = Bench().open()
    shrink = bench.put(bench.side.lease(bench.now, KEY, "us", 0))
    assert shrink == [LeaseRecord(1, 3, KEY, "us", 1, Kind.KEEP, 0)]
    grow = bench.put(bench.side.lease(bench.now, KEY, "eu", 9000))
    assert grow == []
    assert bench.side.room(KEY, "eu", bench.now) == 5000
    bench.report("us", 1, {KEY: ((1, 3), 0)})
    assert bench.side.room(KEY, "eu", bench.now) == 9900
    assert bench.side.take_changed() == {KEY}
    assert bench.side.lease(bench.now, KEY, "eu", 9000) == [LeaseRecord(1, 4, KEY, "eu", 1, Kind.GROW, 9000)]
    assert bench.side.lease(bench.now, KEY, "eu", 9000) == []


@pytest.mark.parametrize("too_much", [0, 1])
def test_a_grow_just_over_the_limit_is_refused_and_what_was_booked_is_back(
    monkeypatch: pytest.MonkeyPatch, too_much: int
) -> None:
    """Should the room ever be told wrongly: the sum is looked at again once the GROW is booked."""
    bench = Bench().open()
    bench.put(bench.side.lease(bench.now, KEY, "us", 0))
    bench.report("us", 1, {KEY: ((1, 3), 0)})
    bench.put(bench.side.lease(bench.now, KEY, "eu", 6000))
    counts = bench.side.counts
    before = [replace(entry) for entry in counts.ledger.keys[KEY]["eu"]]
    room = counts.room(KEY, "eu", bench.now)
    monkeypatch.setattr(counts, "room", lambda *_: room + too_much)
    grow = bench.side.lease(bench.now, KEY, "eu", 10_000)
    if not too_much:
        assert [record.value for record in grow if isinstance(record, LeaseRecord)] == [room]
        assert counts.total(KEY, bench.now) == 10_000
        return
    assert grow == []
    assert counts.ledger.keys[KEY]["eu"] == before
    assert counts.count(KEY, "eu", bench.now) == 6000
    assert [(one.invariant, one.found) for one in bench.side.evidence.last] == [("V1", "(6100, 10001)")]


def test_a_free_region_counts_at_its_base_and_a_bound_one_at_its_lease() -> None:
    bench = Bench().open()
    bench.put(bench.side.lease(bench.now, KEY, "us", 0))
    bench.report("us", 1, {KEY: ((1, 3), 0)})
    assert (bench.side.free("us", bench.now), bench.side.count(KEY, "us", bench.now)) == (False, 100)
    assert bench.side.consent_left("us", bench.now) == TIMES.consent_counted_us
    bench.now += TIMES.consent_counted_us - TIMES.session_counted_us
    assert (bench.side.free("us", bench.now), bench.side.count(KEY, "us", bench.now)) == (True, 5000)


def test_a_beat_renews_nobody_while_the_counts_do_not_fit() -> None:
    bench = Bench().open()
    bench.put(bench.side.lease(bench.now, KEY, "us", 0))
    bench.report("us", 1, {KEY: ((1, 3), 0)})
    bench.put(bench.side.lease(bench.now, KEY, "eu", 9000))
    beat = bench.side.beat(bench.now)[0]
    assert isinstance(beat, Beat)
    assert beat.renewals.keys() == {"eu", "us"}
    assert beat.receipts["eu"] == ("eu", beat.renewals["eu"][1])
    bench.now += 10 * SECOND
    bench.report("eu", 1)
    beat = bench.side.beat(bench.now)[0]
    assert isinstance(beat, Beat)
    assert beat.renewals == {}
    assert not bench.side.fits(bench.now)


def test_who_is_left_out_is_not_renewed() -> None:
    bench = Bench().open()
    beat = bench.side.beat(bench.now, ["us"])[0]
    assert isinstance(beat, Beat)
    assert beat.renewals.keys() == {"eu"}


def test_what_waits_too_long_is_said_again_and_its_region_is_slow() -> None:
    bench = Bench().open()
    bench.side.lease(bench.now, KEY, "us", 0)
    assert bench.side.tend(bench.now) == []
    bench.now += 2 * SECOND + 1
    for region in ("eu", "us"):
        bench.report(region, 1)
    assert bench.side.slow_regions(bench.now) == {"us"}
    assert bench.side.tend(bench.now) == [LeaseRecord(1, 4, KEY, "us", 1, Kind.KEEP, 0)]
    bench.report("us", 1, {KEY: ((1, 4), 0)})
    assert bench.side.unacked(bench.now + 1) == []


def test_what_an_earlier_leader_said_makes_nobody_slow_until_it_is_said_again() -> None:
    bench = Bench().open()
    bench.put(bench.side.lease(bench.now, KEY, "us", 0))
    bench.put([bench.side.take_over(bench.now, "again")])
    bench.now += 3 * SECOND
    for region in ("eu", "us"):
        bench.report(region, 1)
    assert bench.side.slow_regions(bench.now) == set()
    assert bench.side.tend(bench.now) == [LeaseRecord(2, 1, KEY, "us", 1, Kind.KEEP, 0)]
    bench.now += 2 * SECOND + 1
    assert bench.side.slow_regions(bench.now) == {"us"}


def test_progress_is_not_slowness() -> None:
    """A region that answers every record, each a little late, is not left out."""
    bench = Bench().open()
    for step in range(10):
        value = 3000 - 100 * step
        bench.put(bench.side.lease(bench.now, KEY, "us", value))
        bench.now += SECOND // 2
        if step:
            bench.report("us", 1, {KEY: ((1, step + 2), value + 100)})
    assert bench.side.slow_regions(bench.now) == set()


def test_an_answer_to_nothing_that_was_said_changes_nothing() -> None:
    bench = Bench().open()
    bench.put(bench.side.lease(bench.now, KEY, "us", 1000))
    before = bench.side.count(KEY, "us", bench.now)
    bench.report("us", 1, {KEY: ((9, 9), 0), "noise": ((1, 1), 5)})
    assert bench.side.count(KEY, "us", bench.now) == before


def test_a_config_is_said_again_until_it_is_read_back_and_done_until_everyone_has_it() -> None:
    bench = Bench().open()
    skewed = {"shop": {"eu": 2000, "us": 8000}}
    config = bench.side.configure(bench.now, 2, skewed)
    assert config == [Config(1, 2, skewed)]
    assert bench.side.configure(bench.now, 2, skewed) == []
    bench.now += 2 * SECOND
    assert bench.side.configure(bench.now, 2, skewed) == config
    bench.put(config)
    assert bench.side.done(bench.now) == []
    assert bench.side.waiting_for_bases() == {"shop": {"eu": 5000}}
    bench.report("eu", 1, base_version=4)
    assert bench.side.done(bench.now, 7) == [Done(1, 2, {"shop": 7})]
    assert bench.side.done(bench.now) == []
    bench.now += 2 * SECOND
    assert bench.side.done(bench.now, 7) == [Done(1, 2, {"shop": 7})]
    for region in ("eu", "us"):
        bench.report(region, 1, base_version=5)
    bench.now += 2 * SECOND
    assert bench.side.done(bench.now) == []


def test_a_floor_that_waits_is_told_as_a_base_is_and_by_itself() -> None:
    bench = Bench().open()
    bases, floors = {"eu": 5000, "us": 5000}, {"eu": 500, "us": 500}
    for version, named in ((2, floors), (3, {"eu": 200, "us": 500})):
        bench.put(bench.side.configure(bench.now, version, {"shop": bases, floor_name("shop"): named}))
        if version == 2:
            bench.put(bench.side.done(bench.now, 7))
    assert bench.side.waiting_for_bases() == {}
    assert bench.side.waiting_for_floors() == {"shop": {"eu": 500}}
    bench.report("eu", 1, base_version=6)
    assert bench.side.waiting_for_floors() == {}


def test_bases_that_sum_above_the_whole_are_refused_with_evidence() -> None:
    bench = Bench().open()
    assert bench.side.configure(bench.now, 2, {"shop": {"eu": 9000, "us": 9000}}) == []
    assert bench.side.evidence.counts == {"B": 1}
    assert bench.side.evidence.last[0].place == "CONFIG 2"
    assert bench.side.config_version == 1


def test_while_a_snapshot_is_out_only_beats_are_said_and_it_is_repeated() -> None:
    bench = Bench().open()
    parts = bench.side.snapshot(bench.now)
    assert len(parts) == 1
    silent = [
        bench.side.lease(bench.now, KEY, "us", 0),
        bench.side.configure(bench.now, 2, EVEN),
        bench.side.done(bench.now),
        bench.side.tend(bench.now),
        bench.side.snapshot(bench.now),
    ]
    assert silent == [[], [], [], [], []]
    assert len(bench.side.beat(bench.now)) == 1
    bench.now += 2 * SECOND
    assert bench.side.snapshot(bench.now) == parts
    assert bench.side.trim_before is None
    position = len(bench.log)
    bench.put(parts)
    assert bench.side.trim_before == position
    assert not bench.side.snapping


def test_the_ledger_takes_no_more_keys_than_one_welcome_can_name() -> None:
    bench = Bench().open()
    keys = [f"rl:{{{i}}}:shop/all:{'x' * 2000}{i}" for i in range(400)]
    said = [key for key in keys if bench.put(bench.side.lease(bench.now, key, "us", 0))]
    assert 0 < len(said) < len(keys)
    assert sum(map(len, said)) <= leader_state.LEDGER_BYTES_MOST


def test_a_key_at_base_everywhere_is_forgotten() -> None:
    bench = Bench().open()
    bench.put(bench.side.lease(bench.now, KEY, "us", 0))
    bench.report("us", 1, {KEY: ((1, 3), 0)})
    assert bench.side.rest(bench.now, KEY) == [LeaseRecord(1, 4, KEY, "us", 1, Kind.GROW, BASE)]
    bench.side.tend(bench.now)
    assert list(bench.side.keys) == [KEY]
    bench.report("us", 1, {KEY: ((1, 4), BASE)})
    bench.side.tend(bench.now)
    assert list(bench.side.keys) == []
    assert bench.side.lease_value(KEY, "us") == BASE


def test_a_release_of_a_key_without_records_gives_room() -> None:
    bench = Bench().open()
    bench.report("us", 1, {KEY: ((1, 2), 1000)})
    assert bench.side.count(KEY, "us", bench.now) == 1000
    assert bench.side.room(KEY, "eu", bench.now) == 9000


def test_a_newer_mark_ends_a_leadership() -> None:
    bench = Bench().open()
    bench.put([Mark(2, "other", 0)])
    assert not bench.side.active
    assert bench.side.view == 2
    assert bench.side.lease(bench.now, KEY, "us", 0) == []
    assert bench.side.take_over(bench.now, "again").epoch == 3


def test_the_newest_want_counts_and_none_is_forgotten() -> None:
    bench = Bench().open()
    link = {"agent": "us", "session": 1, "echo": (0, 0), "base_version": 0, "settled": {}}
    newer = Report("us", basis=90, wants={KEY: Want(8000, 9000)}, **link)  # type: ignore[arg-type]
    older = Report("us", basis=80, wants={KEY: Want(1, 1)}, **link)  # type: ignore[arg-type]
    for report in (newer, older):
        bench.side.on_report(bench.now, report)
    assert bench.side.wants(KEY) == {"us": Want(8000, 9000)}
    assert set(bench.side.wanted_keys()) == {KEY}
    bench.side.on_report(bench.now, Report("us", basis=91, wants={KEY: Want(0, 0)}, **link))  # type: ignore[arg-type]
    assert set(bench.side.wanted_keys()) == set()


def test_a_region_with_other_times_gets_no_session_and_its_consent_counts_for_nothing() -> None:
    other = ProtocolTimes.scaled(0.5).signature
    side = LeaderSide("c", (), ProtocolTimes())
    side.on_record(0, side.take_over(0, "n"), 0)
    assert side.active
    hello = Report("eu", "a", 0, 1, (1, 0), 0, {}, times=other)
    assert side.on_report(1, hello) == []
    assert side.consent_left("eu", 1) == 0
    assert side.evidence.total == 1
    assert side.on_report(1, Report("eu", "a", 0, 1, (1, 0), 0, {}, times=ProtocolTimes().signature)) != []


def lowered(bench: Bench) -> Seq:
    """The region eu has been given 3,000, is cut to 2,000 and, before it reads that, lowers itself to 500."""
    bench.put(bench.side.lease(bench.now, KEY, "eu", 3000))
    first = (bench.side.epoch, bench.side._n)
    bench.put(bench.side.lease(bench.now, KEY, "eu", 2000))
    return first


def test_what_a_region_gives_back_counts_for_the_cuts_on_top_of_it_too() -> None:
    bench = Bench().open()
    first = lowered(bench)
    bench.report("eu", 1, {KEY: (first, 500)})
    assert bench.side.lease_max(KEY, "eu", bench.now) == 500


def test_what_it_gives_back_does_not_count_for_a_grow_that_came_later_nor_for_cuts_after_that() -> None:
    bench = Bench().open()
    first = lowered(bench)
    bench.put(bench.side.lease(bench.now, KEY, "us", 1000))
    bench.report("us", 1, {KEY: ((bench.side.epoch, bench.side._n), 1000)})
    bench.put(bench.side.lease(bench.now, KEY, "eu", 6000))
    bench.put(bench.side.lease(bench.now, KEY, "eu", 5000))
    bench.report("eu", 1, {KEY: (first, 500)})
    assert bench.side.lease_max(KEY, "eu", bench.now) == 6000


def test_after_a_takeover_no_cut_is_taken_for_one_on_top_of_what_was_lowered() -> None:
    bench = Bench().open()
    first = lowered(bench)
    bench.put([bench.side.take_over(bench.now, "again")])
    bench.report("eu", 1, {KEY: (first, 500)})
    assert bench.side.lease_max(KEY, "eu", bench.now) == 2000


# ---- windows, and regions that are not heard


def asked(bench: Bench, region: str) -> list[Record]:
    """A region asks for some of a window and wants some of a bucket."""
    bench.basis += 1
    report = Report(
        region, region, 1, bench.basis, (bench.side.epoch, bench.now), 3, {},
        wants={KEY: Want(700, 900)}, asks={KEY: WindowAsk(5, 10**9, 0, 500, 1)},
    )  # fmt: skip
    bench.put(bench.side.on_report(bench.now, report))
    return bench.side.grant_windows(bench.now, 0)


def test_no_window_is_granted_again_to_a_region_whose_session_is_over() -> None:
    bench = Bench().open()
    assert [record.region for record in asked(bench, "eu") if isinstance(record, WindowGrant)] == ["eu"]
    bench.now += 2 * SECOND
    assert len(bench.side.grant_windows(bench.now, 0)) == 1  # it has not been read
    bench.now += 2 * TIMES.session_counted_us
    assert bench.side.grant_windows(bench.now, 0) == []


def test_nothing_is_kept_of_what_a_destroyed_region_wanted() -> None:
    bench = Bench().open()
    asked(bench, "eu")
    assert list(bench.side.wanted_keys()) == [KEY]
    bench.now += 10 * TIMES.session_counted_us
    assert len(bench.put(bench.side.gone(bench.now, "eu"))) == 1
    assert list(bench.side.wanted_keys()) == []
    assert bench.side._escrow._asked == {}
