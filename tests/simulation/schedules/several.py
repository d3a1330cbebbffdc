"""90 on: several points in a region, listings, keys that come and go, records that get lost.

These are not in the one-shard model: what settles has to hold at every point of the region.
"""

from __future__ import annotations

from global_sync.protocol.messages import LeaseRecord, Want
from regional_limiter.model.enforcement import BASE
from regional_limiter.model.share import SHARE_UNITS

from ..cast import Cast
from ..hand import EVEN, K0, S_D, Hand
from . import schedule


def _two_shards(cast: Cast) -> Hand:
    return Hand(cast, shards=2)


@schedule(90)
def a_shrink_settles_only_when_every_point_has_it(cast: Cast) -> list[str]:
    h = _two_shards(cast)
    h.hot(1)
    h.put(h.leader.lease(h.now, K0, "r1", 0))
    h.catch_up(1)
    h.list_points(1)
    first, _ = sorted(h.plants[1].points())
    h.arrive(1, h.write(1, point=first), point=first)
    h.list_points(1)
    h.report(1)
    h.lease(0, SHARE_UNITS)
    h.check("one of two points has the shrink")
    return h.bad


@schedule(91)
def a_point_that_the_listing_does_not_name_yet_may_hold_an_older_lease(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.list_points(1)
    h.plants[1].shards += Hand(cast, boot=False, shards=1).plants[1].shards
    new = max(h.plants[1].points())
    h.plants[1].touch(h.now)
    for _ in range(8):  # the new point is written with the loan, by a listing that names it
        h.tick(20)
        h.put(h.beat([0, 1, 2]))
        for i in range(3):
            h.step(i)
    h.say(h.copy(1).share(h.now, K0, []) < 9000, "set-up: no loan at the old point")
    token = h.agents[
        1
    ].listing_started()  # a slow listing, begun before the shrink is read: it misses the new point
    old_listing = {point for point in h.plants[1].points() if point != new}
    h.put(h.leader.lease(h.now, K0, "r1", 0))
    h.catch_up(1)
    for point in sorted(old_listing):
        h.arrive(1, h.write(1, point=point), point=point)
    h.agents[1].on_listing(token, old_listing, None)
    h.report(1)
    h.lease(0, SHARE_UNITS)
    h.check("settled by a listing from before the shrink")
    return h.bad


@schedule(92)
def an_unreachable_point_settles_nothing_until_it_is_no_longer_listed(cast: Cast) -> list[str]:
    h = _two_shards(cast)
    echo = h.agents[1].settled_echo
    for _ in range(5):
        h.tick(20)
        h.put(h.beat([0, 1, 2]))
        h.catch_up(1)
        h.list_points(1)
        reachable = min(h.plants[1].points())
        h.arrive(1, h.write(1, point=reachable), point=reachable)
        h.list_points(1)
    h.require(h.agents[1].settled_echo == echo, "settled without the second point")
    del h.plants[1].shards[1]
    h.list_points(1)
    h.require(h.agents[1].settled_echo > echo, "nothing settles without a point that is gone")
    return h.bad


@schedule(93)
def a_key_back_at_base_is_forgotten_by_both_sides_and_can_come_again(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    for _ in range(8):
        h.put(h.leader.rest(h.now, K0))
        h.run(20)
        h.put(h.leader.tend(h.now))
    h.run(60)
    h.require(K0 not in h.leader.keys, "the leader still knows the key")
    h.require(all(K0 not in agent.shares() for agent in h.agents), "an agent still knows the key")
    h.require(h.is_even_at(EVEN), f"{h.shares()}")
    h.hot(2)
    return h.bad


@schedule(94)
def a_late_record_of_a_forgotten_key_is_void(cast: Cast) -> list[str]:
    h = Hand(cast)
    for i in (0, 2):
        h.lease(i, 0)
    h.run(20)
    grow = h.lease(1, SHARE_UNITS)
    for _ in range(8):
        h.put(h.leader.rest(h.now, K0))
        h.run(20)
        h.put(h.leader.tend(h.now))
    h.run(60)
    h.put(grow)
    h.run(40)
    h.require(h.is_even_at(EVEN), f"{h.shares()}")
    return h.bad


@schedule(95)
def a_record_that_got_lost_is_said_again_as_a_keep(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.leader.lease(h.now, K0, "r0", 0)  # never lands
    h.require(len(h.leader.unacked(h.now + 1)) == 1, "nothing waits")
    h.run(60)
    h.put(h.leader.tend(h.now))
    h.run(20)
    h.require(h.share(0) == 68, f"{h.share(0)}")
    h.require(h.leader.unacked(h.now) == [], "still waiting")
    return h.bad


@schedule(96)
def a_new_leader_brings_home_keys_that_the_agents_have_forgotten(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    for _ in range(8):
        h.put(h.leader.rest(h.now, K0))
        h.run(20)
        h.put(h.leader.tend(h.now))
    h.run(60)
    other = h.lead(h.candidate())  # reads the whole log: every record counts, and nobody will acknowledge them
    h.run(60, leader=other)
    h.require(K0 in other.keys, "set-up: the log's records do not count")
    for _ in range(12):
        h.put(other.rest(h.now, K0))
        h.run(20, leader=other)
        h.put(other.tend(h.now))
    h.require(K0 not in other.keys, "the key is not forgotten")
    h.require(h.is_even_at(EVEN), f"{h.shares()}")
    return h.bad


@schedule(97)
def a_release_falls_with_the_base(cast: Cast) -> list[str]:
    """Released to 3,000 of a base of 3,400; then the base falls to 1,700 and is acknowledged first."""
    h = Hand(cast)
    h.agents[1].release(K0, 3000)
    h.catch_up(1)
    h.sync(1)  # in force, not reported
    h.configure(2, (6600, 1700, 1700))
    h.step(0)
    h.step(2)
    h.catch_up(1)
    h.list_points(1)
    h.arrive(1, h.write(1, limit=0))  # the base arrives, the key does not
    h.plants[1].touch(h.now)
    h.list_points(1)
    report = h.agents[1].report(0)  # the acknowledgement of the base, without the key
    h.put(h.leader.on_report(h.now, report))
    share, count = h.share(1), h.leader.count(K0, "r1", h.now)
    h.require(share <= count, f"{share} in force, {count} counted")
    h.run(100)
    h.require(h.share(0) == 6600, "re-weighting makes no progress")
    return h.bad


@schedule(98)
def wants_of_an_older_report_do_not_replace_newer_ones(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.agents[0].set_want(K0, Want(7000, 9000))
    old = h.report(0, False)
    h.agents[0].set_want(K0, Want(100, 9000))
    h.report(0)
    h.leader.on_report(h.now, old)
    h.require(h.leader.wants(K0) == {"r0": Want(100, 9000)}, f"{h.leader.wants(K0)}")
    h.agents[0].set_want(K0, Want(0, 0))
    h.report(0)
    h.require(h.leader.wants(K0) == {}, f"{h.leader.wants(K0)}")
    return h.bad


@schedule(99)
def a_base_grow_is_refused_while_it_is_lent(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.require(h.leader.lease(h.now, K0, "r2", BASE) == [], "BASE without room")
    granted = h.leader.lease(h.now, K0, "r2", 5000)
    h.require(all(r.value <= 66 for r in granted if isinstance(r, LeaseRecord)), f"{granted}")
    h.tick(S_D)
    return h.bad
