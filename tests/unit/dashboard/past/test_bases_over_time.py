"""Which bases were in force when."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from global_sync.protocol.messages import Config, Done, Mark, Record
from services.dashboard.past import bases_over_time as module
from services.dashboard.past import routes
from services.dashboard.past.bases_over_time import BaseChange, BasesOverTime
from services.dashboard.past.routes import Past
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
    after = BasesOverTime(msgspec.msgpack.decode(data, type=dict[str, list[BaseChange]]))
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
    records = [
        (version * 10 + place, record)
        for version in range(1, 9)
        for place, record in enumerate((Config(1, version, {"d": (EVEN, UNEVEN)[version % 2]}), Done(1, version)))
    ]
    bases = told(*records)
    assert [one.version for one in bases.state()["d"]] == [6, 7, 8]
    assert [one.version for one in bases.between("d", START_MS + 60_000, START_MS + 99_000)] == [7, 8]


class _Steps:
    """A log that tells of no share."""

    def __getattr__(self, name: str) -> Any:
        empty = {"since_ms": START_MS, "leader_at": None, "steps": [], "windows_at": []}
        return lambda *_: empty[name]

    def at(self, key: str, at_ms: int, bases: Mapping[str, int]) -> dict[str, Any]:
        from services.dashboard.past.stored_steps import held

        return held({}, {}, bases, at_ms)


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
