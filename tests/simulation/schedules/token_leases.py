"""101 to 107: tokens that nodes leased under a share may be spent a little longer than the share is in force."""

from __future__ import annotations

from regional_limiter.model.share import SHARE_UNITS

from ..cast import Cast
from ..hand import GAP, K0, K1, Hand
from . import schedule

LIFE = 15


@schedule(101)
def a_smaller_lease_is_acknowledged_only_when_no_leased_token_is_left(cast: Cast) -> list[str]:
    h = Hand(cast, lease_life=LIFE)
    h.hot(1)
    h.lease(1, 0)
    h.require(h.share(1) == 66, f"the cut is not in force at once: {h.share(1)}")
    h.lease(0, SHARE_UNITS)
    h.check("the cut region's nodes still hold tokens")
    h.tick(LIFE)
    h.step(1)
    h.lease(0, SHARE_UNITS)
    h.check("rested")
    h.require(h.share(0) > 9000, f"no progress: {h.share(0)}")
    return h.bad


@schedule(102)
def a_lease_that_grows_again_does_not_hide_what_was_leased_before_it_fell(cast: Cast) -> list[str]:
    h = Hand(cast, lease_life=LIFE)
    h.hot(1)
    h.lease(1, 0)
    h.lease(1, 5000)
    h.lease(0, SHARE_UNITS)
    h.check("cut, and grown to less")
    h.tick(LIFE)
    h.step(1)
    h.lease(0, SHARE_UNITS)
    h.check("rested")
    h.require(h.share(0) > 4000, f"no progress: {h.share(0)}")
    return h.bad


@schedule(103)
def a_lease_that_falls_by_way_of_the_base_rests_as_well(cast: Cast) -> list[str]:
    h = Hand(cast, lease_life=LIFE)
    h.hot(1)
    h.put(h.leader.rest(h.now, K0))  # to BASE where it fits
    h.step(1)
    h.lease(1, 0)
    h.lease(0, SHARE_UNITS)
    h.check("by way of the base")
    h.tick(LIFE)
    h.step(1)
    h.lease(0, SHARE_UNITS)
    h.require(h.share(0) > 9000, f"no progress: {h.share(0)}")
    return h.bad


@schedule(104)
def a_share_whose_write_was_never_answered_rests_when_it_falls(cast: Cast) -> list[str]:
    h = Hand(cast, lease_life=LIFE)
    for i in (0, 2):
        h.lease(i, 0)
    h.run(20)
    h.put(h.leader.lease(h.now, K0, "r1", SHARE_UNITS))
    h.catch_up(1)
    h.arrive(1, h.write(1), answered=False)
    h.say(h.share(1) <= 9000, "no lending")
    h.lease(1, 0)
    h.lease(0, SHARE_UNITS)
    h.check("the agent never heard that the larger share was in force")
    return h.bad


@schedule(105)
def what_falls_from_a_base_or_was_not_leased_of_does_not_rest(cast: Cast) -> list[str]:
    h = Hand(cast, lease_life=LIFE)
    h.lease(1, 0)
    h.require(not h.resting, "a base is never leased from")
    h.lease(0, 5000)
    h.require(h.share(0) == 5000, f"slower than need be: {h.share(0)}")
    h.check("lent")
    return h.bad


@schedule(106)
def a_step_of_the_clock_hides_no_lease(cast: Cast) -> list[str]:
    """Forward by all that may go undetected, between the last lease and the write that lowers the share."""
    h = Hand(cast, lease_life=LIFE)
    h.hot(1)
    h.copy(1).clock.step(h.now, GAP - 1)
    h.lease(1, 0)
    h.lease(0, SHARE_UNITS)
    h.check("stepped")
    return h.bad


@schedule(107)
def a_new_session_ends_the_old_one_only_when_what_was_leased_of_it_is_over(cast: Cast) -> list[str]:
    h = Hand(cast, lease_life=LIFE)
    h.hot(1)
    h.new_agent(1)
    h.step(1)
    h.step(1)
    h.lease(1, 1000)
    h.lease(1, 1000, K1)  # of which nothing was leased: settled at once
    h.step(1)
    h.lease(0, SHARE_UNITS)
    h.check("nodes still hold tokens of the old session")
    h.tick(LIFE + 5)
    for i in (0, 1, 2):
        h.step(i)
        h.step(i)
    h.lease(0, SHARE_UNITS)
    h.check("rested")
    h.require(h.share(0) > 8000, f"no progress: {h.shares()}")
    return h.bad
