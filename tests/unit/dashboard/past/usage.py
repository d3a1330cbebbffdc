"""Usage messages as an agent publishes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

START_MS = 1_800_000_000_000
KEY = "rl:{0}:d/g:user%3A1"
OTHER = "rl:{0}:d/g:user%3A2"


def usage(
    region: str,
    counted: Mapping[str, Mapping[str, tuple[int, int]]],
    keys: Mapping[str, tuple[int, int, int | None]] | None = None,
    *,
    agent: str = "a",
    session_ms: int = 10_000,
    consent_ms: int = 20_000,
    base: int = 5_000,
) -> dict[str, Any]:
    """``counted``: node incarnation -> rule -> (allowed, denied); ``keys``: key -> (allowed, denied, share)."""
    return {
        "region": region,
        "agent": agent,
        "at_ms": 0,
        "totals": {},
        "counted": {
            source: {name: [allowed, denied, allowed, denied, 0, 0] for name, (allowed, denied) in rows.items()}
            for source, rows in counted.items()
        },
        "keys": {
            key: {"share": share, "want": 0, "totals": [allowed, denied, allowed, denied, 0, 0]}
            for key, (allowed, denied, share) in (keys or {}).items()
        },
        "points": [{"point": "p", "ok": True, "session_left_ms": session_ms, "consent_left_ms": consent_ms}],
        "nodes": [],
        "bases": {"d": base},
        "violations": 0,
    }
