"""What a limit lets through for ever, which nearness is reckoned by."""

from __future__ import annotations

from typing import Any

import pytest

from regional_limiter.rules import parse_document
from services.dashboard.rules import even_rate, window_s


@pytest.mark.parametrize(
    ("numbers", "per_s", "length_s"),
    [
        ({"capacity": 100, "refill": "90/min"}, 1.5, None),
        ({"algorithm": "fixed_window", "limit": 30, "window": "60s"}, 0.5, 60),
        ({"algorithm": "sliding_window_log", "limit": 5, "window": "10s"}, 0.5, 10),
        ({"algorithm": "fixed_window", "limit": 86_400, "window": {"calendar": "day"}}, 1.0, 86_400),
        ({"algorithm": "concurrency", "limit": 5, "lease": "60s"}, None, None),
        ({"unlimited": True}, None, None),
    ],
)
def test_an_even_rate(numbers: dict[str, Any], per_s: float | None, length_s: float | None) -> None:
    document = {"domain": "d", "regions": {"a": 1}, "rules": [{"id": "r", "match": {}, **numbers}]}
    (rule,) = parse_document(document).rules
    assert (even_rate(rule), window_s(rule)) == (per_s, length_s)
