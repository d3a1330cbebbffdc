"""The rate limit service on a real limiter, in memory, without a server: what a gateway is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from regional_limiter.in_process import in_memory
from regional_limiter.limiter import Limiter
from regional_limiter.model.decision import Answer
from services.check_api.counts import Counts
from services.check_api.headers import HeaderMode
from services.rls.messages import Descriptor, Override, Request, Response, Unit
from services.rls.rpc import Failed
from services.rls.service import RateLimitService
from tests.unit.check_api.fakes import FakeLimiter

MINUTE_LIMITS = {
    "domain": "edge",
    "rules": [
        {
            "id": "per-address",
            "match": {"descriptor.keys": "remote_address"},
            "key": ["remote_address"],
            "algorithm": "fixed_window",
            "limit": 3,
            "window": "1h",
        },
        {
            "id": "per-path",
            "match": {"descriptor.keys": "remote_address/path"},
            "key": ["path"],
            "algorithm": "fixed_window",
            "limit": 2,
            "window": "1d",
        },
        {"id": "bucket", "match": {"descriptor.keys": "user"}, "key": ["user"], "capacity": 5, "refill": "1/h"},
        {"id": "twice", "match": {"header.2": "b"}, "key": ["header"], "capacity": 9, "refill": "1/h"},
        {"id": "free", "match": {"descriptor.keys": "free"}, "unlimited": True},
    ],
    "overrides": [{"rule": "bucket", "key": {"user": "mallory"}, "block": True}],
}


class Asker:
    def __init__(self, service: RateLimitService, answers: list[tuple[str, Answer]], limiter: Limiter) -> None:
        self.service = service
        self.answers = answers
        self.limiter = limiter

    async def __call__(self, *descriptors: Descriptor, hits: int = 0, domain: str = "edge") -> Response:
        return await self.service.answer(Request(domain, descriptors, hits))


@asynccontextmanager
async def asking(rules: Mapping[str, Any] = MINUTE_LIMITS, **options: Any) -> AsyncIterator[Asker]:
    answers: list[tuple[str, Answer]] = []
    async with in_memory(rules) as limiter:
        service = RateLimitService(limiter, lambda domain, answer: answers.append((domain, answer)), **options)
        yield Asker(service, answers, limiter)


def one(
    hits: int | None = None, negative: bool = False, override: Override | None = None, **entries: str
) -> Descriptor:
    return Descriptor(tuple(entries.items()), override, hits, negative)


ADDRESS = one(remote_address="1.2.3.4")
PATH = one(remote_address="1.2.3.4", path="/a")


async def test_a_window_is_told_as_envoy_names_it_and_runs_out() -> None:
    async with asking() as ask:
        told = [await ask(ADDRESS) for _ in range(4)]
    assert [response.code for response in told] == [1, 1, 1, 2]
    (status,) = told[0].statuses
    assert status.limit == (3, Unit.HOUR, "per-address")
    assert [response.statuses[0].remaining for response in told] == [2, 1, 0, 0]
    assert 0 < status.reset_ms <= 3_600_000


async def test_a_bucket_has_no_unit() -> None:
    async with asking() as ask:
        (status,) = (await ask(one(user="ann"))).statuses
    assert status.limit == (5, 0, "bucket")


async def test_of_several_descriptors_all_are_charged_or_none() -> None:
    async with asking() as ask:
        told = []
        for _ in range(5):
            told.append(await ask(ADDRESS, PATH))
            await asyncio.sleep(0.001)  # what was charged in vain is given back beside the answer
        alone = await ask(one(hits=0, remote_address="1.2.3.4"))
    assert [response.code for response in told] == [1, 1, 2, 2, 2]
    assert [[status.code for status in response.statuses] for response in told[1:3]] == [[1, 1], [1, 2]]
    assert [response.statuses[0].remaining for response in told] == [2, 1, 1, 1, 1]
    assert alone.statuses[0].remaining == 1


async def test_two_descriptors_that_meet_one_bucket_ask_it_for_both() -> None:
    async with asking() as ask:
        first, second = await ask(ADDRESS, ADDRESS), await ask(ADDRESS, ADDRESS)
        left = await ask(ADDRESS)
    assert (first.code, second.code, left.code) == (1, 2, 1)
    assert [status.remaining for status in first.statuses] == [1, 1]


async def test_a_descriptor_without_a_rule_is_ok_beside_one_that_is_over() -> None:
    async with asking() as ask:
        told = await ask(one(nobody="knows"), one(hits=4, remote_address="1.2.3.4"), one(free="x"))
    assert told.code == 2
    assert [(status.code, status.limit and status.limit.name) for status in told.statuses] == [
        (1, None),
        (2, "per-address"),
        (1, None),
    ]


async def test_hits_are_the_descriptors_own_else_the_requests_else_one() -> None:
    async with asking() as ask:
        told = await ask(one(2, user="a"), one(user="b"), one(0, user="c"), hits=4)
        again = await ask(one(user="a"))
    assert [status.remaining for status in told.statuses] == [3, 1, 5]
    assert again.statuses[0].remaining == 2


async def test_negative_hits_are_given_back_but_never_more_than_the_limit() -> None:
    async with asking() as ask:
        await ask(one(5, user="ann"))
        back = await ask(one(2, negative=True, user="ann"))
        more = await ask(one(50, negative=True, user="ann"))
        mixed = await ask(one(1, user="bob"), one(1, negative=True, user="ann"))
    assert [response.statuses[0].remaining for response in (back, more, mixed)] == [2, 5, 4]
    assert mixed.statuses[1].remaining == 5


async def test_a_limit_of_the_request_stands_in_for_the_configured_one() -> None:
    brought = one(override=Override(1, Unit.DAY), remote_address="1.2.3.4")
    async with asking() as ask:
        first, second = await ask(brought), await ask(brought)
        configured = await ask(ADDRESS)
        elsewhere = await ask(brought, domain="no-such-domain")
    assert (first.code, second.code) == (1, 2)
    assert first.statuses[0].limit == (1, Unit.DAY, "limit-of-request.day")
    assert configured.statuses[0].remaining == 2
    assert elsewhere.statuses[0].limit is None


async def test_a_key_that_comes_again_is_numbered() -> None:
    async with asking() as ask:
        told = await ask(Descriptor((("header", "a"), ("header", "b"))))
    assert told.statuses[0].limit == (9, 0, "twice")


async def test_a_blocked_key_denies_the_request_and_charges_nobody() -> None:
    async with asking() as ask:
        told = await ask(ADDRESS, one(user="mallory"), hits=3)
        counted = ask.limiter._counts.usage()
        assert (counted["edge/bucket"].denied, counted["edge/bucket"].denied_cost) == (1, 3)
        assert counted["edge/bucket"].allowed == 0
        left = await ask(ADDRESS)
    assert (told.code, [status.code for status in told.statuses]) == (2, [1, 2])
    assert left.statuses[0].remaining == 2


async def test_a_domain_without_rules_is_ok_and_counted() -> None:
    counts = Counts()
    async with asking(missed_domain=counts.missed_domain) as ask:
        assert (await ask(ADDRESS, domain="other")).code == 1
        assert (await ask(ADDRESS, domain="No Such Domain!")).code == 1
        assert counts.unknown_domains == 2
        await ask(ADDRESS)
        assert counts.unknown_domains == 2


async def test_headers_and_metadata_tell_of_the_tightest_rule() -> None:
    async with asking(headers=HeaderMode.BOTH, tells_metadata=True) as ask:
        told = await ask(ADDRESS, one(5, user="ann"))
        over = await ask(one(user="ann"))
    names = dict(told.headers)
    assert names["x-ratelimit-limit"] == "5"
    assert names["ratelimit"].startswith('"bucket";r=0;t=')
    assert "retry-after" not in names
    assert int(dict(over.headers)["retry-after"]) > 3000
    assert told.metadata == {"reason": "ok", "degraded": False, "rule": "bucket", "limit": 5, "remaining": 0}
    assert over.metadata is not None
    assert over.metadata["reason"] == "limited"


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (Request("", (ADDRESS,)), "domain: must not be empty"),
        (Request("edge", ()), "descriptors: must name at least one"),
        (Request("edge", (Descriptor(()),)), r"descriptors\[0\].entries: must name at least one"),
        (Request("edge", (ADDRESS, Descriptor((("", "x"),)))), "a key must not be empty"),
        (Request("edge", (one(2**31, a="b"),)), r"descriptors\[0\].hits_addend: at most 2147483647"),
        (Request("edge", (one(override=Override(1, 0), a="b"),)), r"descriptors\[0\].limit.unit: one of SECOND, "),
        (Request("edge", (one(a="b" * 1025),)), "a: at most 1024 bytes of UTF-8"),
        (Request("edge", (one(5, True, Override(1, 1), a="b"),)), "cannot be negative"),
    ],
)
async def test_what_is_wrong_is_named(request_: Request, problem: str) -> None:
    async with asking() as ask:
        with pytest.raises(Failed, match=problem) as failed:
            await ask.service.answer(request_)
    assert failed.value.code == 3


async def test_a_node_without_rules_is_unavailable() -> None:
    service = RateLimitService(FakeLimiter(ready=False), lambda domain, answer: None)
    with pytest.raises(Failed) as failed:
        await service.answer(Request("edge", (ADDRESS,)))
    assert failed.value.code == 14


async def test_an_error_that_nobody_foresaw_is_no_allow() -> None:
    class Broken(FakeLimiter):
        def submit(self, check: Any, done: Callable[[Any], None]) -> None:
            done(ZeroDivisionError("broken"))

    service = RateLimitService(Broken(), lambda domain, answer: None)
    with pytest.raises(ZeroDivisionError):
        await service.answer(Request("edge", (ADDRESS,)))
