"""Whoever is denied was a suspect, whatever the kind of limit; and most are none."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regional_limiter.rules import parse_document
from services.rehearsal.replay import Replay
from services.rehearsal.suspects import suspects

START_MS = 1_700_000_000_123
KINDS: list[dict[str, Any]] = [
    {"capacity": 3, "refill": "7/10s"},
    {"capacity": 2, "refill": "100/s"},
    {"algorithm": "gcra", "capacity": 4, "refill": "3/s"},
    {"algorithm": "leaky_bucket", "capacity": 3, "leak": "2/s", "queue": True},
    {"algorithm": "fixed_window", "limit": 4, "window": "3s"},
    {"algorithm": "sliding_window_counter", "limit": 4, "window": "3s"},
    {"algorithm": "sliding_window_log", "limit": 3, "window": "2s"},
]
ASKED = st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 3), st.integers(1, 4)), max_size=80)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KINDS), ASKED)
def test_whoever_is_denied_was_a_suspect(kind: dict[str, Any], steps: list[tuple[int, int, int]]) -> None:
    rule_set = parse_document({"rules": [{"id": "r", **kind}]})
    replay = Replay(rule_set)
    now_ms, asked, denied = START_MS, [], set()
    for after_ms, key, cost in steps:
        now_ms += after_ms
        asked.append((now_ms, key, cost))
        if not replay.decide(now_ms, {"client_key": str(key)}, cost).allowed:
            denied.add(key)
    found = suspects(rule_set.rules[0], asked, None, 1000)
    assert found is not None
    assert denied <= found
    assert suspects(rule_set.rules[0], asked, {0, 1}, 1000) == found & {0, 1}


@pytest.mark.parametrize("kind", [KINDS[1], KINDS[4], KINDS[5]], ids=lambda kind: kind.get("algorithm", "bucket"))
def test_keys_within_their_limit_are_no_suspects_and_too_many_keys_are_said_so(kind: dict[str, Any]) -> None:
    (rule,) = parse_document({"rules": [{"id": "r", **kind}]}).rules
    random = Random(1)
    calm = [(START_MS + 10 * n, n % 500, 1) for n in range(5000)]
    burst = [(START_MS + 20_000 + n, 7, 1) for n in range(50)]
    assert suspects(rule, sorted(calm + burst), None, 1000) == {7}
    assert suspects(rule, [(START_MS, random.getrandbits(60), 1) for _ in range(5000)], None, 1000) is None


def test_windows_of_the_calendar_are_not_looked_at_so() -> None:
    (rule,) = parse_document(
        {"rules": [{"id": "r", "algorithm": "fixed_window", "limit": 1, "window": {"calendar": "day"}}]}
    ).rules
    assert suspects(rule, [(START_MS, 1, 1)], None, 10) is None
