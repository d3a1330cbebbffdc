"""What is known of clients comes from its topic into a store, whole, whatever is lost or comes twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from global_sync.subject_delivery import SubjectDelivery
from global_sync.subject_records import decode_record, encode_records, faults_of
from global_sync.transport.base import SUBJECTS
from global_sync.transport.memory import MemoryHub
from regional_limiter.store.subjects import (
    CLIENTS_A_WRITE,
    GROUPS,
    SubjectFound,
    SubjectsInMemory,
    SubjectWrite,
    group_of,
)

Known = dict[str, dict[str, str]]


async def say(hub: MemoryHub, version: int, known: dict[str, dict[str, str] | None]) -> None:
    """A change in the topic; None forgets a client."""
    for put in (True, False):
        some = [{"client_key": key, "set": said} for key, said in known.items() if (said is not None) == put]
        keys, values = encode_records("d", some, version, put=put)
        await hub.transport("leader").send(SUBJECTS, values, keys=keys)


def held(store: SubjectsInMemory, names: Sequence[str]) -> Known:
    found: Known = {}
    for name in names:

        def told(answer: SubjectFound | Exception, name: str = name) -> None:
            assert isinstance(answer, SubjectFound)
            if answer.attributes:
                found[name] = msgspec.json.decode(answer.attributes)

        store.look_up("d", name, told)
    return found


@asynccontextmanager
async def delivering(hub: MemoryHub, store: SubjectsInMemory) -> AsyncIterator[SubjectDelivery]:
    """Looks for what was lost whenever it has nothing to do."""
    delivery = SubjectDelivery(store, hub.transport("agent"), lambda: True, look_every_s=0)
    task = asyncio.create_task(delivery.run())
    try:
        yield delivery
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_filled(hub: MemoryHub, store: SubjectsInMemory) -> None:
    """Every group has come to the end of the topic."""
    async with asyncio.timeout(20):
        while set(await store.subject_positions()) != {hub.topic(SUBJECTS).next_offset}:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_store_is_filled_and_kept_up_to_date() -> None:
    hub, store = MemoryHub(), SubjectsInMemory()
    names = [f"c{n}" for n in range(1000)]
    await say(hub, 1, {name: {"tier": "gold"} for name in names})
    async with delivering(hub, store) as delivery:
        await until_filled(hub, store)
        assert held(store, names) == {name: {"tier": "gold"} for name in names}
        await say(hub, 2, {"c1": {"tier": "free"}, "c2": None})
        await until_filled(hub, store)
        known = held(store, names)
        assert (len(known), known["c1"], "c2" in known) == (999, {"tier": "free"}, False)
        assert (delivery.written, delivery.fillings) == (1002, 1)
    async with delivering(hub, store) as again:  # goes on where it was
        await say(hub, 3, {"c3": {"tier": "x"}})
        await until_filled(hub, store)
        assert (again.written, again.fillings) == (1, 0)


async def test_what_a_store_lost_is_brought_again() -> None:
    hub, store = MemoryHub(), SubjectsInMemory()
    names = [f"c{n}" for n in range(300)]
    await say(hub, 1, {name: {"tier": "gold"} for name in names})
    async with delivering(hub, store) as delivery:
        await until_filled(hub, store)
        store.lose()
        await until_filled(hub, store)
        assert len(held(store, names)) == 300
        assert delivery.fillings == 2


async def test_a_group_that_was_lost_is_not_taken_for_filled_when_something_new_comes_first() -> None:
    store = SubjectsInMemory()
    group = group_of("d", "acme")
    new = SubjectWrite("d", "acme", 7, b'{"tier":"gold"}')
    assert await store.write_subjects(group, [], (None, 5))
    store.lose()
    assert not await store.write_subjects(group, [new], (5, 6))
    assert held(store, ["acme"]) == {}
    assert (await store.subject_positions())[group] is None


class OfAReplica(SubjectsInMemory):
    """When told so, the next write with clients is answered, and is not there: the replica had not got it yet."""

    misses_a_write = False

    async def write_subjects(
        self, group: int, subjects: Sequence[SubjectWrite], moved: tuple[int | None, int]
    ) -> bool:
        before = self._positions.copy(), self._held.copy()
        written = await super().write_subjects(group, subjects, moved)
        if subjects and self.misses_a_write:
            self.misses_a_write = False
            self._positions, self._held = before
        return written


@pytest.mark.parametrize("is_filled", [False, True])
async def test_a_write_that_a_promoted_replica_had_not_got_is_made_again(is_filled: bool) -> None:
    """The first of two into one group: the second does not find the group where the first brought it."""
    hub, store = MemoryHub(), OfAReplica()
    names = [name for name in (f"c{n}" for n in range(60_000)) if group_of("d", name) == 5][: CLIENTS_A_WRITE + 50]
    assert len(names) > CLIENTS_A_WRITE
    async with delivering(hub, store):
        if is_filled:
            await until_filled(hub, store)
        store.misses_a_write = True
        await say(hub, 1, {name: {"tier": "gold"} for name in names})
        await until_filled(hub, store)
        assert not store.misses_a_write
        assert len(held(store, names)) == len(names)


async def test_what_is_lost_between_the_filling_of_a_group_and_its_end_is_brought_again() -> None:
    hub, store = MemoryHub(), OfAReplica()
    await say(hub, 1, {"acme": {"tier": "gold"}})
    store.misses_a_write = True
    async with delivering(hub, store) as delivery:
        await until_filled(hub, store)
        assert held(store, ["acme"]) == {"acme": {"tier": "gold"}}
        assert delivery.fillings == 2


@pytest.mark.parametrize("few", [False, True])
async def test_a_group_whose_place_is_above_the_topics_end_is_filled_anew(few: bool) -> None:
    """As in a store that has read of another Kafka: what is written there and lost is brought again."""
    hub, store = MemoryHub(), OfAReplica()
    await say(hub, 1, {"acme": {"tier": "gold"}})
    acmes = group_of("d", "acme")
    for group in range(GROUPS):
        assert await store.write_subjects(group, [], (None, 1 if few and group != acmes else 10_000))
    store.misses_a_write = True
    async with delivering(hub, store) as delivery:
        await until_filled(hub, store)
        assert not store.misses_a_write
        assert held(store, ["acme"]) == {"acme": {"tier": "gold"}}
        assert delivery.fillings == 2


async def test_an_older_word_does_not_come_after_a_newer_one() -> None:
    store = SubjectsInMemory()
    group = group_of("d", "acme")
    assert await store.write_subjects(group, [SubjectWrite("d", "acme", 8, b"")], (None, -1))
    assert await store.write_subjects(group, [SubjectWrite("d", "acme", 7, b'{"tier":"gold"}')], (-1, -2))
    assert held(store, ["acme"]) == {}


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.dictionaries(
                st.sampled_from([f"c{n}" for n in range(8)]),
                st.none() | st.sampled_from(["gold", "free"]).map(lambda tier: {"tier": tier}),
                min_size=1,
            ),
            st.sampled_from(["lose", "restart", "two agents"]),
        ),
        max_size=8,
    )
)
def test_whatever_happens_the_store_comes_to_hold_the_last_word(steps: list[object]) -> None:
    async def play() -> None:
        hub, store = MemoryHub(), SubjectsInMemory()
        known: Known = {}
        agents = [delivering(hub, store)]
        await agents[0].__aenter__()
        for version, step in enumerate(steps, 1):
            if isinstance(step, dict):
                await say(hub, version, step)
                known = {key: said for key, said in (known | step).items() if said is not None}
            elif step == "lose":
                store.lose()
            elif step == "two agents" and len(agents) == 1:
                agents.append(delivering(hub, store))
                await agents[-1].__aenter__()
            elif step == "restart":
                await agents.pop().__aexit__(None, None, None)
                agents.append(delivering(hub, store))
                await agents[-1].__aenter__()
        await until_filled(hub, store)
        assert held(store, [f"c{n}" for n in range(8)]) == known
        for agent in agents:
            await agent.__aexit__(None, None, None)

    asyncio.run(play())


def test_clients_are_spread_over_all_groups() -> None:
    groups = [group_of("default", f"user:{n}") for n in range(20_000)]
    sizes = [groups.count(group) for group in range(GROUPS)]
    assert min(sizes) > 30
    assert max(sizes) < 150


@pytest.mark.parametrize(
    ("subject", "place"),
    [
        ({"set": {"tier": "x"}}, "subjects[0].client_key"),
        ({"client_key": "a" * 1025, "set": {}}, "subjects[0].client_key"),
        ({"client_key": "a", "set": {"resource": "x"}}, "subjects[0].set.resource"),
        ({"client_key": "a", "set": {"tier": 7}}, "subjects[0].set.tier"),
        ({"client_key": "a", "set": {f"a{n}": "" for n in range(33)}}, "subjects[0].set"),
        ({"client_key": "a", "set": {f"a{n}": "x" * 1000 for n in range(5)}}, "subjects[0].set"),
        ({"client_key": "a", "set": {}, "tier": "gold"}, "subjects[0].tier"),
        ("acme", "subjects[0]"),
    ],
)
def test_what_cannot_be_known_of_a_client_is_named(subject: object, place: str) -> None:
    assert place in [fault.place for fault in faults_of([subject], put=True)]  # type: ignore[list-item]


def test_a_client_twice_in_one_change_is_named() -> None:
    one = {"client_key": "a", "set": {"tier": "x"}}
    assert [fault.place for fault in faults_of([one, one], put=True)] == ["subjects[1].client_key"]


def test_a_record_is_read_as_it_was_written_and_no_other_is() -> None:
    keys, values = encode_records("d", [{"client_key": "a/ü", "set": {"tier": "gold"}}], 7, put=True)
    one = decode_record(keys[0], values[0])
    assert (one.domain, one.client_key, one.version) == ("d", "a/ü", 7)
    assert msgspec.json.decode(one.attributes) == {"tier": "gold"}
    for key, value in ((None, values[0]), (b"d", values[0]), (keys[0], b"{"), (keys[0], b'{"v":2,"n":1,"set":{}}')):
        with pytest.raises(ValueError, match="subject"):
            decode_record(key, value)
