"""A run of very many seeds goes on where it was, and says which commit ran how many."""

from __future__ import annotations

import json
import os
import signal
from argparse import Namespace
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest

from . import runs, very_many


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[runs.Job]:
    """The jobs that were done; each third one has a bad seed."""
    jobs: list[runs.Job] = []

    def do_all(work: Sequence[runs.Job], processes: int | None = None) -> Generator[runs.Done, None, None]:
        for job in work:
            jobs.append(job)
            wrong = {job.first + 1: "V1"} if len(jobs) % 3 == 0 else {}
            yield runs.Done(job, wrong, Counter(beat=2))

    monkeypatch.setattr(runs, "do_all", do_all)
    return jobs


def options(state: Path, minutes: float = 0) -> Namespace:
    return Namespace(seeds=800, events=140, processes=1, minutes=minutes, state=state)


def test_an_ended_run_goes_on_where_it_was_and_tells_of_each_commit(
    ran: list[runs.Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "kept" / "long.json"
    for commit in ("aaa", "bbb"):
        monkeypatch.setattr(very_many, "commit_here", lambda commit=commit: commit)
        very_many.run_long(options(state, minutes=1e-9))
    assert [(job.kind, job.first) for job in ran] == [("shares", 0), ("system", 0)]
    monkeypatch.setattr(very_many, "commit_here", lambda: "ccc")
    assert very_many.run_long(options(state)) == 1
    assert len(ran) == len(set(ran)) == 8 + 2
    told = capsys.readouterr().out.splitlines()[-5:]
    assert told == [
        "BAD shares seed 601: V1",
        "at aaa: 100 seeds of shares, 0 of the system",
        "at bbb: 0 seeds of shares, 4 of the system",
        "at ccc: 700 seeds of shares, 4 of the system",
        "800 of 800 seeds of shares and 8 of the system, 3 bad",
    ]
    assert very_many.Kept.read(state, 800, 140).counted == {"beat": 20}
    assert not very_many.Kept.read(state, 800, 141).done


def test_a_run_that_is_told_to_end_keeps_what_it_has_done(
    ran: list[runs.Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do_all = runs.do_all

    def told_to_end(work: Sequence[runs.Job], processes: int | None = None) -> Generator[runs.Done, None, None]:
        for done in do_all(work, processes):
            os.kill(os.getpid(), signal.SIGTERM)
            yield done

    monkeypatch.setattr(runs, "do_all", told_to_end)
    before = signal.getsignal(signal.SIGTERM)
    assert very_many.run_long(options(tmp_path / "long.json")) == 0
    assert very_many.Kept.read(tmp_path / "long.json", 800, 140).total("shares") == 100
    assert signal.getsignal(signal.SIGTERM) == before


def test_seeds_that_were_run_before_commits_were_kept_count_as_an_unknown_ones(
    ran: list[runs.Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "long.json"
    done = [["shares", 0], ["shares", 300], ["system", 0]]
    state.write_text(json.dumps({"seeds": 350, "events": 140, "done": done, "wrong": [], "counted": {}}))
    monkeypatch.setattr(very_many, "commit_here", lambda: "aaa")
    very_many.run_long(Namespace(seeds=350, events=140, processes=1, minutes=0, state=state))
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "at unknown: 150 seeds of shares, 3 of the system",
        "at aaa: 200 seeds of shares, 0 of the system",
        "350 of 350 seeds of shares and 3 of the system, 0 bad",
    ]
    assert very_many.Kept.read(state, 350, 140).ran["unknown"] == {"shares": 150, "system": 3}
