"""What a change of a set does, above all which buckets begin anew."""

from __future__ import annotations

from typing import Any

import pytest

from regional_limiter.rules import parse_document
from regional_limiter.rules.effects import effects


def bucket(**fields: Any) -> dict[str, Any]:
    return {"id": "r", "capacity": 5, "refill": "1/s", **fields}


def window(**fields: Any) -> dict[str, Any]:
    return {"id": "r", "algorithm": "fixed_window", "limit": 5, "window": "60s", **fields}


def of(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return effects(parse_document({"rules": [before]}), parse_document({"rules": [after]}))


def test_the_same_set_does_nothing() -> None:
    found = of(bucket(), bucket(algorithm="token_bucket", refill="60/min"))
    assert (found["nothing"], found["rules"]) == (True, [])


@pytest.mark.parametrize(
    ("before", "after", "why_not"),
    [
        (bucket(), bucket(capacity=9), None),
        (bucket(), bucket(match={"tier": "x"}), None),
        (bucket(mode="shadow"), bucket(), None),
        (bucket(), {**bucket(), "algorithm": "gcra"}, None),
        (window(), window(limit=9), None),
        (bucket(), bucket(key=["ip"]), "kept by ip"),
        (bucket(), bucket(key=[]), "one bucket for all"),
        (bucket(), bucket(hash_key=True), "hashed now"),
        (bucket(), bucket(normalise={"client_key": ["lower"]}), "another normal form"),
        (bucket(), window(), "cannot go on"),
        (window(), window(window="61s"), "windows are others"),
        (window(), window(window={"calendar": "day"}), "windows are others"),
    ],
)
def test_which_changes_keep_the_counts(before: Any, after: Any, why_not: str | None) -> None:
    (effect,) = of(before, after)["rules"]
    assert effect["keeps_counts"] is (why_not is None)
    assert (why_not or "") in effect.get("why_not", "")


@pytest.mark.parametrize(
    ("after", "is_noted"),
    [
        ({"distribution": "adaptive"}, True),
        ({"limit": 20}, False),
        ({"distribution": "adaptive", "window": "61s"}, False),  # begins anew: others are counted
    ],
)
def test_another_way_of_sharing_a_running_window_is_warned_of(after: dict[str, Any], is_noted: bool) -> None:
    rule = window(limit=9, scope="global")
    one, other = (parse_document({"regions": ["a", "b"], "rules": [{**rule, **fields}]}) for fields in ({}, after))
    for before, then in ((one, other), (other, one)):
        (effect,) = effects(before, then)["rules"]
        assert ("before a window ends" in effect.get("note", "")) is is_noted


def test_a_new_domain_says_only_what_it_has() -> None:
    found = effects(None, parse_document({"regions": ["a"], "rules": [bucket()]}))
    assert (found["appear"], list(found["set"])) == (1, ["regions"])


def test_overrides_regions_and_order_are_told() -> None:
    rules = [bucket(), bucket(id="s")]
    override = {"rule": "r", "key": {"client_key": "acme"}, "block": True}
    before = parse_document({"rules": rules, "regions": ["a"], "overrides": [override]})
    after = parse_document({"rules": rules[::-1], "regions": ["a", "b"], "subjects": []})
    found = effects(before, after)
    assert [(one["effect"], one["in_words"]) for one in found["overrides"]] == [("vanish", "blocked")]
    assert found["set"]["order"] == {"before": ["r", "s"], "after": ["s", "r"]}
    assert found["set"]["regions"]["after"] == {"a": 1, "b": 1}
    assert not found["nothing"]


MALLORY = [{"rule": "r", "key": {"client_key": "mallory"}, "block": True}]


@pytest.mark.parametrize(
    ("before", "after", "note"),
    [
        ("enforce", "shadow", "denies nobody any more: the limit is lifted at once; no longer denied: mallory"),
        ("soft", "shadow", "no longer denied: mallory"),
        ("shadow", "enforce", "denies past its limit from now on; denied whatever is left: mallory"),
        ("shadow", "soft", "denied whatever is left: mallory"),
        ("enforce", "soft", "allows past its limit from now on, and says so"),
        ("enforce", "enforce", ""),
    ],
)
def test_whom_another_mode_lets_in_or_keeps_out_is_said(before: str, after: str, note: str) -> None:
    sets = (
        parse_document({"rules": [bucket(mode=mode, description=when)], "overrides": MALLORY})
        for when, mode in (("before", before), ("after", after))
    )
    (effect,) = effects(*sets)["rules"]
    assert effect.get("note", "") == note


def test_of_many_keys_that_are_blocked_some_are_named() -> None:
    blocks = [{"rule": "r", "key": {"client_key": f"c{n}"}, "block": True} for n in range(25)]
    sets = [parse_document({"rules": [bucket(mode=mode)], "overrides": blocks}) for mode in ("enforce", "shadow")]
    (effect,) = effects(*sets)["rules"]
    assert effect["note"].endswith("no longer denied: " + "; ".join(f"c{n}" for n in range(10)) + "; and 15 more")
