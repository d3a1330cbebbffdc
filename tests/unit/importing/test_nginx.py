"""limit_req of nginx: the same decisions, place by place, and what has no counterpart by its line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regional_limiter.model.errors import InvalidRules
from regional_limiter.rules import compile_rules, parse_document
from services.importing.nginx import import_nginx
from services.rehearsal.replay import Replay

ZONES = """
limit_req_zone $binary_remote_addr zone=one:10m rate=10r/s;
limit_req_zone $server_name zone=two:10m rate=30r/m; # a comment; {
"""


def rules(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = import_nginx(text).document["rules"]
    return found


def faults(text: str) -> list[str]:
    with pytest.raises(InvalidRules) as raised:
        import_nginx(text)
    return [f"{fault.place}: {fault.problem}" for fault in raised.value.faults]


def test_zones_and_their_uses() -> None:
    found = rules(
        f"http {{ {ZONES} server {{ limit_req zone=one burst=5 nodelay; limit_req zone=two burst=2; }} }}"
    )
    assert found == [
        {"id": "one", "match": {}, "key": ["ip"], "capacity": 6, "refill": "10/s"},
        {"id": "two", "match": {}, "key": ["host"], "algorithm": "leaky_bucket", "capacity": 3, "leak": "30/min",
         "queue": True},
    ]  # fmt: skip


PLACES = f"""{ZONES}
limit_req zone=two;
server {{
  server_name .example.com;
  location / {{ limit_req zone=one; }}
  location = /free {{ limit_req_dry_run on; limit_req zone=one burst=1 nodelay; }}
  location /a/ {{ }}
  location /a/b/ {{ limit_req zone=one; }}
}}
server {{ listen 80 default_server; server_name _; }}
"""


@pytest.mark.parametrize(
    ("host", "path", "met"),
    [
        ("example.com", "/x", ["one"]),
        ("www.example.com", "/a/b/c", ["one"]),
        ("example.com", "/a/x", ["two"]),
        ("example.com", "/free", ["one"]),
        ("example.com", "/freely", ["one"]),
        ("other.org", "/a/b/c", ["two"]),
    ],
)
def test_the_most_specific_place_counts(host: str, path: str, met: list[str]) -> None:
    matcher = compile_rules(parse_document({"rules": rules(PLACES)}))
    found = [match.rule for match in matcher.match({"host": host, "path": path, "ip": "192.0.2.1"})]
    assert [rule.id.partition("-")[0] for rule in found if not rule.unlimited] == met
    assert any(rule.mode == "shadow" for rule in found) == (path == "/free")


def test_a_place_without_limits_ends_the_search() -> None:
    text = f"{ZONES} server {{ location / {{ limit_req zone=one; }} location /open/ {{ }} }}"
    matcher = compile_rules(parse_document({"rules": rules(text)}))
    assert all(match.rule.unlimited for match in matcher.match({"path": "/open/x"}))
    assert [match.rule.id for match in matcher.match({"path": "/x"})] == ["one"]


def test_what_counts_together_there_and_not_here_is_noted() -> None:
    other = "location /b/ { limit_req zone=one burst=3; }"
    text = f"{ZONES} server {{ location /a/ {{ limit_req zone=one; }} {other} }}"
    notes = [note.problem for note in import_nginx(text).notes]
    assert any("zone one is one count in nginx" in note and "one, one-2" in note for note in notes)
    same = f"{ZONES} server {{ location /a/ {{ limit_req zone=one; }} location /b/ {{ limit_req zone=one; }} }}"
    [rule] = rules(same)
    assert sorted(rule["match"]["path"]) == ["/a/*", "/b/*"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("limit_req zone=one;", "line 1: no limit_req_zone is named one"),
        (f"{ZONES}limit_req zone=one burst=5 delay=3;", "line 4: delay=3: a burst of which a part passes at once"),
        (f"{ZONES}limit_req burst=5;", "line 4: limit_req must name its zone=NAME"),
        (f"{ZONES}limit_req zone=one burst=many;", "line 4: burst=many has no counterpart"),
        ("limit_req_zone $binary_remote_addr zone=a:1m;", "line 1: limit_req_zone must say"),
        ("limit_req_zone $remote_addr zone=a:1m rate=1r/s sync;", "line 1: sync has no counterpart"),
        (f"{ZONES}server {{ location ~ \\.php$ {{ limit_req zone=one; }} }}", "a regular expression has no"),
        (f"{ZONES}server {{ server_name ~^a; limit_req zone=one; }}", "server_name ~^a: a regular expression"),
        (f"{ZONES}server {{ location / {{ if ($x) {{ limit_req zone=one; }} }} }}", "inside of an if"),
        ("events { }", "file: no limit_req applies anywhere"),
        ("http {", "line 1: the file ends inside of a block"),
        ("a } ", "line 1: a ; is missing before the }"),
        ("}", "line 1: a } too many"),
        ('a "b', "line 1: a quote that does not end"),
        ("a {" * 50, "line 1: blocks inside of more than 32 others"),
    ],
)
def test_what_has_no_counterpart_is_named_by_its_line(text: str, fault: str) -> None:
    assert any(fault in found for found in faults(text)), faults(text)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("include conf.d/*.conf;", "is not read"),
        ("limit_req_status 429;", "has no effect"),
        ("limit_conn addr 5;", "limit_conn is not imported"),
    ],
)
def test_what_has_no_effect_is_noted(text: str, note: str) -> None:
    found = import_nginx(f"{ZONES}limit_req zone=one;\n{text}").notes
    assert any(one.place == "line 5" and note in one.problem for one in found)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 6), st.sampled_from([1, 7, 50]), st.lists(st.integers(0, 1500), max_size=60))
def test_decisions_are_those_of_the_leaky_bucket_of_nginx(burst: int, rate: int, after_ms: list[int]) -> None:
    """Its published rule: the excess falls with the rate, each request adds one, more than the burst is denied."""
    text = f"limit_req_zone $binary_remote_addr zone=z:1m rate={rate}r/s; limit_req zone=z burst={burst} nodelay;"
    replay = Replay(parse_document({"rules": rules(text)}))
    now_ms, last_ms, excess = 1_700_000_000_000, None, 0
    for after in after_ms:
        now_ms += after
        raised = 0 if last_ms is None else max(0, excess - rate * (now_ms - last_ms) + 1000)
        allowed = raised <= burst * 1000
        if allowed:
            excess, last_ms = raised, now_ms
        assert replay.decide(now_ms, {"ip": "192.0.2.1"}).allowed == allowed


@given(st.text(alphabet="a {};\"'\\#\n$zone=1r/s", max_size=80) | st.binary(max_size=80))
def test_any_text_is_rules_or_faults(text: str | bytes) -> None:
    try:
        made = import_nginx(text).document
    except InvalidRules:
        return
    assert parse_document(made).rules
