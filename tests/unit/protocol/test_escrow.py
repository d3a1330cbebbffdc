"""Windows in escrow, piece by piece: what the ledger keeps and forgets, chunks, and what points are told."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from global_sync.protocol import escrow
from global_sync.protocol.escrow import EscrowLeader, EscrowRegion, WindowLedger
from global_sync.protocol.messages import Report, WindowAsk, WindowGrant
from regional_limiter.model.escrow import GrantedWindow, PointWindows, WindowNews
from regional_limiter.model.share import WINDOW_POOL

KEY = "rl:{0}:shop/all:a"
REISSUE_US = 1000
settings.register_profile("busy machine", deadline=None, max_examples=60)
settings.load_profile("busy machine")


def ask(wanted: int, held: int = 0, window: int = 5, end_ms: int = 100, least: int = 1) -> WindowAsk:
    return WindowAsk(window, end_ms, held, wanted, least)


def report(region: str, basis: int, one: WindowAsk) -> Report:
    return Report(region, region, 1, basis, (1, 0), 0, {}, asks={KEY: one})


class Bench:
    def __init__(self, ledger: WindowLedger | None = None) -> None:
        self.ledger = WindowLedger() if ledger is None else ledger
        self.leader = EscrowLeader(self.ledger)
        self.basis = 0

    def ask(self, region: str, one: WindowAsk) -> None:
        self.basis += 1
        self.leader.take(report(region, self.basis, one))

    def grants(
        self, now_us: int = 0, wall_ms: int = 0, regions: int = 2, deaf: Collection[str] = ()
    ) -> dict[str, int]:
        grants = self.leader.grants(now_us, wall_ms, regions, REISSUE_US, deaf)
        for one in grants:
            self.ledger.book(WindowGrant(1, 1, *one))
        return {one.region: one.total for one in grants}


def test_chunks_shrink_with_the_pool_and_are_never_less_than_a_token() -> None:
    bench, held, chunks = Bench(), 0, []
    while True:
        bench.ask("eu", ask(WINDOW_POOL, held, least=300))
        granted = bench.grants()
        if not granted:
            break
        chunks.append(granted["eu"] - held)
        held = granted["eu"]
    assert chunks[:3] == [1250, 938, 703]
    assert all(chunk >= 300 for chunk in chunks[:-1])
    assert held == WINDOW_POOL


def test_one_chunk_at_a_time_until_the_region_has_read_of_it() -> None:
    bench = Bench()
    bench.ask("eu", ask(WINDOW_POOL))
    first = bench.grants()
    assert bench.grants() == {}
    bench.ask("eu", ask(WINDOW_POOL))  # it has not
    assert bench.grants(now_us=REISSUE_US) == {}
    assert bench.grants(now_us=REISSUE_US + 1) == first
    bench.ask("eu", ask(WINDOW_POOL, first["eu"]))
    assert bench.grants(now_us=REISSUE_US + 2)["eu"] > first["eu"]


def test_what_is_not_read_is_said_again_more_and_more_seldom() -> None:
    bench, said = Bench(), []
    bench.ask("eu", ask(WINDOW_POOL))
    for now_us in range(0, 200 * REISSUE_US, REISSUE_US // 2):
        if granted := bench.grants(now_us=now_us):
            said.append(now_us)
            assert granted == {"eu": 1250}
    pauses = [after - before for before, after in pairwise(said)]
    assert [2 * pause // REISSUE_US for pause in pauses] == [3, 5, 9, 17, 33, 65, 129, 129]
    bench.ask("eu", ask(WINDOW_POOL, 1250))
    assert bench.grants(now_us=200 * REISSUE_US)["eu"] > 1250
    assert bench.grants(now_us=202 * REISSUE_US) != {}  # of a new chunk it begins anew


def test_nothing_is_said_to_a_region_that_is_not_heard_nor_kept_of_one_that_is_gone() -> None:
    bench = Bench()
    bench.ask("eu", ask(500))
    assert bench.grants(deaf=["eu"]) == {}
    assert bench.grants() == {"eu": 500}
    bench.leader.forget_region("eu")
    assert bench.grants(now_us=100 * REISSUE_US) == {}


def test_an_ask_of_an_exhausted_pool_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(escrow, "ASKS_MOST", 1)
    bench = Bench()
    bench.ask("eu", ask(WINDOW_POOL, least=WINDOW_POOL))
    assert bench.grants() == {"eu": WINDOW_POOL}
    bench.ask("eu", ask(WINDOW_POOL, held=WINDOW_POOL))
    assert bench.grants() == {}
    bench.ask("us", ask(500))
    assert bench.grants() == {}
    bench.ask("ap", ask(500, window=6, end_ms=200))
    assert bench.grants() == {"ap": 500}


def test_who_wants_no_more_is_not_told_again_until_it_does() -> None:
    bench = Bench()
    bench.ask("eu", ask(500))
    assert bench.grants() == {"eu": 500}  # lost
    bench.ask("eu", ask(0))
    assert bench.grants(now_us=100 * REISSUE_US) == {}
    bench.ask("eu", ask(600))
    assert bench.grants(now_us=100 * REISSUE_US) == {"eu": 500}


def test_who_has_least_comes_first_and_a_small_need_gets_no_more() -> None:
    bench = Bench()
    bench.ask("us", ask(WINDOW_POOL, least=4000))
    assert bench.grants() == {"us": 4000}
    bench.ask("us", ask(WINDOW_POOL, 4000))
    bench.ask("eu", ask(900, least=900))
    granted = bench.grants()
    assert granted["eu"] == 900
    assert list(granted) == ["eu", "us"]


def test_a_window_that_is_over_is_granted_nothing_also_by_a_clock_that_went_back() -> None:
    bench = Bench()
    bench.ask("eu", ask(500, end_ms=100))
    assert bench.grants(wall_ms=100) == {}
    bench.ask("eu", ask(500, end_ms=100))
    assert bench.grants(wall_ms=100 + escrow.KEPT_AFTER_END_MS) == {}
    bench.ask("eu", ask(500, end_ms=100))
    assert bench.grants(wall_ms=50) == {}
    bench.ask("eu", ask(500, window=6, end_ms=200))
    assert bench.grants(wall_ms=50) == {"eu": 500}


@pytest.mark.parametrize(
    ("length_ms", "start_ms"), [(1, 7), (1000, 0), (1000, 1_796_000_000_000), (86_400_000, 1_796_083_200_000)]
)
def test_when_a_window_began_is_told_by_its_number_and_end(length_ms: int, start_ms: int) -> None:
    assert escrow.window_start_ms(start_ms // length_ms, start_ms + length_ms) == start_ms
    assert escrow.window_start_ms(start_ms, start_ms + length_ms) == start_ms, "of a calendar"


def test_of_a_window_that_began_before_a_log_after_a_lost_one_nothing_is_granted() -> None:
    """Its number is the end's of windows of 100 ms; the log began in the fifth."""
    bench = Bench(WindowLedger(from_ms=450))
    bench.ask("eu", ask(500, window=4, end_ms=500))
    assert bench.grants() == {}
    bench.ask("eu", ask(500, window=5, end_ms=600))
    assert bench.grants() == {"eu": 500}
    assert WindowLedger.of({}, 7, 450).copy() == WindowLedger(7, 450)


def test_what_is_over_is_forgotten_and_late_records_of_it_are_void() -> None:
    ledger = WindowLedger()
    ledger.book(WindowGrant(1, 1, KEY, "eu", 5, 100, 700))
    ledger.book(WindowGrant(1, 2, KEY, "eu", 6, 200, 800))
    ledger.forget_ended(100 + escrow.KEPT_AFTER_END_MS)
    ledger.book(WindowGrant(1, 1, KEY, "eu", 5, 100, 700))
    assert (ledger.total(KEY, 5, "eu"), ledger.total(KEY, 6, "eu"), len(ledger)) == (0, 800, 1)


def test_tables_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(escrow, "WINDOWS_MOST", 1)
    monkeypatch.setattr(escrow, "ASKS_MOST", 2)
    bench = Bench()
    bench.ask("eu", ask(500))
    assert bench.grants() == {"eu": 500}
    bench.ask("us", ask(500, window=6, end_ms=200))
    assert bench.grants() == {}
    bench.ask("ap", ask(500))
    assert bench.grants() == {}
    monkeypatch.setattr(escrow, "WINDOW_KEYS_MOST", 1)
    region = EscrowRegion("eu")
    region.take(WindowGrant(1, 1, KEY, "eu", 5, 100, 700))
    region.take(WindowGrant(1, 2, "another", "eu", 5, 100, 700))
    assert (region.held(KEY, 5), region.held("another", 5)) == (700, 0)


ASKS = st.lists(
    st.tuples(
        st.sampled_from(["eu", "us", "ap"]),
        st.integers(5, 6),
        st.integers(0, 10_000),
        st.integers(0, 6000),
        st.integers(0, 7000),
    ),
    max_size=40,
)


@given(ASKS)
def test_whatever_is_asked_for_no_pool_is_overdrawn_and_a_snapshot_keeps_it(
    asks: list[tuple[str, int, int, int, int]],
) -> None:
    bench = Bench()
    for step, (region, window, wanted, held, least) in enumerate(asks):
        bench.ask(region, ask(wanted, held, window, 100 * window, least))
        bench.grants(now_us=step * 700)
    for window in (5, 6):
        assert bench.ledger.left(KEY, window) >= 0
    parts = list(bench.ledger.to_parts())
    again = WindowLedger.of({key: of for part in parts for key, of in part.items()}, bench.ledger.ended_ms, 0)
    assert list(again.to_parts()) == parts
    assert again.left(KEY, 5) == bench.ledger.left(KEY, 5)


def test_a_point_is_told_once_what_it_lacks_and_all_of_it_after_it_was_lost() -> None:
    region = EscrowRegion("eu")
    region.take(WindowGrant(1, 1, KEY, "eu", 5, 100, 700))
    assert region.to_tell("p", 3, {"shop": 0}) == WindowNews("", [], 3, {"shop": 0})
    region.confirm("p", "first")
    news = region.to_tell("p", 3, {"shop": 0})
    assert news == WindowNews("first", [GrantedWindow(KEY, 5, 100, 700, 700)], 3, {"shop": 0})
    region.was_told("p", "first", news)
    assert region.to_tell("p", 3, {"shop": 0}) == WindowNews("first", [])
    region.take(WindowGrant(1, 2, KEY, "eu", 5, 100, 900))
    assert region.to_tell("p", 3, {"shop": 0}).granted == [GrantedWindow(KEY, 5, 100, 900, 700)]
    region.was_told("p", "second", WindowNews("first", []))
    assert region.to_tell("p", 3, {"shop": 0}) == WindowNews("", [], 3, {"shop": 0})
    region.confirm("p", "second")
    assert region.to_tell("p", 3, {"shop": 0}).granted == [GrantedWindow(KEY, 5, 100, 900, 900)]


def test_an_answer_of_another_instance_credits_nothing() -> None:
    region = EscrowRegion("eu")
    region.confirm("p", "first")
    region.take(WindowGrant(1, 1, KEY, "eu", 5, 100, 700))
    news = region.to_tell("p", 3, {})
    region.was_told("p", "second", news)
    region.confirm("p", "second")
    assert region.to_tell("p", 3, {}).granted == [GrantedWindow(KEY, 5, 100, 700, 700)]


def test_what_is_read_goes_into_the_next_report_and_stays_until_its_receipt() -> None:
    region = EscrowRegion("eu")
    assert region.ask(KEY, ask(700))
    assert not region.ask(KEY, ask(700))
    said = region.asks_to_say(10)
    assert said == {KEY: ask(700)}
    assert region.take(WindowGrant(1, 1, KEY, "eu", 5, 100, 700))
    region.on_receipt(said)
    assert region.asks_to_say(10) == {KEY: ask(700, held=700)}
    region.on_receipt(region.asks_to_say(10))
    assert region.asks_to_say(10) == {}
    region.say_all_again()
    assert region.asks_to_say(10) == {}  # it has what it wanted
    region.ask(KEY, ask(900, held=700))
    region.on_receipt(region.asks_to_say(10))
    assert region.asks_to_say(10) == {}
    region.say_all_again()
    assert region.asks_to_say(10) == {KEY: ask(900, held=700)}
    region.forget_ended(100)
    assert region.asks_to_say(10) == {}


def test_who_has_what_it_wanted_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(escrow, "WINDOW_KEYS_MOST", 1)
    region = EscrowRegion("eu")
    assert region.ask(KEY, ask(700))
    assert not region.ask("another", ask(700))
    assert region.take(WindowGrant(1, 1, KEY, "eu", 5, 100, 700))
    region.on_receipt(region.asks_to_say(10))
    assert region.ask("another", ask(700))


def test_of_points_that_are_no_more_nothing_is_kept_and_one_that_comes_back_is_told_all() -> None:
    region = EscrowRegion("eu")
    region.take(WindowGrant(1, 1, KEY, "eu", 5, 100, 700))
    for point in ("p", "q"):
        region.confirm(point, "first")
        region.was_told(point, "first", region.to_tell(point, 3, {"shop": 0}))
    region.keep_points(frozenset({"q"}))
    assert region.to_tell("q", 3, {"shop": 0}) == WindowNews("first", [])
    assert region.to_tell("p", 3, {"shop": 0}) == WindowNews("", [], 3, {"shop": 0})
    region.confirm("p", "first")
    assert region.to_tell("p", 3, {"shop": 0}).granted == [GrantedWindow(KEY, 5, 100, 700, 700)]


def test_the_newest_four_windows_are_kept_and_none_that_is_long_over() -> None:
    region, point = EscrowRegion("eu"), PointWindows()
    for window in (3, 4, 5, 6, 7):
        region.take(WindowGrant(1, window, KEY, "eu", window, 100 * window, 700))
        point.grant(0, [GrantedWindow(KEY, window, 100 * window, 700, 0)])
    assert [region.held(KEY, window) for window in (3, 4, 5, 6, 7)] == [0, 700, 700, 700, 700]
    assert [point.granted(KEY, window)[0] for window in (3, 4, 5, 6, 7)] == [0, 700, 700, 700, 700]
    region.forget_ended(600 + escrow.KEPT_AFTER_END_MS)
    region.take(WindowGrant(1, 6, KEY, "eu", 6, 600, 700))
    assert [region.held(KEY, window) for window in (6, 7)] == [0, 700]


def test_parts_of_a_snapshot_are_bounded_by_their_bytes_and_not_only_by_windows() -> None:
    """Some sixty regions with long names and long keys would pass what a broker takes."""
    ledger = WindowLedger()
    regions = [f"region-{number:02d}-{'x' * 40}" for number in range(60)]
    keys = [f"rl:{{aaaaaaaa}}:domain/rule:{number:04d}{'k' * 80}" for number in range(300)]
    for key in keys:
        for region in regions:
            ledger.book(WindowGrant(1, 1, key, region, 5, 10**13, 80))
    parts = list(ledger.to_parts())
    sizes = [len(msgspec.json.encode(part)) for part in parts]
    assert [key for part in parts for key in part] == keys
    assert max(sizes) < 700_000
    assert len(parts) < sum(sizes) / 400_000
