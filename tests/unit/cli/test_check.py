"""``apportion check``: exit codes that scripts can trust."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from services.cli.main import app

ANSWER = {
    "allowed": True,
    "limit": 20,
    "remaining": 7,
    "retry_after_ms": 0,
    "reset_after_ms": 4200,
    "rule": "orders",
    "reason": "ok",
    "degraded": False,
    "share": "base",
    "verdicts": [
        {
            "rule": "orders",
            "allowed": True,
            "reason": "ok",
            "limit": 20,
            "remaining": 7,
            "retry_after_ms": 0,
            "reset_after_ms": 4200,
            "share": "base",
            "share_units": 3333,
            "degraded": False,
        }
    ],
}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A node: ``status`` and ``body`` are what it answers, ``asked`` what it got."""
    told: dict[str, Any] = {"status": 200, "body": ANSWER, "asked": []}

    def answer(request: httpx.Request) -> httpx.Response:
        told["asked"].append(json.loads(request.content))
        if isinstance(told["body"], Exception):
            raise told["body"]
        return httpx.Response(told["status"], json=told["body"])

    real = httpx.Client
    monkeypatch.setattr(httpx, "Client", lambda **options: real(transport=httpx.MockTransport(answer), **options))
    return told


def run(*options: str) -> tuple[int, str, str]:
    arguments = ["check", "--client-key", "u:1", "--resource", "GET /x", *options]
    result = CliRunner().invoke(app, arguments, prog_name="apportion")
    return result.exit_code, result.stdout, result.stderr


def test_allowed_is_0_and_tells_the_share(node: dict[str, Any]) -> None:
    code, out, _ = run("--attr", "tier=free", "--cost", "2", "--request-id", "r1")
    assert code == 0
    assert out.startswith("allowed\n")
    assert "7 of 20 left" in out
    assert "share 33.33 % (base)" in out
    assert node["asked"] == [
        {
            "client_key": "u:1",
            "resource": "GET /x",
            "cost": 2,
            "attributes": {"tier": "free"},
            "domain": "default",
            "request_id": "r1",
        }
    ]


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        ({"degraded": True, "share": "floor"}, "degraded: decided without the region's Redis"),
        ({"degraded": False, "share": "floor"}, "degraded: at the floor"),
    ],
)
def test_the_two_causes_of_degraded_are_told_apart(
    node: dict[str, Any], verdict: dict[str, Any], words: str
) -> None:
    node["body"] = {**ANSWER, "degraded": True, "verdicts": [{**ANSWER["verdicts"][0], **verdict}]}  # type: ignore[index]
    assert words in run()[1]


def test_a_turn_to_wait_for_and_slots_to_release_are_told(node: dict[str, Any]) -> None:
    node["body"] = {**ANSWER, "wait_ms": 250, "lease_id": "a1", "lease_ms": 30_000}
    assert run()[1].startswith("allowed\nits turn is in 250 ms\nholds its slots for 30000 ms as a1\n")


def test_denied_is_1(node: dict[str, Any]) -> None:
    node["body"] = {**ANSWER, "allowed": False, "reason": "limited", "retry_after_ms": 334, "verdicts": []}
    code, out, _ = run()
    assert (code, out) == (1, "denied: limited\ntry again in 334 ms\n")


def test_json_is_the_nodes_answer(node: dict[str, Any]) -> None:
    code, out, _ = run("--json")
    assert code == 0
    assert json.loads(out) == ANSWER


def test_a_refused_field_is_2_and_named(node: dict[str, Any]) -> None:
    node["status"] = 422
    node["body"] = {"status": 422, "errors": [{"field": "cost", "problem": "must be an integer"}]}
    code, _, err = run("--cost", "-1")
    assert code == 2
    assert "cost: must be an integer" in err


@pytest.mark.parametrize("body", [{}, [], {"allowed": "yes"}, httpx.ConnectError("refused")])
def test_no_decision_is_2_never_0(node: dict[str, Any], body: Any) -> None:
    node["body"] = body
    assert run()[0] == 2


@pytest.mark.parametrize("pair", ["tier", "=free", "tier=a tier=b"])
def test_a_wrong_attribute_is_2_and_asks_nobody(node: dict[str, Any], pair: str) -> None:
    options = [word for item in pair.split(" ") for word in ("--attr", item)]
    assert run(*options)[0] == 2
    assert node["asked"] == []
