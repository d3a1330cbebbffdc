"""The file: damaged, gone, full, or another's; each time what can be remembered is remembered."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from services.dashboard.past import file as module
from services.dashboard.past.file import AnswerTookTooLong, PastFile


def put(file: PastFile, name: str) -> None:
    with file.writing():
        file.name_id(name)


def put_and_fail(file: PastFile, name: str) -> None:
    with file.writing() as base:
        file.name_id(name)
        base.execute("this is no statement")


def put_many(file: PastFile) -> None:
    with file.writing():
        for number in range(10_000):
            file.name_id(f"name-{number}")


def names(file: PastFile) -> list[str]:
    return [name for (name,) in file.ask("select name from names order by id")]


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    file = PastFile(tmp_path / "deeper" / "past.db")
    put(file, "a")
    file.close()
    again = PastFile(tmp_path / "deeper" / "past.db")
    assert names(again) == ["a"]
    assert (again.begun_anew, again.why_in_memory) == (0, None)
    again.close()


@pytest.mark.parametrize(
    "content", [b"this is no database, but a text of some length" * 200, b"SQLite format 3\0" + b"x" * 5000]
)
def test_a_file_that_is_none_is_put_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "past.db"
    path.write_bytes(content)
    file = PastFile(path)
    put(file, "a")
    assert names(file) == ["a"]
    assert file.begun_anew == 1
    assert (tmp_path / "past.db.damaged").read_bytes() == content
    file.close()


def test_a_file_of_another_version_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "past.db"
    with sqlite3.connect(path) as base:
        base.execute("pragma user_version = 99")
    base.close()
    file = PastFile(path)
    assert file.begun_anew == 1
    assert names(file) == []
    file.close()


def test_a_file_that_is_damaged_while_it_is_used_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "past.db"
    file = PastFile(path)
    with file.writing():
        for number in range(5_000):
            file.name_id(f"name-{number}")
    file.close()
    whole = path.read_bytes()
    half = len(whole) // 2
    path.write_bytes(whole[:half] + b"\xff" * (len(whole) - half))
    file = PastFile(path)
    told: list[str] = []
    file.on_begun_anew.append(lambda: told.append("anew"))
    assert file.ask("select count(*), max(length(name)) from names where name like '%9%'") == []
    assert told == ["anew"]
    put(file, "a")
    assert names(file) == ["a"]
    file.close()


def test_a_file_that_is_gone_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "past.db"
    file = PastFile(path)
    put(file, "a")
    for one in tmp_path.glob("past.db*"):
        if not one.name.endswith(".lock"):
            one.unlink()
    put(file, "b")
    assert names(file) == ["b"]
    assert path.exists()
    file.close()


def test_a_second_dashboard_on_the_same_file_says_so_and_remembers_by_itself(tmp_path: Path) -> None:
    first, second = PastFile(tmp_path / "past.db"), PastFile(tmp_path / "past.db")
    put(first, "a")
    put(second, "b")
    assert (names(first), names(second)) == (["a"], ["b"])
    assert "another process has past.db" in str(second.why_in_memory)
    second.close()
    first.close()
    third = PastFile(tmp_path / "past.db")
    assert names(third) == ["a"]
    third.close()


def test_a_transaction_that_fails_leaves_nothing_of_itself(tmp_path: Path) -> None:
    file = PastFile(tmp_path / "past.db")
    with pytest.raises(sqlite3.OperationalError):
        put_and_fail(file, "a")
    put(file, "b")
    assert names(file) == ["b"]
    assert file.begun_anew == 0
    file.close()


def test_a_full_disk_is_no_damage(tmp_path: Path) -> None:
    file = PastFile(tmp_path / "past.db")
    file.base.execute(f"pragma max_page_count = {file.base.execute('pragma page_count').fetchone()[0] + 2}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        put_many(file)
    assert file.begun_anew == 0
    assert names(file) == []
    file.close()


def test_a_question_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_MOST_S", 0.0)
    file = PastFile(None)
    with pytest.raises(AnswerTookTooLong, match="ask for a shorter time"):
        file.ask(
            "with recursive n(i) as (select 1 union all select i + 1 from n limit 100000000) select sum(i) from n"
        )
    file.close()


def test_names_that_nothing_refers_to_are_forgotten(tmp_path: Path) -> None:
    file = PastFile(tmp_path / "past.db")
    put(file, "a")
    with file.writing():
        file.forget_names()
    assert names(file) == []
    file.close()
