"""The load generator: an even pace, honest latencies, every check accounted for, and bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from typer.testing import CliRunner

from services.cli.drive import CheckRecord, LoadResult, drive
from services.cli.load import text_of
from services.cli.main import app

Writer = asyncio.StreamWriter
ALLOWED = b'{"allowed":true,"reason":"ok","degraded":false}'
DENIED = b'{"allowed":false,"reason":"limited","degraded":true}'


def response(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


@asynccontextmanager
async def server(answer: Callable[[bytes, Writer], Awaitable[None]]) -> AsyncIterator[str]:
    """A server that reads one request at a time and lets ``answer`` write."""
    tasks: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: Writer) -> None:
        tasks.add(asyncio.current_task())
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length"))
                await answer(await reader.readexactly(length), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        for task in tasks:
            if task is not None:
                task.cancel()
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)


async def says(body: bytes, writer: Writer) -> None:
    writer.write(response(ALLOWED if json.loads(body)["client_key"].endswith("0") else DENIED))


async def run(target: str, rate: float = 200, seconds: float = 0.2, **options: object) -> LoadResult:
    chosen = {"client_key": "k-0", "resource": "GET /x", **options}
    return await drive([target], rate, seconds, **chosen)  # type: ignore[arg-type]


async def test_every_check_is_counted_once_and_in_order_of_time() -> None:
    async with server(says) as url:
        result = await run(url, client_key=["k-0", "k-1"], attributes={"tier": "free"})
    assert (result.sent, result.allowed, result.denied, result.degraded, result.errors) == (40, 20, 20, 20, 0)
    assert all(check.due_at <= check.sent_at <= check.answered_at for check in result.checks)
    dues = sorted(check.due_at for check in result.checks)
    assert dues[-1] - dues[0] == pytest.approx(39 / 200, abs=0.001)
    assert sum(result.allowed_per_second()) == 20


async def test_every_key_meets_every_target() -> None:
    seen: set[tuple[int, str]] = set()

    def teller(number: int) -> Callable[[bytes, Writer], Awaitable[None]]:
        async def tell(body: bytes, writer: Writer) -> None:
            seen.add((number, json.loads(body)["client_key"]))
            await says(body, writer)

        return tell

    async with server(teller(0)) as first, server(teller(1)) as second:
        await drive([first, second], 400, 0.1, client_key=["a", "b"], resource="r")
    assert seen == {(0, "a"), (0, "b"), (1, "a"), (1, "b")}


async def test_nobody_there_is_an_error_for_every_check_not_a_crash() -> None:
    async with server(says) as url:
        pass
    result = await run(url)
    assert result.sent + result.unsent == 40
    assert result.errors == result.sent
    assert result.allowed == 0
    assert all(check.error is not None and check.status == 0 for check in result.checks)


async def test_a_silent_server_times_out_and_a_late_answer_is_nobodys() -> None:
    answered = 0

    async def second_only(body: bytes, writer: Writer) -> None:
        nonlocal answered
        answered += 1
        if answered == 1:
            await asyncio.sleep(0.45)
        writer.write(response(ALLOWED))

    async with server(second_only) as url:
        result = await run(url, rate=2, seconds=1, timeout_s=0.4, concurrency=1)
    assert [check.error for check in result.checks] == ["timeout", None]
    assert result.allowed == 1


async def test_checks_that_find_no_connection_are_told_as_unsent() -> None:
    async def never(body: bytes, writer: Writer) -> None:
        await asyncio.sleep(10)

    async with server(never) as url:
        result = await run(url, rate=500, seconds=0.1, concurrency=1, timeout_s=0.3)
    assert result.unsent > 0
    assert result.sent + result.unsent == 50
    assert result.errors == result.sent


@pytest.mark.parametrize(
    "reply",
    [response(b"oops"), response(b"{}"), response(ALLOWED, 500), b"SSH-2.0\r\n\r\n", response(b"x" * 70_000)],
)
async def test_what_is_no_decision_is_an_error_never_an_allow(reply: bytes) -> None:
    async def wrong(body: bytes, writer: Writer) -> None:
        writer.write(reply)

    async with server(wrong) as url:
        result = await run(url, rate=50, seconds=0.1)
    assert (result.sent, result.errors, result.allowed, result.denied) == (5, 5, 0, 0)


async def test_a_server_that_closes_after_each_answer_costs_no_check() -> None:
    async def closing(body: bytes, writer: Writer) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(ALLOWED), ALLOWED)
        )
        writer.close()

    async with server(closing) as url:
        result = await run(url)
    assert (result.allowed, result.errors) == (40, 0)


async def test_stop_ends_a_drive_early() -> None:
    stop = asyncio.Event()
    async with server(says) as url:
        asyncio.get_running_loop().call_later(0.05, stop.set)
        result = await run(url, seconds=30, stop=stop)
    assert 0 < result.sent < 200


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("http://192.0.2.1:80", {}),
        ("http://example.com", {}),
        ("https://127.0.0.1", {}),
        ("127.0.0.1:80", {}),
        ("http://127.0.0.1/path", {}),
        ("http://127.0.0.1", {"rate": 0}),
        ("http://127.0.0.1", {"rate": 1e9}),
        ("http://127.0.0.1", {"seconds": 1e9}),
        ("http://127.0.0.1", {"concurrency": 0}),
        ("http://127.0.0.1", {"client_key": []}),
        ("http://127.0.0.1", {"token": "a\r\nX: y"}),
    ],
)
async def test_what_is_out_of_bounds_is_refused_before_anything_is_sent(
    target: str, options: dict[str, object]
) -> None:
    with pytest.raises(ValueError):
        await run(target, **options)  # type: ignore[arg-type]


def test_latency_counts_from_when_a_check_was_due() -> None:
    checks = [CheckRecord(0.0, n / 100, n / 100 + 0.001, 0, 200, True, False, "ok", None, 1) for n in range(100)]
    result = LoadResult(["x"], 100, 0.0, 1.0, 0, checks)
    assert result.latency_ms(0.5) == pytest.approx(501)
    assert result.latency_ms(1.0) == pytest.approx(991)


def test_an_empty_result_can_be_told() -> None:
    result = LoadResult(["x"], 100)
    assert result.summary()["latency_ms"] == {"p50": None, "p99": None, "max": None}
    assert "0 checks" in text_of(result)


def test_the_command_refuses_other_machines_with_exit_code_2() -> None:
    result = CliRunner().invoke(app, ["load", "--target", "http://192.0.2.1:80"], prog_name="apportion")
    assert result.exit_code == 2
    assert "--anywhere" in result.stderr


def test_the_command_says_by_its_exit_code_that_checks_got_no_decision() -> None:
    arguments = ["load", "--target", "http://127.0.0.1:1", "--rate", "20", "--seconds", "0.1", "--json"]
    result = CliRunner().invoke(app, arguments, prog_name="apportion")
    assert result.exit_code == 1
    summary = json.loads(result.stdout)
    assert (summary["sent"], summary["errors"], summary["allowed"]) == (2, 2, 0)
