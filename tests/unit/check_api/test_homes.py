"""Rules of ``distribution: home``: one bucket in one region, asked by the nodes of all; three regions over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from httpx._utils import URLPattern
from hypothesis import given
from hypothesis import strategies as st

from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import Answer, Check, Reason
from regional_limiter.model.errors import OtherRequest
from regional_limiter.model.keys import bucket_key, is_bucket_key
from regional_limiter.model.rule import Algorithm, CalendarUnit, CalendarWindow, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.rules import parse_document
from regional_limiter.store.memory import MemoryStore
from services.check_api.app import NodeOptions, create_app
from services.check_api.home_wire import HOME_PATH, Act, Bucket, Question, token_of
from services.check_api.homes import HomeClient

SECRET = b"a secret of the deployment"
NAMES = ("us", "eu", "ap")
TIMES = ProtocolTimes()
NOW_US = 1_900_000_000_000_000
AT_US = {"distribution": "home", "home": {"by": "us"}}


def limit(**fields: Any) -> dict[str, Any]:
    """Five in a long window, over all regions."""
    usual = {"id": "a", "algorithm": "fixed_window", "limit": 5, "window": "1d", "scope": "global"}
    return {**usual, "distribution": "home", **fields}


@dataclass
class Regions:
    limiters: dict[str, Limiter]
    client: httpx.AsyncClient
    cut: set[str]
    addresses: dict[str, str]

    def use(self, *rules: dict[str, Any]) -> None:
        rule_set = parse_document({"regions": list(NAMES), "addresses": self.addresses, "rules": list(rules)})
        for limiter in self.limiters.values():
            limiter.give_rules([rule_set])

    async def check(self, region: str, client: str = "c", cost: int = 1, **more: Any) -> Answer:
        return await self.limiters[region].check(of(client, cost, **more))


def of(client: str = "c", cost: int = 1, **more: Any) -> Check:
    return Check("default", {"client_key": client, "resource": "/"}, cost, **more)


class Cuttable(httpx.ASGITransport):
    def __init__(self, app: Any, name: str, cut: set[str]) -> None:
        super().__init__(app)
        self._name, self._cut = name, cut

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._name in self._cut:
            raise httpx.ConnectError("cut")
        return await super().handle_async_request(request)


@pytest.fixture
async def regions(tmp_path: Path) -> AsyncIterator[Regions]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient())
        limiters, cut = {}, set[str]()
        for name in NAMES:
            homes = HomeClient(SECRET, 10.0, client=client)
            store = MemoryStore(lambda: NOW_US, TIMES)
            limiter = limiters[name] = Limiter(
                name, store, SECRET, tmp_path / name, TIMES, node="n1", homes=homes, home_deadline_s=20.0
            )
            app = create_app(limiter, NodeOptions(name, "n1", token="of callers", home_token=token_of(SECRET)))
            client._mounts[URLPattern(f"http://{name}")] = Cuttable(app, name, cut)
            await limiter.start()
            stack.push_async_callback(limiter.stop)
        yield Regions(limiters, client, cut, {name: f"http://{name}" for name in NAMES})


async def test_litellm_41221_all_regions_together_are_allowed_the_limit_and_no_more(regions: Regions) -> None:
    regions.use(limit(limit=20))
    for client in ("c", "d", "e"):
        answers = [await regions.check(NAMES[turn % 3], client) for turn in range(30)]
        assert sum(answer.allowed for answer in answers) == 20
        assert answers[-1].limit == 20
        assert {answer.reason for answer in answers[20:]} == {Reason.LIMITED}


async def test_a_request_that_comes_again_in_another_region_is_charged_once(regions: Regions) -> None:
    regions.use(limit(home={"by": "us"}))
    assert [(await regions.check(name, cost=3, request_id="r1")).allowed for name in NAMES] == [True] * 3
    assert (await regions.check("ap", cost=0)).remaining == 2
    with pytest.raises(OtherRequest):
        await regions.check("eu", cost=4, request_id="r1")


@pytest.mark.parametrize("first", ["home", "region", "soft"])
async def test_it_is_charged_once_whatever_else_limits_it_in_the_region_that_asks(
    regions: Regions, first: str
) -> None:
    home = limit(home={"by": "us"})
    own = {"id": "b", "algorithm": "fixed_window", "limit": 5, "window": "1d"}
    softly = limit(id="c", mode="soft", home={"by": "us"})
    regions.use(*{"home": (home, own, softly), "region": (own, softly, home), "soft": (softly, home, own)}[first])
    assert [(await regions.check(name, cost=2, request_id="r1")).allowed for name in (*NAMES, *NAMES)] == [True] * 6
    assert {item.rule: item.verdict.remaining for item in (await regions.check("us", cost=0)).verdicts} == {
        "a": 3,
        "b": 3,
        "c": 3,
    }
    await regions.limiters["ap"].refund(of(cost=2, request_id="r1"))
    assert {item.rule: item.verdict.remaining for item in (await regions.check("us", cost=0)).verdicts} == {
        "a": 5,
        "b": 3,
        "c": 5,
    }


@pytest.mark.parametrize(("unreachable", "allowed"), [("deny", False), ("allow", True)])
async def test_whose_home_is_not_reached_is_told_what_the_rule_says(
    regions: Regions, unreachable: str, allowed: bool
) -> None:
    regions.use(limit(home={"by": "us", "unreachable": unreachable}, on_store_failure="local"))
    regions.cut.add("us")
    there, here = await regions.check("eu"), await regions.check("us")
    assert (there.allowed, there.degraded) == (allowed, True)
    assert there.reason is (Reason.OK if allowed else Reason.STORE_UNAVAILABLE)
    assert (here.allowed, here.degraded) == (True, False)
    assert regions.limiters["eu"].status().degraded["home_unreachable"] == 1
    regions.cut.clear()
    assert (await regions.check("eu")).remaining == 3  # nothing was owed for what was let through, nor charged


async def test_either_region_gives_back_what_was_charged_in_vain(regions: Regions) -> None:
    own = {"id": "b", "algorithm": "fixed_window", "limit": 2, "window": "1d"}
    regions.use(limit(home={"by": "us"}), own)
    answers = [await regions.check("eu") for _ in range(4)]
    assert [answer.allowed for answer in answers] == [True, True, False, False]
    await drained(regions.limiters["eu"])
    assert (await regions.check("us", cost=0)).verdicts[0].verdict.remaining == 3
    assert [(await regions.check("ap")).allowed for _ in range(3)] == [True, True, False]


async def drained(limiter: Limiter) -> None:
    for task in list(limiter._refunds.tasks):
        await task


async def test_refund_and_reset_reach_the_home(regions: Regions) -> None:
    regions.use(limit(home={"by": "us"}))
    assert (await regions.check("eu", cost=5)).remaining == 0
    await regions.limiters["ap"].refund(of(cost=2))
    assert (await regions.check("us", cost=0)).remaining == 2
    await regions.limiters["eu"].reset(of())
    assert (await regions.check("us", cost=0)).remaining == 5
    (bucket,) = await regions.limiters["eu"].inspect(of())
    assert (bucket.verdict.remaining, bucket.ttl_ms) == (5, None)


async def test_slots_are_taken_renewed_and_released_where_they_are(regions: Regions) -> None:
    rule = {"id": "a", "algorithm": "concurrency", "limit": 1, "lease": "1h", "scope": "global", **AT_US}
    regions.use(rule)
    held = of(lease_id="holder")
    assert (await regions.limiters["eu"].check(held)).allowed
    assert not (await regions.check("us", lease_id="other")).allowed
    assert await regions.limiters["ap"].renew(of(lease_id="holder"))
    assert await regions.limiters["ap"].release(of(lease_id="holder"))
    assert (await regions.check("us", lease_id="other")).allowed


async def test_keys_go_where_their_attribute_says(regions: Regions) -> None:
    by = {"attribute": "client_key", "regions": {"acme": "eu", "hooli": "ap"}, "otherwise": "us"}
    regions.use(limit(home={"by": by}))
    regions.cut.add("eu")
    assert [(await regions.check("ap", client)).degraded for client in ("acme", "hooli", "else")] == [
        True,
        False,
        False,
    ]
    assert not (await regions.check("eu", "acme")).degraded


async def test_who_does_not_know_the_deployments_secret_is_told_nothing(regions: Regions) -> None:
    body = msgspec.msgpack.encode(question())
    for bearer in ("", "Bearer ", "Bearer of callers", f"Bearer {token_of(b'another secret')}"):
        answer = await regions.client.post(f"http://us{HOME_PATH}", content=body, headers={"authorization": bearer})
        assert answer.status_code == 401
    assert await status(regions, body) == 200


BUCKET = Bucket("rl:{abcdefgh}:default/a:c", Algorithm.FIXED_WINDOW, 5, 1, window_ms=60_000)
RATE = Rate(5, 1000)
SLOTS = {"algorithm": Algorithm.CONCURRENCY, "window_ms": None, "lease_ms": 1000, "holder": "h"}


def question(act: Act = "check", region: str = "us", **changes: Any) -> Question:
    return Question(region, act, [msgspec.structs.replace(BUCKET, **changes)])


@given(st.dictionaries(st.sampled_from(["client_key", "resource"]), st.text()), st.booleans())
def test_every_key_that_a_rule_makes_may_be_asked_for(attributes: dict[str, str], hashes: bool) -> None:
    for key in ([], ["client_key"], ["client_key", "resource"]):
        rule = limit(key=key, home={"by": "us"}, hash_key=hashes)
        rules = parse_document({"regions": ["us"], "domain": "a.b-c_d", "rules": [rule]}).rules
        assert is_bucket_key(bucket_key(rules[0], attributes, SECRET))


async def status(regions: Regions, body: bytes) -> int:
    token = {"authorization": f"Bearer {token_of(SECRET)}"}
    return (await regions.client.post(f"http://us{HOME_PATH}", content=body, headers=token)).status_code


@pytest.mark.parametrize(
    ("act", "changes"),
    [
        ("check", {"key": "other"}),
        ("check", {"key": "zzzz}"}),
        ("check", {"key": "rl:{abcdefgh}:default/a:" + "c" * 97}),
        ("check", {"key": "rl:{abcdefgh}:#c:00"}),
        ("check", {"key": "rl:{abcdefgh}:default/a:c\n"}),
        ("check", {"capacity": -1}),
        ("check", {"capacity": 10_001, **SLOTS}),
        ("check", {"cost": 2**60}),
        ("check", {"cost": 2**32}),
        ("check", {"window_ms": 0}),
        ("check", {"window_ms": None}),
        ("check", {"algorithm": Algorithm.TOKEN_BUCKET}),
        ("check", {"algorithm": Algorithm.GCRA, "capacity": 0, "refill": Rate(1, 2**60)}),
        ("check", {"algorithm": Algorithm.TOKEN_BUCKET, "refill": Rate(0, 1)}),
        ("check", {"calendar": CalendarWindow(CalendarUnit.DAY, "Nowhere/Land")}),
        ("check", {"calendar": CalendarWindow(CalendarUnit.DAY, "../../etc/passwd")}),
        ("check", {"algorithm": Algorithm.SLIDING_WINDOW_LOG, "calendar": CalendarWindow(CalendarUnit.DAY)}),
        ("check", {**SLOTS, "lease_ms": None}),
        ("check", {**SLOTS, "lease_ms": 2 * 86_400_000}),
        ("check", {**SLOTS, "holder": ""}),
        ("check", {**SLOTS, "holder": "h" * 129}),
        ("renew", {}),
        ("release", {}),
        ("release", SLOTS),
        ("drop", {}),
    ],
)
async def test_a_question_that_no_node_asks_is_refused_and_no_error_of_the_node(
    regions: Regions, act: Act, changes: dict[str, Any]
) -> None:
    body = msgspec.msgpack.encode(question(act, **changes))
    assert await status(regions, body) == 400


async def test_bytes_that_are_no_question_are_refused(regions: Regions) -> None:
    body = msgspec.msgpack.encode(question())
    long = Question("us", "check", [BUCKET], request_id="r" * 500)
    twice = Question("us", "check", [BUCKET, BUCKET])
    for wrong in (
        b"",
        b"\xc1",
        body[:-3],
        *map(msgspec.msgpack.encode, (Question("us", "check", []), long, twice)),
    ):
        assert await status(regions, wrong) == 400


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": Algorithm.TOKEN_BUCKET, "refill": RATE},
        {"algorithm": Algorithm.LEAKY_BUCKET, "refill": RATE, "queue": True},
        {"algorithm": Algorithm.SLIDING_WINDOW_LOG},
        {"calendar": CalendarWindow(CalendarUnit.MONTH, "Europe/Berlin"), "window_ms": None},
        {"key": "rl:{abcdefg-}:a.b/c_d:!,%C3%A4~,"},
        {"key": "rl:{abcdefgh}:default/a:"},
        {"key": f"rl:{{abcdefgh}}:default/a:#{'0' * 32}"},
        SLOTS,
    ],
)
async def test_a_question_about_any_kind_is_answered(regions: Regions, changes: dict[str, Any]) -> None:
    assert await status(regions, msgspec.msgpack.encode(question(**changes))) == 200


async def test_whoever_has_the_token_does_not_reach_the_regions_own_buckets(regions: Regions) -> None:
    own = {"id": "own", "capacity": 5, "refill": "1/s"}
    regions.use(limit(home={"by": "us"}), own)
    assert await status(regions, msgspec.msgpack.encode(question())) == 200
    assert await status(regions, msgspec.msgpack.encode(question(key="rl:{abcdefgh}:default/own:c"))) == 400
    # A rule that the home has not read yet: the region that asks knows its numbers.
    assert await status(regions, msgspec.msgpack.encode(question(key="rl:{abcdefgh}:default/new:c"))) == 200


async def test_a_region_that_is_not_the_home_does_not_decide_in_its_place(regions: Regions) -> None:
    regions.addresses["us"] = "http://eu"
    regions.use(limit(home={"by": "us"}))
    answer = await regions.check("ap")
    assert (answer.allowed, answer.degraded) == (False, True)
    assert regions.limiters["ap"].status().degraded == {"home_is_other_region": 1}
    assert await status(regions, msgspec.msgpack.encode(question(region="eu"))) == 421


@pytest.mark.parametrize(
    ("kind", "lease_id"),
    [
        ({"algorithm": "concurrency", "limit": 2, "lease": "1h"}, "holder"),
        ({"algorithm": "sliding_window_log", "limit": 2, "window": "1d"}, None),
        ({"algorithm": "sliding_window_counter", "limit": 2, "window": "1d"}, None),
        ({"algorithm": "token_bucket", "capacity": 2, "refill": "1/day"}, None),
        ({"algorithm": "leaky_bucket", "capacity": 2, "leak": "1/day"}, None),
        ({"algorithm": "gcra", "capacity": 2, "refill": "1/day"}, None),
        ({"algorithm": "fixed_window", "limit": 2, "window": {"calendar": "year", "zone": "Asia/Kolkata"}}, None),
    ],
)
async def test_a_bucket_of_any_kind_is_charged_looked_at_and_reset_from_elsewhere(
    regions: Regions, kind: dict[str, Any], lease_id: str | None
) -> None:
    rule = {"id": "a", "scope": "global", "key": ["client_key", "resource"], **kind, **AT_US}
    watched = {**rule, "id": "watched", "mode": "shadow"}
    regions.use(rule, *([] if lease_id else [watched]))  # nobody could release a slot of a shadow
    client = "a client, with ! # % and ü of its own" * 4
    assert (await regions.check("eu", client, cost=2, lease_id=lease_id)).allowed
    assert (await regions.check("ap", client, cost=0)).remaining == 0
    await regions.limiters["eu"].reset(of(client))
    assert (await regions.check("us", client, cost=0)).remaining == 2
    assert (await regions.check("ap", client, request_id="r" * 128)).allowed
    await drained(regions.limiters["eu"])
    for limiter in regions.limiters.values():
        assert not limiter.status().degraded
