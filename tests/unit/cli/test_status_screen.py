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


def printed(document: dict[str, Any], width: int = 200) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(status.screen(document, console.width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def shown(document: dict[str, Any], width: int = 200) -> list[str]:
    return [" ".join(line.split()) for line in printed(document, width)]


def test_a_cut_region_and_its_unknown_numbers() -> None:
    lines = shown(DOCUMENT)
    assert lines[0] == "✕ ap is cut off since 12:00:00; it uses its base."
    assert "leader: us, epoch 3, last beat 400 ms ago, read 7 ms after it; rules version 4" in lines
    assert "us linked 2/3 1/1 18.7 s 28.4 s 4 3" in lines
    assert "ap cut off –/3 –/1 – 28.4 s 4 –" in lines
    assert "acme · [red] orders 62.0 (70.0) – 62.0" in lines, "a key's text is no markup"


def test_without_keys_it_says_that_every_region_has_its_base() -> None:
    lines = shown({**DOCUMENT, "keys": {}, "well": True, "sentences": []})
    assert lines[0].startswith("✓ well")
    assert "no key of a global rule is in use: every region has its base" in lines


def test_many_keys_are_cut_short_and_counted() -> None:
    entry = next(iter(DOCUMENT["keys"].values()))
    lines = shown({**DOCUMENT, "keys": {f"rl:{{t}}:d/orders:k{n}": entry for n in range(30)}})
    assert f"and {30 - status.KEYS_SHOWN} more keys: --json shows all" in lines


HASHED = "rl:{t}:default/login:#336dd0a1b2c3d4e5f60718293a4b5c6d"


def busy(regions: list[str]) -> dict[str, Any]:
    """Three keys that every one of ``regions`` wants, one of them hashed and one long."""
    names = {HASHED: "login", "rl:{t}:d/api-global:u%3A42": "api-global", f"rl:{{t}}:d/x:{'k' * 60}": "x" * 40}
    shares = {name: 10_000 // len(regions) for name in regions}
    entry = {"shares": shares, "wants": dict.fromkeys(regions, 15_000), "total": 10_000}
    return {
        **DOCUMENT,
        "regions": dict.fromkeys(regions, REGION),
        "keys": {key: {**entry, "rule": rule} for key, rule in names.items()},
    }


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("regions", [["us-east", "eu-west", "ap-south"], [f"region-number-{n}" for n in range(6)]])
def test_nothing_that_matters_is_cut_away_on_a_narrow_screen(width: int, regions: list[str]) -> None:
    lines = printed(busy(regions), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for word in ("#336dd0a1…", "login", "u:42", "api-global", *regions):
        assert word in text
    assert text.count(f"{100 / len(regions):.1f} (150.0)") == 3 * len(regions)
    assert text.count("100.0") == 3
    assert text.count("18.7 s") == text.count("28.4 s") == len(regions)


def test_it_is_said_what_the_numbers_are_and_why_a_key_is_hashed() -> None:
    text = "\n".join(printed(busy(["us"])))
    assert "what a region may use; behind it, in brackets, what it wants" in text
    assert "#… is a hashed key: so the rule wants it (hash_key), or it is too long" in text
    assert "hashed" not in "\n".join(printed(DOCUMENT))


def test_a_session_that_is_over_has_ended_and_has_not_0_ms_left() -> None:
    lines = shown({**DOCUMENT, "regions": {"us": {**REGION, "session_left_ms": 0}}})
    assert "us linked 2/3 1/1 ended 28.4 s 4 3" in lines


def test_an_embedded_system_says_so() -> None:
    assert shown({**DOCUMENT, "mode": "embedded"})[0].startswith("EMBEDDED: all regions in one process, in memory")
    assert not shown({**DOCUMENT, "mode": "kafka"})[0].startswith("EMBEDDED")


def test_a_watch_into_a_pipe_hands_every_screen_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pipe(io.StringIO):
        handed_on = ""

        def flush(self) -> None:
            self.handed_on = self.getvalue()

    pipe, looks = Pipe(), []

    def pause(_: float) -> None:
        looks.append(pipe.handed_on.count("leader: us"))
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(status, "_ask", lambda api: DOCUMENT)
    monkeypatch.setattr(status, "stdout", lambda: Console(file=pipe, width=120))
    monkeypatch.setattr(status.time, "sleep", pause)
    with pytest.raises(KeyboardInterrupt):
        status._watch(status.Control("http://x"), as_json=False)
    assert looks == [1, 2]


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
