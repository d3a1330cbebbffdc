"""What the sync of many keys costs: the leader's processor, the agent's, and the bytes of reports.  Not a test.

    python -m tests.bench.shares [--keys 5000] [--seconds 6]

5,000 interesting keys over five regions whose demand keeps moving; and one region's part of 1,000,000 requests a
second over 2,000,000 keys by Zipf's law (exponent 1), each key limited to 100 a second.  Processor time as a part
of a core; the aims are half a core for leader and agent, and 100 kB a second for a region's reports.
"""

from __future__ import annotations

import argparse
import sys
import time
from math import log
from random import Random

from global_sync import codec
from global_sync.allocation.demand import DemandEstimator
from global_sync.policy import LeaderPolicy
from global_sync.protocol.leader import LeaderSide
from global_sync.protocol.messages import Record, Want
from global_sync.protocol.region import RegionSide
from regional_limiter.model.enforcement import Enforcement
from regional_limiter.model.rule import Rate
from regional_limiter.model.share import ProtocolTimes

TIMES = ProtocolTimes()
REGIONS = [f"r{number}" for number in range(1, 6)]
STEP_US = 50_000
WARM_STEPS = 200
MOVED_A_STEP = 0.005
CORE_MOST, REPORT_BYTES_MOST = 0.5, 100_000
ZIPF_KEYS, ZIPF_REQUESTS, ZIPF_LIMIT = 2_000_000, 1_000_000, 100
ZIPF_SEEN = 5_000


def key_of(number: int) -> str:
    return f"rl:{{{number:08x}}}:default/orders:customer-{number}"


class World:
    """Five regions and a leader without any distance; only the leader's calls are timed."""

    def __init__(self, keys: int) -> None:
        self.keys = [key_of(number) for number in range(keys)]
        self.now_us = 100_000_000
        self.leader, self.policy = LeaderSide("c", [], TIMES), LeaderPolicy(TIMES)
        self.sides = {name: RegionSide(name, f"agent-{name}", TIMES) for name in REGIONS}
        self.points = {name: Enforcement(TIMES) for name in REGIONS}
        self.offset = self.records = self.bytes = 0
        self.spent_s = 0.0
        self.append([self.leader.take_over(self.now_us, "nonce")])
        self.append(self.leader.configure(self.now_us, 1, {"default": dict.fromkeys(REGIONS, 2000)}))

    def append(self, records: list[Record]) -> None:
        began_s = time.process_time()
        size = sum(map(len, codec.encode_batches(records))) if records else 0
        for record in records:
            self.leader.on_record(self.now_us, record, self.offset)
            self.offset += 1
        self.spent_s += time.process_time() - began_s
        self.records, self.bytes = self.records + len(records), self.bytes + size
        for side in self.sides.values():
            for record in records:
                side.on_record(record)

    def step(self, *, beat: bool) -> None:
        self.now_us += STEP_US
        for name, side in self.sides.items():
            self._write(name, side)
            report = side.report() if side.news or beat else None
            if report is not None:
                value = codec.encode_report(report)
                self.append(
                    self._timed(lambda value=value: self.leader.on_report(self.now_us, codec.decode_report(value)))
                )
        self.append(self._timed(lambda: self.leader.done(self.now_us)))
        self.append(self._timed(lambda: self.policy.step(self.now_us, self.leader)))
        if beat:
            self.append(
                self._timed(lambda: self.leader.beat(self.now_us, self.policy.leave_out(self.now_us, self.leader)))
            )

    def _write(self, name: str, side: RegionSide) -> None:
        side.on_listing(side.listing_started(), ["p"], side.base_version)
        for _ in range(20):
            write = side.prepare_write("p", f"nonce{self.now_us}")
            if write is None:
                return
            side.on_reply("p", self.points[name].write(self.now_us, write))
            if not side.needs_write("p"):
                return

    def _timed(self, act):  # type: ignore[no-untyped-def]
        began_s = time.process_time()
        result = act()
        self.spent_s += time.process_time() - began_s
        return result


def leader(keys: int, seconds: float) -> float:
    """The leader's part of a core."""
    world, random = World(keys), Random(1)
    steps = round(seconds * 1_000_000 / STEP_US)
    for number in range(WARM_STEPS + steps):
        if number == WARM_STEPS:
            world.spent_s, world.records, world.bytes = 0.0, 0, 0
        if number >= 60:
            moved = world.keys if number == 60 else random.sample(world.keys, round(MOVED_A_STEP * keys))
            for side in world.sides.values():
                for key in moved:
                    want = random.choice((300, 1500, 3000, 9000))
                    side.set_want(key, Want(want, want))
        world.step(beat=number % 7 == 0)
    part = world.spent_s / seconds
    changes = round(MOVED_A_STEP * keys * len(REGIONS) * 1_000_000 / STEP_US)
    print(
        f"leader: {keys} keys, {changes} wants and {world.records / seconds:.0f} records a second "
        f"({world.bytes / seconds / 1000:.0f} kB/s): {part:.2f} of a core"
    )
    return part


def region(seconds: float) -> tuple[float, float]:
    """The estimator's part of a core, and the bytes a second of one region's reports."""
    random, side = Random(2), RegionSide("r1", "agent", TIMES)
    point = Enforcement(TIMES)
    estimator = DemandEstimator(lambda _: Rate(ZIPF_LIMIT, 1000), lambda _: (2000, False))
    total = log(ZIPF_KEYS) + 0.5772
    rates = [ZIPF_REQUESTS / len(REGIONS) / total / rank for rank in range(1, ZIPF_SEEN + 1)]
    # What keeps half of its base is of no interest to anyone.
    busy = [(key_of(rank), rate) for rank, rate in enumerate(rates) if rate > ZIPF_LIMIT / len(REGIONS) / 2]
    now_us, size, spent_s = 100_000_000, 0, 0.0
    warm = 100
    for step in range(warm + round(seconds * 1_000_000 / STEP_US)):
        now_us += STEP_US
        for key, rate in busy:
            mean = rate * STEP_US / 1_000_000
            estimator.offer(key, max(0, round(random.gauss(mean, mean**0.5))), now_us)
        began_s = time.process_time()
        wants = estimator.tick(now_us)
        for key, want in wants.items():
            side.set_want(key, want)
        spent_s += time.process_time() - began_s if step >= warm else 0.0
        side.on_listing(side.listing_started(), ["p"], side.base_version)
        write = side.prepare_write("p", f"n{now_us}")
        if write is not None:
            side.on_reply("p", point.write(now_us, write))
        report = side.report() if side.news else None
        if report is not None:
            size += len(codec.encode_report(report)) if step >= warm else 0
            side._unreported_wants.clear()  # as a receipt would
    print(
        f"region: {len(busy)} of {ZIPF_KEYS} keys are of interest; reports {size / seconds / 1000:.1f} kB/s, "
        f"demand {spent_s / seconds:.2f} of a core"
    )
    return spent_s / seconds, size / seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=6.0)
    arguments = parser.parse_args()
    part = leader(arguments.keys, arguments.seconds)
    agent_part, size = region(arguments.seconds)
    missed = [part > CORE_MOST, agent_part > CORE_MOST, size > REPORT_BYTES_MOST]
    print(f"shares: {sum(missed)} of {len(missed)} aims missed" if any(missed) else "shares: all aims reached")
    return int(any(missed))


if __name__ == "__main__":
    sys.exit(main())
