"""Whatever can be read from the log or a report, no order of it makes a side raise, or break its own invariants."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from global_sync.protocol.leader import LeaderSide
from global_sync.protocol.messages import Record, Report
from global_sync.protocol.region import RegionSide
from regional_limiter.model.enforcement import Enforcement
from regional_limiter.model.share import ProtocolTimes

from .test_codec import records, reports

TIMES = ProtocolTimes()
NAMES = ("eu", "us")


def plausible(record: Record, name: str) -> Record:
    """The same record in an epoch and region that are looked at."""
    changes = {"epoch": 1} if hasattr(record, "epoch") else {}
    if hasattr(record, "region"):
        changes |= {"region": name}
    if hasattr(record, "session"):
        changes |= {"session": record.session % 3}
    if hasattr(record, "agent"):
        changes |= {"agent": "me"}
    return replace(record, **changes)  # type: ignore[arg-type]


names = st.sampled_from(NAMES)
some_records = st.lists(st.tuples(records, names, st.booleans()), max_size=12)


@given(some_records, st.integers(0, 2**40))
def test_a_region_reads_anything(sent: list[tuple[Record, str, bool]], now: int) -> None:
    side, redis = RegionSide("eu", "me", TIMES), Enforcement(TIMES)
    for number, (record, name, tamed) in enumerate(sent):
        side.on_record(plausible(record, name) if tamed else record)
        side.on_listing(side.listing_started(), ["p"], side.base_version)
        write = side.prepare_write("p", f"n{number}")
        if write:
            side.on_reply("p", redis.write(now + number * 300_000, write))
        side.release("rl:{0}:shop/all:a", 5)
        side.report()
    assert side.evidence.total == 0


@given(some_records, st.lists(st.tuples(reports, names), max_size=12), st.integers(0, 2**40))
def test_a_leader_takes_anything(
    sent: list[tuple[Record, str, bool]], told: list[tuple[Report, str]], now: int
) -> None:
    side = LeaderSide("c", NAMES, TIMES)
    for number, (record, name, tamed) in enumerate(sent):
        side.on_record(now, plausible(record, name) if tamed else record, number)
    side.on_record(now, side.take_over(now, "nonce"), len(sent))
    if side.active:
        side.configure(now, side.config_version + 1, {"shop": {"eu": 5000, "us": 5000}})
    for number, (report, name) in enumerate(told):
        now += 100_000
        tamed = replace(report, region=name, session=report.session % 3, agent=f"agent{report.basis % 2}")
        side.on_report(now, tamed)
        for key in [*report.settled, "rl:{0}:shop/all:a"]:
            side.lease(now, key, name, number * 900)
            side.rest(now, key)
        side.beat(now)
        side.tend(now)
        side.done(now)
    side.snapshot(now, 2)
    assert side.evidence.counts["V3"] == side.evidence.counts["V4"] == 0
