"""When a server is no longer asked."""

from __future__ import annotations

from regional_limiter.store.breaker import Breaker


def fail(breaker: Breaker, *times: float) -> None:
    for at in times:
        breaker.failed(at - 0.005, at)


def test_five_failures_within_a_second_open_it() -> None:
    breaker = Breaker()
    fail(breaker, 0.0, 0.1, 0.2, 0.3)
    assert breaker.admits(0.35)
    fail(breaker, 0.4)
    assert breaker.is_open
    assert not breaker.admits(0.5)


def test_five_failures_spread_over_more_than_a_second_do_not() -> None:
    breaker = Breaker()
    fail(breaker, 0.0, 0.3, 0.6, 0.9, 1.2)
    assert not breaker.is_open


def test_calls_that_failed_together_count_once() -> None:
    breaker = Breaker()
    for _ in range(100):
        breaker.failed(1.0, 1.008)
    assert not breaker.is_open


def test_a_success_in_between_forgives() -> None:
    breaker = Breaker()
    fail(breaker, 0.0, 0.1, 0.2, 0.3)
    breaker.succeeded()
    fail(breaker, 0.4)
    assert not breaker.is_open


def test_while_open_one_call_every_half_second_is_a_probe() -> None:
    breaker = Breaker()
    fail(breaker, 0.0, 0.1, 0.2, 0.3, 0.4)
    assert [at for at in (0.5, 0.8, 0.95, 1.0, 1.3, 1.5, 1.6) if breaker.admits(at)] == [0.95, 1.5]


def test_a_probe_that_is_answered_closes_it_at_once() -> None:
    breaker = Breaker()
    fail(breaker, 0.0, 0.1, 0.2, 0.3, 0.4)
    assert breaker.admits(1.0)
    breaker.succeeded()
    assert breaker.admits(1.0)
    assert not breaker.is_open


def test_a_probe_that_fails_leaves_it_open() -> None:
    breaker = Breaker()
    fail(breaker, 0.0, 0.1, 0.2, 0.3, 0.4)
    assert breaker.admits(1.0)
    fail(breaker, 1.01)
    assert not breaker.admits(1.02)
    assert breaker.opened == 1


def test_a_changed_topology_closes_it_at_once() -> None:
    breaker = Breaker()
    fail(breaker, 0.0, 0.1, 0.2, 0.3, 0.4)
    breaker.reset()
    assert breaker.admits(0.41)
