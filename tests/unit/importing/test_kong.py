"""Kong's rate-limiting plugin: windows, keys, the most specific plugin first; the rest is named by its place."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from regional_limiter.model.errors import InvalidRules
from regional_limiter.rules import compile_rules, parse_document
from services.importing.kong import import_kong

CONFIG = """
_format_version: "3.0"
services:
  - name: shop
    url: http://shop
    routes:
      - name: orders
        paths: [/orders]
        methods: [POST]
        plugins:
          - {name: rate-limiting, config: {second: 5, hour: 1000, policy: local, limit_by: ip}}
      - {name: items, paths: [/items]}
    plugins:
      - {name: rate-limiting, config: {minute: 100}}
      - {name: cors}
consumers:
  - username: acme
    plugins: [{name: rate-limiting, config: {month: 5000, fault_tolerant: false, hide_client_headers: true}}]
plugins:
  - {name: rate-limiting, enabled: false, config: {second: 1}}
  - {name: rate-limiting, config: {day: 10, limit_by: header, header_name: X-Api-Key}}
"""


def plugin(**config: Any) -> str:
    return yaml.safe_dump({"plugins": [{"name": "rate-limiting", "config": config}]})


@pytest.mark.parametrize(
    ("attributes", "met"),
    [
        ({"client_key": "acme", "path": "/orders", "method": "POST"}, ["consumer-acme-month"]),
        ({"client_key": "b", "path": "/orders", "method": "POST"}, ["orders-second", "orders-hour"]),
        ({"client_key": "b", "path": "/items/7", "method": "GET"}, ["shop-minute-2"]),
        ({"client_key": "b", "path": "/", "method": "GET"}, ["all-day"]),
    ],
)
def test_the_most_specific_plugin_counts(attributes: dict[str, str], met: list[str]) -> None:
    imported = import_kong(CONFIG)
    matcher = compile_rules(parse_document(imported.document))
    assert [match.rule.id for match in matcher.match(attributes)] == met


def test_numbers_and_words_of_a_plugin() -> None:
    by_id = {rule["id"]: rule for rule in import_kong(CONFIG, domain="edge").document["rules"]}
    month = by_id["consumer-acme-month"]
    assert (month["limit"], month["window"], month["on_store_failure"], month["headers"]) == (
        5000,
        {"calendar": "month"},
        "closed",
        False,
    )
    assert (by_id["orders-second"]["key"], by_id["orders-second"]["window"]) == (["ip"], "1s")
    assert by_id["all-day"]["key"] == ["header_x_api_key"]
    notes = {note.place: note.problem for note in import_kong(CONFIG).notes}
    assert notes["plugins[0]"] == "is not enabled, and left out"
    assert "has no effect" in notes["services[0].routes[0].plugins[0].config.policy"]
    assert "bring the attribute header_x_api_key" in notes["plugins[1].config.header_name"]


def test_one_plugin_by_itself() -> None:
    [rule] = import_kong("{name: rate-limiting, config: {minute: 5, limit_by: service}}").document["rules"]
    assert (rule["key"], rule["limit"]) == ([], 5)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (plugin(), "plugins[0].config: says no limit"),
        (plugin(minute=0), "plugins[0].config.minute: must be a whole number above 0"),
        (plugin(minute=5, limit_by="path", path="/x"), "plugins[0].config.limit_by: path has no counterpart"),
        (plugin(minute=5, limit_by="header"), "plugins[0].config.header_name: missing"),
        (plugin(minute=5, throttle=True), "plugins[0].config.throttle: is not known here"),
        ("plugins: [{name: rate-limiting-advanced}]", "plugins[0].name: rate-limiting-advanced has no counterpart"),
        (
            "plugins: [{name: rate-limiting, service: a, config: {second: 1}}]",
            "plugins[0].service: write the plugin",
        ),
        ("plugins: []", "plugins: no rate-limiting plugin is in it"),
        ("[1]", "document: must be a mapping"),
        (
            "consumer_groups: [{plugins: [{name: rate-limiting, config: {second: 1}}]}]",
            "consumer_groups: limits of",
        ),
        (CONFIG.replace("[/orders]", '["~/orders/\\\\d+"]'), "a regular expression has no counterpart"),
        (
            CONFIG.replace("methods: [POST]", "headers: {x: [a]}"),
            "services[0].routes[0].headers: has no counterpart",
        ),
    ],
)
def test_what_has_no_counterpart_is_named_by_its_place(text: str, fault: str) -> None:
    with pytest.raises(InvalidRules) as raised:
        import_kong(text)
    found = [f"{one.place}: {one.problem}" for one in raised.value.faults]
    assert any(fault in one for one in found), found


PARTS = st.recursive(
    st.none() | st.integers(-1, 9) | st.sampled_from(["rate-limiting", "minute", "ip", "/a", "~"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "plugins",
                    "services",
                    "routes",
                    "consumers",
                    "name",
                    "config",
                    "minute",
                    "limit_by",
                    "paths",
                    "username",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(PARTS)
def test_any_document_is_rules_or_faults(document: Any) -> None:
    try:
        made = import_kong(yaml.safe_dump(document)).document
    except InvalidRules:
        return
    assert parse_document(made).rules
