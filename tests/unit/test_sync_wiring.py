"""Agent and leader on the in-memory transport: what happens around the pure protocol when something is wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from global_sync import codec
from global_sync.agent import Agent, PointState, monotonic_us
from global_sync.changes import PUT_SET, Proposal, decode_history, encode_proposal
from global_sync.leader import Leader
from global_sync.protocol.leader import LeaderSide
from global_sync.protocol.messages import Mark, Snapshot
from global_sync.protocol.points import Rest
from global_sync.transport.base import HISTORY, LOG, PROPOSALS, RULES
from global_sync.transport.memory import MemoryHub
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import NodeBeat
from regional_limiter.store.memory import MemoryStore
from services.sync_service.metrics import SyncMetrics

TIMES = ProtocolTimes.scaled(0.1)
DOCUMENT = {
    "domain": "default",
    "regions": {"a": 1, "b": 1},
    "rules": [{"id": "r", "match": {}, "capacity": 20, "refill": "100/s", "scope": "global"}],
}


async def until(true: Callable[[], bool], what: str, seconds: float = 10) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not true():  # noqa: ASYNC110 (looks from outside, as an operator would)
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s: {what}") from None


@asynccontextmanager
async def leaders(hub: MemoryHub, count: int) -> AsyncIterator[list[Leader]]:
    found = [Leader(hub.transport(f"leader-{rank}"), TIMES, rank) for rank in range(count)]
    for leader in found:
        await leader.start()
    try:
        yield found
    finally:
        for leader in found:
            await leader.stop()


def agent_of(hub: MemoryHub, region: str, path: Path, store: MemoryStore | None = None) -> Agent:
    store = store or MemoryStore(monotonic_us, TIMES, [f"{region}:1/x", f"{region}:2/x"])
    return Agent(region, store, hub.transport(region), TIMES, path / region)


async def propose(hub: MemoryHub, document: dict[str, object], made_from: int | None = None) -> None:
    proposal = Proposal(id="p", domain="default", kind=PUT_SET, document=document, made_from=made_from)
    await hub.transport("operator").send(PROPOSALS, [encode_proposal(proposal)])


@pytest.mark.timeout(60)
async def test_what_agent_and_leader_count_is_shown_as_metrics(tmp_path: Path) -> None:
    hub = MemoryHub()
    async with leaders(hub, 1) as (leader,):
        await propose(hub, DOCUMENT)
        agent = agent_of(hub, "a", tmp_path)
        await agent.start()
        try:
            await until(lambda: agent.side.session > 0 and agent.reports_sent > 0, "there is a session")
            hub.cut("a")
            await until(lambda: agent.sends_failed > 0, "a report was not sent")
        finally:
            await agent.stop()
        agent.side.keys_refused = 7
        metrics = SyncMetrics(agent, leader)
        lines = [line for line in metrics.exposition.text().decode().splitlines() if not line.startswith("#")]
        shown = {line.split("{")[0]: float(line.split()[-1]) for line in lines}
        metrics.close()
    assert shown["ratelimit_agent_records_total"] == agent.records_read > 0
    assert shown["ratelimit_agent_reports_total"] == agent.reports_sent
    assert shown["ratelimit_agent_sends_failed_total"] == agent.sends_failed
    assert shown["ratelimit_agent_keys_refused_total"] == 7
    assert shown["ratelimit_leader_unacked"] == len(leader.side.unacked(monotonic_us()))
    assert "ratelimit_leader_longest_unacked_seconds" in shown


@pytest.mark.timeout(60)
async def test_a_cut_candidate_does_not_depose_the_leader_when_its_link_heals() -> None:
    hub = MemoryHub()
    async with leaders(hub, 2) as (first, second):
        await until(lambda: first.active, "somebody leads")
        hub.cut("leader-1")
        await asyncio.sleep(12 * TIMES.beat_us / 1e6)  # far beyond its patience
        assert second.takeovers == 0
        hub.heal("leader-1")
        await asyncio.sleep(8 * TIMES.beat_us / 1e6)
        assert first.active
        assert first.side.epoch == 1


@pytest.mark.timeout(60)
async def test_a_silent_leader_is_replaced_and_steps_down_when_it_reads_the_new_mark() -> None:
    hub = MemoryHub()
    async with leaders(hub, 2) as (first, second):
        await until(lambda: first.active, "somebody leads")
        hub.cut("leader-0")
        await until(lambda: second.active, "the other has taken over")
        hub.heal("leader-0")
        await until(lambda: not first.active, "the old one has stepped down")
        assert second.active


@pytest.mark.timeout(60)
async def test_a_candidate_that_does_not_understand_the_log_does_not_lead() -> None:
    hub = MemoryHub()
    await hub.transport("x").send(LOG, [codec.encode_records([Mark(1, "n", 1)]), b'{"v": 99}'])
    async with leaders(hub, 1) as (only,):
        await until(lambda: only.malformed > 0, "the record was read")
        await asyncio.sleep(8 * TIMES.beat_us / 1e6)
        assert only.takeovers == 0
        assert not only.active


@pytest.mark.timeout(60)
async def test_a_candidate_that_begins_in_the_middle_of_a_log_does_not_lead() -> None:
    hub = MemoryHub()
    for number in range(3):
        await hub.transport("x").send(LOG, [codec.encode_records([Mark(number + 1, "n", 1)])])
    hub.topic(LOG).trim(2)  # by retention, say: there is no snapshot where it begins
    async with leaders(hub, 1) as (only,):
        await until(lambda: only.view()["caught_up"] is True, "the log was read")
        await asyncio.sleep(8 * TIMES.beat_us / 1e6)
        assert only.takeovers == 0


@pytest.mark.timeout(60)
async def test_a_second_agent_of_a_region_waits_for_the_lock_and_then_gets_a_session(tmp_path: Path) -> None:
    hub = MemoryHub()
    store = MemoryStore(monotonic_us, TIMES, ["a:1/x"])
    async with leaders(hub, 1):
        await propose(hub, DOCUMENT)
        first, second = agent_of(hub, "a", tmp_path, store), agent_of(hub, "a", tmp_path, store)
        await first.start()
        await until(lambda: first.side.session > 0, "the first has a session")
        await second.start()
        await asyncio.sleep(0.5)
        assert not second.active
        await first.stop()
        await until(lambda: second.side.session > first.side.session, "the standby has taken over")
        await second.stop()


@pytest.mark.timeout(60)
async def test_a_deposed_agent_begins_anew_and_waits(tmp_path: Path) -> None:
    hub = MemoryHub()
    async with leaders(hub, 1):
        await propose(hub, DOCUMENT)
        # Two stores, so that both hold a lock: what the lock is there to avoid, and the sessions must survive.
        first, second = agent_of(hub, "a", tmp_path), agent_of(hub, "a", tmp_path)
        await first.start()
        await until(lambda: first.side.session > 0, "the first has a session")
        identity = first.agent_id
        await second.start()
        await until(lambda: second.side.session > 0, "the second has a session")
        await until(lambda: first.agent_id != identity, "the first begins anew")
        await first.stop()
        await second.stop()


@pytest.mark.timeout(60)
async def test_rules_are_decided_once_also_over_a_takeover_and_reach_the_disk(tmp_path: Path) -> None:
    hub = MemoryHub()
    agent = agent_of(hub, "a", tmp_path)
    await agent.start()
    async with leaders(hub, 2) as (_, second):
        await propose(hub, DOCUMENT, made_from=0)
        await until(lambda: agent.rules.version == 1, "the rules have arrived")
        hub.cut("leader-0")
        await until(lambda: second.active, "takeover")
        await propose(hub, DOCUMENT, made_from=0)  # lost: somebody was first
        await propose(hub, DOCUMENT, made_from=1)
        await until(lambda: agent.rules.version == 3, "the later change has arrived")
    await agent.stop()
    entries = [decode_history(message.value) for _, message in hub.topic(HISTORY).messages]
    assert {entry.offset: entry.accepted for entry in entries} == {0: True, 1: False, 2: True}
    assert next(entry for entry in entries if entry.offset == 1).conflict
    restarted = agent_of(hub, "a", tmp_path)
    restarted.rules.load()
    assert restarted.rules.version == 3


@pytest.mark.timeout(60)
async def test_what_a_late_predecessor_overwrote_is_written_again(tmp_path: Path) -> None:
    hub = MemoryHub()
    async with leaders(hub, 1) as (leader,):
        await propose(hub, DOCUMENT)
        await until(lambda: len(hub.topic(RULES).messages) == 1, "accepted")
        stale = hub.topic(RULES).messages[0][1].value.replace(b'"epoch":1', b'"epoch":0')
        await until(lambda: leader.active, "leading")
        await hub.transport("zombie").send(RULES, [stale], key=b"default#0")
        await until(lambda: len(hub.topic(RULES).messages) == 3, "written again")
        assert hub.topic(RULES).messages[-1][1].value == hub.topic(RULES).messages[0][1].value


@pytest.mark.timeout(60)
async def test_the_log_is_cut_behind_a_snapshot_and_a_new_agent_starts_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("global_sync.leader.TRIM_INTERVAL_BEATS", 5)
    hub = MemoryHub()
    async with leaders(hub, 1):
        await propose(hub, DOCUMENT)
        first = agent_of(hub, "a", tmp_path)
        await first.start()
        await until(lambda: hub.topic(LOG).first_offset > 10, "the log was trimmed")
        late = agent_of(hub, "b", tmp_path)
        await late.start()
        await until(lambda: late.side.session > 0 and late.side.bases == {"default": 5000}, "the late one is in")
        await first.stop()
        await late.stop()


@pytest.mark.timeout(60)
async def test_a_candidate_with_other_times_than_the_log_s_does_not_lead() -> None:
    hub = MemoryHub()
    other = ProtocolTimes.scaled(0.3).signature
    await hub.transport("x").send(LOG, [codec.encode_records([Mark(1, "n", 1, other)])])
    async with leaders(hub, 1) as (only,):
        await until(lambda: only.other_times, "the mark was read")
        await asyncio.sleep(8 * TIMES.beat_us / 1e6)
        assert only.takeovers == 0


def newest_snapshot(hub: MemoryHub) -> int:
    """Its number; 0: there is none."""
    records = [record for _, message in hub.topic(LOG).messages for record in codec.decode_records(message.value)]
    return max((record.number for record in records if isinstance(record, Snapshot)), default=0)


@pytest.mark.timeout(60)
async def test_a_changed_ledger_is_written_soon_and_a_quiet_one_not_again(tmp_path: Path) -> None:
    hub = MemoryHub()
    async with leaders(hub, 1):
        await propose(hub, DOCUMENT)
        agent = agent_of(hub, "a", tmp_path)
        await agent.start()
        await until(lambda: agent.side.settled_base_version == 3, "bases settled: DONE is not said again")
        await asyncio.sleep(12 * TIMES.beat_us / 1e6)
        written = newest_snapshot(hub)
        assert written >= 1
        await asyncio.sleep(24 * TIMES.beat_us / 1e6)
        assert newest_snapshot(hub) == written
        await agent.stop()


class TwoLibraries(MemoryStore):
    """One primary with the library of before an upgrade, and ours."""

    dropped = False
    version = "new"

    async def list_points(self) -> frozenset[str]:
        return frozenset({"a:1/new"} if self.dropped else {"a:1/new", "a:1/old"})

    async def drop_library(self, point: str) -> None:
        assert point == "a:1/old"
        self.dropped = True


@pytest.mark.timeout(60)
async def test_a_function_library_that_no_node_calls_any_more_is_dropped(tmp_path: Path) -> None:
    hub = MemoryHub()
    store = TwoLibraries(monotonic_us, TIMES, ["a:1/new", "a:1/old"])
    beat = NodeBeat("n", "1", "", 0, 0, library="new")
    async with leaders(hub, 1):
        await propose(hub, DOCUMENT)
        agent = agent_of(hub, "a", tmp_path, store)
        await agent.start()

        def touched_and_dropped() -> bool:
            store.point("a:1/new").touch(monotonic_us(), beat)
            return agent.points.keys() == {"a:1/new"}

        await until(lambda: agent.points.keys() == {"a:1/new", "a:1/old"}, "both are written")
        await until(touched_and_dropped, "the old one is gone")
        await agent.stop()


async def test_a_write_that_has_to_rest_is_handed_back_after_the_longest_life_of_a_token_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the agent's own timer, begun after the reply: a pause can only make it longer."""
    agent = agent_of(MemoryHub(), "eu", tmp_path)
    token = agent.side.listing_started()
    agent.side.on_listing(token, await agent._store.list_points(), None)
    point = min(agent.side.points)
    rest = Rest(agent.agent_id, point, 1)
    order: list[object] = []
    timers: list[tuple[float, Callable[..., None], tuple[object, ...]]] = []
    monkeypatch.setattr(agent.side, "on_reply", lambda *_: order.append("reply") or rest)
    monkeypatch.setattr(agent.side, "rested", lambda given: order.append(given))
    monkeypatch.setattr(agent.side, "needs_write", lambda _: False)
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda delay_s, act, *more: timers.append((delay_s, act, more)))
    await agent._write(point, PointState())
    ((delay_s, act, more),) = timers
    assert delay_s * 1e6 >= TIMES.stretch(TIMES.token_lease_us)
    assert order == ["reply"]
    act(*more)
    assert order == ["reply", rest]


def test_a_leader_whose_wall_clock_steps_forward_grants_no_windows_for_minutes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ms, ahead_ms = 0, 0
    leader = Leader(
        MemoryHub().transport("leader"), TIMES, 0, now_us=lambda: 1000 * now_ms, wall_ms=lambda: now_ms + ahead_ms
    )
    granted: list[int] = []
    monkeypatch.setattr(LeaderSide, "grant_windows", lambda side, now_us, wall_ms: granted.append(wall_ms) or [])
    for now_ms in range(0, 420_000, 60_000):
        ahead_ms = 86_400_000 if now_ms >= 60_000 else 0
        leader._grant_windows()
    assert granted == [0, 86_400_000 + 360_000]
