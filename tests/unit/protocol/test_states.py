"""The tables of states are what the code does, all of it, and what the page draws."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from global_sync.protocol.leader import LeaderSide
from global_sync.protocol.messages import Mark, Record
from global_sync.protocol.states import CANDIDATE, POINT, CandidateState, PointState, Transition, drawn
from regional_limiter.model.enforcement import Enforcement, Write
from regional_limiter.model.share import ProtocolTimes, floor_of

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"
TIMES = ProtocolTimes(session_us=100, patience_us=60, gap_us=60)
KEY, BASE_SHARE, LEASE = "rl:{0}:shop/all:a", 4000, 7000
OF_SHARE = {floor_of(BASE_SHARE): PointState.FLOOR, LEASE: PointState.SESSION, BASE_SHARE: PointState.BASE}


@pytest.mark.parametrize("table", [POINT, CANDIDATE])
def test_the_page_draws_the_tables(table: tuple[Transition, ...]) -> None:
    assert f"```mermaid\n{drawn(table)}\n```" in PAGE.read_text()


def moves(table: tuple[Transition, ...]) -> set[tuple[str, str]]:
    return {(before, after) for before, _, after in table}


class PointWalk:
    def __init__(self, random: Random) -> None:
        self.random, self.point, self.now, self.version = random, Enforcement(TIMES), 10_000, 0

    def state(self) -> str:
        if not self.point.births:
            return ""
        return OF_SHARE[self.point.peek_share(self.now, KEY, BASE_SHARE)]

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.5 or not self.point.births:
            self.now += self.random.choice((1, 20, 50, 50, 50))
            self.point.enter(self.now)
        elif choice < 0.9:
            self.version += 1
            until = self.now + self.random.choice((0, 0, 30, 100, 300))
            extend = self.random.random() < 0.2
            write = Write(
                "n", self.point.instance or "n", 1, self.version, until, extend, {KEY: LEASE}, True, 1,
                {"shop": BASE_SHARE},
            )  # fmt: skip
            self.point.write(self.now, write)
        elif choice < 0.95:
            self.point.lose()
        else:
            self.now += 5 * TIMES.gap_us


def test_an_enforcement_point_moves_as_its_table_says() -> None:
    seen = set()
    for seed in range(60):
        walk = PointWalk(Random(seed))
        for _ in range(150):
            before = walk.state()
            walk.step()
            after = walk.state()
            if after != before:
                seen.add((before, after))
    assert seen == moves(POINT)


class CandidateWalk:
    def __init__(self, random: Random) -> None:
        self.random, self.log, self.read, self.others = random, list[Record](), 0, 0
        self.side = LeaderSide("c", ["eu"], TIMES)
        self.began = False

    def state(self) -> str:
        if not self.began:
            return ""
        if self.side.pending:
            return CandidateState.WAITS
        if not self.side.active:
            return CandidateState.FOLLOWS
        return CandidateState.SNAPS if self.side.snapping else CandidateState.LEADS

    def step(self) -> None:
        choice = self.random.random()
        if not self.began:
            self.began = True
        elif choice < 0.5 and self.read < len(self.log):
            self.side.on_record(0, self.log[self.read], self.read)
            self.read += 1
        elif choice < 0.6:
            self.others += 1
            self.log.append(Mark(self.side.view + self.random.choice((0, 1, 1, 2)), f"other{self.others}", 0))
        elif choice < 0.8 and self.state() == CandidateState.FOLLOWS:
            self.log.append(self.side.take_over(0, f"own{len(self.log)}"))
        elif choice < 0.9 and self.state() == CandidateState.LEADS:
            self.log += self.side.snapshot(0)


def test_a_candidate_moves_as_its_table_says() -> None:
    seen = set()
    for seed in range(200):
        walk = CandidateWalk(Random(seed))
        for _ in range(60):
            before = walk.state()
            walk.step()
            after = walk.state()
            if after != before:
                seen.add((before, after))
    assert seen == moves(CANDIDATE)
