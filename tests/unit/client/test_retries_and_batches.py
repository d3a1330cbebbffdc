"""A check that is sent again is charged once; checks that are asked for together go out together."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from apportion import Answer, AsyncClient, Check, Client, InvalidRequest, NoAnswer

from tests.unit.check_api.fakes import FakeLimiter, answer_of, node_of, rule_verdict
from tests.unit.client.test_client import URL, of_node

ALLOWED = {"allowed": True, "reason": "ok"}


class Node:
    """Answers what a test says to each request in turn, and remembers what was asked."""

    def __init__(self, *outcomes: Exception | int | dict[str, Any]) -> None:
        self._outcomes = list(outcomes)
        self.bodies: list[Any] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(json.loads(request.content or b"null"))
        outcome = self._outcomes.pop(0) if self._outcomes else ALLOWED
        if isinstance(outcome, Exception):
            raise outcome
        return httpx.Response(outcome) if isinstance(outcome, int) else httpx.Response(200, json=outcome)


def client_of(node: Node, **options: Any) -> Client:
    return Client(URL, transport=httpx.MockTransport(node), **options)


def async_client_of(node: Node, **options: Any) -> AsyncClient:
    return AsyncClient(URL, transport=httpx.MockTransport(node), **options)


FAILURES = (httpx.ReadTimeout("late"), httpx.ConnectError("refused"), 503, 500)


@pytest.mark.parametrize("failure", FAILURES)
async def test_the_same_check_goes_out_again_under_the_same_id(failure: Exception | int) -> None:
    node, other = Node(failure, failure), Node(failure, failure)
    assert client_of(node, tries=3).check("a", "b").decided
    assert (await async_client_of(other, tries=3).check("a", "b")).decided
    for bodies in (node.bodies, other.bodies):
        assert len(bodies) == 3
        assert len({body["request_id"] for body in bodies}) == 1
        assert len(bodies[0]["request_id"]) == 32


def test_two_checks_have_two_ids_and_an_own_one_is_kept() -> None:
    node = Node()
    client = client_of(node, tries=2)
    client.check("a", "b")
    client.check("a", "b")
    client.check("a", "b", request_id="mine")
    first, second, own = (body["request_id"] for body in node.bodies)
    assert first != second
    assert own == "mine"


def test_after_the_last_try_the_choice_counts() -> None:
    node = Node(*[503] * 9)
    assert client_of(node, tries=3, on_no_answer="deny").check("a", "b").allowed is False
    assert len(node.bodies) == 3


def test_what_would_be_charged_twice_is_not_sent_again() -> None:
    node = Node(503)
    with pytest.raises(NoAnswer):
        client_of(node, tries=3).refund("a", "b")
    assert len(node.bodies) == 1
    once = Node(503)
    client_of(once, tries=3).refund("a", "b", request_id="r")
    assert [body["request_id"] for body in once.bodies] == ["r", "r"]


def test_a_refused_request_is_not_sent_again() -> None:
    node = Node(422)
    with pytest.raises(InvalidRequest):
        client_of(node, tries=3).check("a", "b")
    assert len(node.bodies) == 1


def test_a_batch_goes_out_again_with_the_ids_of_its_checks() -> None:
    node = Node(503, {"answers": [ALLOWED, ALLOWED]})
    client_of(node, tries=2).check_batch([Check("a", "r"), Check("b", "r", request_id="mine")])
    first, again = node.bodies
    assert first == again
    assert first["checks"][1]["request_id"] == "mine"


@pytest.mark.parametrize("tries", [0, 6])
def test_tries_have_bounds(tries: int) -> None:
    with pytest.raises(ValueError, match="tries"):
        client_of(Node(), tries=tries)


def each(request: httpx.Request) -> httpx.Response:
    """Tells each check of a batch its own client key."""
    checks = json.loads(request.content)["checks"]
    answers = [
        {"error": {"status": 422, "detail": "wrong"}}
        if check["client_key"] == "wrong"
        else {"allowed": True, "reason": check["client_key"]}
        for check in checks
    ]
    return httpx.Response(200, json={"answers": answers})


async def test_what_is_asked_in_one_turn_goes_out_in_one_request() -> None:
    sizes: list[int] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sizes.append(len(json.loads(request.content)["checks"]))
        return each(request)

    async with AsyncClient(URL, transport=httpx.MockTransport(handler), batching=True) as client:
        answers = await asyncio.gather(*(client.check(str(i), "r") for i in range(700)))
        alone = await client.check("alone", "r")
    assert [answer.reason for answer in answers] == [str(i) for i in range(700)]
    assert alone.reason == "alone"
    assert sizes == [500, 200, 1]


async def test_one_wrong_check_costs_the_others_nothing() -> None:
    async with AsyncClient(URL, transport=httpx.MockTransport(each), batching=True) as client:
        said = await asyncio.gather(
            *(client.check(key, "r") for key in ("a", "wrong", "b")), return_exceptions=True
        )
    assert [type(one) for one in said] == [Answer, InvalidRequest, Answer]


async def test_a_caller_that_goes_away_takes_nobody_with_it() -> None:
    async with AsyncClient(URL, transport=httpx.MockTransport(each), batching=True) as client:
        gone, stays = (asyncio.create_task(client.check(key, "r")) for key in ("gone", "stays"))
        await asyncio.sleep(0)
        gone.cancel()
        assert (await stays).reason == "stays"


async def test_batches_reach_a_real_node_and_what_it_denies_is_denied() -> None:
    limiter = FakeLimiter(answer_of(rule_verdict(allowed=False, remaining=0, retry_after_ms=334)))
    async with of_node(node_of(limiter), batching=True) as client:
        answers = await asyncio.gather(*(client.check("a", "b") for _ in range(3)))
    assert [answer.allowed for answer in answers] == [False] * 3
    assert len(limiter.checks) == 3


@pytest.mark.parametrize("choice", ["allow", "deny"])
async def test_without_an_answer_each_check_of_a_batch_is_what_the_client_was_told(choice: Any) -> None:
    async with async_client_of(Node(*[503] * 9), batching=True, on_no_answer=choice) as client:
        answers = await asyncio.gather(*(client.check("a", "b") for _ in range(3)))
    assert [(answer.allowed, answer.decided) for answer in answers] == [(choice == "allow", False)] * 3


async def test_without_an_answer_each_check_of_a_batch_raises_where_that_was_asked_for() -> None:
    async with async_client_of(Node(*[503] * 9), batching=True, on_no_answer="raise") as client:
        said = await asyncio.gather(*(client.check("a", "b") for _ in range(2)), return_exceptions=True)
    assert [type(one) for one in said] == [NoAnswer] * 2
    with client_of(Node(503), batching=True, on_no_answer="raise") as blocking, pytest.raises(NoAnswer):
        blocking.check("a", "b")


def in_threads(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_threads_that_ask_while_a_request_is_under_way_share_the_next_one() -> None:
    sizes: list[int] = []
    full = threading.Event()
    waiting = threading.Semaphore(0)

    def handler(request: httpx.Request) -> httpx.Response:
        sizes.append(len(json.loads(request.content)["checks"]))
        if sizes[-1] == 1 and len(sizes) <= 2:
            waiting.release()
            assert full.wait(10)
        return each(request)

    answers: dict[int, str] = {}
    with Client(URL, transport=httpx.MockTransport(handler), batching=True, timeout_s=10) as client:

        def ask(place: int) -> None:
            answers[place] = client.check(str(place), "r").reason

        first = [threading.Thread(target=ask, args=(place,)) for place in (100, 101)]
        for thread in first:
            thread.start()
            assert waiting.acquire(timeout=10)
        batcher = client._batcher
        assert batcher is not None
        others = [threading.Thread(target=ask, args=(place,)) for place in range(20)]
        for thread in others:
            thread.start()
        while len(batcher._waiting) < 20:
            threading.Event().wait(0.001)
        full.set()
        for thread in (*first, *others):
            thread.join(10)
            assert not thread.is_alive()
    assert answers == {place: str(place) for place in (*range(20), 100, 101)}
    assert sizes == [1, 1, 20]


def test_many_threads_each_get_their_own_answer() -> None:
    wrong: list[str] = []
    with Client(URL, transport=httpx.MockTransport(each), batching=True, timeout_s=10) as client:

        def ask(thread: int) -> None:
            for turn in range(50):
                key = f"{thread}-{turn}"
                if client.check(key, "r").reason != key:
                    wrong.append(key)

        in_threads(16, ask)
    assert wrong == []
