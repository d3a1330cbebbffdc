"""Allowances as a limiter tells them, of rules that are hard to write."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from regional_limiter.plan import Plan
from regional_limiter.store.base import Allowed
from services.check_api.templates import _MARKS

HASH = b"\x01\x02\x03\x04\xff\xfe\xfd\xfc"

NUMBERS = st.integers(0, 10**16) | st.sampled_from([0, 1, 999, 1000, 1001, 10**15 - 1, 10**15])
RULES = st.text(max_size=12) | st.sampled_from(["all", "100%", "%b%d", 'q"\\', "é", str(_MARKS[0].left)])

LEFT = st.integers(0, 10**9) | NUMBERS
STEPS = st.lists(
    st.tuples(
        RULES,
        NUMBERS,
        st.none() | NUMBERS,
        st.sampled_from([HASH] * 5 + [b""]),
        st.sampled_from([True] * 9 + [False]),
        LEFT,
        LEFT,
    ),
    min_size=1,
    max_size=4,
)


def allowed_by(steps: list[tuple[Any, ...]]) -> Allowed:
    """What a limiter tells that has asked for these rules."""
    allowed = Allowed([step[5] for step in steps], [step[6] for step in steps])
    plan = SimpleNamespace(
        steps=[
            SimpleNamespace(
                rule=SimpleNamespace(domain="d", id=rule, capacity=limit, window_ms=window_ms, headers=headers),
                key_hash=key_hash,
            )
            for rule, limit, window_ms, key_hash, headers, *_ in steps
        ]
    )
    plan.combined = partial(Plan.combined, plan)
    allowed.asking = SimpleNamespace(plan=plan, told=None)
    return allowed
