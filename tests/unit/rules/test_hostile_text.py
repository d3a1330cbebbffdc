"""A megabyte written to hurt: it is a rule set or a list of faults, within a few times what an honest one takes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from time import process_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regional_limiter.model.errors import InvalidRules
from regional_limiter.rules import compile_rules, parse
from regional_limiter.rules.faults import FAULTS_MOST
from regional_limiter.rules.grammar import DOCUMENT_BYTES_MOST, RULES_MOST

MOST = DOCUMENT_BYTES_MOST - 1
RULE = "capacity: 5, refill: 1/s"


def filled(head: str, unit: str | Callable[[int], str], tail: str = "", times: int = MOST) -> str:
    """``head``, ``unit`` as often as there is room for (at most ``times``), ``tail``."""
    parts, size, number = [head], len((head + tail).encode()), 0
    while number < times:
        part = unit if isinstance(unit, str) else unit(number)
        size += len(part.encode())
        if size > MOST:
            break
        parts.append(part)
        number += 1
    return "".join([*parts, tail])


def rules(fields: Callable[[int], str]) -> str:
    return filled("rules:\n", lambda n: f"- {{id: r{n}, {fields(n)}}}\n", times=RULES_MOST)


LETTERS = "abcdefghijklmnopqrst"
HOSTILE = {
    "brackets": "[" * MOST,
    "json in json": '{"a":' * (MOST // 6),
    "lists in lists": filled("", "- "),
    "maps in maps": "\n".join(" " * depth + "a:" for depth in range(1400)),
    "half a million nothings": filled("", "-\n"),
    "aliases of aliases": "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(f"{now}: &{now} [{', '.join([f'*{before}'] * 9)}]\n" for before, now in pairwise(LETTERS)),
    "an alias of itself": "rules: &a [*a]",
    "many aliases": filled("a: &a [x]\nrules: [", "*a, ", "]"),
    "many anchors": filled("rules: [", lambda n: f"&a{n} x, ", "]"),
    "merges": filled("a: &a {x: 1}\nb: {", "<<: *a, ", "}"),
    "one key for ever": filled("{", "a: 1, ", "}"),
    "unknown keys": filled("{", lambda n: f"rule{n}: 1, ", "}"),
    "unknown fields of a rule": filled("rules: [{id: a, ", lambda n: f"capacit{n}: 1, ", "}]"),
    "rules that are all wrong": rules(lambda n: "capacty: -5, refil: 1/x, match: {tier: 5}, mode: shado"),
    "wrong time zones": rules(
        lambda n: f"algorithm: fixed_window, limit: 1, window: {{calendar: day, zone: Europe/B{n}}}"
    ),
    "wrong networks": rules(lambda n: f"{RULE}, match: {{ip: {{cidr: 10.{n >> 8 & 255}.{n & 255}.1/24}}}}"),
    "wrong rates": rules(lambda n: f"capacity: 899999999{n % 9}, refill: {n + 1}/{n + 7}s"),
    "one id for all": rules(lambda n: f"id: r, {RULE}"),
    "overrides of nothing": filled(
        f"rules: [{{id: orders, {RULE}}}]\noverrides:\n",
        lambda n: f"- {{rule: order{n}, block: true}}\n",
        times=10_000,
    ),
    "subjects in every shape": filled(
        "rules: []\nsubjects:\n", lambda n: f"- {{k{n}: a, set: {{}}}}\n", times=10_000
    ),
    "values": filled(f"rules:\n- {{id: r, {RULE}, match: {{a: [", lambda n: f"v{n}*x*y, ", "]}}"),
    "stars": filled(f"rules:\n- {{id: r, {RULE}, match: {{a: '", "*a", "'}}"),
    "one number": "rules: " + "9" * (MOST - 10),
    "one json number": '{"rules": 1e' + "9" * (MOST - 20) + "}",
    "one text": "rules: '" + "a" * (MOST - 20) + "'",
    "escapes": filled('rules: "', "\\u0041", '"'),
    "a quote that does not end": '"' + "\\" * (MOST - 3),
    "comments": filled("", "#\n"),
    "documents": filled("", "---\na\n"),
    "marks of order": "\ufeff" * (MOST // 3),
    "zeros": "\0" * MOST,
}  # fmt: skip


def seconds(text: str) -> float:
    began = process_time()
    refused: InvalidRules | None = None
    try:
        parse(text)
    except InvalidRules as error:
        refused = error
    took_s = process_time() - began
    if refused is not None:
        assert 0 < len(refused.faults) <= FAULTS_MOST + 1
        assert len(str(refused)) < 2 * DOCUMENT_BYTES_MOST
    return took_s


@pytest.fixture(scope="module")
def honest_s() -> float:
    """What a set as large as may be takes."""
    text = rules(lambda n: f"description: {'x' * 60}, {RULE}")
    assert len(parse(text).rules) > 5_000
    return seconds(text)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_ends_in_bounded_time(name: str, honest_s: float) -> None:
    assert seconds(HOSTILE[name]) < 15 * honest_s


WORDS = st.sampled_from(
    ["rules:", "- id: a", "id: r", "capacity: 5", "refill: 1/s", "&a", "*a", "<<: *a", "{", "}", "[", "]", ",", ":",
     "-", "\n", "\n  ", "  ", "'", '"', "|", ">", "#", "---", "%TAG", "!!python/object:os.system", "? ", "~", "1e9",
     "0x1f",
     "match: {tier: '*'}", "overrides:", "subjects:", "regions: {a: 1}", "\ufeff", "\u2028", "\0", "mode: shadow",
     "canary: {percent: 5, capacity: 9}", "replaces: [r]", "split: 2", "stop: true", "normalise: {tier: [lower]}"]
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(
    st.lists(WORDS, max_size=40).map(" ".join) | st.lists(WORDS, max_size=40).map("".join) | st.binary(max_size=400)
)
def test_any_bytes_are_a_set_that_compiles_or_a_list_of_faults(text: str | bytes) -> None:
    try:
        rule_set = parse(text)
    except InvalidRules as error:
        refused = error.faults
    else:
        compile_rules(rule_set)
        assert parse(text) == rule_set
        return
    assert refused
    assert all(fault.place and fault.problem for fault in refused)
