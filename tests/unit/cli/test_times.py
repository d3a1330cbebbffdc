"""Spans as people write them."""

from __future__ import annotations

import pytest

from services.cli.times import span_s


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90min", 5400), ("2d", 172_800), ("1 w", 604_800), ("5s", 5), ("0s", None), ("2", None), ("-1h", None)],
)
def test_a_span(text: str, seconds: int | None) -> None:
    assert span_s(text) == seconds
