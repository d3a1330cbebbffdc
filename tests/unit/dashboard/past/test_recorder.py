"""What is remembered over the memory transport: also after a restart, a lost file, and a log that was trimmed."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from global_sync import codec
from global_sync.changes import PUT_RULE, PUT_SET, History, Proposal, encode_history
from global_sync.protocol.messages import Kind, LeaseRecord, Mark, Report, Snapshot, Welcome
from global_sync.rulebook import Rulebook, encode_state
from global_sync.transport.base import HISTORY, LOG, REPORTS, RULES, USAGE, Message
from global_sync.transport.memory import MemoryHub
from services.clock import wall_ms
from services.dashboard.app import create_app
from services.dashboard.past import growth as growth_module
from services.dashboard.past import recorder as module
from services.dashboard.past.cells import ALLOWED, MINUTE_MS
from services.dashboard.past.file import AnswerTookTooLong
from services.dashboard.past.recorder import Recorder
from services.dashboard.past.rollups import Rollups
from services.dashboard.past.share_steps import Step
from services.dashboard.past.stored_steps import StoredSteps
from services.settings import DashboardSettings
from tests.unit.control_api.conftest import hub_settings
from tests.unit.dashboard.past.usage import KEY, usage

DOCUMENT = {
    "domain": "d",
    "regions": {"us-east": 1, "eu-west": 1},
    "rules": [{"id": "g", "match": {}, "capacity": 100, "refill": "90/min", "scope": "global"}],
}


class Dashboard:
    """A dashboard over ``hub`` while it is entered; ``get`` asks it."""

    def __init__(self, hub: MemoryHub, path: Path | None) -> None:
        dashboard = DashboardSettings(port=25091, history=path)
        settings = hub_settings().model_copy(update={"dashboard": dashboard})
        self.app = create_app(hub.transport("dashboard"), settings)

    async def __aenter__(self) -> Dashboard:
        self._life = self.app.router.lifespan_context(self.app)
        await self._life.__aenter__()
        assert await self.app.state.board.feed.caught_up(RULES, timeout_s=30)
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://127.0.0.1:25091")
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._client.aclose()
        await self._life.__aexit__(*error)

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        answer = await self._client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def answer(self, path: str, headers: dict[str, str] | None = None, **query: Any) -> httpx.Response:
        return await self._client.get(path, params=query, headers=headers)

    async def until(self, is_so: Callable[[dict[str, Any]], bool], path: str, **query: Any) -> dict[str, Any]:
        """What is answered once it is so: told by what is there, not by how long it takes."""
        found: dict[str, Any] = {}
        for _ in range(500):
            found = await self.get(path, **query)
            if is_so(found):
                return found
            await asyncio.sleep(0.06)
        raise AssertionError(f"not so after 30 s: {found}")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ADD_EVERY_S", 0.05)


class Told:
    """What regions and leaders say, over the transport."""

    def __init__(self) -> None:
        self.hub = MemoryHub()
        self.transport = self.hub.transport("world")

    async def rules(self) -> None:
        book = Rulebook()
        outcome = book.decide(Proposal(id="1", domain="d", kind=PUT_SET, document=DOCUMENT), 0)
        assert outcome.accepted, outcome.faults
        for key, value in encode_state(book, "d", 1):
            await self.transport.send(RULES, [value], key=key)

    async def usage(self, region: str, allowed: int, denied: int = 0, share: int | None = None) -> None:
        message = usage(region, {"n1": {"d/g": (allowed, denied)}}, {KEY: (allowed, denied, share)})
        await self.transport.send(USAGE, [msgspec.json.encode(message)])

    async def log(self, *records: Any) -> int:
        return (await self.transport.send(LOG, [codec.encode_records(records)]))[0]

    async def begin(self) -> None:
        await self.rules()
        await self.log(Mark(1, "nonce", 1))
        await self.log(Welcome(1, 1, "us-east", "a", 1, 1, {}), Welcome(1, 2, "eu-west", "b", 1, 1, {}))


def lose(folder: Path) -> None:
    for one in folder.glob("past.db*"):
        if not one.name.endswith(".lock"):
            one.unlink()


def total(series: dict[str, Any], field: str = "allowed") -> int:
    return sum(one[field] for one in series["totals"].values())


async def test_series_incidents_and_shares_are_there_to_be_asked(tmp_path: Path) -> None:
    told = Told()
    await told.begin()
    async with Dashboard(told.hub, tmp_path / "past.db") as dashboard:
        await told.usage("us-east", 0)
        await told.usage("us-east", 40, 2, 9_000)
        await told.log(LeaseRecord(1, 3, KEY, "eu-west", 1, Kind.KEEP, 100))
        await told.log(LeaseRecord(1, 4, KEY, "us-east", 1, Kind.GROW, 9_000))
        await dashboard.until(lambda one: one["log"]["next_offset"] == 4, "/v1/sync")
        settled = Report("us-east", "a", 1, 1, (1, 1), 1, {KEY: ((1, 4), 9_000)})
        await told.transport.send(REPORTS, [codec.encode_report(settled)])
        change = History(id="2", domain="d", kind=PUT_RULE, rule_id="g", offset=4, accepted=True, version=2,
                         author="ann", at_ms=wall_ms())  # fmt: skip
        await told.transport.send(HISTORY, [encode_history(change)[1]])
        begin_ms = wall_ms() - 60_000

        series = await dashboard.until(lambda one: total(one) == 40, "/v1/series", domain="d", rule="g",
                                       **{"from": begin_ms})  # fmt: skip
        assert total(series, "denied") == 2
        of_key = await dashboard.until(lambda one: total(one) == 40, "/v1/series", domain="d", rule="g", key=KEY,
                                       **{"from": begin_ms})  # fmt: skip
        assert max(filter(None, of_key["regions"]["us-east"]["borrowed"])) == 4_000
        keys = await dashboard.get("/v1/keys", domain="d", rule="g", **{"from": begin_ms})
        assert keys["keys"] == [{"key": KEY, "allowed": 40, "denied": 2}]

        steps = await dashboard.until(lambda one: len(one["steps"]) >= 5, "/v1/shares/steps", key=KEY,
                                      **{"from": begin_ms})  # fmt: skip
        assert [(one["kind"], one["region"], one["units"]) for one in steps["steps"]] == [
            ("leader", "", None), ("welcome", "us-east", None), ("welcome", "eu-west", None),
            ("keep", "eu-west", 100), ("grow", "us-east", 9_000),
        ]  # fmt: skip
        held = await dashboard.get("/v1/shares/at", time=wall_ms() + 1_000)
        (of_key_now,) = held["keys"]
        assert {region: one["units"] for region, one in of_key_now["regions"].items()} == {
            "us-east": 9_000, "eu-west": 100,
        }  # fmt: skip
        assert (held["epoch"], of_key_now["together"]) == (1, 9_100)
        newest = await dashboard.get("/v1/shares/records", limit=2)
        assert [one["n"] for one in newest["steps"]] == [4, 3]

        incidents = await dashboard.until(lambda one: len(one["incidents"]) == 2, "/v1/incidents")
        assert {one["kind"] for one in incidents["incidents"]} == {"leader", "rules"}
        sync = await dashboard.until(lambda one: one["leases"]["settled"] == 1, "/v1/sync")
        assert sync["log"]["epoch"] == 1
        assert sync["history"]["kept_in"] == "file"
        assert [region["name"] for region in sync["regions"]] == ["us-east", "eu-west"]


async def test_a_dashboard_that_was_away_goes_on_where_it_was(tmp_path: Path) -> None:
    told = Told()
    await told.begin()
    query = {"domain": "d", "rule": "g", "from": wall_ms() - 60_000}
    async with Dashboard(told.hub, tmp_path / "past.db") as dashboard:
        for allowed in (5, 10, 17):
            await told.usage("us-east", allowed)
        await dashboard.until(lambda one: total(one) == 17, "/v1/series", **query)
    for allowed in (18, 30):
        await told.usage("us-east", allowed)
    await told.log(LeaseRecord(1, 3, KEY, "us-east", 1, Kind.KEEP, 100))
    async with Dashboard(told.hub, tmp_path / "past.db") as dashboard:
        await dashboard.until(lambda one: total(one) == 30, "/v1/series", **query)
        await told.usage("us-east", 31)
        await dashboard.until(lambda one: total(one) == 31, "/v1/series", **query)
        steps = await dashboard.until(lambda one: len(one["steps"]) == 4, "/v1/shares/steps", key=KEY)
        assert [one["kind"] for one in steps["steps"]] == ["leader", "welcome", "welcome", "keep"]


async def test_what_was_being_written_down_when_the_end_came_is_written_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What many nodes counted is written down a part at a time; more comes meanwhile, and then the end."""
    monkeypatch.setattr(growth_module, "TOLD_AT_ONCE", 1)
    recorder = Dashboard(MemoryHub(), tmp_path / "past.db").app.state.recorder

    def take(offset: int) -> None:
        counted = {f"n{node}": {"d/g": (offset, 0)} for node in range(20)}
        value = msgspec.json.encode(usage("us-east", counted))
        recorder._take_usage(Message(USAGE, offset, None, value, wall_ms()))

    take(0)
    await recorder.write_down(sweep=False)
    take(1)
    writing = asyncio.create_task(recorder.write_down(sweep=False))
    for _ in range(4):  # until a part is written down
        await asyncio.sleep(0)
    take(2)
    assert not writing.done()
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    await recorder.write_down(sweep=False)
    recorder.close()
    again = Dashboard(MemoryHub(), tmp_path / "past.db").app.state.recorder
    cells = list(again.rollups.cells("d/g", MINUTE_MS, wall_ms() - 600_000, wall_ms() + 60_000))
    again.close()
    assert sum(cell[ALLOWED] for _, _, cell in cells) == 40


async def test_what_fails_to_be_written_while_the_end_comes_is_written_by_the_last_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, loop, inside, may_fail = Told(), asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    write, failed = Recorder._write, list[int]()

    def fails_once(self: Recorder, batch: Any, sweep: bool) -> bool:
        if any(step.units == 100 for step in batch.steps) and not failed:
            failed.append(1)
            loop.call_soon_threadsafe(inside.set)
            assert may_fail.wait(30)
            return False
        return write(self, batch, sweep)

    monkeypatch.setattr(Recorder, "_write", fails_once)
    await told.begin()
    async with Dashboard(told.hub, tmp_path / "past.db"):
        await told.log(LeaseRecord(1, 3, KEY, "us-east", 1, Kind.KEEP, 100))
        await asyncio.wait_for(inside.wait(), 30)
        loop.call_later(0.1, may_fail.set)  # the dashboard ends before
    again = Dashboard(MemoryHub(), tmp_path / "past.db").app.state.recorder
    assert again.stored_steps.known() == {("us-east", KEY): 100}
    again.close()


async def test_whatever_breaks_a_write_its_batch_waits_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Dashboard(MemoryHub(), tmp_path / "past.db").app.state.recorder
    recorder._keep([Step(KEY, "us-east", wall_ms(), 100, "keep", 1, 1, 3, 1)])
    for where, name in ((growth_module.GrowthState, "write_down"), (Recorder, "_write")):
        with monkeypatch.context() as broken:
            broken.setattr(where, name, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await recorder.write_down(sweep=False)
    await recorder.write_down(sweep=False)
    assert recorder.stored_steps.known() == {("us-east", KEY): 100}
    recorder.close()


async def test_without_its_file_the_minutes_are_read_again(tmp_path: Path) -> None:
    told = Told()
    await told.begin()
    for allowed in (5, 10, 17):
        await told.usage("us-east", allowed)
    for turn in range(2):
        async with Dashboard(told.hub, tmp_path / f"past-{turn}.db") as dashboard:
            await dashboard.until(lambda one: total(one) == 17, "/v1/series", domain="d", rule="g",
                                  **{"from": wall_ms() - 60_000})  # fmt: skip


async def test_a_file_that_is_lost_while_it_is_used_is_made_again_with_what_holds(tmp_path: Path) -> None:
    told = Told()
    await told.begin()
    async with Dashboard(told.hub, tmp_path / "past.db") as dashboard:
        await told.log(LeaseRecord(1, 3, KEY, "us-east", 1, Kind.KEEP, 100))
        await told.usage("us-east", 5)
        query = {"domain": "d", "rule": "g", "from": wall_ms() - 60_000}
        await dashboard.until(lambda one: total(one) == 5, "/v1/series", **query)
        await dashboard.until(lambda one: one["keys"] != [], "/v1/shares/at", time=wall_ms() + 60_000)
        lose(tmp_path)
        await dashboard.until(lambda one: one["history"]["begun_anew"] == 1, "/v1/sync")
        await told.usage("us-east", 9)
        await dashboard.until(lambda one: total(one) == 9, "/v1/series", **query)
        held = await dashboard.until(lambda one: one["keys"] != [], "/v1/shares/at", time=wall_ms() + 60_000)
        assert held["keys"][0]["regions"]["us-east"]["units"] == 100


async def test_an_error_of_the_file_is_told_and_recording_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    await told.begin()
    async with Dashboard(told.hub, tmp_path / "past.db") as dashboard:
        await told.usage("us-east", 5)
        query = {"domain": "d", "rule": "g", "from": wall_ms() - 60_000}
        await dashboard.until(lambda one: total(one) == 5, "/v1/series", **query)
        with monkeypatch.context() as broken:
            broken.setattr(Rollups, "add", out_of_order)
            await told.usage("us-east", 9)
            await dashboard.until(lambda one: one["history"]["problem"] is not None, "/v1/sync")
        await told.usage("us-east", 10)
        await dashboard.until(lambda one: total(one) == 10, "/v1/series", **query)
        await dashboard.until(lambda one: one["history"]["problem"] is None, "/v1/sync")


async def test_what_cannot_be_read_at_first_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told, tried = Told(), []

    def known(self: StoredSteps) -> dict[tuple[str, str], int]:
        tried.append(1)
        if len(tried) == 1:
            raise AnswerTookTooLong
        return {}

    monkeypatch.setattr(StoredSteps, "known", known)
    await told.begin()
    async with Dashboard(told.hub, tmp_path / "past.db") as dashboard:
        await told.usage("us-east", 5)
        query = {"domain": "d", "rule": "g", "from": wall_ms() - 60_000}
        await dashboard.until(lambda one: total(one) == 5, "/v1/series", **query)


def out_of_order(self: Rollups, cells: object, now_ms: int) -> None:
    raise sqlite3.OperationalError("disk I/O error")


async def test_what_the_log_lost_meanwhile_is_said_to_be_missing(tmp_path: Path) -> None:
    told = Told()
    await told.begin()
    async with Dashboard(told.hub, tmp_path / "past.db") as dashboard:
        await dashboard.until(lambda one: one["log"]["next_offset"] == 2, "/v1/sync")
        await dashboard.until(lambda one: len(one["steps"]) == 3, "/v1/shares/steps", key=KEY)
    await told.log(LeaseRecord(1, 3, KEY, "us-east", 1, Kind.KEEP, 100))
    sessions = (("us-east", 1, (1, 1)), ("eu-west", 1, (1, 2)))
    ledger: Any = {KEY: {"us-east": (((1, 3), 100, 1),), "eu-west": ()}}
    offset = await told.log(Snapshot(1, 1, 0, 1, sessions, {"us-east": 1, "eu-west": 1}, {}, 1, {}, 1, {}, ledger))
    await told.transport.delete_before(LOG, offset)
    async with Dashboard(told.hub, tmp_path / "past.db") as dashboard:
        steps = await dashboard.until(lambda one: len(one["steps"]) == 4, "/v1/shares/steps", key=KEY)
        assert (steps["steps"][-1]["kind"], steps["steps"][-1]["units"]) == ("snapshot", 100)
        incidents = await dashboard.until(lambda one: len(one["incidents"]) == 2, "/v1/incidents")
        assert incidents["incidents"][0]["text"].startswith("Nothing was recorded of shares for")


async def test_an_answer_that_has_not_changed_is_not_sent_again() -> None:
    told = Told()
    await told.begin()
    async with Dashboard(told.hub, None) as dashboard:
        await dashboard.until(lambda one: len(one["incidents"]) == 1, "/v1/incidents")
        query = {"since": wall_ms() - 60_000, "until": wall_ms() - 1}
        first = await dashboard.answer("/v1/incidents", **query)
        again = await dashboard.answer("/v1/incidents", {"If-None-Match": first.headers["etag"]}, **query)
        assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


@pytest.mark.parametrize(
    ("path", "query", "said"),
    [
        ("/v1/series", {"rule": "g"}, "domain: is needed"),
        ("/v1/series", {"domain": "d", "rule": "g", "step": 1_500}, "step: must be whole seconds"),
        ("/v1/shares/at", {"time": 5, "key": "acme"}, "key: must be a bucket key"),
        ("/v1/shares/steps", {"key": "rl:{0}:unknown/g:1"}, "key: must be a bucket key of a domain that has rules"),
        ("/v1/shares/at", {}, "time"),
        ("/v1/keys", {"domain": "d"}, "rule"),
        ("/v1/incidents", {"limit": 501}, "limit"),
    ],
)
async def test_a_wrong_question_is_a_clear_problem(path: str, query: dict[str, Any], said: str) -> None:
    told = Told()
    await told.begin()
    async with Dashboard(told.hub, None) as dashboard:
        answer = await dashboard.answer(path, **query)
        assert answer.status_code == 422
        assert said in answer.text
        assert answer.headers["content-type"] == "application/problem+json"
