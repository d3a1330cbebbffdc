"""``apportion load``: send checks at a given rate, and see what is allowed."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Annotated

import typer

from services.cli.drive import KEYS_MOST, CheckRecord, LoadResult, drive
from services.cli.output import fail, print_json, say
from services.cli.parsing import parse_attributes

__all__ = ["CheckRecord", "LoadResult", "drive", "register"]

EXAMPLE = "Example: apportion load --target http://127.0.0.1:8101 --rate 500 --seconds 30"
TOKEN_VARIABLE = "APPORTION_CHECK_TOKEN"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("load", epilog=EXAMPLE)(load)


def load(
    target: Annotated[list[str], typer.Option("--target", help="A node, as http://127.0.0.1:8101; repeatable.")],
    rate: Annotated[float, typer.Option(help="Checks a second, over all targets together.")] = 100.0,
    seconds: Annotated[float, typer.Option(help="For how long.")] = 10.0,
    client_key: Annotated[str, typer.Option(help="Whose checks.")] = "load",
    keys: Annotated[
        int, typer.Option(min=1, max=KEYS_MOST, help="Spread over so many client keys: KEY-0, KEY-1, …")
    ] = 1,
    resource: Annotated[str, typer.Option(help="What they ask for.")] = "GET /",
    cost: Annotated[int, typer.Option(help="Cost of each check.")] = 1,
    attr: Annotated[list[str] | None, typer.Option(help="An attribute, as tier=free; repeatable.")] = None,
    domain: Annotated[str, typer.Option(help="The domain of the rules.")] = "default",
    concurrency: Annotated[int, typer.Option(help="Connections per target.")] = 32,
    timeout_ms: Annotated[int, typer.Option(help="How long to wait for an answer.")] = 2000,
    anywhere: Annotated[bool, typer.Option("--anywhere", help="Also targets that are not this machine.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON.")] = False,
) -> None:
    """Send checks at a steady rate, whatever the answers are, and sum up what was allowed.

    Latency counts from the instant at which a check was due.  The token, where one is needed, is taken from
    $APPORTION_CHECK_TOKEN.  Exit code 1 when a check got no decision.
    """
    attributes = parse_attributes(attr or [])
    client_keys = client_key if keys == 1 else [f"{client_key}-{number}" for number in range(keys)]

    async def run() -> LoadResult:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
        return await drive(
            target,
            rate,
            seconds,
            client_key=client_keys,
            resource=resource,
            cost=cost,
            attributes=attributes,
            domain=domain,
            token=os.environ.get(TOKEN_VARIABLE),
            concurrency=concurrency,
            timeout_s=timeout_ms / 1000,
            anywhere=anywhere,
            stop=stop,
            on_second=_Progress(),
        )

    try:
        result = asyncio.run(run())
    except ValueError as error:
        fail(str(error))
    if as_json:
        print_json(result.summary())
    else:
        typer.echo(text_of(result))
    if result.errors:
        raise typer.Exit(1)


class _Progress:
    """A line a second on stderr."""

    def __init__(self) -> None:
        self._seen = 0

    def __call__(self, result: LoadResult) -> None:
        fresh = result.checks[self._seen :]
        allowed = sum(check.allowed for check in fresh)
        errors = sum(check.error is not None for check in fresh)
        self._seen += len(fresh)
        second = round(result.ended_s - result.started_s)
        say(f"{second:4d} s: {len(fresh):6d} answered, {allowed:6d} allowed, {errors:4d} without decision")


def text_of(result: LoadResult) -> str:
    """The summary for people."""
    summary = result.summary()
    latency = summary["latency_ms"]
    assert isinstance(latency, dict)
    times = ", ".join(f"{name} {'-' if value is None else f'{value:.2f}'}" for name, value in latency.items())
    lines = [
        f"{result.sent} checks in {summary['seconds']} s to {len(result.targets)} target(s) at {result.rate:g}/s",
        f"allowed {result.allowed}, denied {result.denied}, degraded {result.degraded}, errors {result.errors}"
        + (f", unsent {result.unsent}" if result.unsent else ""),
        f"latency ms: {times}",
        "allowed per second: " + " ".join(map(str, result.allowed_per_second())),
    ]
    errors = sorted({check.error for check in result.checks if check.error is not None})
    lines += [f"no decision: {reason}" for reason in errors[:10]]
    return "\n".join(lines)
