"""An audit that cannot know says so; one that knows names every vulnerability."""

from __future__ import annotations

from typing import Any

import pytest

from infra.audit import KNOWN_VULNERABLE, Ask, NotLookedUp, known_vulnerabilities
from infra.install import InstallFailed

OURS = "httptools==0.6.4\nuvicorn==0.38.0\n"
TOLD = {"dependencies": [{"name": "jinja2", "version": "2.4.1", "vulns": [{"id": "CVE-2014-0012"}]}]}


def database(ours: list[dict[str, Any]], known: dict[str, Any] = TOLD) -> Ask:
    return lambda requirements: known if requirements.startswith(KNOWN_VULNERABLE) else {"dependencies": ours}


def clean(name: str) -> dict[str, Any]:
    return {"name": name, "version": "1", "vulns": []}


def test_nothing_known_is_nothing() -> None:
    assert known_vulnerabilities(OURS, database([clean("httptools"), clean("uvicorn")])) == []


def test_each_is_named_with_what_mends_it() -> None:
    bad = {"name": "uvicorn", "version": "0.1", "vulns": [{"id": "A", "fix_versions": ["0.2", "1.0"]}, {"id": "B"}]}
    assert known_vulnerabilities(OURS, database([clean("httptools"), bad])) == [
        "uvicorn 0.1: A, mended in 0.2, 1.0",
        "uvicorn 0.1: B",
    ]


def fails(requirements: str) -> dict[str, Any]:
    raise InstallFailed("no such host")


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (database([clean("uvicorn")], known={"dependencies": []}), "does not even know"),
        (
            database([], known={"dependencies": [{"name": "jinja2", "skip_reason": "not found"}]}),
            "does not even know",
        ),
        (database([{"name": "uvicorn", "skip_reason": "not found"}]), "does not know uvicorn"),
        (fails, "no such host"),
    ],
    ids=["an empty database", "a mirror without one", "a package that it does not know", "no network"],
)
def test_what_could_not_be_looked_up_is_not_taken_for_safe(ask: Ask, why: str) -> None:
    with pytest.raises(NotLookedUp, match=why):
        known_vulnerabilities(OURS, ask)
