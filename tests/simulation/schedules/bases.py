"""40 to 56: bases fall with CONFIG and rise with DONE; until a region says otherwise its old base counts."""

from __future__ import annotations

from ..cast import Cast
from ..hand import D_C, EVEN, K0, K1, SKEWED, D, Hand
from ..plant import Node
from . import schedule


@schedule(40)
def hub_lost_between_config_and_done(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.configure(2, SKEWED)
    h.step(0)
    h.rest()
    h.check("at rest")
    return h.bad


@schedule(41)
def an_old_base_counts_until_it_is_acknowledged(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.configure(2, SKEWED)
    h.step(0)
    h.step(1)
    h.put(h.leader.done(h.now))
    h.step(0)
    h.check("one has not read it")
    h.rest()
    h.check("at rest")
    return h.bad


@schedule(42)
def a_base_is_acknowledged_only_when_every_node_has_stored_it(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.configure(2, SKEWED)
    h.step(0)
    h.step(1)
    h.catch_up(2)
    h.sync(2, nodes=False)
    h.report(2)
    h.put(h.leader.done(h.now))
    h.step(0)
    h.flip(2)
    h.rest()
    h.check("a promoted copy knows only what the nodes bring")
    return h.bad


@schedule(43)
def re_weighting_makes_progress(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.configure(2, SKEWED)
    h.run(100)
    h.require(h.is_even_at(SKEWED), f"{h.shares()}")
    h.rest()
    h.check("at rest")
    h.require(h.is_even_at(SKEWED), f"at rest {h.shares()}")
    return h.bad


@schedule(44)
def done_waits_until_the_leases_fit(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.configure(2, SKEWED)
    for i in range(3):
        h.step(i)
    h.put(h.leader.done(h.now))
    for i in range(3):
        h.step(i)
    h.check("higher floors beside a loan of all the rest")
    return h.bad


@schedule(45)
def done_waits_until_the_bases_fit(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.lease(1, 1600)
    h.lease(2, 0, K1)
    h.configure(2, SKEWED)
    h.step(0)
    h.step(1)
    h.put(h.leader.done(h.now))
    h.step(0)
    h.rest()
    h.check("a consent hid the old base of a region that was cut off")
    return h.bad


@schedule(46)
def an_older_config_is_refused(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.configure(2, SKEWED)
    h.run(60)
    h.require(h.configure(1, EVEN) == [], "an older CONFIG was written")
    h.run(60)
    return h.bad


@schedule(47)
def an_acknowledgement_of_an_older_config_lowers_nothing(cast: Cast) -> list[str]:
    h = Hand(cast, (5000, 2500, 2500))
    h.configure(2, EVEN)
    h.catch_up(0)
    h.sync(0)
    late = h.report(0, False)
    h.catch_up(1)
    h.catch_up(2)
    h.configure(3, (4200, 2500, 3300))
    position = len(h.log)
    h.put(h.leader.snapshot(h.now))
    h.put(h.leader.on_report(h.now, late))
    h.follow(h.leader)
    h.new_agent(0, position)
    h.catch_up(0)
    h.sync(0)
    h.report(0)
    h.catch_up(0)
    h.sync(0)
    for i in (1, 2):
        h.step(i)
    booked, written = h.leader.counts.ledger.base("shop", "r0"), h.agents[0].bases["shop"]
    h.require(written <= booked, f"base {written} in force, {booked} counted")
    return h.bad


@schedule(48)
def a_start_from_a_snapshot_between_config_and_done_raises_nothing(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.configure(2, SKEWED)
    h.step(0)
    position = len(h.log)
    h.put(h.leader.snapshot(h.now))
    h.follow(h.leader)
    h.new_agent(0, position)
    for _ in range(2):
        h.step(0)
    h.copy(0).lose()
    h.plants[0].nodes[0].version = 0
    h.tick(20)
    h.step(0)
    h.sync(0)
    h.rest()
    h.check("at rest")
    return h.bad


@schedule(49)
def a_takeover_keeps_an_unacknowledged_base(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.configure(2, SKEWED)
    h.step(0)
    h.step(1)
    other = h.lead(h.candidate())
    h.step(0, other)
    h.step(1, other)
    h.put(other.done(h.now))
    h.step(0, other)
    h.rest()
    h.check("at rest")
    return h.bad


@schedule(50)
def a_region_that_joins_has_no_base_before_done(cast: Cast) -> list[str]:
    h = Hand(cast, (5000, 5000, 0))
    h.configure(2, EVEN)
    for _ in range(2):
        h.step(2)
        h.check("joining")
    h.run(100)
    h.require(h.is_even_at(EVEN), f"{h.shares()}")
    return h.bad


@schedule(51)
def a_key_that_cannot_fit_does_not_end_the_loans_of_others(cast: Cast) -> list[str]:
    """A new leader has read of the old bases and the new ones, and does not know yet that the old ones are gone.

    Of a region that is cut off for good it never hears so.  By its count the bases alone are more than the whole.
    """
    h = Hand(cast)
    h.configure(2, SKEWED)
    h.run(100)
    h.lease(0, 6500)
    h.lease(0, 0, K1)
    h.run(20)
    h.lease(1, 5000, K1)
    h.say(h.share(1, K1) != 5000, f"set-up {h.shares(K1)}")
    other = h.lead(h.candidate())
    h.run(2 * D_C, only=[0, 1], leader=other)
    h.say(other.counts.total(K0, h.now) <= 10_000, "the first key fits")
    h.require(h.share(1, K1) == 5000, f"the loan is gone: {h.shares(K1)}")
    return h.bad


@schedule(52)
def a_little_above_base_is_a_loan(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.lease(2, 0)
    h.run(20)
    h.lease(1, 5000)
    h.run(2 * D_C, only=[0, 1])
    return h.bad


@schedule(53)
def a_process_without_session_far_behind_writes_no_base(cast: Cast) -> list[str]:
    h = Hand(cast)
    behind = len(h.log)
    h.configure(2, SKEWED)
    h.run(100)
    h.copy(2).lose()
    h.new_agent(2)
    for record in h.log[:behind]:
        h.agents[2].on_record(record)
    h.sync(2)
    h.sync(2)
    h.rest()
    h.check("at rest")
    h.sync(2, nodes=False)
    base = h.copy(2).ask(h.now, K0)
    h.require(h.share(0) + h.share(1) + base <= 10_000, f"it goes on writing: {h.shares()}, {base}")
    return h.bad


@schedule(54)
def a_deposed_process_brings_no_old_bases_back(cast: Cast) -> list[str]:
    h = Hand(cast)
    old = h.agents[2]
    h.new_agent(2)
    h.run(100)
    h.configure(2, SKEWED)
    h.run(100)
    h.say(not h.is_even_at(SKEWED), f"set-up {h.shares()}")
    h.flip(2)
    h.tick(20)
    now, h.agents[2] = h.agents[2], old  # it has read neither the newer CONFIG nor its successor's WELCOME
    for _ in range(3):
        h.sync(2, nodes=False)
    h.check("old writes into a lost variable")
    h.rest()
    h.check("at rest")
    h.agents[2] = now
    h.run(100)
    h.say(not h.is_even_at(SKEWED), f"in the end {h.shares()}")
    return h.bad


@schedule(55)
def a_process_without_session_brings_no_old_bases_to_new_nodes(cast: Cast) -> list[str]:
    """All that was stored in the region is lost, and a process starts that is far behind in the log."""
    h = Hand(cast)
    behind = len(h.log)
    h.configure(2, SKEWED)
    h.run(100)
    h.copy(2).lose()
    h.plants[2].nodes = [Node()]
    h.new_agent(2)
    for record in h.log[:behind]:
        h.agents[2].on_record(record)
    h.sync(2)
    h.sync(2)
    h.check("it has no session")
    h.rest()
    h.check("at rest")
    h.run(100)
    h.require(h.is_even_at(SKEWED), f"in the end {h.shares()}")
    return h.bad


@schedule(56)
def a_new_leader_that_hears_of_a_smaller_base_looks_at_the_loans_again(cast: Cast) -> list[str]:
    """By the bases that it has read of, r1 has no more than its own; by those in force r0 lends it most of that.

    r0 is cut off, and its consent ends.
    """
    h = Hand(cast, (1700, 6600, 1700))
    h.configure(2, SKEWED)
    h.run(100)
    h.lease(0, 0)
    h.run(20)
    h.lease(1, 6600)
    h.say(h.shares() != [132, 6600, 1700], f"set-up {h.shares()}")
    h.run(D_C - D // 2, only=[1, 2])
    other = h.lead(h.candidate())
    h.put(h.beat([1, 2], other))
    for i in (1, 2):
        h.report(i, other)  # they have not read of it yet
    h.put(h.beat([1, 2], other))
    for i in (1, 2):
        h.step(i, other)
    for _ in range(D // 20):
        h.tick(20)
        h.check("r0 rises to its base")
    h.require(h.share(0) == 6600, f"r0 is not at its base: {h.shares()}")
    return h.bad
