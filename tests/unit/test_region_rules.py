"""The agent's rules: what it hands to its nodes when one domain's set is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from global_sync.region_rules import RegionRules
from regional_limiter.model.keys import bucket_key
from regional_limiter.model.rule import Rate
from regional_limiter.rules import Source, encode_blob, parse_document


def part(domain: str, version: int, *rules: dict[str, Any], deleted: bool = False) -> bytes:
    """A message of the rules topic that holds all of a domain's state."""
    state = {
        "document": {"domain": domain, "rules": list(rules)},
        "rule_versions": {},
        "version": version,
        "bases_version": version,
        "deleted": deleted,
    }
    return json.dumps(
        {
            "v": 1,
            "domain": domain,
            "epoch": 1,
            "offset": version - 1,
            "version": version,
            "part": 0,
            "parts": 1,
            "blob": json.dumps(state),
        }
    ).encode()


def rule(capacity: int) -> dict[str, Any]:
    return {"id": "a", "match": {}, "capacity": capacity, "refill": "1/s"}


def test_one_wrong_domain_stops_no_other_and_keeps_its_old_set(tmp_path: Path) -> None:
    rules = RegionRules(tmp_path / "rules.json")
    rules.take(part("a", 1, rule(10)))
    rules.take(part("b", 2, rule(20)))
    assert rules.settle()
    rules.take(part("b", 3, rule(20), rule(20)))  # one id twice
    rules.take(part("a", 4, rule(11)))
    assert rules.settle()
    handed = json.loads(rules.blob())
    assert {
        name: (entry["version"], entry["document"]["rules"][0]["capacity"])
        for name, entry in handed["sets"].items()
    } == {
        "a": (4, 11),
        "b": (2, 20),
    }
    assert (handed["version"], rules.version, rules.refused) == (4, 4, 1)
    assert (tmp_path / "rules.json").read_bytes() == rules.blob()


def test_a_deleted_domain_is_handed_to_no_node(tmp_path: Path) -> None:
    rules = RegionRules(tmp_path / "rules.json")
    rules.take(part("a", 1, rule(10)))
    rules.take(part("b", 2, rule(20)))
    assert rules.settle()
    rules.take(part("b", 3, deleted=True))
    assert rules.settle()
    handed = json.loads(rules.blob())
    assert (list(handed["sets"]), handed["version"]) == (["a"], 3)


def test_the_demand_of_an_overridden_key_is_held_against_its_own_refill(tmp_path: Path) -> None:
    document = {
        "domain": "a",
        "rules": [{**rule(10), "key": ["client_key", "ip"]}],
        "overrides": [{"rule": "a", "key": {"client_key": "x:1", "ip": "::1"}, "multiply": 10}],
    }
    (tmp_path / "rules.json").write_bytes(encode_blob(1, {"a": Source(1, document)}))
    rules = RegionRules(tmp_path / "rules.json")
    rules.load()
    known = parse_document(document).rules[0]
    key = bucket_key(known, {"client_key": "x:1", "ip": "::1"}, b"secret")
    other = bucket_key(known, {"client_key": "x:1"}, b"secret")
    assert (rules.refill_of(key), rules.refill_of(other)) == (Rate(1, 100), Rate(1, 1000))
    assert rules.refill_of("no key") is None


def test_rules_that_cannot_be_stored_are_not_in_force_and_are_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    rules = RegionRules(folder / "rules.json")
    rules.take(part("a", 1, rule(10)))
    assert rules.settle()
    folder.rename(tmp_path / "elsewhere")
    (tmp_path / "state").write_text("no folder")
    rules.take(part("a", 2, rule(11)))
    assert not rules.settle()
    assert (rules.version, json.loads(rules.blob())["version"]) == (1, 1)
    (tmp_path / "state").unlink()
    (tmp_path / "elsewhere").rename(folder)
    assert rules.settle()
    assert rules.version == 2
