"""The index of the history in its file: searched while it is written, and made anew at every start."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import structs

from global_sync.changes import PUT_RULE, History
from services.control_api.history import HistoryIndex, Search
from services.control_api.history_routes import change_shown


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


def test_a_change_is_found_by_the_rule_and_key_of_its_override_and_by_few_clients() -> None:
    index = HistoryIndex()
    override = {"rule": "r", "key": {"client_key": "Mallory"}, "block": True, "why": "scraping"}
    few, many = ([{"client_key": f"c{n}", "set": {"tier": "gold"}} for n in range(count)] for count in (20, 21))
    said = [{"kind": "put_override", "override": override}, {"subjects": few}, {"subjects": many}]
    for offset, one in enumerate(said):
        index.take(History(**structs.asdict(change(offset)) | one))
    for search, offsets in (
        (Search(rule_id="r"), [0]),
        (Search(text="mallory"), [0]),
        (Search(text="c19"), [1]),
        (Search(text="c20"), []),
    ):
        assert [one.offset for one in index.search(search, 10)] == offsets
    shown = [change_shown(one) for one in index.search(Search(), 10)][::-1]
    assert (shown[0]["rule_id"], shown[0]["key"]) == ("r", {"client_key": "Mallory"})
    assert [one["clients"] and len(one["clients"]) for one in shown] == [None, 20, None]
    index.close()


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
