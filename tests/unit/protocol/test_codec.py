"""Bytes and back: every record and report survives, and nothing else gets in."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from global_sync.codec import (
    MalformedRecord,
    decode_records,
    decode_report,
    encode_batches,
    encode_records,
    encode_report,
)
from global_sync.protocol.messages import (
    Beat,
    Config,
    Done,
    Gone,
    Kind,
    LeaseRecord,
    Mark,
    Record,
    Report,
    Snapshot,
    Want,
    Welcome,
    WindowAsk,
    WindowGrant,
)

settings.register_profile("busy machine", deadline=None, max_examples=60)
settings.load_profile("busy machine")

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
counters = st.integers(0, 2**64 - 1)
times = st.integers(0, 2**62)
seqs = st.tuples(counters, counters)
shares = st.integers(-1, 10_000)
bases = st.dictionaries(names, st.dictionaries(names, st.integers(0, 10_000), max_size=3), max_size=2)
entries = st.lists(st.tuples(seqs, shares, counters), max_size=3).map(tuple)
parts = st.integers(1, 5).flatmap(lambda n: st.tuples(st.integers(0, n - 1), st.just(n)))


granted = st.integers(0, 10_000)
windows = st.lists(
    st.tuples(counters, counters, st.dictionaries(names, granted, max_size=3)), min_size=1, max_size=2
).map(tuple)


@st.composite
def leases(draw: st.DrawFn) -> LeaseRecord:
    kind = draw(st.sampled_from(Kind))
    value = draw(shares if kind is Kind.GROW else st.integers(0, 10_000))
    return LeaseRecord(draw(counters), draw(counters), draw(names), draw(names), draw(counters), kind, value)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    part, count = draw(parts)
    return Snapshot(
        epoch=draw(counters),
        number=draw(counters),
        part=part,
        parts=count,
        sessions=draw(st.lists(st.tuples(names, counters, seqs), max_size=3).map(tuple)),
        current=draw(st.dictionaries(names, counters, max_size=3)),
        agents=draw(st.dictionaries(names, st.dictionaries(names, counters, max_size=2), max_size=2)),
        version=draw(counters),
        bases=draw(bases),
        done_version=draw(counters),
        booked=draw(bases),
        ledger=draw(st.dictionaries(names, st.dictionaries(names, entries, max_size=2), max_size=3)),
        gone=draw(st.lists(names, max_size=2).map(tuple)),
        windows=draw(st.dictionaries(names, windows, max_size=2)),
        windows_ended_ms=draw(counters),
        since=draw(st.dictionaries(names, st.integers(-1, 2**62), max_size=2)),
        windows_from_ms=draw(counters),
    )


records = st.one_of(
    st.builds(Mark, counters, names, times),
    st.builds(
        Beat,
        counters,
        times,
        st.dictionaries(names, st.tuples(counters, counters), max_size=3),
        st.dictionaries(names, st.tuples(names, counters), max_size=3),
    ),
    st.builds(
        Welcome, counters, counters, names, names, counters, counters, st.dictionaries(names, shares, max_size=3)
    ),
    leases(),
    st.builds(Config, counters, counters, bases),
    st.builds(Done, counters, counters, st.dictionaries(names, counters, max_size=2)),
    st.builds(WindowGrant, counters, counters, names, names, counters, counters, granted),
    st.builds(Gone, counters, names),
    snapshots(),
)
reports = st.builds(
    Report,
    names,
    names,
    counters,
    counters,
    st.tuples(counters, times),
    st.integers(0, 2**40),
    st.dictionaries(names, st.tuples(seqs, shares), max_size=3),
    st.dictionaries(names, st.builds(Want, st.integers(0, 2**40), st.integers(0, 2**40)), max_size=3),
    asks=st.dictionaries(names, st.builds(WindowAsk, counters, counters, counters, granted, counters), max_size=2),
)


@given(st.lists(records, max_size=5))
def test_records_survive(sent: list[Record]) -> None:
    assert decode_records(encode_records(sent)) == sent


@given(reports)
def test_reports_survive(sent: Report) -> None:
    assert decode_report(encode_report(sent)) == sent


@given(st.lists(records, max_size=12), st.integers(50, 2000))
def test_batches_keep_the_order_and_the_bound(sent: list[Record], most: int) -> None:
    batches = encode_batches(sent, most)
    assert [record for batch in batches for record in decode_records(batch)] == sent
    assert all(len(batch) <= most + 40 or len(decode_records(batch)) == 1 for batch in batches)


@given(st.binary(max_size=200))
def test_noise_is_one_clear_error(noise: bytes) -> None:
    with pytest.raises(MalformedRecord):
        decode_records(noise)
    with pytest.raises(MalformedRecord):
        decode_report(noise)


@given(reports, st.data())
def test_a_torn_report_is_one_clear_error(sent: Report, data: st.DataObject) -> None:
    whole = encode_report(sent)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(MalformedRecord):
        decode_report(whole[:cut])


GRANT = {"epoch": 1, "n": 1, "key": "k", "region": "r", "window": 5, "end_ms": 6, "total": 5}
LEASE = {"epoch": 1, "n": 1, "key": "k", "region": "r", "session": 1, "kind": "grow", "value": 5}
WRONG = {
    "another version": {"v": 2, "records": []},
    "no version": {"records": []},
    "version true": {"v": True, "records": []},
    "an unknown tag": {"v": 1, "records": [["gone", {}]]},
    "a share above the whole": {"v": 1, "records": [["lease", LEASE | {"value": 10_001}]]},
    "a share below BASE": {"v": 1, "records": [["lease", LEASE | {"value": -2}]]},
    "a fraction": {"v": 1, "records": [["lease", LEASE | {"value": 0.5}]]},
    "KEEP base": {"v": 1, "records": [["lease", LEASE | {"kind": "keep", "value": -1}]]},
    "an unknown kind": {"v": 1, "records": [["lease", LEASE | {"kind": "give"}]]},
    "an epoch below 0": {"v": 1, "records": [["done", {"epoch": -1, "version": 1}]]},
    "a number that no counter holds": {"v": 1, "records": [["done", {"epoch": 2**64, "version": 1}]]},
    "a base above the whole": {
        "v": 1,
        "records": [["config", {"epoch": 1, "version": 1, "bases": {"d": {"r": 10_001}}}]],
    },
    "more of a window than there is": {"v": 1, "records": [["window", GRANT | {"total": 10_001}]]},
    "a missing field": {"v": 1, "records": [["done", {"epoch": 1}]]},
    "one bad among good": {"v": 1, "records": [["lease", LEASE], ["lease", {}]]},
}


@pytest.mark.parametrize("what", WRONG)
def test_what_no_leader_can_mean_is_refused(what: str) -> None:
    with pytest.raises(MalformedRecord):
        decode_records(json.dumps(WRONG[what]).encode())


def test_unknown_fields_are_ignored_so_that_a_newer_writer_may_add_some() -> None:
    data = {"v": 1, "records": [["done", {"epoch": 1, "version": 2, "why": "later"}]]}
    assert decode_records(json.dumps(data).encode()) == [Done(1, 2)]


def test_who_knows_nothing_of_windows_meets_them_by_themselves_and_takes_no_snapshot_for_whole() -> None:
    grant = WindowGrant(1, 2, "k", "r", 5, 6, 7)
    part = Snapshot(1, 1, 1, 2, (), {}, {}, 0, {}, 0, {}, {}, windows={"k": ((5, 6, {"r": 7}),)})
    batches = encode_batches([Done(1, 1), grant, grant, Done(1, 2)])
    assert [len(decode_records(batch)) for batch in batches] == [1, 2, 1]
    assert json.loads(encode_records([part]))["records"][0][0] not in ("snapshot", "window")


def test_who_takes_every_floor_for_the_usual_one_neither_leads_nor_obeys_where_a_set_names_larger_ones() -> None:
    bases, floors = {"d": {"r": 5000, "s": 5000}}, {"d#floor": {"r": 500, "s": 500}}
    plain, named = Config(1, 2, bases), Config(1, 3, bases | floors)
    batches = encode_batches([plain, named, Done(1, 3)])
    assert [len(decode_records(batch)) for batch in batches] == [1, 1, 1]
    grant = WindowGrant(1, 2, "k", "r", 5, 6, 7)
    assert [len(decode_records(batch)) for batch in encode_batches([grant, named, named, grant])] == [1, 2, 1]
    head = Snapshot(1, 1, 0, 1, (), {}, {}, 3, bases, 2, bases | floors, {})
    tags = [json.loads(encode_records([one]))["records"][0][0] for one in (plain, named, head)]
    assert tags == ["config", "config with floors", "snapshot with floors"]
    assert decode_records(encode_records([named, head])) == [named, head]
    fallen = {"d#floor": {"r": 0, "s": 0}}
    assert json.loads(encode_records([replace(head, booked=bases | fallen)]))["records"][0][0] == "snapshot"
