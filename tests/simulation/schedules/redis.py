"""20 to 33: Redis loses its variable, changes its primary there and back, steps its clock."""

from __future__ import annotations

from regional_limiter.model.share import SHARE_UNITS

from ..cast import Cast
from ..hand import D_C, EVEN, GAP, K0, LESS, S_D, D, Hand
from . import schedule


@schedule(20)
def a_restart_while_the_base_is_lent_is_the_floor(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.copy(2).lose()
    h.check("before the first call")
    h.tick(20)
    h.check("after the first call")
    h.require(h.share(2) == 66, f"share {h.share(2)}")
    h.run(100)
    return h.bad


@schedule(21)
def a_restart_with_the_agent_dead_is_the_floor_then_the_base(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.copy(2).lose()
    h.tick(20)
    begin = h.now
    while h.now < begin + 2 * D_C:
        h.run(20, only=[0, 1])
        if h.now > begin + 200 and h.leader.lease_max(K0, "r1", h.now) > LESS:
            h.lease(1, LESS)
    h.require(h.share(2) == EVEN[2], "not at its base in the end")
    return h.bad


@schedule(22)
def there_and_back_slowly_the_old_variable_does_not_speak(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.flip(2)
    h.run(D_C + 500)
    h.hot(1)
    h.flip(2)
    h.check("before the first call")
    h.tick(20)
    h.check("after the first call")
    return h.bad


@schedule(23)
def there_and_back_within_the_gap_nothing_has_been_acknowledged(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(2)
    h.run(100)
    h.flip(2)
    h.now += 5
    h.copy(2, 1).touch(h.now)
    h.put(h.leader.lease(h.now, K0, "r2", 0))
    h.catch_up(2)
    for _ in range(3):
        h.sync(2, nodes=False)
        h.report(2)
    h.lease(1, 9000)
    h.flip(2)
    h.now += 5
    h.check("back")
    return h.bad


def _growing(h: Hand, i: int) -> object:
    """A write that carries a large lease, prepared but not yet on its way; the lease is then taken back."""
    for other in range(3):
        if other != i:
            h.lease(other, 0)
    h.run(20)
    h.put(h.leader.lease(h.now, K0, f"r{i}", SHARE_UNITS))
    h.catch_up(i)
    h.list_points(i)
    write = h.write(i)
    assert write is not None
    assert write.leases
    h.sync(i)
    h.report(i)
    h.run(20)
    return write


@schedule(24)
def a_write_for_another_instance_is_refused(cast: Cast) -> list[str]:
    h = Hand(cast)
    write = _growing(h, 2)
    h.lease(2, 0)
    h.lease(1, 9000)
    h.copy(2, 1).clock.step(h.now, -50_000)
    h.flip(2)
    h.copy(2, 1).touch(h.now, h.plants[2].nodes[0])
    h.arrive(2, write, answered=False)  # type: ignore[arg-type]
    h.check("a late write on the promoted copy")
    return h.bad


@schedule(25)
def a_promoted_copy_that_never_saw_the_shrink_holds_the_floor(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(2)
    h.lease(2, 0)
    h.lease(1, 9000)
    h.flip(2)
    for _ in range(2):
        h.catch_up(2)
        h.list_points(2)
        h.arrive(2, h.write(2, limit=0))
        h.report(2)
        h.put(h.beat([2]))
        h.check("promoted")
    return h.bad


@schedule(26)
def all_known_is_said_only_after_the_values(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.flip(2)
    for _ in range(3):
        h.catch_up(2)
        h.list_points(2)
        h.arrive(2, h.write(2, limit=0))
        h.report(2)
        h.put(h.beat([2]))
        h.check("values not written yet")
    h.run(100)
    return h.bad


@schedule(27)
def a_late_write_of_the_same_session_is_refused(cast: Cast) -> list[str]:
    h = Hand(cast)
    write = _growing(h, 2)
    h.lease(2, 0)
    h.lease(1, 9000)
    h.arrive(2, write, answered=False)  # type: ignore[arg-type]
    h.check("a late write")
    return h.bad


@schedule(28)
def a_lease_returns_soon_after_a_failover(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.flip(1)
    h.check("promoted")
    h.run(60)
    h.require(h.share(1) > EVEN[1], f"the lease did not come back: {h.share(1)}")
    return h.bad


@schedule(29)
def a_step_of_three_consents_is_caught_at_the_next_call(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.copy(2).clock.step(h.now, 3 * D_C)
    h.check("before the first call")
    h.tick(20)
    h.check("after the first call")
    return h.bad


@schedule(30)
def a_basis_read_on_the_old_copy_renews_nothing_on_the_new(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(2)
    h.report(2)
    h.copy(2, 1).clock.step(h.now, -1200)
    h.flip(2)
    h.sync(2)
    h.put(h.beat([2]))
    h.catch_up(2)
    h.sync(2)
    h.others_live(S_D + 30, only=[0, 1])
    h.lease(1, 8000)
    h.check("after the session")
    return h.bad


@schedule(31)
def an_agent_without_a_session_writes_nothing(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(1)
    h.copy(2).lose()
    h.new_agent(2)
    for _ in range(3):
        h.sync(2)
        h.check("no session")
    h.catch_up(2)
    h.sync(2)
    h.check("log read, no session")
    return h.bad


@schedule(32)
def a_beat_read_just_before_the_end_renews_from_the_report(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(2)
    h.report(2)
    beat, begin = h.beat([2]), h.now
    while h.now < begin + D - 15:
        h.tick(20)
        h.put(h.beat([0, 1]))
        h.step(0)
        h.step(1)
        h.sync(2)
    h.put(beat)
    h.catch_up(2)
    h.sync(2)
    h.tick(GAP + 80)
    h.put(h.beat([0, 1]))
    h.step(0)
    h.step(1)
    h.report(1)
    h.lease(1, 9000)
    h.sync(2)
    h.check("after the end")
    return h.bad


@schedule(33)
def there_and_back_with_a_step_back_by_the_gap(cast: Cast) -> list[str]:
    h = Hand(cast)
    h.hot(2)
    h.run(100)
    h.flip(2)
    h.put(h.leader.lease(h.now, K0, "r2", 0))
    h.catch_up(2)
    begin = h.now
    while h.now < begin + GAP + 25:
        h.now += 5
        for i in range(3):
            h.plants[i].touch(h.now)
        h.sync(2, nodes=False)
    h.report(2)
    h.lease(1, 9000)
    h.copy(2).clock.step(h.now, -GAP)
    h.flip(2)
    h.now += 1
    h.check("back")
    return h.bad
