"""170 to 175: a floor that a set names falls with CONFIG and rises with DONE, as a base does."""

from __future__ import annotations

from ..cast import Cast
from ..hand import D_C, EVEN, GAP, K0, D, Hand
from . import schedule

LARGE = (1700, 1650, 1650)
"""Half of each base."""


@schedule(170)
def a_larger_floor_waits_for_room(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.configure(2, EVEN, floors=LARGE)
    for _ in range(2):
        for i in range(3):
            h.step(i)
        h.put(h.leader.done(h.now))
        h.check("beside a loan of nearly all")
    h.lease(1, 10_000 - LARGE[0] - LARGE[2])
    h.put(h.leader.done(h.now))
    for i in range(3):
        h.step(i)
    h.check("with room")
    h.require(h.shares() == [LARGE[0], 10_000 - LARGE[0] - LARGE[2], LARGE[2]], f"{h.shares()}")
    return h.bad


@schedule(171)
def a_floor_that_falls_counts_until_it_is_acknowledged(cast: Cast) -> list[str]:
    h = Hand(cast, floors=LARGE)
    for i in (0, 2):
        h.lease(i, 0)
    h.run(20)
    h.configure(2, EVEN)
    h.step(0)
    h.step(1)
    h.put(h.leader.done(h.now))
    h.lease(1, 10_000)
    h.check("one has not read of it")
    h.step(2)
    h.lease(1, 10_000)
    h.check("all have")
    h.require(h.share(1) > 9000, f"{h.shares()}")
    return h.bad


@schedule(172)
def a_region_that_is_cut_off_has_its_named_floor_and_then_its_base(cast: Cast) -> list[str]:
    h = Hand(cast, floors=LARGE)
    for i in (0, 2):
        h.lease(i, 0)
    h.run(20)
    h.lease(1, 10_000)
    h.say(h.share(1) < 6500, f"no lending: {h.shares()}")
    h.run(D + GAP, only=[0, 1])
    h.require(h.plants[2].shards[0].copy.ask(h.now, K0) == LARGE[2], f"after its session {h.shares()}")
    h.run(D_C, only=[0, 1])
    h.require(h.share(2) == EVEN[2], f"after its consent {h.shares()}")
    return h.bad


@schedule(173)
def a_new_leader_knows_the_floors_of_a_snapshot(cast: Cast) -> list[str]:
    h = Hand(cast, floors=LARGE)
    for i in (0, 2):
        h.lease(i, 0)
    h.run(20)
    position = len(h.log)
    h.put(h.leader.snapshot(h.now))
    h.follow(h.leader)
    other = h.lead(h.candidate(position))
    h.run(100, leader=other)
    h.lease(1, 10_000, leader=other)
    h.say(h.share(1) < 6500, f"no lending: {h.shares()}")
    h.check("after a takeover")
    return h.bad


@schedule(174)
def a_deposed_process_brings_no_old_floors_back(cast: Cast) -> list[str]:
    h = Hand(cast, floors=LARGE)
    old = h.agents[2]
    h.new_agent(2)
    h.run(100)
    h.configure(2, EVEN)
    h.run(100)
    h.hot(1)
    h.say(h.share(1) < 9000, f"set-up {h.shares()}")
    h.flip(2)
    h.tick(20)
    h.agents[2] = old  # it has read neither the newer CONFIG nor its successor's WELCOME
    for _ in range(3):
        h.sync(2, nodes=False)
    floor = h.plants[2].shards[0].copy.ask(h.now, K0)
    h.require(h.share(0) + h.share(1) + floor <= 10_000, f"old writes into a lost variable: {h.shares()}, {floor}")
    return h.bad


@schedule(175)
def a_floor_is_acknowledged_only_when_every_node_has_stored_it(cast: Cast) -> list[str]:
    h = Hand(cast, floors=LARGE)
    for i in (0, 2):
        h.lease(i, 0)
    h.run(20)
    h.configure(2, EVEN)
    h.step(0)
    h.step(1)
    h.catch_up(2)
    h.sync(2, nodes=False)
    h.report(2)
    h.put(h.leader.done(h.now))
    h.lease(1, 10_000)
    h.flip(2)
    h.tick(20)
    h.check("a promoted copy knows only what the nodes bring")
    return h.bad
