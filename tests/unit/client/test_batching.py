"""Who sends a batch, and what becomes of those in it, when threads are late, give up or are interrupted."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import httpx
import pytest
from apportion import Answer, AsyncClient, Check, Client, InvalidRequest, NoAnswer, _batching
from apportion._batching import IN_FLIGHT_MOST, AsyncBatcher, Batcher, Said

from tests.unit.client.test_client import URL

WAIT_S = 20.0


def echo(checks: Sequence[Check]) -> list[Said]:
    return [Answer(True, check.client_key) for check in checks]


def slow_echo(checks: Sequence[Check]) -> list[Said]:
    time.sleep(0.0005)
    return echo(checks)


def check_of(key: str) -> Check:
    return Check(key, "r")


class Held:
    """A send whose every request stays under way until the test lets it end; remembers what was sent."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self._begun = threading.Semaphore(0)
        self._gates: list[threading.Event] = []
        self._lock = threading.Lock()

    def __call__(self, checks: Sequence[Check]) -> list[Said]:
        gate = threading.Event()
        with self._lock:
            self.sent.append([check.client_key for check in checks])
            self._gates.append(gate)
        self._begun.release()
        assert gate.wait(WAIT_S)
        return echo(checks)

    def wait_begun(self) -> None:
        assert self._begun.acquire(timeout=WAIT_S)

    def end(self, place: int) -> None:
        self._gates[place].set()


class Late(threading.Event):
    """Its first wait ends, with ``outcome``, only when the test says so: a thread that wakes late."""

    def __init__(self, gate: threading.Event, outcome: Callable[[bool], bool]) -> None:
        super().__init__()
        self._gate: threading.Event | None = gate
        self._outcome = outcome

    def wait(self, timeout: float | None = None) -> bool:
        gate, self._gate = self._gate, None
        if gate is None:
            return super().wait(timeout)
        assert gate.wait(WAIT_S)
        return self._outcome(self.is_set())


def wakes(told: bool) -> bool:
    return told


def has_timed_out(_: bool) -> bool:
    """The time was over just before it was told."""
    return False


def is_interrupted(_: bool) -> bool:
    raise KeyboardInterrupt


class Asking:
    """A batcher with both places taken (by "first" and "second"), and threads that ask it."""

    def __init__(self, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
        self.send = Held()
        self.batcher = Batcher(self.send)
        self.late = threading.Event()
        self._pool = pool
        self._outcomes: dict[str, Callable[[bool], bool]] = {}
        asking = self

        class LateEntry(_batching._Entry):
            def __init__(self, check: Check) -> None:
                super().__init__(check)
                if check.client_key in asking._outcomes:
                    self.told = Late(asking.late, asking._outcomes[check.client_key])

        monkeypatch.setattr(_batching, "_Entry", LateEntry)
        self.first, self.second = self.ask("first"), self.ask("second")
        for _ in range(IN_FLIGHT_MOST):
            self.send.wait_begun()

    def ask(
        self, key: str, outcome: Callable[[bool], bool] | None = None, timeout_s: float = WAIT_S
    ) -> Future[Said]:
        if outcome is not None:
            self._outcomes[key] = outcome
        return self._pool.submit(self.batcher.ask, check_of(key), timeout_s)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        for _ in range(int(WAIT_S * 1000)):
            with self.batcher._lock:
                if is_so():
                    return
            threading.Event().wait(0.001)
        raise AssertionError("it did not come to that")

    def wait_waiting(self, count: int) -> None:
        self.wait_until(lambda: len(self.batcher._waiting) == count)

    def wait_in_flight(self, count: int) -> None:
        self.wait_until(lambda: self.batcher._in_flight == count)


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    with ThreadPoolExecutor(8) as pool:
        asking = Asking(pool, monkeypatch)
        yield asking
    assert asking.batcher._in_flight == 0
    assert not asking.batcher._waiting


def key_of(future: Future[Said]) -> str:
    said = future.result(WAIT_S)
    assert isinstance(said, Answer)
    return said.reason


def test_two_that_end_before_the_next_wakes_do_not_both_give_it_their_place(asking: Asking) -> None:
    third = asking.ask("third", wakes)
    asking.wait_waiting(1)
    for place, future in enumerate((asking.first, asking.second)):
        asking.send.end(asking.send.sent.index([("first", "second")[place]]))
        key_of(future)
    assert asking.batcher._in_flight == 1
    fourth = asking.ask("fourth")
    asking.send.wait_begun()
    asking.late.set()
    asking.send.wait_begun()
    for place in (2, 3):
        asking.send.end(place)
    assert (key_of(third), key_of(fourth)) == ("third", "fourth")


def test_one_that_is_given_a_place_as_its_time_ends_sends_and_is_answered(asking: Asking) -> None:
    third = asking.ask("third", has_timed_out)
    asking.wait_waiting(1)
    asking.send.end(0)
    asking.wait_waiting(0)
    asking.late.set()
    asking.send.wait_begun()
    for place in (1, 2):
        asking.send.end(place)
    assert key_of(third) == "third"


def test_checks_that_are_too_much_for_one_body_go_out_one_after_the_other(asking: Asking) -> None:
    large = [letter * 100_000 for letter in "ab"]
    futures = [asking.ask(key) for key in large]
    asking.wait_waiting(2)
    for place in range(2):
        asking.send.end(place)
        asking.send.wait_begun()
    assert sorted(asking.send.sent[2:]) == [[key] for key in large]
    for place in (2, 3):
        asking.send.end(place)
    assert [key_of(future) for future in futures] == large


def test_one_whose_check_is_under_way_waits_for_its_answer(asking: Asking) -> None:
    leader = asking.ask("leader")
    asking.wait_waiting(1)
    carried = asking.ask("carried", has_timed_out)
    asking.wait_waiting(2)
    asking.send.end(0)
    asking.send.wait_begun()
    assert asking.send.sent[2] == ["leader", "carried"]
    asking.late.set()
    assert not carried.done()
    for place in (1, 2):
        asking.send.end(place)
    assert (key_of(leader), key_of(carried)) == ("leader", "carried")


def test_one_that_is_not_sent_in_time_is_never_sent(asking: Asking) -> None:
    with pytest.raises(NoAnswer):
        asking.ask("third", timeout_s=0.01).result(WAIT_S)
    for place in (0, 1):
        asking.send.end(place)
    asking.wait_in_flight(0)
    assert sorted(asking.send.sent) == [["first"], ["second"]]


def test_what_an_interrupted_thread_had_to_send_goes_to_the_next(asking: Asking) -> None:
    gone = asking.ask("gone", is_interrupted)
    asking.wait_waiting(1)
    stays = asking.ask("stays")
    asking.wait_waiting(2)
    asking.send.end(0)
    asking.wait_waiting(0)
    asking.late.set()
    with pytest.raises(KeyboardInterrupt):
        gone.result(WAIT_S)
    asking.send.wait_begun()
    for place in (1, 2):
        asking.send.end(place)
    assert key_of(stays) == "stays"
    assert asking.send.sent[2] == ["stays"]


def test_an_interrupted_thread_that_waits_leaves_its_place_in_the_queue(asking: Asking) -> None:
    gone = asking.ask("gone", is_interrupted)
    asking.wait_waiting(1)
    asking.late.set()
    with pytest.raises(KeyboardInterrupt):
        gone.result(WAIT_S)
    assert not asking.batcher._waiting
    for place in (0, 1):
        asking.send.end(place)


@pytest.mark.parametrize("failure", [NoAnswer("down"), InvalidRequest(413, {}), ValueError("other")])
def test_what_fails_fails_for_its_batch_and_frees_its_place(failure: Exception) -> None:
    def fail(_: Sequence[Check]) -> list[Said]:
        raise failure

    batcher = Batcher(fail)
    for _ in range(2 * IN_FLIGHT_MOST):
        with pytest.raises(type(failure)):
            batcher.ask(check_of("a"), WAIT_S)
    assert batcher._in_flight == 0


@pytest.mark.parametrize("timeout_s", [WAIT_S, 0.0005])
def test_under_many_threads_every_place_is_free_in_the_end(timeout_s: float) -> None:
    """With the short time some give up: whoever is answered has its own answer, and no place is lost."""
    batcher = Batcher(slow_echo)
    before_s = sys.getswitchinterval()
    wrong: list[object] = []

    def ask(thread: int) -> None:
        for turn in range(60):
            key = f"{thread}-{turn}"
            try:
                said = batcher.ask(check_of(key), timeout_s)
            except NoAnswer:
                if timeout_s == WAIT_S:
                    wrong.append(key)
            else:
                if said != Answer(True, key):
                    wrong.append(said)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(32)]
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    finally:
        sys.setswitchinterval(before_s)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert batcher._in_flight == 0
    assert not batcher._waiting


async def test_no_body_is_larger_than_a_node_takes_unless_one_check_is() -> None:
    sent: list[list[Check]] = []

    async def send(checks: Sequence[Check]) -> list[Said]:
        sent.append(list(checks))
        return echo(checks)

    batcher = AsyncBatcher(send)
    keys = [f"{number}".rjust(1000, "\x00") for number in range(600)]
    keys.insert(300, "x" * 2_000_000)
    said = await asyncio.gather(*(batcher.ask(Check(key, "r", attributes={"a": "b"})) for key in keys))
    assert [one.reason for one in said if isinstance(one, Answer)] == keys
    assert [check.client_key for batch in sent for check in batch] == keys
    assert all(len(batch) == 1 or len(json.dumps([asdict(one) for one in batch])) <= 2**20 for batch in sent)
    assert len(sent) < 10


async def test_a_check_whose_caller_went_away_before_it_was_sent_is_not_sent() -> None:
    sent: list[list[str]] = []
    gate = asyncio.Event()

    async def send(checks: Sequence[Check]) -> list[Said]:
        sent.append([check.client_key for check in checks])
        await gate.wait()
        return echo(checks)

    batcher = AsyncBatcher(send)

    async def ask(key: str) -> asyncio.Task[Said]:
        task = asyncio.create_task(batcher.ask(check_of(key)))
        for _ in range(4):
            await asyncio.sleep(0)
        return task

    under_way = [await ask(str(place)) for place in range(IN_FLIGHT_MOST)]
    gone, stays = await ask("gone"), await ask("stays")
    gone.cancel()
    await asyncio.wait([gone])
    gate.set()
    await asyncio.gather(*under_way, stays)
    assert sent == [["0"], ["1"], ["stays"]]
    only = asyncio.create_task(batcher.ask(check_of("only")))
    asyncio.get_running_loop().call_soon(only.cancel)
    await asyncio.wait([only])
    for _ in range(4):
        await asyncio.sleep(0)
    assert len(sent) == 3, "and no empty batch goes out"
    assert not batcher._in_flight


def half_failed(_: httpx.Request) -> httpx.Response:
    answers: list[dict[str, Any]] = [
        {"allowed": True, "reason": "ok"},
        {"error": {"status": 503, "detail": "no store"}},
        {"error": {"status": 422, "detail": "wrong"}},
        {"reason": "no decision in it"},
    ]
    return httpx.Response(200, json={"answers": answers})


HALF_FAILED = [check_of(key) for key in "abcd"]


async def test_a_check_the_node_failed_raises_for_its_own_caller_only() -> None:
    transport = httpx.MockTransport(half_failed)
    async with AsyncClient(URL, transport=transport, batching=True, on_no_answer="raise") as client:
        said = await asyncio.gather(*(client.ask(check) for check in HALF_FAILED), return_exceptions=True)
    assert [type(one) for one in said] == [Answer, NoAnswer, InvalidRequest, NoAnswer]
    with Client(URL, transport=transport, batching=True, on_no_answer="raise") as blocking:
        assert [type(one) for one in blocking._ask_each(HALF_FAILED)] == [
            Answer,
            NoAnswer,
            InvalidRequest,
            NoAnswer,
        ]


async def test_a_batch_that_is_asked_for_as_one_raises_as_one_or_settles_each() -> None:
    transport = httpx.MockTransport(half_failed)
    with (
        Client(URL, transport=transport, on_no_answer="raise") as client,
        pytest.raises(NoAnswer, match="no store"),
    ):
        client.check_batch(HALF_FAILED)
    async with AsyncClient(URL, transport=transport, on_no_answer="raise") as other:
        with pytest.raises(NoAnswer, match="no store"):
            await other.check_batch(HALF_FAILED)
    with Client(URL, transport=transport, on_no_answer="deny") as denying:
        said = denying.check_batch(HALF_FAILED)
    assert [one.allowed if isinstance(one, Answer) else one.status for one in said] == [True, False, 422, False]
