"""Imported configurations decide as envoyproxy/ratelimit does: the table, and a lookup of our own as oracle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from regional_limiter.in_process import in_memory
from regional_limiter.model.errors import InvalidRules
from regional_limiter.rules import compile_rules, parse_document
from services.rls.envoy_config import import_config
from services.rls.messages import Descriptor, Override, Request, Response, Unit
from services.rls.naming import KEYS, keys_text, numbered
from services.rls.service import RateLimitService


def entries(text: str) -> tuple[tuple[str, str], ...]:
    """``a=b,c=d``."""
    return tuple((key, value) for key, _, value in (part.partition("=") for part in text.split(",")))


def asked(text: str, hits: int | None = None, **more: Any) -> Descriptor:
    return Descriptor(entries(text), hits=hits, **more)


@asynccontextmanager
async def served(text: str, **options: Any) -> AsyncIterator[Any]:
    document = import_config(text, **options).document
    async with in_memory(document) as limiter:
        service = RateLimitService(limiter, lambda domain, answer: None)

        async def ask(*descriptors: Descriptor | str, hits: int = 0, domain: str = "d") -> Response:
            given = tuple(asked(one) if isinstance(one, str) else one for one in descriptors)
            response = await service.answer(Request(domain, given, hits))
            await asyncio.sleep(0.002)  # what was charged in vain is given back beside the answer
            return response

        ask.limiter = limiter  # type: ignore[attr-defined]
        yield ask


def limit(key: str, per_unit: int, unit: str, value: str = "", **more: Any) -> dict[str, Any]:
    below = more.pop("below", None)
    limit_more = {name: more.pop(name) for name in ("name", "replaces") if name in more}
    made: dict[str, Any] = {
        "key": key,
        "rate_limit": {"unit": unit, "requests_per_unit": per_unit, **limit_more},
        **more,
    }
    if value:
        made["value"] = value
    if below:
        made["descriptors"] = below
    return made


def config(*descriptors: Mapping[str, Any]) -> str:
    return yaml.safe_dump({"domain": "d", "descriptors": list(descriptors)})


NESTED = config(
    {
        "key": "key1",
        "value": "value1",
        "descriptors": [limit("subkey1", 5, "second"), limit("subkey1", 10, "second", "subvalue1")],
    }
)
THREE = config(
    limit("key2", 20, "minute"), limit("key2", 30, "minute", "value2"), {"key": "key2", "value": "value3"}
)
FIVE = config(
    limit("key2", 20, "minute"),
    limit("key5", 15, "day", "value5", below=[limit("subkey5", 25, "day", "subvalue5")]),
)


@pytest.mark.parametrize(
    ("text", "descriptor", "right"),
    [
        (NESTED, "key1=something", None),
        (NESTED, "key1=value1", None),
        (NESTED, "key1=value1,subkey1=something", (5, Unit.SECOND)),
        (NESTED, "key1=value1,subkey1=subvalue1", (10, Unit.SECOND)),
        (NESTED, "subkey1=subvalue1,key1=value1", None),
        (THREE, "key2=x", (20, Unit.MINUTE)),
        (THREE, "key2=value2", (30, Unit.MINUTE)),
        (THREE, "key2=value3", None),
        (FIVE, "key2=value2,subkey=x", None),
        (FIVE, "key5=value5,subkey5=subvalue", None),
        (FIVE, "key5=value5", (15, Unit.DAY)),
    ],
)
async def test_which_limit_applies(text: str, descriptor: str, right: tuple[int, int] | None) -> None:
    async with served(text) as ask:
        (status,) = (await ask(descriptor)).statuses
    assert (status.limit and status.limit[:2]) == right
    assert status.code == 1


async def test_5_a_limit_of_the_request() -> None:
    override = asked("key1=value1,subkey1=something", override=Override(10, Unit.DAY))
    async with served(NESTED) as ask:
        (status,) = (await ask(override)).statuses
    assert status.limit[:2] == (10, Unit.DAY)


async def test_6_an_unknown_domain_is_ok() -> None:
    async with served(NESTED) as ask:
        assert (await ask("key1=value1", domain="unknown")).code == 1


async def test_7_values_of_one_wildcard_share_a_counter_where_it_says_so() -> None:
    text = config(limit("key", 100, "minute", "test*", share_threshold=True), limit("key", 50, "minute", "test1"))
    async with served(text) as ask:
        told = [await ask(f"key={value}") for value in ("testa", "testb", "test1")]
    assert [response.statuses[0].remaining for response in told] == [99, 98, 49]
    async with served(text.replace("share_threshold: true", "share_threshold: false")) as ask:
        told = [await ask(f"key={value}") for value in ("testa", "testb")]
    assert [response.statuses[0].remaining for response in told] == [99, 99]


async def test_8_the_limit_runs_down_and_out() -> None:
    async with served(config(limit("key2", 20, "day"))) as ask:
        told = [await ask("key2=x") for _ in range(25)]
    assert [response.statuses[0].remaining for response in told] == [*range(19, -1, -1), 0, 0, 0, 0, 0]
    assert [response.code for response in told] == [1] * 20 + [2] * 5


TWO = config(limit("key2", 20, "day"), limit("key3", 10, "day"))


async def test_9_what_is_denied_charges_nothing() -> None:
    async with served(TWO) as ask:
        told = [await ask("key2=x", "key3=x") for _ in range(15)]
    assert [response.code for response in told] == [1] * 10 + [2] * 5
    assert {response.statuses[0].code for response in told} == {1}
    assert [response.statuses[0].remaining for response in told] == [*range(19, 9, -1), 10, 10, 10, 10, 10]


async def test_9_like_envoy_what_is_denied_is_charged_where_it_is_not_over() -> None:
    async with served(TWO, like_envoy=True) as ask:
        told = [await ask("key2=x", "key3=x") for _ in range(15)]
    assert [response.code for response in told] == [1] * 10 + [2] * 5
    assert told[-1].statuses[0].remaining == 5


async def test_10_no_hits_count_nothing() -> None:
    async with served(TWO) as ask:
        told = [await ask(asked("key2=x", 0)) for _ in range(3)]
        both = await ask(asked("key2=x", 0), asked("key3=x", 2))
    assert [response.statuses[0].remaining for response in told] == [20, 20, 20]
    assert [status.remaining for status in both.statuses] == [20, 8]


async def test_11_shadow_mode_is_ok_and_counted() -> None:
    async with served(config(limit("key", 3, "day", shadow_mode=True))) as ask:
        told = [await ask("key=x") for _ in range(6)]
        (shadow,) = ask.limiter.status().shadows.values()
    assert {response.code for response in told} == {1}
    assert (shadow.would_allow, shadow.would_deny) == (3, 3)


async def test_quota_mode_tells_what_is_over_and_lets_it_pass() -> None:
    async with served(config(limit("key", 2, "day", quota_mode=True))) as ask:
        told = [await ask("key=x") for _ in range(3)]
    assert [response.code for response in told] == [1, 1, 1]
    assert [response.statuses[0].code for response in told] == [1, 1, 2]


async def test_12_spring_cloud_gateway_168_and_new_api_1026_a_limit_of_0_denies_over_grpc() -> None:
    async with served(config(limit("key", 0, "minute"))) as ask:
        assert (await ask("key=x")).code == 2


async def test_13_the_unlimited_has_no_limit_to_tell() -> None:
    text = config({"key": "free", "rate_limit": {"unlimited": True}}, limit("a", 5, "day"), limit("b", 9, "day"))
    async with served(text) as ask:
        told = await ask("free=x", "a=x", "b=x")
    assert (told.code, [status.limit and status.limit.requests_per_unit for status in told.statuses]) == (
        1,
        [None, 5, 9],
    )
    assert dict(told.headers)["ratelimit"].startswith('"a";r=4')


async def test_14_what_is_replaced_is_not_counted() -> None:
    text = config(
        limit("a", 0, "day", name="banned"),
        limit("b", 2, "day", replaces=[{"name": "banned"}]),
    )
    async with served(text) as ask:
        told = [await ask("a=x", "b=x") for _ in range(3)]
        alone = await ask("a=x")
    assert [response.code for response in told] == [1, 1, 2]
    assert [response.statuses[0].limit for response in told] == [None] * 3
    assert (alone.code, alone.statuses[0].limit.name) == (2, "banned")


async def test_17_hits_are_given_back() -> None:
    async with served(TWO) as ask:
        await ask(asked("key2=x", 5))
        back = await ask(asked("key2=x", 5, negative=True))
        again = await ask(asked("key2=x", 5, negative=True))
    assert [response.statuses[0].remaining for response in (back, again)] == [20, 20]


def test_every_fault_is_named_by_its_place() -> None:
    text = """
    domain: Edge Proxy
    descriptor: []
    descriptors:
      - {key: "a b"}
      - {key: a, value: "x*y", rate_limit: {unit: fortnight, requests_per_unit: many, burst: 1}}
      - {key: b, value: 1.5, share_threshold: true}
      - {key: c, rate_limit: {unlimited: true, unit: day}, shadow_mode: "yes"}
      - {key: c, rate_limit: {unit: day}, shadow_mode: true, quota_mode: true}
      - {key: e, rate_limit: {unit: day, requests_per_unit: 1, name: me, replaces: [{name: me}, {}]}}
      - {key: f, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: me}]}}
      - 7
    """
    with pytest.raises(InvalidRules) as refused:
        import_config(text)
    assert {fault.place for fault in refused.value.faults} == {
        "domain",
        "descriptor",
        "descriptors[0].key",
        "descriptors[1].value",
        "descriptors[1].rate_limit.unit",
        "descriptors[1].rate_limit.requests_per_unit",
        "descriptors[1].rate_limit.burst",
        "descriptors[2].value",
        "descriptors[2].share_threshold",
        "descriptors[3].rate_limit.unit",
        "descriptors[3].shadow_mode",
        "descriptors[4]",
        "descriptors[4].rate_limit.requests_per_unit",
        "descriptors[4].quota_mode",
        "descriptors[5].rate_limit.replaces[0].name",
        "descriptors[5].rate_limit.replaces[1].name",
        "descriptors[6].rate_limit.replaces",
        "descriptors[7]",
        "descriptors[7].key",
    }


def test_what_has_no_effect_is_noted() -> None:
    text = config(limit("a", 1, "day", detailed_metric=True, replaces=[{"name": "gone"}]))
    assert [note.place for note in import_config(text).notes] == [
        "descriptors[0].detailed_metric",
        "descriptors[0].rate_limit.replaces[0]",
    ]


def test_ids_are_the_names_else_the_ways_and_stay_apart() -> None:
    text = config(
        limit("a", 1, "day", name="first"),
        limit("A", 1, "day"),
        limit("b", 1, "day", "X y"),
        limit("b", 1, "day", "x y"),
    )
    ids = [rule["id"] for rule in import_config(text).document["rules"]]
    assert "first" in ids
    assert len(set(ids)) == len(ids)


# ---- against a lookup of our own

KEY = st.sampled_from(["a", "b"])
VALUE = st.sampled_from(["", "", "x", "xy", "x*", "*"])


def levels(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    node = st.tuples(KEY, VALUE, st.booleans(), inner)
    return st.lists(node, max_size=4, unique_by=lambda item: item[:2])


TREES = levels(levels(levels(st.just([]))))
ENTRIES = st.lists(st.tuples(KEY, st.sampled_from(["x", "xy", "xyz", "z"])), min_size=1, max_size=4)


def looked_up(tree: Any, descriptor: Any) -> tuple[int, ...] | None:
    """The way to the limit that envoyproxy/ratelimit finds, as places in the tree."""
    level, way = tree, ()
    for depth, (key, value) in enumerate(descriptor):
        found = next((i for i, node in enumerate(level) if node[:2] == (key, value)), None)
        if found is None:
            found = next(
                (
                    i
                    for i, node in enumerate(level)
                    if node[0] == key and node[1].endswith("*") and value.startswith(node[1][:-1])
                ),
                None,
            )
        if found is None:
            found = next((i for i, node in enumerate(level) if node[:2] == (key, "")), None)
        if found is None:
            return None
        way = (*way, found)
        if depth == len(descriptor) - 1:
            return way if level[found][2] else None
        level = level[found][3]
    return None


def written(tree: Any, above: tuple[int, ...] = ()) -> list[dict[str, Any]]:
    made = []
    for place, (key, value, limited, inner) in enumerate(tree):
        way = (*above, place)
        node: dict[str, Any] = {"key": key, "value": value, "descriptors": written(inner, way)}
        if limited:
            name = "at-" + "-".join(map(str, way))
            node["rate_limit"] = {"unit": "day", "requests_per_unit": 5, "name": name}
        made.append(node)
    return made


@settings(max_examples=300, deadline=None)
@given(TREES, st.lists(ENTRIES, min_size=1, max_size=12))
def test_a_lookup_finds_the_limit_that_envoy_would_find(tree: Any, descriptors: Any) -> None:
    document = import_config(yaml.safe_dump({"domain": "d", "descriptors": written(tree)})).document
    matcher = compile_rules(parse_document(document))
    for descriptor in descriptors:
        names = numbered([key for key, _ in descriptor])
        attributes = dict(zip(names, [value for _, value in descriptor], strict=True))
        attributes[KEYS] = keys_text(tuple(key for key, _ in descriptor))
        matches = [match.rule for match in matcher.match(attributes)]
        limiting = [rule.id for rule in matches if not rule.unlimited]
        way = looked_up(tree, descriptor)
        assert limiting == ([] if way is None else ["at-" + "-".join(map(str, way))])
        assert len(matches) <= 1
