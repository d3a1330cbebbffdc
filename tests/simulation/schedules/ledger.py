"""130 on: what the ledger forgets and what it must not: destroyed regions, snapshots in parts, keys at base."""

from __future__ import annotations

from global_sync.protocol.messages import Record, Welcome
from regional_limiter.model.enforcement import BASE
from regional_limiter.model.share import SHARE_UNITS

from ..cast import Cast
from ..hand import D_C, K0, K1, LESS, S_D, Hand
from . import schedule


def _destroyed(cast: Cast) -> Hand:
    """Region 2 is destroyed, its session over, and the operator has said so."""
    h = Hand(cast)
    h.destroy(2)
    h.run(S_D + 100, only=(0, 1))
    h.put(h.leader.gone(h.now, "r2"))
    h.follow(h.leader)
    return h


@schedule(130)
def the_base_of_a_destroyed_region_goes_to_the_others(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.destroy(2)
    h.run(S_D + D_C, only=(0, 1))
    h.lease(0, 0)
    h.lease(1, SHARE_UNITS)
    h.require(h.share(1) < 7000, "the base of a region that may live was lent")
    h.put(h.leader.gone(h.now, "r2"))
    h.follow(h.leader)
    h.lease(1, SHARE_UNITS)
    h.require(h.share(1) > 9000, f"its base is not lent: {h.share(1)}")
    h.check("lent")
    h.lease(1, 0)
    h.configure(2, (6000, 4000, 0))
    h.run(200, only=(0, 1))
    h.require(h.leader.done_version == 2, "no DONE without the destroyed region")
    h.check("its base is the others'")
    return h.bad


@schedule(131)
def who_may_still_live_is_not_taken_for_destroyed(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(2)
    h.put(h.leader.gone(h.now, "r2"))
    h.follow(h.leader)
    h.lease(1, SHARE_UNITS)
    h.check("r2 lives on")
    return h.bad


@schedule(132)
def a_destroyed_region_stays_so_after_a_snapshot_and_a_takeover(cast: Cast) -> list[str]:
    h = _destroyed(cast)
    first = len(h.log)
    h.put(h.leader.snapshot(h.now))
    h.follow(h.leader)
    other = h.lead(h.candidate(first))
    h.run(60, only=(0, 1), leader=other)
    h.require(other.count(K0, "r2", h.now) == 0, f"it counts: {other.count(K0, 'r2', h.now)}")
    h.plants[2] = Hand(cast, boot=False).plants[2]  # it was not true: something of it says hello
    h.new_agent(2, first)
    h.catch_up(2)
    h.sync(2)
    h.sync(2)
    h.report(2, other)
    h.require(not any(_is_of(record, "r2") for record in h.log[first:]), "it was welcomed again")
    h.require(other.heard_of_gone == {"r2"}, "nobody is told")
    return h.bad


def _is_of(record: Record, region: str) -> bool:
    return isinstance(record, Welcome) and record.region == region


@schedule(133)
def what_was_said_to_a_destroyed_region_and_lands_late_counts_nothing(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.new_agent(2)
    h.catch_up(2)
    h.sync(2)
    report = h.report(2, False)
    welcome = h.leader.on_report(h.now, report)  # not in the log yet
    h.destroy(2)
    h.run(S_D + 100, only=(0, 1))
    h.put(h.leader.gone(h.now, "r2"))
    h.put(welcome)
    h.follow(h.leader)
    other = h.lead(h.candidate())
    h.run(60, only=(0, 1), leader=other)
    h.require(other.count(K0, "r2", h.now) == 0, f"it counts: {other.count(K0, 'r2', h.now)}")
    return h.bad


@schedule(134)
def a_region_that_reads_of_its_own_end_comes_down_to_nothing(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.run(S_D + 100, only=(0, 1))  # r2 hears nothing for a while
    h.put(h.leader.gone(h.now, "r2"))
    h.follow(h.leader)
    h.catch_up(2)
    h.require(set(h.agents[2].bases.values()) == {0}, f"{h.agents[2].bases}")
    return h.bad


# ---- snapshots in parts


def _two_loans(h: Hand) -> None:
    for key in (K0, K1):
        for i in (0, 2):
            h.lease(i, 0, key)
        h.run(20)
        h.lease(1, SHARE_UNITS, key)
    h.say(min(h.share(1, K0), h.share(1, K1)) < 9000, "no lending")


@schedule(140)
def a_snapshot_counts_only_with_its_last_part(cast: Cast) -> list[str]:
    h = Hand(cast)
    _two_loans(h)
    first = len(h.log)
    parts = h.leader.snapshot(h.now, 1)
    h.say(len(parts) < 2, "the snapshot is in one part")
    for part in parts:
        h.put([part])
        h.put(h.beat(()))
    h.follow(h.leader)
    other = h.lead(h.candidate(first))
    for key in (K0, K1):
        for i in range(3):
            share, count = h.share(i, key), other.count(key, f"r{i}", h.now)
            h.require(share <= count, f"r{i} has {share} of {key}, counted {count}")
    return h.bad


@schedule(141)
def a_repeat_of_an_older_snapshot_is_void(cast: Cast) -> list[str]:
    h = Hand(cast)
    old = h.put(h.leader.snapshot(h.now, 1))
    h.follow(h.leader)
    _two_loans(h)
    first = len(h.log)
    h.put(h.leader.snapshot(h.now, 1))
    h.put(old)
    h.follow(h.leader)
    other = h.lead(h.candidate(first))
    share, count = h.share(1), other.count(K0, "r1", h.now)
    h.require(share <= count, f"r1 has {share}, counted {count}")
    return h.bad


# ---- keys


@schedule(142)
def a_key_at_a_number_that_is_the_base_is_not_forgotten(cast: Cast) -> list[str]:
    """The number stays when the base falls."""
    h = Hand(cast)
    h.lease(1, 3300)
    h.run(40)
    h.put(h.leader.tend(h.now))
    h.configure(2, (6600, 1700, 1700))
    h.run(200)
    h.check("the base has fallen, the lease has not")
    h.say(h.share(1) != 3300, "no lease of its own")
    return h.bad


@schedule(143)
def a_repeated_answer_of_a_forgotten_key_answers_no_later_record(cast: Cast) -> list[str]:
    """Found by a seed of the whole system (1004): the answer "BASE" was repeated until its receipt came."""
    h = Hand(cast)
    h.lease(1, 100)
    h.put(h.leader.lease(h.now, K0, "r1", BASE))
    h.step(1)
    h.put(h.leader.tend(h.now))
    h.say(K0 in h.leader.keys, "the key is not forgotten")
    h.put(h.leader.lease(h.now, K0, "r1", 0))  # r1 reads nothing of it
    h.report(1)
    share, count = h.share(1), h.leader.count(K0, "r1", h.now)
    h.require(share <= count, f"r1 has {share}, counted {count}")
    h.lease(0, SHARE_UNITS)
    h.check("r1 is at its base")
    return h.bad


@schedule(144)
def an_answer_that_was_long_under_way_is_not_of_the_key_s_next_life(cast: Cast) -> list[str]:
    """Found by reading: a send that was given up may be written when the key is forgotten and opened again."""
    h = Hand(cast)
    h.put(h.leader.lease(h.now, K0, "r1", 100))
    h.catch_up(1)
    h.sync(1)
    late = h.report(1, leader=False)
    h.step(1)
    h.put(h.leader.lease(h.now, K0, "r1", BASE))
    h.step(1)
    h.put(h.leader.tend(h.now))
    h.say(K0 in h.leader.keys, "the key is not forgotten")
    h.put(h.leader.lease(h.now, K0, "r1", 50))  # r1 reads nothing of it
    assert late is not None
    h.put(h.leader.on_report(h.now, late))
    share, count = h.share(1), h.leader.count(K0, "r1", h.now)
    h.require(share <= count, f"r1 has {share}, counted {count}")
    h.lease(0, SHARE_UNITS)
    h.check("r1 is at its base")
    return h.bad


@schedule(145)
def what_a_welcome_left_is_not_said_again_of_a_key_that_is_at_base_since(cast: Cast) -> list[str]:
    """A region that starts with less repeats so, and one of the repeats comes when all is at base again."""
    h = Hand(cast)
    h.lease(1, 0)
    h.lease(0, LESS)
    h.new_agent(1)
    for _ in range(2):
        h.step(1)
    late = h.report(1, leader=False)
    h.step(1)
    h.lease(0, BASE)
    h.run(40)
    h.lease(1, BASE)
    h.run(40)
    h.put(h.leader.tend(h.now))
    h.say(K0 in h.leader.keys, "the key is not forgotten")
    h.say(h.share(1) != 3300, "r1 is not at its base")
    assert late is not None
    h.put(h.leader.on_report(h.now, late))
    h.lease(0, SHARE_UNITS)
    h.check("r1 is at its base")
    return h.bad


def _wrongly_destroyed(cast: Cast) -> Hand:
    """Region 2 was only cut off; its base is lent out, and it has read of its own end."""
    h = Hand(cast)
    h.run(S_D + 100, only=(0, 1))
    h.put(h.leader.gone(h.now, "r2"))
    h.follow(h.leader)
    h.step(2)
    h.say(h.share(2) != 0, f"it has not come down: {h.share(2)}")
    h.lease(0, 0)
    h.lease(1, SHARE_UNITS)
    h.check("its base is lent")
    return h


@schedule(146)
def a_region_wrongly_said_to_be_destroyed_gets_no_base_by_a_later_configuration(cast: Cast) -> list[str]:
    h = _wrongly_destroyed(cast)
    h.configure(2, (3400, 3200, 3400))  # the set still names it
    for _ in range(20):
        h.tick(20)
        h.put(h.beat((0, 1)))
        for i in range(3):
            h.step(i)
        h.put(h.leader.done(h.now))
    h.require(h.leader.done_version == 2, "no DONE without it")
    h.require(set(h.agents[2].bases.values()) == {0}, f"{h.agents[2].bases}")
    h.check("its agent has read CONFIG and DONE")
    h.rest()
    h.check("at rest")
    return h.bad


@schedule(147)
def a_region_wrongly_said_to_be_destroyed_gets_no_base_by_a_snapshot(cast: Cast) -> list[str]:
    h = _wrongly_destroyed(cast)
    first = len(h.log)
    h.put(h.leader.snapshot(h.now))
    h.follow(h.leader)
    h.new_agent(2, first)  # all that it reads is what the snapshot says, and what comes after
    h.configure(2, (3400, 3200, 3400))
    h.run(60, only=(0, 1))
    h.catch_up(2)
    h.require(set(h.agents[2].bases.values()) == {0}, f"{h.agents[2].bases}")
    return h.bad


@schedule(148)
def a_region_wrongly_said_to_be_destroyed_stays_down_when_a_copy_takes_over(cast: Cast) -> list[str]:
    h = _wrongly_destroyed(cast)
    h.new_agent(2)  # nobody welcomes it
    h.step(2)
    h.flip(2)  # this copy knows only what the nodes bring
    h.tick(20)
    h.check("before its agent has written anything there")
    h.rest()
    h.check("at rest")
    h.require(h.share(2) == 0, f"it has {h.share(2)}")
    return h.bad
