"""Reading text: exact, bounded, and the same to every reader."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from regional_limiter.model.errors import InvalidRules
from regional_limiter.rules import parse, parse_document
from regional_limiter.rules.text import Format, read_document


def faults_of(text: str | bytes, format: Format | None = None) -> list[tuple[str, str]]:
    with pytest.raises(InvalidRules) as caught:
        parse(text, format=format)
    return [(fault.place, fault.problem) for fault in caught.value.faults]


AMBIGUOUS = """
yes Yes no NO on Off y N 010 0x1F 0o17 0b11 1_000 12:30 1:30:00 -1_0.5 .inf -.INF .nan 1e3 1.5e3 1e-3 -.5
"""


@pytest.mark.parametrize("word", AMBIGUOUS.split())
def test_a_plain_word_that_yaml_readers_disagree_about_is_refused_with_its_line(word: str) -> None:
    ((place, problem),) = faults_of(f"rules: []\ndefaults:\n  tier: {word}\n")
    assert place == "line 3, column 9"
    assert "quotes" in problem


def test_the_same_word_in_quotes_is_text() -> None:
    rule_set = parse('rules: []\ndefaults: {a: "no", b: \'010\', c: "12:30", d: "1"}\n')
    assert rule_set.defaults == {"a": "no", "b": "010", "c": "12:30", "d": "1"}


@pytest.mark.parametrize(
    ("text", "value"), [("7", 7), ("-7", -7), ("0", 0), ("1.5", 1.5), ("true", True), ("~", None)]
)
def test_plain_scalars_are_what_they_look_like(text: str, value: object) -> None:
    document = read_document(f"x: {text}", "yaml")
    assert document == {"x": value}
    assert isinstance(document, dict)
    assert type(document["x"]) is type(value)


@pytest.mark.parametrize("text", ["2026-12-31", "1.2.3", "10/s", "GET /x", "null-ish", "-", "1e", "1.2e+3x", "٣"])
def test_other_plain_scalars_are_text(text: str) -> None:
    assert read_document(f"x: {text}" if text != "-" else 'x: "-"', "yaml") == {"x": text}


def test_a_number_that_a_double_would_change_is_refused() -> None:
    yaml = "rules: [{id: r, capacity: 5, refill_per_second: 0.12345678901234567890}]"
    assert "digits" in faults_of(yaml)[0][1]
    json = '{"rules": [{"id": "r", "capacity": 5, "refill_per_second": 0.12345678901234567890}]}'
    assert "digits" in faults_of(json, "json")[0][1]
    assert "digits" in faults_of("rules: [{id: r, capacity: " + "9" * 5000 + ", refill: 1/s}]")[0][1]
    assert "digits" in faults_of('{"rules": [{"id": "r", "capacity": ' + "9" * 5000 + "}]}", "json")[0][1]


@pytest.mark.parametrize(
    "number", ["1.0e+999", "1.0e-999", "1.0e+99999999999999999999", "1.0e-99999999999999999999"]
)
@pytest.mark.parametrize("format", ["yaml", "json"])
def test_a_number_out_of_range_is_refused(number: str, format: Format) -> None:
    assert "digits" in faults_of('{"rules": [], "domain": ' + number + "}", format)[0][1]


def test_faults_of_words_and_of_fields_are_named_together() -> None:
    text = "rules:\n  - {id: a, capcity: 3, refill: 1/s, headers: no}\nrules: []\n"
    places = [place for place, _ in faults_of(text)]
    assert places == [
        "line 2, column 47",
        "line 3, column 1",
        "rules[0].capcity",
        "rules[0].capacity",
        "rules[0].headers",
    ]


def test_a_key_given_twice_is_refused_not_overwritten() -> None:
    assert faults_of("rules: []\nrules: []")[0][0] == "line 2, column 1"
    assert "twice" in faults_of('{"rules": [], "rules": []}', "json")[0][1]


def test_syntax_faults_say_where() -> None:
    assert faults_of("rules:\n  - {id: a")[0][0].startswith("line ")
    assert faults_of('{"rules": [}', "json")[0][0] == "line 1, column 12"
    assert faults_of('{"rules": [}')[0][0] == "line 1, column 12"
    assert faults_of("a: b: c")[0][0] == "line 1, column 5"
    assert faults_of("rules: [*x]")[0][0] == "line 1, column 9"


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_json_without_numbers_that_are_none(constant: str) -> None:
    assert faults_of('{"rules": [], "x": ' + constant + "}", "json")


def test_flow_yaml_that_is_not_json_is_still_read() -> None:
    assert parse("{rules: []}").rules == ()


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe",
        "x: \ud800",
        "x: \x00",
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"rules": ' + "[" * 40 + "]" * 40 + "}",
        "{a: " * 1000,
        "- " * 1000,
        "? " * 1000,
        "a: " * 1000,
        "x" * (2**20 + 1),
        "",
        "---\nrules: []\n---\nrules: []",
        "rules: !!python/object/apply:os.system [ls]",
        "rules: !!set {a}",
        "rules: &a [*a]",
        "? [a]\n: b",
        "%YAML 9.9\n---\nrules: []",
    ],
)
@pytest.mark.parametrize("format", ["yaml", "json", None])
def test_hostile_text_is_refused_and_nothing_else(text: str | bytes, format: Format | None) -> None:
    assert faults_of(text, format)


def test_an_alias_bomb_is_refused_before_it_is_written_out() -> None:
    lines = ["a: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"b{n}: &a{n + 1} [{', '.join([f'*a{n}'] * 10)}]" for n in range(9)]
    assert "aliases" in faults_of("\n".join(lines))[0][1]
    long = "a: &a " + "x" * 500_000 + "\nb: [" + ", ".join(["*a"] * 20) + "]"
    assert "aliases" in faults_of(long)[0][1]


def test_a_plain_alias_is_read() -> None:
    rule_set = parse("defaults: &d {tier: free}\nsubjects: [{client_key: a, set: *d}]\nrules: []")
    assert rule_set.subjects[0].attributes == {"tier": "free"}
    assert parse_document(rule_set.source) == rule_set


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**17), 10**17)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.text(alphabet="0123456789.eE+-_:xobyn~", max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=500, deadline=None)
@given(PLAIN)
def test_what_another_writer_wrote_is_read_as_it_was_meant_or_refused(document: object) -> None:
    try:
        read = read_document(yaml.safe_dump(document, sort_keys=False), "yaml")
    except InvalidRules:
        return
    assert repr(read) == repr(document)


WORDS = st.sampled_from(
    [
        "rules",
        "id",
        "match",
        "capacity",
        "refill",
        "regions",
        "set",
        "key",
        "a",
        "10/s",
        "global",
        "scope",
        "*",
        "<<",
    ]
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), WORDS, st.binary(max_size=2)
)
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(WORDS | st.text(max_size=4) | LEAVES, inner, max_size=5)
    ),
    max_leaves=25,
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(DOCUMENTS, st.fixed_dictionaries({"rules": st.lists(DOCUMENTS, max_size=3)})))
def test_no_document_raises_anything_but_invalid_rules(document: object) -> None:
    try:
        parse_document(document)
    except InvalidRules as error:
        refused = error
    else:
        return
    assert refused.faults
    str(refused).encode()


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.text(alphabet="ab:-{}[]&*!|>'\"\n ,?#%@01.e~\t", max_size=40),
        st.text(max_size=30),
        st.binary(max_size=20),
    )
)
def test_no_text_raises_anything_but_invalid_rules(text: str | bytes) -> None:
    try:
        parse(text)
    except InvalidRules as error:
        refused = error
    else:
        return
    assert refused.faults
    str(refused).encode()
