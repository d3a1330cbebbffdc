"""Which keys have a series: bounded, and they do not take turns."""

from __future__ import annotations

from services.dashboard.past.key_watch import IDLE_MS, KeyWatch


def test_an_unused_key_has_no_series_and_a_kept_one_stays_while_it_rests() -> None:
    watch = KeyWatch()
    assert not watch.note("d/g", "a", 0, 0)
    assert watch.note("d/g", "a", 5, 0)
    assert watch.note("d/g", "a", 0, 1_000)


def test_a_key_takes_a_place_only_when_it_is_far_busier() -> None:
    watch = KeyWatch(keys_a_rule=2)
    for now in range(100):
        assert watch.note("d/g", "a", 10, now)
        assert watch.note("d/g", "b", 20, now)
    assert not watch.note("d/g", "c", 11, 100)
    assert not watch.note("d/g", "c", 30, 100), "one busy second is not enough"
    assert watch.note("d/g", "c", 300, 100)
    assert not watch.note("d/g", "a", 10, 100), "the least busy one went"
    assert watch.note("d/g", "b", 20, 100)


def test_keys_that_rest_for_long_make_room() -> None:
    watch = KeyWatch(keys_a_rule=1)
    assert watch.note("d/g", "a", 1_000, 0)
    assert not watch.note("d/g", "b", 1, IDLE_MS)
    assert watch.note("d/g", "b", 1, IDLE_MS + 1)


def test_all_rules_together_are_bounded() -> None:
    watch = KeyWatch(keys_a_rule=10, keys_most=25)
    kept = sum(watch.note(f"d/{rule}", f"k{key}", 1, 0) for rule in range(10) for key in range(10))
    assert kept == 25
