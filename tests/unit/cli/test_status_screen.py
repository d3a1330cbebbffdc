"""One screen of status: what is not known is a dash, never a zero."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from services.cli import status
from services.cli.control import NoAnswer

REGION: dict[str, Any] = {
    "link": "linked", "session_left_ms": 18_700, "consent_left_ms": 28_400, "rules_version": 4, "epoch": 3,
    "points": [{}, {}, {}], "points_ok": 2, "nodes": [{}], "nodes_alive": 1, "node_urls": [],
}  # fmt: skip
CUT = {**REGION, "link": "cut", "points_ok": None, "nodes_alive": None, "session_left_ms": None, "epoch": None}
DOCUMENT: dict[str, Any] = {
    "well": False,
    "sentences": [{"level": "bad", "text": "ap is cut off since 12:00:00; it uses its base."}],
    "leader": {"epoch": 3, "region": "us", "beat_age_ms": 400, "lag_ms": 7},
    "rules_version": 4,
    "regions": {"us": REGION, "ap": CUT},
    "keys": {
        "rl:{t}:d/orders:acme,%5Bred%5D": {
            "rule": "orders", "shares": {"us": 6200, "ap": None}, "wants": {"us": 7000, "ap": None}, "total": 6200,
        }
    },
}  # fmt: skip


def shown(document: dict[str, Any]) -> list[str]:
    console = Console(file=io.StringIO(), width=200)
    console.print(status.screen(document))
    assert isinstance(console.file, io.StringIO)
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_a_cut_region_and_its_unknown_numbers() -> None:
    lines = shown(DOCUMENT)
    assert lines[0] == "✕ ap is cut off since 12:00:00; it uses its base."
    assert "leader: us, epoch 3, last beat 400 ms ago, read 7 ms after it; rules version 4" in lines
    assert "us linked 2/3 1/1 18.7 s 28.4 s 4 3" in lines
    assert "ap cut off –/3 –/1 – 28.4 s 4 –" in lines
    assert "acme · [red] orders 62.0 % of 70.0 – 62.0 %" in lines, "a key's text is no markup"


def test_without_keys_it_says_that_every_region_has_its_base() -> None:
    lines = shown({**DOCUMENT, "keys": {}, "well": True, "sentences": []})
    assert lines[0].startswith("✓ well")
    assert "no key of a global rule is in use: every region has its base" in lines


def test_many_keys_are_cut_short_and_counted() -> None:
    entry = next(iter(DOCUMENT["keys"].values()))
    lines = shown({**DOCUMENT, "keys": {f"rl:{{t}}:d/orders:k{n}": entry for n in range(30)}})
    assert f"and {30 - status.KEYS_SHOWN} more keys: --json shows all" in lines


def test_a_watch_outlives_a_time_without_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [NoAnswer("http://x does not answer: refused"), DOCUMENT, KeyboardInterrupt()]

    def ask(api: object) -> dict[str, Any]:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return dict(answer)

    monkeypatch.setattr(status, "_ask", ask)
    monkeypatch.setattr(status, "WATCH_S", 0)
    with pytest.raises(KeyboardInterrupt):
        status._watch(status.Control("http://x"), as_json=False)
    assert answers == []
