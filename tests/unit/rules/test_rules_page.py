"""docs/rules.md: every example is right, and every word of the grammar has one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from regional_limiter.model.rule import Algorithm, CalendarUnit, Mode, NormalForm, Priority, Shed
from regional_limiter.rules import compile_rules, describe, grammar, parse_document, with_rule
from regional_limiter.rules.text import read_document

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "rules.md").read_text()
YAML = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
REGIONS = {"us-east": 2, "eu-west": 1, "ap-south": 1}


def document_of(text: str) -> dict[str, Any]:
    """An example as a set: it is one, or a list of rules."""
    example = read_document(text, "yaml")
    document = {"regions": REGIONS, "rules": example} if isinstance(example, list) else example
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize("text", YAML, ids=lambda text: text.partition("\n")[0])
def test_every_example_is_a_right_set(text: str) -> None:
    document = document_of(text)
    rule_set = parse_document(document)
    compile_rules(rule_set)
    assert [rule.id for rule in rule_set.rules] == [rule["id"] for rule in document["rules"]]
    for rule in rule_set.rules:
        described = describe(rule, rule_set, "us-east")
        refill: Any = described.get("refill") or described.get("leak") or {"exact": True}
        assert refill["exact"], f"an example should show no rounded rate: {rule.id}"


def test_the_body_of_the_short_form_is_a_right_rule() -> None:
    (body,) = re.findall(r"-d '(\{.*?\})'", PAGE, re.DOTALL)
    (rule,) = parse_document(with_rule({"rules": []}, "orders-free", json.loads(body))).rules
    assert rule.capacity == 5


def test_every_field_has_an_example() -> None:
    sets = [document_of(text) for text in YAML]
    rules = [rule for one in sets for rule in one["rules"]]
    overrides = [override for one in sets for override in one.get("overrides", [])]
    for fields, mappings in (
        (grammar.SET_FIELDS, sets),
        (grammar.RULE_FIELDS, rules),
        (grammar.OVERRIDE_FIELDS, overrides),
    ):
        assert set(fields) - {name for mapping in mappings for name in mapping} == set()
    conditions = [value for rule in rules for value in rule.get("match", {}).values() if isinstance(value, dict)]
    assert {name for condition in conditions for name in condition} == {"cidr", "min", "max", "not"}
    assert {rule.get("algorithm", "token_bucket") for rule in rules} == set(Algorithm)
    assert {form for rule in rules for forms in rule.get("normalise", {}).values() for form in forms} == set(
        NormalForm
    )


@pytest.mark.parametrize("words", [Algorithm, CalendarUnit, Mode, NormalForm, Priority, Shed])
def test_every_word_is_explained(words: Any) -> None:
    assert [word for word in words if f"`{word}`" not in PAGE] == []
