"""What is told as having happened: once, in order, and nothing that did not."""

from __future__ import annotations

from typing import Any

import pytest

from global_sync.changes import DELETE_RULE, PUT_OVERRIDE, PUT_RULE, PUT_SET, PUT_TOKEN, History
from services.dashboard.past.file import PastFile
from services.dashboard.past.incidents import Incident, Noticing, incident_of
from services.dashboard.past.share_steps import SESSIONS, Step
from services.dashboard.past.stored_incidents import KEPT_MS, StoredIncidents
from services.health import Link, RegionHealth
from tests.unit.dashboard.past.usage import START_MS


def seen(link: Link, since_ms: int | None = None) -> list[RegionHealth]:
    return [RegionHealth("eu", link=link, since_ms=since_ms)]


def test_a_region_is_cut_off_once_and_healed_once() -> None:
    noticing, told = Noticing(), []
    for second, link in enumerate(["unknown", "linked", "silent", "cut", "cut", "silent", "linked", "linked"]):
        told += noticing.regions(seen(link, START_MS + 2_000 if link == "cut" else None), START_MS + second * 1_000)  # type: ignore[arg-type]
    assert [(one.kind, one.at_ms - START_MS, one.level, one.region) for one in told] == [
        ("cut", 2_000, "bad", "eu"),
        ("healed", 6_000, "info", "eu"),
    ]
    assert told[1].text == "eu is linked again, after 4 s."


def test_a_dashboard_that_comes_back_does_not_tell_of_the_same_cut_again() -> None:
    noticing = Noticing({"eu": START_MS})
    assert noticing.regions(seen("cut", START_MS + 500), START_MS + 9_000) == []
    assert [one.kind for one in noticing.regions(seen("linked"), START_MS + 200_000)] == ["healed"]


def test_sessions_and_leaders_are_told_of_steps() -> None:
    def step(kind: str, region: str, second: int) -> Step:
        return Step(SESSIONS, region, START_MS + second * 1_000, None, kind, second, 4, 0, 1)

    told = Noticing().steps(
        [step("leader", "", 0), step("welcome", "eu", 1), step("over", "eu", 50), step("renewed", "eu", 70)]
    )
    assert [(one.kind, one.text) for one in told] == [
        ("leader", "The leader of epoch 4 took over."),
        ("session_over", "The session of eu ended: it is at its floor, and after its consent at its base."),
        ("session", "eu has a session again, after 20 s."),
    ]


def test_the_first_leader_of_a_log_takes_over_from_nobody_and_is_no_trouble() -> None:
    steps = [Step(SESSIONS, "", START_MS + epoch, None, "leader", epoch, epoch, 0, 0) for epoch in (1, 2)]
    assert [(one.level, one.text) for one in Noticing().steps(steps)] == [
        ("info", "The leader of epoch 1 began."),
        ("warn", "The leader of epoch 2 took over."),
    ]


def test_leaders_of_a_log_that_began_anew_and_regions_that_are_gone_again_are_told_again() -> None:
    noticing = Noticing()
    kinds = [("leader", ""), ("gone", "eu")]
    steps = [
        Step(SESSIONS, region, START_MS + turn, None, kind, 3, 1, 0, 0) for turn in (0, 5) for kind, region in kinds
    ]
    assert len({one.ref for one in noticing.steps(steps)}) == 4


def test_refusals_are_told_when_they_grow_and_not_when_a_process_begins_anew() -> None:
    noticing, told = Noticing(), []
    for who, count in (("a", 3), ("a", 3), ("a", 5), ("b", 0), ("b", 1)):
        told += noticing.refusals("the agent of eu", who, count, START_MS)
    assert [one.text[:40] for one in told] == [
        "2 records were refused by an invariant (",
        "1 record was refused by an invariant (th",
    ]
    assert {one.level for one in told} == {"bad"}
    assert {one.region for one in told} == {"eu"}


def entry(kind: str, **fields: Any) -> History:
    known = {
        "id": "1",
        "domain": "d",
        "offset": 9,
        "accepted": True,
        "version": 7,
        "author": "ann",
        "at_ms": START_MS,
    }
    return History(kind=kind, **{**known, **fields})


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (entry(PUT_RULE, rule_id="r"), "rules", "Rule d/r was set (version 7)."),
        (entry(DELETE_RULE, rule_id="r", author=""), "rules", "Rule d/r was deleted (version 7)."),
        (entry(PUT_SET), "rules", "The rules of d were set as a whole (version 7)."),
        (entry(PUT_SET, restores=3), "rules",
         "The rules of d were set as a whole (version 7), as it was in version 3."),
        (entry(PUT_OVERRIDE, override={"rule": "r", "key": {"client_key": "secret"}}), "override",
         "A key of d/r was given an override (version 7)."),
    ],
)  # fmt: skip
def test_an_accepted_change_is_told_without_the_keys_in_it(change: History, kind: str, text: str) -> None:
    told = incident_of(change)
    assert told is not None
    assert (told.kind, told.text, told.domain, told.at_ms) == (kind, text, "d", START_MS)


def test_what_was_refused_or_is_of_access_is_none() -> None:
    assert incident_of(entry(PUT_RULE, rule_id="r", accepted=False)) is None
    assert incident_of(entry(PUT_TOKEN)) is None


def test_incidents_are_kept_once_bounded_and_found_newest_first() -> None:
    file = PastFile(None)
    stored = StoredIncidents(file, incidents_most=5)
    many = [Incident(f"ref {n % 8}", START_MS + n % 8, "info", "rules", "text") for n in range(16)]
    with file.writing() as base:
        stored.write(base, many)
    assert [one["at_ms"] - START_MS for one in stored.since(START_MS + 2, START_MS + 7, 3)] == [6, 5, 4]
    assert len(stored.since(0, 2**50, 100)) == 8
    with file.writing() as base:
        stored.sweep(base, START_MS)
    assert [one["at_ms"] - START_MS for one in stored.since(0, 2**50, 100)] == [7, 6, 5, 4, 3]
    with file.writing() as base:
        stored.sweep(base, START_MS + KEPT_MS + 5)
    assert [one["at_ms"] - START_MS for one in stored.since(0, 2**50, 100)] == [7, 6, 5]
    file.close()


def test_the_file_knows_who_is_cut_off() -> None:
    file = PastFile(None)
    stored = StoredIncidents(file)
    with file.writing() as base:
        stored.write(base, [
            Incident("1", START_MS, "bad", "cut", "", "eu"), Incident("2", START_MS, "bad", "cut", "", "us"),
            Incident("3", START_MS + 1, "info", "healed", "", "us"),
        ])  # fmt: skip
    assert stored.cut() == {"eu": START_MS}
    file.close()
