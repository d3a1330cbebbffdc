"""What the simulated world says of a point is what a call there would use."""

from __future__ import annotations

from regional_limiter.model.enforcement import Write
from regional_limiter.model.share import floor_of

from .hand import K0
from .plant import Clock, Copy, Node, ticks

BASE, LEASE = 2500, 8000


def test_a_lease_that_lives_again_after_a_small_step_back_is_seen() -> None:
    copy, node = Copy(ticks(), Clock()), Node(1, {"shop": BASE})
    keys, nodes = [K0], [node]
    now = 10_000
    for now in range(10_000, 10_400, 30):
        copy.touch(now, node)
    born = copy.write(now, Write("a", "", 0, 0, 0, False, {}, False, 0, {}))
    until = copy.clock.read(now) + 40
    leases = {K0: LEASE}
    reply = copy.write(now, Write("b", born.instance, 1, 1, until, True, leases, True, 1, {"shop": BASE}))
    assert reply.accepted
    assert copy.shares(now, keys, nodes) == [LEASE]
    now += 41
    assert copy.shares(now, keys, nodes) == [floor_of(BASE)]
    copy.clock.step(now, -20)  # by less than the gap, to a moment after the last call: nothing notices
    assert copy.shares(now, keys, nodes) == [copy.ask(now, K0)] == [LEASE]
