"""Rules by compare-and-set in log order, and the compacted topic that carries the accepted state."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from global_sync.changes import Proposal, decode_history, decode_proposal, encode_history, encode_proposal
from global_sync.rule_states import RulesFold
from global_sync.rulebook import Outcome, Rulebook, encode_state

REGIONS = {"us-east": 2, "eu-west": 1, "ap-south": 1}


def rule(capacity: int = 20, **more: Any) -> dict[str, Any]:
    return {"match": {}, "capacity": capacity, "refill": "10/s", **more}


def document(*ids: str, domain: str = "default", **more: Any) -> dict[str, Any]:
    rules = [{"id": name, **rule()} for name in ids]
    return {"domain": domain, "regions": REGIONS, "rules": rules, **more}


class Desk:
    """A book with the proposals decided so far."""

    def __init__(self) -> None:
        self.book = Rulebook()
        self.proposals: list[Proposal] = []

    def put(self, rule_id: str, made_from: int | None, source: Any = None, domain: str = "default") -> Outcome:
        source = rule() if source is None else source
        return self.decide(kind="put_rule", rule_id=rule_id, rule=source, made_from=made_from, domain=domain)

    def delete(self, rule_id: str, made_from: int | None) -> Outcome:
        return self.decide(kind="delete_rule", rule_id=rule_id, made_from=made_from)

    def put_set(self, made_from: int | None, source: Any, domain: str = "default") -> Outcome:
        return self.decide(kind="put_set", document=source, made_from=made_from, domain=domain)

    def decide(self, **fields: Any) -> Outcome:
        fields.setdefault("domain", "default")
        proposal = decode_proposal(encode_proposal(Proposal(id=f"p{len(self.proposals)}", **fields)))
        self.proposals.append(proposal)
        return self.book.decide(proposal, len(self.proposals) - 1)


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    assert desk.put_set(0, document("a", "b")).accepted
    return desk


def test_two_operators_who_start_from_the_same_version_do_not_overwrite_each_other(desk: Desk) -> None:
    first = desk.put("a", 1, rule(30))
    second = desk.put("a", 1, rule(40))
    assert (first.accepted, first.version) == (True, 2)
    assert (second.accepted, second.conflict, second.version) == (False, True, 2)
    assert desk.book.states()["default"].document["rules"][0]["capacity"] == 30


def test_changes_of_different_rules_do_not_conflict(desk: Desk) -> None:
    assert desk.put("a", 1, rule(30)).accepted
    assert desk.put("b", 1, rule(30)).accepted
    assert dict(desk.book.states()["default"].rule_versions) == {"a": 2, "b": 3}


def test_version_0_means_must_not_exist_and_none_means_whatever_is_there(desk: Desk) -> None:
    assert desk.put("a", 0).conflict
    assert desk.put("c", 0).accepted
    assert desk.put("c", None, rule(7)).accepted
    assert desk.delete("c", None).accepted
    assert desk.put("c", 0).accepted


def test_deleting_what_is_not_there_is_a_fault_and_not_a_conflict(desk: Desk) -> None:
    gone = desk.delete("zzz", None)
    assert not gone.accepted
    assert not gone.conflict
    assert gone.faults[0].place == "rule_id"


def test_a_whole_set_conflicts_with_any_change_of_the_set(desk: Desk) -> None:
    desk.put("a", 1, rule(30))
    assert desk.put_set(1, document("x")).conflict
    assert desk.put_set(2, document("x")).accepted


def test_a_whole_set_keeps_the_versions_of_rules_that_it_does_not_change(desk: Desk) -> None:
    changed = document("a", "b")
    changed["rules"][1]["capacity"] = 99
    desk.put_set(1, changed)
    assert dict(desk.book.states()["default"].rule_versions) == {"a": 1, "b": 2}


def test_a_faulty_change_is_refused_whole_with_every_fault_and_leaves_the_set_in_force(desk: Desk) -> None:
    before = desk.book.states()["default"]
    outcome = desk.put("a", 1, {"match": {}, "capacity": -1, "refill": "x"})
    assert not outcome.accepted
    assert not outcome.conflict
    assert len(outcome.faults) >= 2
    assert all(fault.place for fault in outcome.faults)
    assert desk.book.states()["default"] == before
    assert desk.put("b", 1).accepted  # the offset went on


def test_a_set_of_another_domain_is_refused(desk: Desk) -> None:
    assert not desk.put_set(1, document("a", domain="other")).accepted


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "put_rule", "rule": {}},
        {"kind": "put_rule", "rule_id": "a"},
        {"kind": "put_set"},
        {"kind": "sing"},
        {"kind": "delete_rule", "rule_id": "a", "domain": ""},
    ],
)
def test_a_proposal_without_what_it_needs_is_refused(desk: Desk, fields: dict[str, Any]) -> None:
    outcome = desk.decide(**fields)
    assert not outcome.accepted
    assert outcome.faults


def test_bytes_that_are_no_proposal_are_refused_and_do_not_stop_the_desk(desk: Desk) -> None:
    for offset, value in enumerate(
        (b"", b"{}", b"[1]", b'{"v":2,"id":"x","domain":"d","kind":"put_set"}'), start=1
    ):
        outcome = desk.book.decide(decode_proposal(value), offset)
        assert not outcome.accepted
        entry = encode_history(outcome.history(1, 5))[1]
        assert decode_history(entry).offset == offset


def test_a_decided_proposal_is_not_decided_twice(desk: Desk) -> None:
    with pytest.raises(ValueError, match="has been decided"):
        desk.book.decide(desk.proposals[0], 0)


def test_a_new_domain_takes_its_regions_from_the_proposal(desk: Desk) -> None:
    source = rule(scope="global")
    kind, regions = "put_rule", {"us-east": 1, "eu-west": 1}
    assert desk.decide(kind=kind, domain="new", rule_id="r", rule=source, regions=regions).accepted
    assert dict(desk.book.configuration()[1]["new"]) == {"us-east": 5000, "eu-west": 5000}


def test_a_new_domain_without_regions_starts_with_those_of_another(desk: Desk) -> None:
    assert desk.put("r", 0, rule(scope="global"), domain="new").accepted
    bases = desk.book.configuration()[1]
    assert bases["new"] == bases["default"]


# ---- configuration


def test_the_version_of_the_bases_changes_only_with_the_regions(desk: Desk) -> None:
    assert desk.book.configuration() == (1, {"default": {"us-east": 5000, "eu-west": 2500, "ap-south": 2500}})
    desk.put("a", 1, rule(30))
    assert desk.book.configuration()[0] == 1
    desk.put_set(2, document("a", "b", regions={"us-east": 1, "eu-west": 1}))
    assert desk.book.configuration() == (3, {"default": {"us-east": 5000, "eu-west": 5000}})
    desk.put_set(0, document("a", domain="second"), domain="second")
    version, bases = desk.book.configuration()
    assert version == 4
    assert set(bases) == {"default", "second"}


def test_floors_that_a_set_names_are_part_of_the_configuration(desk: Desk) -> None:
    named = {**document("a"), "floor": "10%"}
    desk.put_set(1, named)
    bases = {"us-east": 5000, "eu-west": 2500, "ap-south": 2500}
    floors = {"us-east": 500, "eu-west": 250, "ap-south": 250}
    assert desk.book.configuration() == (2, {"default": bases, "default#floor": floors})
    assert Rulebook.restore(folded(encode_state(desk.book, "default", epoch=1))).configuration()[1] == {
        "default": bases,
        "default#floor": floors,
    }
    desk.put_set(2, {**named, "floor": "2%"})
    assert desk.book.configuration() == (3, {"default": bases})


def test_without_rules_there_is_no_configuration() -> None:
    assert Rulebook().configuration() == (0, {})


# ---- the compacted topic


def folded(messages: list[tuple[bytes, bytes]]) -> RulesFold:
    fold = RulesFold()
    for _, value in messages:
        fold.take(value)
    return fold


def test_a_successor_restores_the_same_book_and_goes_on_behind_it(desk: Desk) -> None:
    desk.put("a", 1, rule(30, description="größer 🎉"))
    desk.put("a", 1)  # refused
    again = Rulebook.restore(folded(encode_state(desk.book, "default", epoch=3)))
    state = again.states()["default"]
    assert state.document == desk.book.states()["default"].document
    assert state.rule_versions == desk.book.states()["default"].rule_versions
    assert again.configuration() == desk.book.configuration()
    assert again.next_offset == 2
    assert again.decide(desk.proposals[2], 2).conflict


def test_a_large_set_comes_in_parts_in_any_order_and_counts_only_when_complete(desk: Desk) -> None:
    many = [f"r{n}" for n in range(2000)]
    big = document(*many)
    for source in big["rules"]:
        source["description"] = 'a "quoted" \\ text' * 18
    assert desk.put_set(1, big).accepted
    parts = encode_state(desk.book, "default", epoch=1)
    assert len(parts) > 2
    assert all(len(value) <= 710_000 for _, value in parts)
    assert len({key for key, _ in parts}) == len(parts)
    Random(4).shuffle(parts)
    fold = RulesFold()
    taken = [fold.take(value) for _, value in parts]
    assert taken == [False] * (len(parts) - 1) + [True]
    assert fold.states()["default"].document == desk.book.states()["default"].document
    assert not any(fold.take(value) for _, value in parts)


def test_a_late_predecessor_does_not_win_over_a_newer_leader(desk: Desk) -> None:
    old = encode_state(desk.book, "default", epoch=1)
    desk.put("a", 1, rule(30))
    late = encode_state(desk.book, "default", epoch=1)
    desk.put("a", 2, rule(40))
    new = encode_state(desk.book, "default", epoch=2)
    for messages in (old + new + late, new + late + old, late + old + new):
        assert folded(messages).states()["default"].version == 3
    assert desk.book.stale_domain(late[0][1], epoch=2) == "default"
    assert desk.book.stale_domain(new[0][1], epoch=2) is None
    assert desk.book.stale_domain(b"junk", epoch=2) is None


def test_a_newer_epoch_wins_even_with_a_lower_offset(desk: Desk) -> None:
    low = encode_state(desk.book, "default", epoch=5)
    desk.put("a", 1, rule(30))
    high = encode_state(desk.book, "default", epoch=4)
    assert folded(low + high).states()["default"].version == 1
    assert folded(high + low).states()["default"].version == 1


def test_leftover_parts_of_an_older_longer_version_do_no_harm(desk: Desk) -> None:
    part = msgspec.json.decode(encode_state(desk.book, "default", epoch=1)[0][1])
    leftover = msgspec.json.encode({**part, "parts": 3, "part": 2, "offset": 0, "epoch": 0})
    fold = folded([(b"", leftover), *encode_state(desk.book, "default", epoch=1)])
    assert fold.states()["default"].version == 1


def test_malformed_parts_are_counted_and_bounded(desk: Desk) -> None:
    fold = RulesFold()
    part = msgspec.json.decode(encode_state(desk.book, "default", epoch=1)[0][1])
    assert not fold.take(b"junk")
    assert not fold.take(msgspec.json.encode({**part, "part": 7, "parts": 2}))
    assert not fold.take(msgspec.json.encode({**part, "blob": "{"}))
    assert fold.malformed == 3
    for epoch in range(10, 100):
        fold.take(msgspec.json.encode({**part, "parts": 2, "epoch": epoch}))
    assert len(fold._incomplete["default"]) <= 5


def test_a_set_that_this_software_cannot_read_gives_no_bases_rather_than_none(desk: Desk) -> None:
    fold = folded(encode_state(desk.book, "default", epoch=1))
    state = fold.states()["default"]
    document = {**state.document, "rules": "not yet invented"}
    part = msgspec.json.decode(encode_state(desk.book, "default", epoch=2)[0][1])
    blob = msgspec.json.encode({"document": document, "rule_versions": {}, "version": 1}).decode()
    fold.take(msgspec.json.encode({**part, "blob": blob}))
    assert Rulebook.restore(fold).configuration() == (0, {})


def test_a_deleted_domain_is_as_one_without_rules_but_keeps_its_bases_also_for_a_successor(desk: Desk) -> None:
    desk.put_set(0, document("a", "b"))
    before = desk.book.configuration()
    assert desk.decide(kind="delete_domain", made_from=7).conflict
    gone = desk.decide(kind="delete_domain", made_from=1)
    assert gone.accepted
    fold = RulesFold()
    for _, value in encode_state(desk.book, "default", 1):
        fold.take(value)
    assert fold.states()["default"].deleted
    for book in (desk.book, Rulebook.restore(fold)):
        assert book.configuration() == before
        again = book.decide(Proposal(id="x", domain="default", kind="delete_domain"), 10)
        assert (again.accepted, again.version, again.faults[0].place) == (False, 0, "domain")
    regions = desk.book.decide(Proposal(id="x", domain="default", kind="put_regions", regions={"us-east": 1}), 11)
    assert regions.accepted
    assert desk.book.states()["default"].deleted
    new = desk.book.decide(
        Proposal(id="x", domain="default", kind="put_rule", rule_id="c", rule=rule(), made_from=0), 12
    )
    assert new.accepted
    state = desk.book.states()["default"]
    assert (state.deleted, [one["id"] for one in state.document["rules"]]) == (False, ["c"])


def test_history_says_who_what_and_why(desk: Desk) -> None:
    outcome = desk.decide(
        kind="put_rule", rule_id="a", rule={"capacity": -1}, made_from=1, author="ann", reason="launch"
    )
    key, value = encode_history(outcome.history(epoch=7, at_ms=123))
    entry = decode_history(value)
    assert key == b"default/a"
    assert (entry.author, entry.reason, entry.epoch, entry.at_ms) == ("ann", "launch", 7, 123)
    assert (entry.accepted, entry.conflict, entry.version) == (False, False, 1)
    assert entry.faults[0]["place"]
    with pytest.raises(ValueError, match="history"):
        decode_history(b"[]")
