"""Which bases were in force when."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from global_sync.protocol.messages import Config, Done, Mark, Record
from services.dashboard.past import bases_over_time as module
from services.dashboard.past import routes
from services.dashboard.past.asked import BadQuestion
from services.dashboard.past.bases_over_time import BasesKept, BasesOverTime
from services.dashboard.past.holding import Holding
from services.dashboard.past.routes import Past
from services.dashboard.past.share_steps import KEPT_MS
from tests.unit.dashboard.past.usage import KEY, START_MS

EVEN, UNEVEN = {"eu": 5_000, "us": 5_000}, {"eu": 2_500, "us": 7_500}


def told(*steps: tuple[int, Record]) -> BasesOverTime:
    bases = BasesOverTime()
    bases.take(Mark(1, "nonce", 1), START_MS)
    for second, record in steps:
        bases.take(record, START_MS + second * 1_000)
    return bases


def at(bases: BasesOverTime, domain: str, second: int) -> Mapping[str, int] | None:
    found = bases.at(domain, START_MS + second * 1_000)
    return None if found is None else found.bases


LOG = (
    (0, Config(1, 1, {"d": EVEN})),
    (1, Done(1, 1)),
    (10, Config(1, 2, {"d": UNEVEN, "e": EVEN})),
    (20, Done(1, 2)),
)


def test_a_version_is_in_force_from_when_it_is_done() -> None:
    bases = told(*LOG)
    assert [at(bases, "d", second) for second in (1, 15, 20, 99)] == [EVEN, EVEN, UNEVEN, UNEVEN]
    assert at(bases, "d", -5) == EVEN, "what was before all that is known is taken for what is known first"
    assert (at(bases, "e", 99), at(bases, "none", 99)) == (EVEN, None)


def test_a_log_that_is_read_again_changes_nothing_and_goes_on_from_a_file() -> None:
    before = told(*LOG)
    data = msgspec.msgpack.encode(before.state())
    after = BasesOverTime(msgspec.msgpack.decode(data, type=BasesKept))
    for second, record in ((30, Mark(1, "nonce", 1)), *((one + 30, record) for one, record in LOG)):
        after.take(record, START_MS + second * 1_000)
    assert not after.changed
    assert after.state() == before.state()
    after.take(Config(1, 3, {"d": EVEN}), START_MS + 60_000)
    after.take(Done(1, 3), START_MS + 61_000)
    assert after.changed
    assert [at(after, "d", second) for second in (15, 25, 61)] == [EVEN, UNEVEN, EVEN]


def test_only_the_newest_changes_of_a_domain_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHANGES_MOST", 3)
    records: list[tuple[int, Record]] = [
        (version * 10 + place, record)
        for version in range(1, 9)
        for place, record in enumerate((Config(1, version, {"d": (EVEN, UNEVEN)[version % 2]}), Done(1, version)))
    ]
    bases = told(*records)
    assert [version for _, version, _ in bases.state().changes["d"]] == [6, 7, 8]
    assert [one.version for one in bases.between("d", START_MS + 60_000, START_MS + 99_000)] == [7, 8]


def test_another_log_whose_versions_begin_again_gives_new_bases_also_after_a_restart() -> None:
    bases = BasesOverTime(BasesKept(50, [EVEN], {"d": [(START_MS, 50, 0)], "old": [(START_MS, 50, 0)]}))
    bases.begin_anew()
    assert bases.changed, "or a restart would know the old version again"
    bases = BasesOverTime(bases.state())
    for record in (Mark(1, "other", 1), Config(1, 1, {"d": UNEVEN}), Done(1, 1)):
        bases.take(record, START_MS + 9_000)
    assert [at(bases, "d", second) for second in (5, 9)] == [EVEN, UNEVEN]
    bases = BasesOverTime(bases.state())  # of "old" the last change is still of the other log
    for record in (Mark(1, "other", 1), Config(1, 2, {"d": EVEN}), Done(1, 2)):
        bases.take(record, START_MS + 19_000)
    assert at(bases, "d", 19) == EVEN


def test_a_domain_without_rules_is_forgotten_when_nothing_of_it_is_kept_any_more() -> None:
    bases = told((0, Config(1, 1, {"d": EVEN, "gone": EVEN})), (1, Done(1, 1)), (5, Config(1, 2, {"d": EVEN})),
                 (6, Done(1, 2)))  # fmt: skip
    assert (at(bases, "gone", 5), at(bases, "gone", 6)) == (EVEN, {})
    later = 6 + KEPT_MS // 1_000
    for second, version, those in ((later - 1, 3, UNEVEN), (later + 1, 4, EVEN)):
        bases.take(Config(1, version, {"d": those}), START_MS + second * 1_000)
        bases.take(Done(1, version), START_MS + second * 1_000)
        assert ("gone" in bases.state().changes) == (version == 3)
    assert [version for _, version, _ in bases.state().changes["d"]] == [1, 3, 4]
    assert at(bases, "d", later) == UNEVEN


def test_changes_of_all_domains_are_bounded_and_what_is_alike_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHANGES_OF_ALL_MOST", 40)
    domains = [f"d{number}" for number in range(10)]
    bases = told()
    for version in range(1, 30):
        one = (EVEN, UNEVEN)[version % 2]
        bases.take(Config(1, version, {domain: dict(one) for domain in domains}), START_MS + version)
        bases.take(Done(1, version), START_MS + version)
        kept = bases.state()
        assert sum(len(those) for those in kept.changes.values()) <= 40 + len(domains)
        assert len(kept.bases) <= 5, "one of each version"
        assert {those[-1][1] for those in kept.changes.values()} == {version}, "what is in force is never let go"


class _Steps:
    """A log that tells of no share."""

    def __getattr__(self, name: str) -> Any:
        empty: dict[str, Any] = {
            "since_ms": START_MS,
            "leader_at": None,
            "steps": [],
            "windows_at": [],
            "last": ({}, {}),
        }
        return lambda *_: empty[name]

    def at(self, key: str, at_ms: int, bases: Mapping[str, int]) -> dict[str, Any]:
        return Holding({}, {}, bases, at_ms).held()


async def test_who_held_what_is_told_by_the_bases_of_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "wall_ms", lambda: START_MS + 300_000)
    recorder: Any = SimpleNamespace(stored_steps=_Steps(), bases=told(*LOG))
    past = Past(recorder, lambda _: {**UNEVEN, "ap": 0}, lambda domain, rule: False, lambda: ["eu", "us"], dict)
    for second, expected in ((15, EVEN), (25, UNEVEN)):
        (row,) = (await past.shares_at(START_MS + second * 1_000, KEY, 1))["keys"]
        found = {region: (share["units"], share["base"]) for region, share in row["regions"].items()}
        assert found == {region: (base, base) for region, base in {**expected, "ap": 0}.items()}
    steps = await past.steps(KEY, (START_MS + 5_000, START_MS + 60_000))
    assert steps["bases"] == {**EVEN, "ap": 0}
    assert [(one["kind"], one["region"], one["base"], one["n"]) for one in steps["steps"]] == [
        ("bases", "eu", 2_500, 2), ("bases", "us", 7_500, 2),
    ]  # fmt: skip


async def test_a_moved_key_of_a_domain_without_rules_does_not_take_the_answer_of_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "wall_ms", lambda: START_MS + 300_000)
    bases = told((0, Config(1, 1, {"d": EVEN})), (1, Done(1, 1)), (60, Config(1, 2, {})), (60, Done(1, 2)))
    unknown = KEY.replace(":d/", ":never/")
    stored = _Steps()
    monkeypatch.setattr(_Steps, "moved_at", lambda *_: [unknown, KEY], raising=False)
    past = Past(cast(Any, SimpleNamespace(stored_steps=stored, bases=bases)), lambda _: {},
                lambda domain, rule: False, list, dict)  # fmt: skip
    for second, keys in ((30, [KEY]), (90, [])):
        told_keys = (await past.shares_at(START_MS + second * 1_000, None, 50))["keys"]
        assert [one["key"] for one in told_keys] == keys
    with pytest.raises(BadQuestion):
        await past.shares_at(START_MS + 90_000, KEY, 1)


async def test_bases_that_came_into_force_are_within_the_bound_of_what_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(routes, "wall_ms", lambda: START_MS + 300_000)
    monkeypatch.setattr(routes, "STEPS_TOLD_MOST", 7)
    records: list[tuple[int, Record]] = [
        (version, record)
        for version in range(1, 9)
        for record in (Config(1, version, {"d": (EVEN, UNEVEN)[version % 2]}), Done(1, version))
    ]
    recorder: Any = SimpleNamespace(stored_steps=_Steps(), bases=told(*records))
    past = Past(recorder, lambda _: EVEN, lambda domain, rule: False, lambda: ["eu", "us"], dict)
    answer = await past.steps(KEY, (START_MS, START_MS + 60_000))
    assert (len(answer["steps"]), answer["from_ms"]) == (7, answer["steps"][0]["at_ms"])
    assert answer["begin"]["us"]["units"] == answer["steps"][0]["base"]
    assert answer["steps"][-1]["held"] == {"us": EVEN["us"]}
