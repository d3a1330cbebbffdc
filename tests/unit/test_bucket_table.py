"""A full table evicts what would be full again first, and forgives nobody."""

from __future__ import annotations

from regional_limiter.store.bucket_table import BucketTable


def test_a_state_is_forgotten_when_it_is_due() -> None:
    table = BucketTable()
    table.put("k", "g", b"1", 10, 100)
    assert table.get("k", "g", 109) == b"1"
    assert table.get("k", "g", 110) is None
    assert len(table) == 0


def test_the_first_to_be_full_again_goes_first() -> None:
    table = BucketTable(most=2)
    table.put("long", "g", b"1", 1000, 0)
    table.put("short", "g", b"2", 10, 0)
    table.put("new", "h", b"3", 500, 5)
    assert set(table.expires()) == {"long", "new"}


def test_an_evicted_bucket_goes_on_limiting_in_a_coarser_one() -> None:
    table = BucketTable(most=1)
    table.put("spent", "g", b"empty", 1000, 0)
    table.put("other", "h", b"1", 2000, 0)
    assert table.get("spent", "g", 999) == b"empty"
    assert table.get("spent", "g", 1000) is None


def test_of_two_evicted_buckets_the_one_that_used_more_stands_for_both() -> None:
    table = BucketTable(most=1)
    for name in [f"k{i}" for i in range(200)]:
        table.put(name, "g", b"used", 1000, 0)
    table.put("last", "g", b"little", 10, 0)
    table.put("next", "h", b"1", 10, 0)
    assert {table.get(f"k{i}", "g", 900) for i in range(200)} == {b"used"}


def test_of_two_evicted_windows_the_one_with_less_left_stands_for_both() -> None:
    table = BucketTable(most=1)
    for name in [f"k{i}" for i in range(200)]:
        table.put(name, "g", b"little used", 1000, 0, left=4)
        table.put(name + "spent", "g", b"spent", 1000, 0, left=0)
    table.put("last", "h", b"1", 10, 0)
    assert {table.get(f"k{i}", "g", 900) for i in range(200)} == {b"spent"}


def test_one_rule_never_limits_another() -> None:
    table = BucketTable(most=1)
    table.put("k", "d/a", b"empty", 1000, 0)
    table.put("k2", "d/b", b"1", 1000, 0)
    assert table.get("k", "d/b", 5) is None


def test_it_stays_within_its_bound_under_a_flood() -> None:
    table = BucketTable(most=50)
    for i in range(5000):
        table.put(f"k{i % 300}", "g", b"1", 10_000 + i, i)
    assert len(table) <= 50
    table.purge(10**6)
    assert len(table) == 0
    table.clear()
