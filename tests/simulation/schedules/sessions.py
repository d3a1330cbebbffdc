"""60 to 80: sessions, takeovers, records that are late, swapped, repeated or void, snapshots."""

from __future__ import annotations

from dataclasses import replace

from regional_limiter.model.enforcement import BASE
from regional_limiter.model.share import SHARE_UNITS

from ..cast import Cast
from ..hand import EVEN, GAP, K0, LESS, S_D, D, Hand
from . import schedule

AFTER_THE_SESSION = S_D + 40


def _floors(h: Hand, *regions: int) -> None:
    for i in regions:
        h.lease(i, 0)
    h.run(40)


def _echo(h: Hand, leader: object, *regions: int) -> None:
    """Consents reach a new leader: one round to read its time, one to settle and report it."""
    for _ in range(2):
        for i in regions:
            h.step(i, leader)


@schedule(60)
def a_new_session_does_not_take_back_a_base_that_is_lent(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.new_agent(2)
    h.sync(2)
    h.step(2)
    h.step(2)
    h.check("welcomed")
    h.run(60)
    return h.bad


@schedule(61)
def the_old_session_still_counts(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.new_agent(1)
    h.sync(1)
    h.report(1)
    h.lease(0, 7500)
    h.check("the old lease is in force")
    return h.bad


@schedule(62)
def a_takeover_counts_old_sessions(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.new_agent(1)
    h.sync(1)
    h.report(1)
    other = h.lead(h.candidate())
    _echo(h, other, 0, 2)
    h.lease(0, 7500, leader=other)
    h.check("the old lease is in force")
    return h.bad


@schedule(63)
def a_keep_after_a_release_that_the_leader_does_not_know(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(0)
    late = h.report(0, False)
    h.agents[0].release(K0, 1600)
    h.sync(0)
    h.report(0)
    h.lease(1, 6600)
    h.check("released")
    other = h.lead(h.candidate())
    other.on_report(h.now, late)
    h.put(other.lease(h.now, K0, "r0", 5000))
    h.catch_up(0)
    h.sync(0)
    h.check("KEEP 5,000 of a lease that is 1,600 by now")
    return h.bad


@schedule(64)
def a_zombies_grow_is_void(cast: Cast) -> list[str]:
    h = Hand(cast)
    _floors(h, 0, 2)
    zombie = h.leader.lease(h.now, K0, "r1", 7500)
    other = h.lead(h.candidate())
    _echo(h, other, 0, 1, 2)
    h.lease(0, 6600, leader=other)
    h.put(zombie)
    h.catch_up(1)
    h.sync(1)
    h.check("after the zombie's record")
    return h.bad


@schedule(65)
def two_marks_with_one_number_make_one_leader(cast: Cast) -> list[str]:
    h = Hand(cast)
    other = h.candidate()
    h.follow(other)
    h.follow(h.leader)
    h.put([h.leader.take_over(h.now, "a"), other.take_over(h.now, "b")])
    h.follow(h.leader)
    h.follow(other)
    h.require(not (h.leader.active and other.active), "two leaders")
    h.require(h.leader.active or other.active, "no leader")
    return h.bad


@schedule(66)
def swapped_appends_follow_their_seq(cast: Cast) -> list[str]:
    h = Hand(cast)
    _floors(h, 0, 2)
    grow = h.leader.lease(h.now, K0, "r1", 7500)
    h.put(h.leader.lease(h.now, K0, "r1", 1600))
    h.catch_up(1)
    h.sync(1)
    h.report(1)
    h.lease(0, 6600)
    h.put(grow)
    h.catch_up(1)
    h.sync(1)
    h.check("the older record came last")
    return h.bad


@schedule(67)
def a_record_of_the_old_session_is_void(cast: Cast) -> list[str]:
    h = Hand(cast)
    _floors(h, 0, 2)
    old = h.leader.lease(h.now, K0, "r1", 7500)
    h.new_agent(1)
    h.step(1)
    h.put(old)
    h.catch_up(1)
    h.sync(1)
    h.report(1)
    h.run(AFTER_THE_SESSION)
    h.lease(0, 6600)
    h.check("old record, new session")
    return h.bad


@schedule(68)
def a_report_of_the_old_session_is_no_renewal(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.run(300)
    report = h.report(1, False)
    assert report is not None
    old = replace(report, basis=10**6)  # an older process has counted further
    h.new_agent(1)
    h.sync(1)
    h.step(1)
    h.sync(1)
    h.report(1)
    h.leader.on_report(h.now, old)
    h.follow(h.leader)
    beat = h.beat([1])[0]
    renewed = beat.renewals.get("r1", (0, 0))  # type: ignore[union-attr]
    h.require(renewed[1] != 10**6, "the basis of another process was taken")
    return h.bad


@schedule(69)
def a_shrink_that_is_not_acknowledged_still_counts_at_its_old_value(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.put(h.leader.lease(h.now, K0, "r1", 1600))
    h.lease(0, 7500)
    h.check("shrink unread")
    other = h.lead(h.candidate())
    _echo(h, other, 0, 2)
    h.lease(0, 7500, leader=other)
    h.check("shrink unread, takeover")
    return h.bad


@schedule(70)
def a_release_counts_when_it_is_enforced(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.agents[1].release(K0, 1600)
    h.report(1)
    h.lease(0, 7500)
    h.check("released but not written")
    return h.bad


@schedule(71)
def a_deposed_agent_is_silent(cast: Cast) -> list[str]:
    h = Hand(cast)
    old = h.agents[1]
    h.new_agent(1)
    h.sync(1)
    h.report(1)
    position, h.agents[1], h.read[1] = h.read[1], old, 0
    h.catch_up(1)
    h.require(old.report() is None and h.write(1) is None, f"a deposed agent acts (at {position})")
    return h.bad


@schedule(72)
def a_snapshot_keeps_every_record(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.put(h.leader.lease(h.now, K0, "r1", 1600))
    position = len(h.log)
    h.put(h.leader.snapshot(h.now))
    h.follow(h.leader)
    h.require(h.leader.trim_before == position, f"trim before {h.leader.trim_before}")
    other = h.lead(h.candidate(position))
    _echo(h, other, 0, 2)
    h.lease(0, 7500, leader=other)
    h.check("shrink unread, start from the snapshot")
    return h.bad


@schedule(73)
def nothing_overtakes_a_snapshot(cast: Cast) -> list[str]:
    h = Hand(cast)
    _floors(h, 0, 2)
    snapshot = h.leader.snapshot(h.now)
    h.put(h.leader.lease(h.now, K0, "r1", 7500))
    position = len(h.log)
    h.put(snapshot)
    h.catch_up(1)
    h.sync(1)
    other = h.lead(h.candidate(position))
    _echo(h, other, 0, 2)
    h.lease(0, 7500, leader=other)
    h.check("a record that the snapshot does not know")
    return h.bad


@schedule(74)
def nobody_leads_before_its_mark_is_back(cast: Cast) -> list[str]:
    h = Hand(cast)
    _floors(h, 0, 2)
    other = h.candidate()
    h.follow(other)
    mark = other.take_over(h.now, "early")
    h.lease(1, 7500)
    if other.active:
        h.put([mark])
        _echo(h, other, 0, 2)
        h.report(1, other)
        h.lease(0, 7500, leader=other)
    h.check("a record between MARK's append and its reading")
    return h.bad


@schedule(75)
def a_slow_redis_clock_keeps_its_session_longer(cast: Cast) -> list[str]:
    h = Hand(cast, ppm=(0, -4000, 0))
    h.hot(1)
    h.report(1)
    h.put(h.beat([1]))
    h.catch_up(1)
    h.sync(1)
    begin = h.now
    while h.now < begin + D + 3:
        h.tick(1)
    share, count = h.share(1), h.leader.count(K0, "r1", h.now)
    h.require(share <= count, f"{share} in force, {count} counted")
    return h.bad


@schedule(76)
def the_leaders_clock_is_read_after_the_report(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    begin = h.now
    h.others_live(600, only=[0, 2])
    h.sync(1)
    stale = begin if cast.broken == "stale_now_coord" else h.now
    h.report(1, now=stale)
    left_out = ["r0", "r2"]
    h.put(h.leader.beat(stale, left_out))
    h.catch_up(1)
    h.sync(1)
    while h.now < begin + S_D + 30:
        h.others_live(20, only=[0, 2])
    h.lease(0, 7500)
    h.sync(1)
    h.check("after the session by a stale reading")
    return h.bad


@schedule(77)
def a_lapsed_session_gets_a_new_one(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.tick(S_D + 100)
    h.run(100)
    h.hot(1)
    return h.bad


@schedule(78)
def a_late_write_of_an_old_session_is_refused(cast: Cast) -> list[str]:
    h = Hand(cast)
    _floors(h, 0, 2)
    h.put(h.leader.lease(h.now, K0, "r1", SHARE_UNITS))
    h.catch_up(1)
    h.list_points(1)
    write = h.write(1)
    h.sync(1)
    h.new_agent(1)
    h.sync(1)
    h.step(1)
    h.lease(1, 0)
    h.run(AFTER_THE_SESSION)
    h.lease(0, 6600)
    h.arrive(1, write, answered=False)
    h.check("a late write of the old session")
    return h.bad


@schedule(79)
def a_renewal_of_another_session_is_not_mine(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.report(1)
    old = h.beat([1])
    basis = old[0].renewals["r1"][1]  # type: ignore[union-attr]
    h.new_agent(1)
    h.sync(1)
    h.step(1)
    h.lease(1, SHARE_UNITS)
    begin = h.now
    h.others_live(800, only=[0, 2])
    h.sync(1)
    while h.agents[1].report().basis < basis + 5:
        pass
    h.put(old)
    h.catch_up(1)
    h.sync(1)
    while h.now < begin + S_D + 30:
        h.others_live(20, only=[0, 2])
        h.sync(1)
    h.lease(0, 7500)
    h.check("after the session by an old beat")
    return h.bad


@schedule(80)
def a_welcome_lost_behind_a_snapshot_means_a_session_in_the_end(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.new_agent(2)
    h.catch_up(2)
    h.sync(2)
    welcome = h.leader.on_report(h.now, h.report(2, False))
    position = len(h.log)
    h.put(h.leader.snapshot(h.now))
    h.follow(h.leader)
    other = h.lead(h.candidate(position))
    h.put(welcome)
    h.follow(other)
    h.run(S_D + 60, leader=other)
    h.run(60, leader=other)
    h.require(h.agents[2].session > 0, "no session")
    return h.bad


@schedule(81)
def a_process_whose_successor_vanished_before_it_was_heard_gets_a_session(cast: Cast) -> list[str]:
    h = Hand(cast)
    old = h.agents[2]
    h.new_agent(2)
    h.catch_up(2)
    h.sync(2)
    h.leader.on_report(h.now, h.report(2, False))  # the WELCOME never lands, the new process dies
    h.agents[2] = old
    h.run(S_D + 60)
    h.run(60)
    h.require(old.session == h.leader.counts.ledger.current["r2"], f"session {old.session}")
    h.require(not old.deposed, "deposed")
    return h.bad


@schedule(82)
def a_new_session_that_no_point_has_yet_does_not_end_the_old_one(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.new_agent(1)
    h.catch_up(1)
    h.sync(1)
    h.report(1)  # hello
    h.catch_up(1)  # the WELCOME; nothing of it is written yet
    h.report(1)
    h.put(h.leader.lease(h.now, K0, "r1", 3300))
    h.report(1)
    h.tick(20)
    h.lease(0, 7500)
    h.check("the old lease is in force")
    return h.bad


@schedule(83)
def a_new_session_that_every_point_has_ends_the_old_one_at_once(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.new_agent(1)
    h.step(1)
    h.step(1)
    h.lease(1, 1000)
    h.tick(GAP - 10)
    for i in (0, 1, 2):
        h.step(i)
        h.step(i)
    h.lease(0, LESS)
    h.check("the old lease is gone")
    h.require(h.share(0) == LESS, f"{h.shares()}")
    return h.bad


@schedule(84)
def after_a_restart_of_everything_nobody_waits_at_the_floor_for_sessions_that_are_long_dead(
    cast: Cast,
) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.rest()
    for i in (0, 1, 2):
        h.new_agent(i)
    other = h.lead(h.candidate())
    began = h.now
    while h.now < began + 200:
        h.put(h.beat([0, 1, 2], other))
        for i in (0, 1, 2):
            h.step(i, other)
        h.put(other.lease(h.now, K0, "r1", EVEN[1] - 1))
        for region in ("r0", "r2"):
            h.put(other.lease(h.now, K0, region, BASE))
        h.tick(20)
        h.check("restarting")
    h.require(h.shares() == [EVEN[0], EVEN[1] - 1, EVEN[2]], f"{h.shares()}")
    return h.bad
