"""One suite, both stores: what a node and an agent may rely on, whatever stands behind it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from regional_limiter.model.decision import Reason, ShareKind
from regional_limiter.model.enforcement import BASE, Write
from regional_limiter.model.errors import StoreUnavailable
from regional_limiter.model.rule import Algorithm, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import BucketCall, NodeBeat, ReturnedLease, RuleTotals, Sharing
from regional_limiter.store.memory import MemoryStore
from regional_limiter.store.redis_cluster import RedisClusterStore, StoreOptions
from regional_limiter.store.subjects import GROUPS, SubjectFound, SubjectWrite, group_of
from regional_limiter.submitting import settled
from tests.contract.redis_cluster import eventually
from tests.contract.redis_user import as_node

TIMES = ProtocolTimes()
PATIENT = as_node(StoreOptions(deadline_ms=500, whole_deadline_ms=1000, calm_deadline_ms=1000))
SLOW = Rate(1, 86_400_000)

Store = MemoryStore | RedisClusterStore


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    built: Store
    if request.param == "memory":
        built = MemoryStore(lambda: time.time_ns() // 1000, TIMES, [f"memory:{i}/1" for i in range(3)])
    else:
        cluster = request.getfixturevalue("calm_cluster")
        built = RedisClusterStore(cluster.addresses[:1], TIMES, PATIENT)
        await eventually("every server is connected", lambda: _answers(built), 20)
    yield built
    await built.close()


async def _answers(store: Store) -> bool:
    try:
        for number in range(12):  # of all servers
            await left(store, bucket(f"first-{number}"))
    except StoreUnavailable:
        return False
    return True


def bucket(key: str, capacity: int = 10, cost: int = 1, rate: Rate = SLOW, **more: object) -> BucketCall:
    name = f"rl:{{{key}}}:default/r:{key}"
    return BucketCall(name, Algorithm.TOKEN_BUCKET, capacity, rate, None, cost, **more)  # type: ignore[arg-type]


def window(key: str, limit: int, cost: int = 1) -> BucketCall:
    return BucketCall(f"rl:{{{key}}}:default/w:{key}", Algorithm.FIXED_WINDOW, limit, None, 86_400_000, cost)


async def allowed(store: Store, call: BucketCall, request_id: str | None = None) -> bool:
    return (await store.check([call], request_id))[0].allowed


async def left(store: Store, call: BucketCall) -> int:
    return (await store.check([replace(call, cost=0)]))[0].remaining


# ---- checks


async def test_50_tasks_with_200_checks_get_exactly_the_100_tokens(store: Store) -> None:
    call = bucket("shared", 100)

    async def four() -> int:
        return sum([await allowed(store, call) for _ in range(4)])

    assert sum(await asyncio.gather(*(four() for _ in range(50)))) == 100


async def test_letsencrypt_boulder_7780_100_at_once_on_a_new_key_get_exactly_10(store: Store) -> None:
    for key in ("first", "second", "third"):
        assert sum(await asyncio.gather(*(allowed(store, bucket(key, 10)) for _ in range(100)))) == 10


async def test_rate_limit_redis_251_a_request_that_is_sent_again_is_charged_once(store: Store) -> None:
    requests = ("r1", "r1", "r2", "r3")
    assert [await allowed(store, window("v", 2), request) for request in requests] == [True, True, True, False]


async def test_rules_of_one_tag_are_charged_all_or_none(store: Store) -> None:
    calls = [
        replace(bucket("t", capacity), key=f"rl:{{t}}:default/{name}:t") for name, capacity in (("a", 9), ("b", 1))
    ]
    outcomes = [[verdict.allowed for verdict in await store.check(calls)] for _ in range(2)]
    assert outcomes == [[True, True], [True, False]]
    assert [await left(store, call) for call in calls] == [8, 0]


@pytest.mark.parametrize("call", [bucket("zero", 0), window("zero", 0)])
async def test_a_limit_of_zero_denies_for_good(store: Store, call: BucketCall) -> None:
    verdict = (await store.check([call]))[0]
    assert (verdict.allowed, verdict.reason, verdict.retry_after_ms) == (False, Reason.ZERO_LIMIT, None)


async def test_a_peek_changes_nothing(store: Store) -> None:
    assert [await left(store, bucket("peeked")) for _ in range(3)] == [10] * 3


# ---- refunds


async def test_a_refund_never_fills_above_the_capacity(store: Store) -> None:
    await store.check([bucket("r", cost=10)])
    await store.refund([bucket("r", cost=5)])
    assert await left(store, bucket("r")) == 5
    await store.refund([bucket("r", cost=50)])
    assert await left(store, bucket("r")) == 10


async def test_a_refund_of_a_request_is_given_once_and_never_more_than_it_charged(store: Store) -> None:
    await store.check([bucket("r", cost=6)])
    await store.check([bucket("r", cost=3)], "r1")
    for _ in range(3):
        await store.refund([bucket("r", cost=5)], "r1")
    assert await left(store, bucket("r")) == 4


async def test_a_request_that_charged_nothing_has_nothing_to_give_back(store: Store) -> None:
    await store.check([bucket("r", cost=10)])
    assert not await allowed(store, bucket("r", cost=3), "denied")
    await store.refund([bucket("r", cost=3)], "denied")
    assert await left(store, bucket("r")) == 0


async def test_a_request_that_nobody_remembers_has_nothing_to_give_back(store: Store) -> None:
    await store.check([bucket("r", cost=10)])
    for _ in range(2):
        await store.refund([bucket("r", cost=3)], "more than a minute ago")
    assert await left(store, bucket("r")) == 0


async def test_a_request_whose_charge_was_given_back_is_decided_anew_not_allowed_for_nothing(store: Store) -> None:
    calls = [bucket("n", cost=6), window("n", 10, cost=6)]
    await store.check(calls, "r1")
    await store.refund(calls, "r1")
    again = await store.check(calls, "r1")
    assert [(verdict.allowed, verdict.remaining, verdict.replayed) for verdict in again] == [(True, 4, False)] * 2
    await store.refund(calls, "r1")
    await store.check([replace(call, cost=9) for call in calls])
    assert not any(verdict.allowed for verdict in await store.check(calls, "r1"))


async def test_a_request_that_keeps_a_part_of_its_charge_is_not_charged_again(store: Store) -> None:
    await store.check([bucket("k", cost=6)], "r1")
    await store.refund([bucket("k", cost=2)], "r1")
    assert [verdict.replayed for verdict in await store.check([bucket("k", cost=6)], "r1")] == [True]
    assert await left(store, bucket("k")) == 6


async def test_an_answer_given_again_says_so(store: Store) -> None:
    for call in (bucket("again", cost=3), bucket("again-denied", capacity=1, cost=3)):
        first, second = [(await store.check([call], "r1"))[0] for _ in range(2)]
        assert (first.replayed, second) == (False, replace(first, replayed=True, turn=1))


async def test_a_charge_that_was_in_vain_is_the_next_turns_once_the_request_has_come_again(store: Store) -> None:
    call, gone = bucket("turns", cost=6), bucket("turns", cost=0)
    first, second = [(await store.check([call], "r1"))[0] for _ in range(2)]
    assert (first.turn, second.turn) == (0, 1)
    await store.refund([call], "r1", first.turn)
    assert await left(store, gone) == 4
    for _ in range(2):
        await store.refund([call], "r1", second.turn)
        assert await left(store, gone) == 10
    # Decided anew it is another turn, which what is still under way of the first two does not touch.
    (third,) = await store.check([call], "r1")
    assert (third.replayed, third.turn) == (False, 2)
    for late in (first, second):
        await store.refund([call], "r1", late.turn)
    assert await left(store, gone) == 4
    await store.refund([call], "r1")
    assert await left(store, gone) == 10
    await store.refund([call], "unknown", 0)
    assert await left(store, gone) == 10


# ---- token leases


async def test_a_lease_is_taken_out_of_the_bucket_and_what_is_unspent_comes_back(store: Store) -> None:
    call = bucket("leased", 1000)
    lease = await store.lease(call, 60)
    assert (lease.tokens, lease.remaining, lease.credited) == (60, 940, 0)
    assert 200_000 < lease.ends_in_us <= 500_000
    assert await left(store, call) == 940
    back = ReturnedLease(lease.edge_ms, 60, 45)
    returned = [await store.lease(call, 0, [back]) for _ in range(2)]
    assert [(again.tokens, again.remaining, again.credited) for again in returned] == [(0, 985, 45), (0, 985, 0)]
    renewed = await store.lease(call, 10_000)
    assert (renewed.tokens, renewed.remaining) == (98, 887)


async def test_kill_9_of_a_holder_holds_back_its_lease_for_its_life_and_no_longer(store: Store) -> None:
    call = bucket("dead", 1000, rate=Rate(1000, 1))  # full again within a millisecond, but for the lease
    lease = await store.lease(call, 100)
    assert await left(store, call) == 900
    assert (await store.check([replace(call, cost=0)]))[0].reset_after_ms <= 500
    await eventually("its life is over", lambda: _is_full(store, call), 5)
    assert (await store.lease(call, 0, [ReturnedLease(lease.edge_ms, 100, 100)])).credited == 0
    assert await left(store, call) == 1000


async def _is_full(store: Store, call: BucketCall) -> bool:
    return await left(store, call) == call.capacity


async def test_tasks_that_check_and_lease_at_once_get_no_more_than_the_capacity(store: Store) -> None:
    call = bucket("crowd", 500)

    async def lessee() -> int:
        lease = await store.lease(call, 20)
        spent = lease.tokens // 2
        await store.lease(call, 0, [ReturnedLease(lease.edge_ms, lease.tokens, lease.tokens - spent)])
        return spent

    async def asker() -> int:
        return sum([await allowed(store, call) for _ in range(10)])

    done = await asyncio.gather(*(lessee() for _ in range(30)), *(asker() for _ in range(60)))
    assert sum(done) <= 500
    assert await left(store, call) == max(0, 500 - sum(done))


async def test_only_a_share_by_lease_is_leased_from_and_the_write_that_lowers_it_says_what_may_be_about(
    store: Store,
) -> None:
    call = bucket(
        "lent",
        2000,
        rate=Rate(100, 1),
        sharing=Sharing.ADAPTIVE,
        regions=2,
        largest_share=9900,
        domain="default",
        base_version=1,
        base=5000,
    )
    assert (await store.lease(call, 50)).tokens == 0  # at the floor
    writes = {}
    for point in await store.list_points():
        heard = await store.touch(point, NodeBeat("n", "i", "", 0, 1))
        until_us = heard.time_us + 20_000_000
        write = Write("nonce", "", 1, 1, until_us, True, {call.key: BASE}, True, 1, {"default": 5000})
        named = await store.write(point, write)
        writes[point] = replace(write, instance=named.instance)
        assert (await store.write(point, writes[point])).resting == ()
    assert (await store.lease(call, 50)).tokens == 0  # at the base

    async def write_all(version: int, share: int) -> list[tuple[str, ...]]:
        told = [replace(write, version=version, leases={call.key: share}) for write in writes.values()]
        replies = [await store.write(point, write) for point, write in zip(writes, told, strict=True)]
        assert [reply.accepted for reply in replies] == [True] * len(writes)
        return sorted(reply.resting for reply in replies)

    await write_all(2, 8000)
    await eventually("there is something to lease", lambda: _holds(store, call, 100), 5)
    lease = await store.lease(call, 8)
    assert (lease.tokens, lease.share, lease.share_kind) == (8, 8000, ShareKind.LEASE)
    assert 40_000 < lease.ends_in_us <= 100_000
    assert not any(await write_all(3, 9000))
    at_one_point = [()] * (len(writes) - 1) + [(call.key,)]  # only where the bucket is
    for version, share in ((4, 7000), (5, BASE), (6, 7000)):
        assert await write_all(version, share) == at_one_point


async def _holds(store: Store, call: BucketCall, tokens: int) -> bool:
    return await left(store, call) >= tokens


# ---- points


async def test_what_a_node_says_reaches_the_agent(store: Store) -> None:
    for point in await store.points():
        totals = {"default/r": RuleTotals(1, 2, 3, 4, 5)}
        beat = NodeBeat("n1", "i", "10.0.0.1:80", 4, -1, totals, {"rl:{x}:default/r:x": RuleTotals(1)})
        heard = await store.touch(point, beat)
        assert (heard.rules_version, heard.base_version, heard.nodes) == (-1, -1, 1)
        await store.offer(point, {"rl:{x}:default/r:x": 3})
        await store.offer(point, {"rl:{x}:default/r:x": 2, "rl:{y}:default/r:y": 1})
        collected = await store.collect(point)
        assert collected.demand == {"rl:{x}:default/r:x": 5, "rl:{y}:default/r:y": 1}
        assert [seen.beat for seen in collected.beats] == [beat]
        assert (await store.collect(point)).demand == {}


async def test_older_rules_never_replace_newer_ones(store: Store) -> None:
    point = (await store.points())[0]
    assert (await store.fetch_rules(point))[0] == -1
    for version in (4, 3, 4):
        await store.publish_rules(point, version, b"rules %d" % version)
        assert await store.fetch_rules(point) == (4, b"rules 4")


async def test_listed_points_are_those_that_nodes_use(store: Store) -> None:
    assert await store.list_points() == frozenset(await store.points())


async def test_a_share_is_in_force_with_the_accepted_write_that_carries_it(store: Store) -> None:
    call = bucket(
        "led",
        100,
        sharing=Sharing.ADAPTIVE,
        regions=2,
        largest_share=9900,
        domain="default",
        base_version=1,
        base=5000,
    )

    async def share() -> tuple[int, ShareKind]:
        verdict = (await store.check([replace(call, cost=0)]))[0]
        return verdict.share, verdict.share_kind

    # Of a point that was born just now the region's promise is assumed to hold: the floor.
    assert await share() == (100, ShareKind.FLOOR)
    for point in await store.list_points():
        heard = await store.touch(point, NodeBeat("n", "i", "", 0, 1))
        until_us = heard.time_us + 20_000_000
        write = Write("nonce", "", 1, 1, until_us, True, {call.key: 7000}, True, 1, {"default": 5000})
        named = await store.write(point, write)
        assert not named.accepted
        assert (await store.write(point, replace(write, instance=named.instance))).accepted
        assert not (await store.write(point, replace(write, instance=named.instance))).accepted
    assert await share() == (7000, ShareKind.LEASE)
    for point in await store.list_points():
        again = replace(write, instance="nonce", version=2, leases={call.key: BASE})
        assert (await store.write(point, again)).accepted
    assert await share() == (5000, ShareKind.BASE)


# ---- the lock


async def test_the_lock_has_one_holder_and_only_that_one_lets_go(store: Store) -> None:
    assert await store.hold_lock("a", 60_000)
    assert await store.hold_lock("a", 60_000)
    assert not await store.hold_lock("b", 60_000)
    await store.release_lock("b")
    assert not await store.hold_lock("b", 60_000)
    await store.release_lock("a")
    assert await store.hold_lock("b", 60_000)


async def test_a_lock_that_is_not_renewed_ends(store: Store) -> None:
    assert await store.hold_lock("a", 1)
    await eventually("the lock is free", lambda: store.hold_lock("b", 60_000), 5)


# ---- what is known of clients


async def looked_up(store: Store, client_key: str) -> SubjectFound:
    return await settled(lambda done: store.look_up("d", client_key, done))


async def test_what_is_known_of_clients_is_written_with_how_far_their_group_has_come(store: Store) -> None:
    same_group = [key for key in (f"c/{{{n}}} ü" for n in range(20_000)) if group_of("d", key) == 5][:50]
    gold = b'{"tier":"gold"}'
    assert await store.subject_positions() == [None] * GROUPS
    assert await store.write_subjects(5, [SubjectWrite("d", key, 3, gold) for key in same_group], (None, -7))
    assert await looked_up(store, same_group[0]) == SubjectFound(gold, False)
    assert (await store.subject_positions())[5] == -7
    assert not await store.write_subjects(5, [], (None, 50))  # somebody is filling it
    assert await store.write_subjects(5, [], (-7, 50))
    assert (await store.subject_positions())[5] == 50
    assert await looked_up(store, same_group[49]) == SubjectFound(gold, True)
    forget = [SubjectWrite("d", same_group[0], 4, b"")]
    assert not await store.write_subjects(5, forget, (49, 60))  # somebody else was here
    assert await looked_up(store, same_group[0]) == SubjectFound(gold, True)
    assert await store.write_subjects(5, forget, (50, 60))
    assert await store.write_subjects(5, [SubjectWrite("d", same_group[0], 3, gold)], (60, 60))  # too late
    assert await looked_up(store, same_group[0]) == SubjectFound(b"", True)
    assert await store.write_subjects(5, [SubjectWrite("d", same_group[0], 5, gold)], (60, 61))
    assert await looked_up(store, same_group[0]) == SubjectFound(gold, True)
    assert await store.write_subjects(5, [], (61, -9))  # it is filled anew
    assert await looked_up(store, same_group[0]) == SubjectFound(gold, False)
    assert (await store.subject_positions())[5] == -9
    assert await store.write_subjects(5, [], (-9, 7))
    assert (await store.subject_positions())[5] == 7
