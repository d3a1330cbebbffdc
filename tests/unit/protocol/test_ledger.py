"""The folded ledger counts what a replay of every record would count, and a snapshot is the ledger verbatim."""

from __future__ import annotations

import random

from global_sync.codec import encode_records
from global_sync.protocol.counts import Bases, Counts
from global_sync.protocol.ledger import AGENTS_KEPT, Ledger, domain_of
from global_sync.protocol.messages import Config, Done, Kind, LeaseRecord, Welcome
from global_sync.protocol.snapshots import SnapshotParts
from regional_limiter.model.enforcement import BASE
from regional_limiter.model.share import ProtocolTimes, floor_name, floor_of

TIMES = ProtocolTimes()
KEY, OTHER = "rl:{0}:shop/all:a", "rl:{1}:shop/all:b"


def lease(n: int, value: int, session: int = 1, region: str = "r", key: str = KEY) -> LeaseRecord:
    return LeaseRecord(1, n, key, region, session, Kind.GROW, value)


def welcome(n: int, session: int, low: dict[str, int] | None = None, agent: str = "", region: str = "r") -> Welcome:
    return Welcome(1, n, region, agent or f"agent{session}", session, 1, low or {})


def with_base(base: int = 4000) -> Ledger:
    ledger = Ledger()
    ledger.book_config(Config(1, 1, {"shop": {"r": base, "s": 10_000 - base}}))
    ledger.book_done(Done(1, 1))
    return ledger


def held(ledger: Ledger, key: str = KEY, region: str = "r") -> int:
    return Counts(ledger, TIMES, 0).lease_max(key, region, 1)


def test_the_base_of_a_session_counts_until_its_first_record_is_answered() -> None:
    ledger = with_base()
    ledger.book_welcome(welcome(1, 1))
    assert held(ledger) == 4000
    ledger.book_lease(lease(2, 100))
    assert held(ledger) == 4000
    assert held(ledger, OTHER) == 4000


def test_a_welcome_that_comes_after_its_first_record_still_counts_the_base() -> None:
    ledger = with_base()
    ledger.book_lease(lease(2, 100))
    assert held(ledger) == 0
    ledger.book_welcome(welcome(1, 1))
    assert held(ledger) == 4000


def test_a_low_start_opens_the_key_and_leaves_the_others_at_base() -> None:
    ledger = with_base()
    ledger.book_welcome(welcome(1, 1))
    ledger.book_welcome(welcome(2, 2, {KEY: 30}))
    assert [(e.value, e.session) for e in ledger.keys[KEY]["r"]] == [(BASE, 1), (30, 2)]
    assert held(ledger, OTHER) == 4000


def test_a_covered_record_is_dropped_and_a_repeat_adds_nothing() -> None:
    ledger = with_base()
    for record in (lease(5, 300), lease(5, 300), lease(4, 200), lease(7, 100), lease(6, 250), lease(8, 100)):
        ledger.book_lease(record)
    assert [(e.seq[1], e.value) for e in ledger.keys[KEY]["r"]] == [(5, 300), (6, 250), (8, 100)]


def test_folding_counts_what_a_list_of_all_records_would_count() -> None:
    """Also after acknowledgements: for every seq that a region may answer, the largest that remains is the same."""
    source = random.Random(5)
    for _ in range(300):
        ledger, plain = with_base(), []
        for n in range(1, source.randint(2, 12)):
            record = lease(n, source.choice([BASE, 0, 100, 3000, 5000, 9000]))
            plain.append(record)
        source.shuffle(plain)
        for record in plain:
            ledger.book_lease(record)
        entries = ledger.keys[KEY]["r"]
        for answered in range(13):
            left = [r.value for r in plain if r.n >= answered]
            kept = [e.value for e in entries if e.seq[1] >= answered]
            for base in (0, 4000, 10_000):
                expected = max((base if v == BASE else v for v in left), default=-1)
                assert max((base if v == BASE else v for v in kept), default=-1) == expected


def test_a_snapshot_is_the_ledger_without_the_dead() -> None:
    ledger = with_base()
    for number in (1, 2):
        ledger.book_welcome(welcome(number, number))
    ledger.book_lease(lease(3, 100, session=2))
    ledger.book_lease(lease(4, 50, session=2, key=OTHER))
    counts = Counts(ledger, TIMES, 0)
    counts.ledger.sessions["r", 1].end_us = 5
    parts = ledger.to_snapshot(1, 1, 10, keys_per_part=1)
    assert [part.part for part in parts] == [0, 1]
    reader = SnapshotParts()
    assert reader.add(parts[1], 8) is None
    assert reader.add(parts[1], 9) is None
    whole = reader.add(parts[0], 10)
    assert whole is not None
    assert reader.first_offset == 8
    copy = Ledger.from_snapshot(whole)
    assert copy.keys.keys() == {KEY, OTHER}
    assert [(e.value, e.implicit) for e in copy.keys[KEY]["r"]] == [(BASE, True), (100, False)]
    assert (copy.current, copy.agents, copy.booked, copy.done_version) == (
        {"r": 2},
        {"r": {"agent1": 1, "agent2": 2}},
        {"shop": {"r": 4000, "s": 6000}},
        1,
    )


def test_a_repeated_snapshot_does_not_forget_what_came_after_it() -> None:
    parts = with_base().to_snapshot(1, 1, 0, 10)
    reader = SnapshotParts()
    assert reader.add(parts[0]) is not None
    assert reader.add(parts[0]) is None
    newer = with_base().to_snapshot(1, 2, 0, 10)
    assert reader.add(newer[0]) is not None


def test_agents_are_bounded_and_the_newest_stay() -> None:
    ledger = Ledger()
    for number in range(1, 40):
        ledger.book_welcome(welcome(number, number))
    assert sorted(ledger.agents["r"].values()) == list(range(40 - AGENTS_KEPT, 40))


def test_a_string_that_is_no_bucket_key_belongs_to_a_domain_without_bases() -> None:
    assert [domain_of(key) for key in ("", "x", "rl:{0}", "rl:{0}:shop/all:a")] == ["", "", "", "shop"]


def test_booked_bases_fall_only_by_acknowledgement_and_rise_only_by_done() -> None:
    ledger = with_base(4000)
    ledger.book_config(Config(1, 2, {"shop": {"r": 1000, "s": 9000}}))
    assert ledger.booked["shop"] == {"r": 4000, "s": 6000}
    ledger.lower_booked("r")
    assert ledger.booked["shop"] == {"r": 1000, "s": 6000}
    ledger.book_done(Done(1, 1))
    assert ledger.booked["shop"] == {"r": 1000, "s": 6000}
    ledger.book_done(Done(1, 2))
    assert ledger.booked["shop"] == {"r": 1000, "s": 9000}


def plain_total(counts: Counts, key: str, now: int, booked: Bases) -> tuple[int, bool]:
    """The sum of what regions may be using of ``key``, and whether nobody has more leased than its base."""
    ledger, domain = counts.ledger, domain_of(key)
    total, is_at_rest = 0, True
    for region in {"r", "s", "t"}:
        base, floor = booked.get(domain, {}).get(region, 0), booked.get(floor_name(domain), {}).get(region, 0)
        alive = [
            number for (name, number), known in ledger.sessions.items() if name == region and now < known.end_us
        ]
        held = [entry for entry in ledger.keys[key].get(region, []) if entry.session in alive]
        lease = max((base if entry.value == BASE else entry.value for entry in held), default=0)
        total += max(lease, base if counts.free(region, now) else floor_of(base, floor))
        is_at_rest = is_at_rest and lease <= base
    return total, is_at_rest


def change(source: random.Random, counts: Counts, n: int, now: int) -> None:
    ledger, region, session = counts.ledger, source.choice("rst"), source.choice([1, 2])
    key = source.choice([KEY, OTHER])
    what = source.randrange(9)
    if what == 0:
        ledger.book_welcome(welcome(n, session, {KEY: 70} if source.random() < 0.3 else {}, region=region))
    elif what < 4:
        ledger.book_lease(lease(n, source.choice([BASE, 0, 900, 6000]), session, region, key))
    elif what == 4:
        counts.raise_consent(region, now - source.choice([0, TIMES.patience_us]))
    elif what == 5:
        base, floor = source.choice([(4000, 0), (3000, 2000), (0, 0)])
        ledger.book_config(Config(1, n + 1, {"shop": {"r": base, "t": 5000}, "shop#floor": {"r": floor}}))
    elif what == 6:
        ledger.book_done(Done(1, ledger.version))
    elif what == 7:
        ledger.lower_booked(region)
    elif (region, session) in ledger.sessions:
        counts.extend(region, session, now)


def test_what_is_remembered_of_sums_is_what_adding_up_says_whatever_changes() -> None:
    source = random.Random(3)
    for _ in range(60):
        counts, now = Counts(with_base(source.choice([0, 2500, 4000])), TIMES, 0), 0
        ledger = counts.ledger
        for n in range(60):
            change(source, counts, n, now)
            booked = source.choice([None, ledger.booked_after_done()])
            fit = True
            for key in ledger.keys:
                total, is_at_rest = plain_total(counts, key, now, ledger.booked if booked is None else booked)
                assert booked is not None or counts.total(key, now) == total
                assert booked is not None or sum(counts.count(key, name, now) for name in "rst") == total
                fit = fit and (total <= 10_000 or is_at_rest)
            assert counts.fits(now, booked) == fit
            now += source.choice([0, 0, 0, TIMES.beat_us, 3 * TIMES.patience_us // 4])


def test_a_region_that_turns_free_while_sessions_live_on_is_looked_at_on_every_key() -> None:
    counts = Counts(with_base(4000), TIMES, 0)
    counts.ledger.book_welcome(welcome(1, 1))
    counts.ledger.book_lease(lease(2, 9000))
    counts.raise_consent("s", 0)
    free_us = TIMES.consent_counted_us - TIMES.session_counted_us
    for now_us in (0, free_us - 1):
        counts.extend("r", 1, now_us)
        assert counts.fits(now_us)
    counts.extend("r", 1, free_us)
    assert not counts.fits(free_us)


def test_what_a_renewal_looked_at_before_does_not_hide_a_lease_booked_since() -> None:
    """Such a lease finds room or is refused, so no run of the protocol shows it."""
    counts = Counts(with_base(4000), TIMES, 0)
    counts.ledger.book_welcome(welcome(1, 1))
    counts.ledger.book_lease(lease(2, 4000))
    counts.extend("r", 1, 0)
    assert counts.fits(0)
    counts.ledger.book_lease(lease(3, 4001))
    assert not counts.fits(0)


def test_a_consent_that_comes_counts_in_the_same_moment() -> None:
    counts = Counts(with_base(4000), TIMES, 0)
    assert (counts.count(KEY, "s", 5), counts.total(KEY, 5)) == (6000, 10_000)
    counts.raise_consent("s", 5)
    assert (counts.count(KEY, "s", 5), counts.total(KEY, 5)) == (floor_of(6000), 4000 + floor_of(6000))


def test_a_snapshot_part_fits_into_a_message_whatever_keys_it_holds() -> None:
    ledger = Ledger()
    regions = [f"region-{n}" for n in range(8)]
    for number, region in enumerate(regions):
        ledger.book_welcome(Welcome(1, number + 1, region, f"agent-{region}", 1, 1, {}))
    for session in ledger.sessions.values():
        session.end_us = 1_000
    n = 100
    for key in (f"rl:{{abcdefgh}}:default/shared:{'x' * 90}{number}" for number in range(2_000)):
        ledger.open_key(key)
        for region in regions:
            for value in (5_000, 1_000):
                n += 1
                ledger.book_lease(LeaseRecord(1, n, key, region, 1, Kind.GROW, value))
    parts = ledger.to_snapshot(1, 1, 0, keys_per_part=2_000)
    assert len(parts) > 1
    assert sum(len(part.ledger) for part in parts) == 2_000
    assert max(len(encode_records([part])) for part in parts) < 900_000
