"""1 to 15: a region's base is lent by its consent, for bounded time, and comes back by itself."""

from __future__ import annotations

from global_sync.protocol.messages import Report
from regional_limiter.model.share import SHARE_UNITS

from ..cast import Cast
from ..hand import D_C, EVEN, K0, K1, LESS, S_D, D, Hand
from . import schedule


@schedule(1)
def a_silent_region_ends_at_its_base_and_the_others_keep_the_rest(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    begin = h.now
    while h.now < begin + 2 * D_C:
        h.run(20, only=[0, 1])
        if h.leader.lease_max(K0, "r1", h.now) > LESS and h.now > begin + 200:
            h.lease(1, LESS)
    h.require(h.share(2) == EVEN[2], f"the lost region is not at its base: {h.share(2)}")
    h.require(h.share(1) == LESS, f"the other lost its lease: {h.share(1)}")
    return h.bad


@schedule(2)
def without_a_cut_everyone_lapses_before_the_consent_ends(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.run(2 * D_C, only=[0, 1])
    return h.bad


@schedule(3)
def a_lost_hub_leaves_the_floor_then_the_static_split_then_lending_again(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.tick(D + 80)
    h.require(h.shares() == [68, 66, 66], f"not at the floor: {h.shares()}")
    for _ in range(2 * D_C // 20):
        h.tick(20)
        h.check("hub lost")
        for i in range(3):
            h.sync(i)  # the agents live on and keep writing
    h.require(h.is_even_at(EVEN), f"no static split: {h.shares()}")
    h.run(300)
    h.hot(1)
    h.require(h.share(1) > EVEN[1], "no lending after the cut")
    return h.bad


@schedule(4)
def a_beat_that_was_read_but_not_written_lends_nothing(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.run(2 * D_C, only=[0, 1])
    h.say(h.share(2) != EVEN[2], "region 2 does not rest at its base")
    h.put(h.beat([]))
    h.catch_up(2)
    h.report(2)
    h.run(S_D + 20, only=[0, 1])
    h.lease(0, 0)
    h.lease(1, SHARE_UNITS)
    h.check("after the grow")
    return h.bad


@schedule(5)
def a_grow_counts_free_regions_at_their_base(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.run(2 * D_C, only=[0, 1])
    h.lease(0, 0)
    h.lease(1, SHARE_UNITS)
    h.check("after the grow")
    return h.bad


@schedule(6)
def a_takeover_knows_no_consent(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.run(2 * D_C, only=[0, 1])
    other = h.lead(h.candidate())
    h.run(S_D + 20, only=[0, 1], leader=other)
    h.lease(0, 0, leader=other)
    h.lease(1, SHARE_UNITS, leader=other)
    h.check("after the grow")
    return h.bad


@schedule(7)
def an_echo_of_another_leaders_clock_is_no_consent(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.run(2 * D_C, only=[0, 1])
    other = h.lead(h.candidate())
    agent = h.agents[2]
    late = Report("r2", agent.agent_id, agent.session, 10**6, (1, h.now + 5000), 2, {})
    other.on_report(h.now, late)
    h.run(S_D + 20, only=[0, 1], leader=other)
    h.lease(0, 0, leader=other)
    h.lease(1, SHARE_UNITS, leader=other)
    h.check("after the grow")
    return h.bad


@schedule(8)
def a_takeover_renews_nothing_past_unknown_consents(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    other = h.lead(h.candidate())  # region 2 is cut from here on
    h.run(2 * D_C, only=[0, 1], leader=other)
    return h.bad


@schedule(9)
def one_old_report_repeated_for_ever_extends_no_consent(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    old, cut = h.report(2, False), h.now
    while h.now < cut + 3 * D_C:
        h.run(20, only=[0, 1])
        if h.now % 100 < 20:
            h.leader.on_report(h.now, old)
    return h.bad


@schedule(10)
def a_fast_redis_clock_ends_its_consent_early(cast: Cast) -> list[str]:
    h = Hand(cast, ppm=(0, 0, 4000))
    h.hot(1)
    h.put(h.beat([0, 1, 2]))
    h.step(2)
    copy, over = h.copy(2), h.now
    while copy.clock.read(over) < copy.variable.consent:
        over += 1
    counted = h.leader.counts.consent("r2")
    h.require(counted <= over, f"the leader relies on the consent for {counted - over} too long")
    return h.bad


@schedule(11)
def a_renewal_needs_every_key_to_fit(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.lease(0, 0, K1)
    h.lease(2, 0, K1)
    h.run(20)
    h.lease(1, SHARE_UNITS, K1)
    h.run(2 * D_C, only=[0, 1])
    return h.bad


@schedule(12)
def a_consent_alive_now_but_over_before_the_session_is_not_relied_on(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.lease(1, EVEN[1])
    h.run(60)
    cut = h.now
    while h.now < cut + D_C - D // 2:
        h.run(20, only=[0, 1])
    h.lease(0, 0)
    h.lease(1, SHARE_UNITS)
    h.tick(D // 2 - 200)
    for _ in range(30):
        h.tick(20)
        h.check("around the consent's end")
    return h.bad


@schedule(13)
def one_silent_and_one_deaf_region_stop_all_renewals_in_time(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    cut = h.now
    while h.now < cut + 2 * D_C:
        h.tick(20)
        h.follow(h.leader)
        h.put(h.beat([0, 1]))
        h.step(0)
        h.report(1)
        if h.now > cut + 200 and h.leader.lease_max(K0, "r1", h.now) > LESS and h.now % 100 < 20:
            h.put(h.leader.lease(h.now, K0, "r1", LESS))
        h.check("deaf")
    return h.bad


@schedule(14)
def loans_last_until_shortly_before_the_consent_ends(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.put(h.beat([0, 1, 2]))
    h.step(2)
    while h.now < h.leader.counts.consent("r2") - 150:
        h.run(20, only=[0, 1])
    h.require(h.share(1) > 9000, f"the loan is gone {h.leader.consent_left('r2', h.now)} early")
    h.lease(1, LESS)
    h.run(2 * D, only=[0, 1])
    h.require(h.shares() == [68, LESS, EVEN[2]], f"{h.shares()}")
    return h.bad


@schedule(15)
def regions_turn_free_also_while_only_old_echoes_come(cast: Cast) -> list[str]:
    """Two regions are cut off after they have echoed a new leader's clock; the third does not read the log, so its
    reports extend no consent."""
    h = Hand(cast)
    h.hot(1)
    other = h.lead(h.candidate())
    for _ in range(2):
        h.put(h.beat([0, 2], other))
        for i in (0, 2):
            h.step(i, other)
        h.tick(20)
    h.say(any(other.free(name, h.now) for name in ("r0", "r2")), "they have not echoed")
    for _ in range((D_C - D // 2) // 20):
        h.tick(20)
        h.sync(1)
        h.report(1, other)
        h.put(h.beat([1], other))
    h.step(1, other)
    for _ in range(D // 20):
        h.tick(20)
        h.check("the two rise to their bases")
    h.require([h.share(0), h.share(2)] == [EVEN[0], EVEN[2]], f"they are not at their bases: {h.shares()}")
    return h.bad
