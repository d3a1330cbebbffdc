"""What must never happen is refused where it would happen, counted, and told once."""

from __future__ import annotations

from global_sync.protocol.invariants import Evidence
from global_sync.protocol.leader import LeaderSide
from global_sync.protocol.messages import Report
from regional_limiter.model.share import ProtocolTimes

TIMES = ProtocolTimes()
KEY = "rl:{0}:shop/all:a"


def leading() -> LeaderSide:
    side = LeaderSide("c", ["eu", "us"], TIMES)
    side.on_record(0, side.take_over(0, "nonce"), 0)
    for record in side.configure(0, 1, {"shop": {"eu": 5000, "us": 5000}}):
        side.on_record(0, record, 1)
    side.done(0)
    return side


def hello(region: str, echo: tuple[int, int] = (0, 0)) -> Report:
    return Report(region, f"agent of {region}", 0, 1, echo, 0, {})


def test_each_violation_is_told_once_and_a_flood_is_bounded() -> None:
    evidence = Evidence()
    assert evidence.require(True, "V1", "here", 1)
    for number in range(300):
        assert not evidence.require(False, "V1", "here", number)
    told = evidence.take_untold()
    assert [one.found for one in told] == [str(number) for number in range(200, 300)]
    assert evidence.take_untold() == []
    assert evidence.total == evidence.counts["V1"] == 300


def test_an_echo_of_a_time_that_has_not_come_is_no_consent() -> None:
    side = leading()
    side.on_report(1000, hello("eu", (side.epoch, 1001)))
    assert side.free("eu", 1000)
    assert side.evidence.counts == {"E": 1}
    side.on_report(1000, hello("eu", (side.epoch, 1000)))
    assert not side.free("eu", 1000)


def test_a_welcome_that_would_not_fit_is_refused() -> None:
    class Careless(LeaderSide):
        def _low(self, region: str, now_us: int) -> dict[str, int]:
            return {}

    side = leading()
    side.__class__ = Careless
    side.on_report(0, hello("eu"))
    side.on_report(0, Report("eu", "agent of eu", 1, 2, (0, 0), 3, {}))
    side.on_report(0, hello("us", (side.epoch, 0)))
    side.on_report(0, Report("us", "agent of us", 1, 2, (side.epoch, 0), 3, {}))
    cut = side.lease(1, KEY, "us", 100)
    assert cut
    seq = (side.epoch, cut[0].n)  # type: ignore[union-attr]
    side.on_report(2, Report("us", "agent of us", 1, 3, (side.epoch, 0), 3, {KEY: (seq, 100)}))
    assert side.lease(3, KEY, "eu", 9000)
    assert side.on_report(4, Report("us", "another of us", 0, 1, (side.epoch, 0), 3, {})) == []
    assert side.evidence.counts == {"V1": 1}
