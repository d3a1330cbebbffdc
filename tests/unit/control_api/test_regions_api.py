"""Regions over HTTP: weights by compare-and-set, and who may say that a region is destroyed."""

from __future__ import annotations

from typing import Any

import httpx

from global_sync import codec
from global_sync.protocol.messages import Config, Done, Gone, Mark
from global_sync.transport.base import LOG
from global_sync.transport.memory import MemoryHub
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.rules import parse_document
from services.accepted_rules import LoadedSet
from services.bases_seen import BasesSeen
from services.cli.region_changes import waiting_for
from services.control_api.regions import Seen, regions_document
from tests.unit.control_api.conftest import Serving
from tests.unit.control_api.fake_leader import FakeLeader
from tests.unit.control_api.test_rules_api import SET, YAML, problem

ROOT = "a-token-of-enough-length"
WHY = {"Apportion-Reason": "burnt down"}


async def put_set(client: httpx.AsyncClient, **headers: str) -> int:
    answer = await client.put("/rulesets/shop", content=SET, headers={**YAML, **headers})
    assert answer.is_success, answer.text
    version: int = answer.json()["version"]
    return version


async def token(client: httpx.AsyncClient, role: str, *domains: str) -> dict[str, str]:
    wanted = {"name": "ann", "role": role, "domains": domains or ["*"]}
    made = await client.post("/tokens", json=wanted, headers={"Authorization": f"Bearer {ROOT}"})
    return {"Authorization": f"Bearer {made.json()['token']}"}


async def test_weights_alone_are_changed_and_every_version_can_be_read_again(
    serving: Serving, leader: FakeLeader
) -> None:
    async with serving() as client:
        version = await put_set(client)
        weights = {"eu-west": 2, "us-east": 1}
        answer = await client.put("/rulesets/shop/regions", json=weights, headers={"If-Match": f'"{version}"'})
        assert answer.status_code == 200, answer.text
        now = answer.json()["version"]
        assert answer.headers["etag"] == f'"{now}"'
        document = (await client.get("/rulesets/shop")).json()["document"]
        assert document["regions"] == weights
        assert [rule["id"] for rule in document["rules"]] == ["a", "b"]
        versions = (await client.get("/rulesets/shop/versions")).json()["versions"]
        assert [one["kind"] for one in versions] == ["put_regions", "put_set"]
        again = await client.get(f"/rulesets/shop/versions/{now}")
        assert again.json()["document"]["regions"] == weights
        late = await client.put("/rulesets/shop/regions", json={"us-east": 1}, headers={"If-Match": f'"{version}"'})
        assert problem(late, 412)["newest"] == now


async def test_wrong_weights_are_refused_by_their_place(serving: Serving, leader: FakeLeader) -> None:
    async with serving() as client:
        await put_set(client)
        wrong: dict[str, Any] = {"us-east": -1, "eu west": 1}
        body = problem(await client.put("/rulesets/shop/regions", json=wrong), 422)
        assert {fault["field"] for fault in body["errors"]} == {"regions.us-east", 'regions."eu west"'}
        problem(await client.put("/rulesets/none/regions", json={"us-east": 1}), 404)


async def test_only_an_admin_of_every_domain_may_say_that_a_region_is_destroyed_and_must_say_why(
    serving: Serving, leader: FakeLeader
) -> None:
    async with serving(token=ROOT) as client:
        await put_set(client, Authorization=f"Bearer {ROOT}")
        path = "/v1/regions/eu-west:destroyed"
        for role, domains in (("operator", []), ("admin", ["shop"]), ("reader", [])):
            known = await token(client, role, *domains)
            problem(await client.post(path, headers={**WHY, **known}), 403)
        admin = await token(client, "admin")
        body = problem(await client.post(path, headers=admin), 422)
        assert body["errors"][0]["field"] == "Apportion-Reason"
        problem(await client.post("/v1/regions/nobody:destroyed", headers={**WHY, **admin}), 404)
        answer = await client.post(path, headers={**WHY, **admin})
        assert answer.status_code == 200, answer.text
        entry = (await client.get("/history", headers=admin)).json()["changes"][0]
        assert (entry["kind"], entry["author"], entry["reason"]) == ("region_destroyed", "ann", "burnt down")


async def test_a_name_that_was_destroyed_gets_no_weight_again(
    serving: Serving, leader: FakeLeader, hub: MemoryHub
) -> None:
    records = [Mark(1, "m", 0), Config(1, 1, {"shop": {"eu-west": 10_000}}), Done(1, 1), Gone(1, "eu-west")]
    await hub.transport("leader").send(LOG, [codec.encode_records(records)])
    async with serving() as client:
        await put_set(client)
        region = (await client.get("/v1/regions")).json()["regions"]["eu-west"]
        assert (region["gone"], region["link"], region["weights"]) == (True, "gone", {"shop": 1})
        body = problem(await client.put("/rulesets/shop/regions", json={"us-east": 1, "eu-west": 1}), 422)
        assert body["errors"][0]["field"] == "regions.eu-west"
        again = await client.post("/v1/regions/eu-west:destroyed", headers=WHY)
        assert again.json() == {"region": "eu-west", "gone": True, "bases": {"shop": 10_000}}


async def test_who_may_read_a_domain_sees_no_other_one(serving: Serving, leader: FakeLeader) -> None:
    async with serving(token=ROOT) as client:
        await put_set(client, Authorization=f"Bearer {ROOT}")
        stranger = await token(client, "reader", "books")
        document = (await client.get("/v1/regions", headers=stranger)).json()
        assert document["domains"] == {}
        assert not any(region["weights"] for region in document["regions"].values())


def test_the_base_and_the_floor_that_a_region_still_has_and_what_that_holds_up() -> None:
    written = {"domain": "shop", "regions": ["eu", "us"], "rules": []}
    sets = {"shop": LoadedSet("shop", 3, written, parse_document(written), {})}
    bases = BasesSeen()
    for record in (Mark(1, "m", 0), Config(1, 3, {"shop": {"eu": 5000, "us": 5000}})):
        bases.take(record)
    said = {
        "waiting_for_bases": {"shop": {"eu": 6000}, "books": {"eu": 1}},
        "waiting_for_floors": {"shop": {"us": 500}},
    }
    document = regions_document(Seen(sets, [], bases, said), ProtocolTimes(), 0)
    late = {name: (one["old_bases"], one["old_floors"]) for name, one in document["regions"].items()}
    assert late == {"eu": ({"shop": 6000}, {}), "us": ({}, {"shop": 500})}
    assert [words.partition(",")[0] for words in waiting_for(document, 3)] == [
        "eu still has its old base in shop (60.0 %)",
        "us still has its old floor in shop (5.0 %)",
    ]


def test_what_an_older_leader_says_late_counts_nothing() -> None:
    seen = BasesSeen()
    for record in (Mark(2, "b", 0), Config(1, 9, {"shop": {"us": 1}}), Gone(1, "us"), Done(1, 9)):
        seen.take(record)
    assert (seen.version, seen.done_version, seen.gone) == (0, 0, set())
