"""What the log granted lately, bounded by key and by length."""

from __future__ import annotations

from global_sync.protocol.messages import Kind, LeaseRecord
from regional_limiter.model.enforcement import BASE
from services.share_history import ShareHistory


def record(key: str, n: int, value: int = 5000) -> LeaseRecord:
    return LeaseRecord(epoch=1, n=n, region="eu", session=1, key=key, value=value, kind=Kind.GROW)


def test_the_newest_come_first_and_the_oldest_go() -> None:
    history = ShareHistory(keys_most=2, entries_most=3)
    for n in range(5):
        history.take(record("a", n, BASE if n == 4 else n), 1000 + n)
    assert [(one.at_ms, one.units, one.kind) for one in history.of("a")] == [
        (1004, None, "grow"),
        (1003, 3, "grow"),
        (1002, 2, "grow"),
    ]


def test_the_key_that_was_spoken_of_longest_ago_makes_room() -> None:
    history = ShareHistory(keys_most=2, entries_most=3)
    for n, key in enumerate("abac"):
        history.take(record(key, n), n)
    assert [len(history.of(key)) for key in "abc"] == [2, 0, 1]
