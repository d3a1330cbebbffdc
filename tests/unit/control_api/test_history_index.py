"""The index of the history in its file: searched while it is written, and made anew at every start."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import structs

from global_sync.changes import PUT_RULE, History
from services.control_api.history import HistoryIndex, Search


def change(offset: int) -> History:
    return History(id=str(offset), domain="d", kind=PUT_RULE, offset=offset, accepted=True, version=offset)


def test_a_search_does_not_wait_for_who_writes(tmp_path: Path) -> None:
    index = HistoryIndex(tmp_path / "history.db")
    for offset in range(1, 4):
        index.take(change(offset))
    with ThreadPoolExecutor(1) as asks, index._lock:  # as one that writes holds it
        found = asks.submit(index.search, Search(domain="d"), 2).result(timeout=10)
    assert [one.offset for one in found] == [3, 2]
    index.close()


def test_nothing_is_left_of_a_process_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    killed = HistoryIndex(path)  # never closed: its log of writes stays beside the file
    killed.take(change(1))
    again = HistoryIndex(path)
    assert again.search(Search(), 10) == []
    again.take(change(2))
    assert [one.offset for one in again.search(Search(), 10)] == [2]
    again.close()
    killed.close()


def test_a_page_of_large_changes_is_read_without_what_they_say() -> None:
    index = HistoryIndex()
    large = {"subjects": [{"client_key": f"c{n}", "set": {"tier": "gold"}} for n in range(5_000)]}
    for offset in range(1, 200):
        index.take(History(**structs.asdict(change(offset)) | large))
    assert all(one.subjects is None for one in index.search(Search(), 200))
    whole = index.get(7)
    assert whole is not None
    assert whole.subjects == large["subjects"]
    index.close()
