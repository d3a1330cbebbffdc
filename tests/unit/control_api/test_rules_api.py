"""Rules over HTTP: proposed, decided elsewhere, answered here; nobody overwrites anybody."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

from global_sync.rule_states import DomainState, encode_parts
from global_sync.transport.base import RULES
from global_sync.transport.memory import MemoryHub
from regional_limiter.rules.text import Format, read_document
from services.control_api import requests
from tests.unit.control_api.conftest import Serving
from tests.unit.control_api.fake_leader import FakeLeader

RULE = {"match": {"resource": "POST /orders"}, "algorithm": "token_bucket", "capacity": 20, "refill_per_second": 10}
GLOBAL = {**RULE, "scope": "global"}
SET = """
domain: shop
regions: {us-east: 3, eu-west: 1}
rules:
  - {id: a, match: {}, capacity: 10, refill: 1/s, scope: global}
  - {id: b, match: {}, algorithm: fixed_window, limit: 5, window: 60s}
"""
YAML = {"content-type": "application/yaml"}
BUSY_MACHINE_S = 20


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    return body


async def test_the_short_form_is_accepted_and_answered_with_what_is_held(
    serving: Serving, leader: FakeLeader
) -> None:
    async with serving() as client:
        answer = await client.put("/rules/orders-free", json=RULE)
        assert answer.status_code == 201
        body = answer.json()
        assert answer.headers["etag"] == f'"{body["version"]}"'
        assert answer.headers["location"] == "/rules/orders-free?domain=default"
        assert body["loaded"]["capacity"] == 20
        assert body["loaded"]["refill"]["per_second"] == 10.0
        again = await client.get("/rules/orders-free")
        assert again.json() == body
        assert again.headers["etag"] == answer.headers["etag"]


async def test_the_first_rule_of_a_domain_brings_the_regions_of_the_deployment(
    serving: Serving, leader: FakeLeader
) -> None:
    async with serving() as client:
        body = (await client.put("/rules/orders", json=GLOBAL)).json()
        assert {name: here["base"] for name, here in body["loaded"]["regions"].items()} == {
            "us-east": 5000,
            "eu-west": 5000,
        }


async def test_a_wrong_rule_is_refused_here_with_every_fault_by_its_place_in_the_rule(serving: Serving) -> None:
    async with serving() as client:  # no leader: nothing must be asked of it
        wrong = {**RULE, "capacity": -1, "refil": "10/s", "scope": "galactic"}
        body = problem(await client.put("/rules/orders", json=wrong), 422)
        assert {fault["field"] for fault in body["errors"]} >= {"capacity", "refil", "scope"}


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"{", 422), (b"[1]", 422), (b"", 422), (b'{"a": 1, "a": 2}', 422), (b"x" * (1024 * 1024 + 1), 413)],
    ids=["broken", "a list", "empty", "a key twice", "too large"],
)
async def test_a_body_that_is_no_rule_is_a_problem_and_not_an_exception(
    serving: Serving, leader: FakeLeader, content: bytes, status: int
) -> None:
    async with serving() as client:
        answer = await client.put("/rules/r", content=content, headers={"content-type": "application/json"})
        problem(answer, status)


async def test_a_body_of_another_kind_is_told_apart(serving: Serving) -> None:
    async with serving() as client:
        problem(await client.put("/rules/r", content=b"<a/>", headers={"content-type": "text/xml"}), 415)


async def test_a_name_that_cannot_be_is_refused_before_anything_is_read(serving: Serving) -> None:
    async with serving() as client:
        problem(await client.put("/rules/No%20Way", json=RULE), 422)
        problem(await client.get("/rules", params={"domain": "A B"}), 422)


async def test_a_change_made_from_an_old_version_is_refused(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        first = (await client.put("/rules/r", json=RULE)).headers["etag"]
        second = await client.put("/rules/r", json={**RULE, "capacity": 30}, headers={"if-match": first})
        assert second.status_code == 200
        body = problem(await client.put("/rules/r", json=RULE, headers={"if-match": first}), 412)
        assert f'"{body["newest"]}"' == second.headers["etag"]
        assert (await client.get("/rules/r")).json()["loaded"]["capacity"] == 30


async def test_of_two_operators_at_once_one_wins_and_the_other_is_told(
    serving: Serving, leader: FakeLeader
) -> None:
    async with serving() as client:
        etag = (await client.put("/rules/r", json=RULE)).headers["etag"]
        changes = [{**RULE, "capacity": capacity} for capacity in (30, 40)]
        answers = await asyncio.gather(
            *(client.put("/rules/r", json=change, headers={"if-match": etag}) for change in changes)
        )
        # 409: lost in the log; 412: the winner's change was known here already.
        won, lost = sorted(answer.status_code for answer in answers)
        assert won == 200
        assert lost in (409, 412)
        winner = next(answer for answer in answers if answer.status_code == 200).json()
        assert (await client.get("/rules/r")).json()["loaded"]["capacity"] == winner["loaded"]["capacity"]


async def test_only_if_it_is_not_there_yet(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        new = {"if-none-match": "*"}
        assert (await client.put("/rules/r", json=RULE, headers=new)).status_code == 201
        problem(await client.put("/rules/r", json=RULE, headers=new), 412)
        problem(await client.put("/rules/other", json=RULE, headers={"if-match": "*"}), 412)
        problem(await client.put("/rules/r", json=RULE, headers={"if-match": "seven"}), 400)


async def test_a_deleted_rule_is_gone_and_cannot_be_deleted_twice(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        await client.put("/rules/r", json=RULE)
        assert (await client.delete("/rules/r")).json()["deleted"] is True
        problem(await client.get("/rules/r"), 404)
        problem(await client.delete("/rules/r"), 404)


async def test_without_kafka_the_answer_says_that_it_may_still_be_accepted(
    serving: Serving, hub: MemoryHub, leader: FakeLeader
) -> None:
    async with serving(wait_s=0.1) as client:
        assert (await client.get("/rules")).status_code == 200
        hub.cut("control")
        body = problem(await client.put("/rules/r", json=RULE), 503)
        assert body["proposal"]
        assert "may still" in body["detail"]


async def test_without_a_leader_the_answer_names_the_proposal(serving: Serving) -> None:
    async with serving(wait_s=0.1) as client:
        body = problem(await client.put("/rules/r", json=RULE), 504)
        assert body["proposal"]
        assert "may still be accepted" in body["detail"]


async def test_an_outcome_that_a_new_leader_tells_again_is_one_line_of_history(
    serving: Serving, leader: FakeLeader
) -> None:
    leader.told_twice = True
    async with serving() as client:
        headers = {"apportion-author": "ann", "apportion-reason": "launch"}
        await client.put("/rules/a", json=RULE, headers=headers)
        await client.put("/rules/b", json=RULE)
        changes = (await client.get("/history")).json()["changes"]
        assert [change["rule_id"] for change in changes] == ["b", "a"]
        assert (changes[1]["author"], changes[1]["reason"]) == ("ann", "launch")


async def test_while_the_rules_are_unknown_it_does_not_say_that_there_are_none(
    serving: Serving, hub: MemoryHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.cut("control")
    async with serving() as client:

        async def not_in_time(timeout_s: float = 0) -> bool:
            return False

        monkeypatch.setattr(client._transport.app.state.hub, "rules_known", not_in_time)  # type: ignore[attr-defined]
        problem(await client.get("/rules"), 503)
        problem(await client.get("/rules/r"), 503)
        problem(await client.put("/rules/r", json=RULE), 503)
        problem(await client.get("/readyz"), 503)
        assert (await client.get("/livez")).status_code == 200


# ---- whole sets


async def test_a_set_is_taken_whole_and_comes_back_as_it_was_written(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        answer = await client.put("/rulesets/shop", content=SET, headers=YAML)
        assert answer.status_code == 201
        body = answer.json()
        assert [rule["id"] for rule in body["rules"]] == ["a", "b"]
        assert body["rules"][0]["loaded"]["regions"]["us-east"]["base"] == 7500
        as_yaml = await client.get("/rulesets/shop", headers={"accept": "application/yaml"})
        assert as_yaml.headers["content-type"].startswith("application/yaml")
        same = await client.put("/rulesets/shop", content=as_yaml.content, headers=YAML)
        assert same.json()["document"] == body["document"]
        sets = (await client.get("/rulesets")).json()["rulesets"]
        assert [(one["domain"], one["rules"]) for one in sets] == [("shop", 2)]


async def test_a_set_for_another_domain_is_refused(serving: Serving) -> None:
    async with serving() as client:
        body = problem(await client.put("/rulesets/other", content=SET, headers=YAML), 422)
        assert body["errors"][0]["field"] == "domain"


async def test_a_set_with_one_wrong_rule_leaves_the_old_one_in_force(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        await client.put("/rulesets/shop", content=SET, headers=YAML)
        wrong = SET.replace("limit: 5", "limit: five")
        body = problem(await client.put("/rulesets/shop", content=wrong, headers=YAML), 422)
        assert [fault["field"] for fault in body["errors"]] == ["rules[1].limit"]
        kept = (await client.get("/rulesets/shop")).json()["document"]
        assert kept["rules"][1]["limit"] == 5


async def test_a_set_made_from_an_old_version_is_refused(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        etag = (await client.put("/rulesets/shop", content=SET, headers=YAML)).headers["etag"]
        await client.put("/rules/c", params={"domain": "shop"}, json=RULE)
        problem(await client.put("/rulesets/shop", content=SET, headers={**YAML, "if-match": etag}), 412)


async def test_validate_names_every_fault_and_changes_nothing(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        wrong = SET.replace("limit: 5", "limit: five").replace("capacity: 10", "capacity: ten")
        answer = await client.post("/rulesets/shop:validate", content=wrong, headers=YAML)
        assert answer.status_code == 200
        assert answer.json()["valid"] is False
        assert {fault["field"] for fault in answer.json()["errors"]} == {"rules[0].capacity", "rules[1].limit"}
        good = await client.post("/rulesets/shop:validate", content=SET, headers=YAML)
        assert good.json()["valid"] is True
        problem(await client.get("/rulesets/shop"), 404)


# ---- who may


async def test_with_a_token_nothing_but_the_probes_is_open(serving: Serving, leader: FakeLeader) -> None:
    token = "a-token-of-enough-length"
    async with serving(token=token) as client:
        for path in ("/rules", "/v1/status", "/docs", "/openapi.json", "/history"):
            answer = await client.get(path)
            problem(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
        problem(await client.get("/rules", headers={"authorization": f"Bearer {token}x"}), 401)
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/rules", headers={"authorization": f"Bearer {token}"})).status_code == 200


async def test_the_openapi_document_loads_and_names_every_address(serving: Serving) -> None:
    async with serving() as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
        assert {"put", "get", "delete"} <= set(paths["/rules/{rule_id}"])
        assert {"/rulesets/{domain}", "/rulesets/{domain}:validate", "/v1/status", "/v1/usage"} <= set(paths)


async def test_the_openapi_document_names_the_headers_that_are_read(serving: Serving) -> None:
    async with serving() as client:
        document = (await client.get("/openapi.json")).json()

    def headers(method: str, path: str) -> set[str]:
        said = document["paths"][path][method].get("parameters", [])
        return {one["name"] for one in said if one["in"] == "header"}

    why, which = {"Apportion-Reason", "Apportion-Author"}, {"If-Match", "If-None-Match"}
    for path in ("/rules/{rule_id}", "/rulesets/{domain}", "/overrides", "/subjects/{client_key}"):
        assert headers("put", path) == why | which, path
    assert headers("post", "/rulesets/{domain}:rollback") == why | which
    assert headers("post", "/subjects:import") == headers("post", "/tokens") == why
    assert headers("get", "/rules/{rule_id}") == headers("post", "/rulesets/{domain}:validate") == set()
    assert "ETag" in document["paths"]["/rules/{rule_id}"]["get"]["responses"]["200"]["headers"]
    assert document["security"] == [{}, {"bearer": []}]


async def test_an_unknown_address_is_a_problem_too(serving: Serving) -> None:
    async with serving() as client:
        problem(await client.get("/nowhere"), 404)
        problem(await client.post("/rules"), 405)


async def test_others_are_answered_while_a_large_set_is_parsed(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However fast the machine parses: here a set is parsed for as long as it takes to answer somebody else."""
    begun, answered = threading.Event(), threading.Event()

    def slow(body: bytes, format: Format) -> Any:
        begun.set()
        assert answered.wait(BUSY_MACHINE_S), "nobody was answered while a set was parsed"
        return read_document(body, format)

    monkeypatch.setattr(requests, "read_document", slow)
    text = "rules:\n  - {id: r, match: {resource: 'GET /'}, capacity: 10, refill: 1/s}\n"
    async with serving() as client:
        large = asyncio.create_task(client.post("/rulesets/default:validate", content=text, headers=YAML))
        assert await asyncio.to_thread(begun.wait, BUSY_MACHINE_S)
        assert (await client.get("/livez")).status_code == 200
        answered.set()
        assert (await large).json()["valid"] is True


async def test_a_domain_that_is_not_understood_keeps_no_other_back_and_is_not_taken_for_one_without_rules(
    serving: Serving, leader: FakeLeader, hub: MemoryHub
) -> None:
    newer = DomainState("ahead", {"domain": "ahead", "rules": [{"id": "r", "algorithm": "of 2031"}]}, {}, 1, 1, 9)
    transport = hub.transport("newer")
    for key, value in encode_parts(newer, 9):
        await transport.send(RULES, [value], key=key)
    async with serving() as client:
        assert (await client.put("/rules/r", json=RULE)).status_code == 201
        assert (await client.get("/rules/r")).status_code == 200
        for answer in (
            await client.get("/rulesets/ahead"),
            await client.get("/rules", params={"domain": "ahead"}),
            await client.put("/rules/r", json=RULE, params={"domain": "ahead"}),
            await client.put("/rulesets/ahead", json={"rules": []}),
        ):
            assert "not understood" in problem(answer, 503)["detail"]
    assert "ahead" not in leader.book.states()
