"""``apportion explain``: why a client is limited."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from services.cli.control import HELP as CONTROL_HELP
from services.cli.control import NoAnswer, Refused, end_refused, open_control
from services.cli.output import print_json, stdout
from services.cli.parsing import parse_attributes

EXAMPLE = 'Example: apportion explain --client-key acme --resource "POST /orders" --attr tier=free'
_HISTORY_SHOWN = 8
_OTHERS_SHOWN = 10


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("explain", epilog=EXAMPLE)(explain)


def explain(
    client_key: Annotated[str, typer.Option(help="Who asks.")],
    resource: Annotated[str, typer.Option(help="What for.")],
    cost: Annotated[int, typer.Option(min=0, help="Tokens that the check would ask for.")] = 1,
    attr: Annotated[list[str] | None, typer.Option(help="An attribute, as tier=free; repeatable.")] = None,
    domain: Annotated[str, typer.Option(help="The domain of the rules.")] = "default",
    control: Annotated[str | None, typer.Option("--control", help=CONTROL_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say which rules a check meets and why, how its buckets stand in every region, and what it would be told now.

    Nothing is charged.  Exit code 0: every region that answers would allow it, 1: one would deny it.
    """
    query = {"client_key": client_key, "resource": resource, "cost": str(cost), "domain": domain}
    query |= {f"attributes.{name}": value for name, value in parse_attributes(attr or []).items()}
    try:
        found = open_control(control).call("GET", "/v1/explain", params=query).json()
    except (Refused, NoAnswer) as error:
        end_refused("explain", error)
    if as_json:
        print_json(found)
    else:
        console = stdout()
        for line in lines(found):
            console.print(line, markup=False, soft_wrap=True)
    if any(not told["next"]["allowed"] for told in found["regions"].values() if "next" in told):
        raise typer.Exit(1)


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The answer for a person, region by region, then the shares."""
    for region, told in found["regions"].items():
        if "next" not in told:
            yield f"{region}: {told.get('problem', 'no node answers')}"
            continue
        coming = told["next"]
        outcome = "allowed" if coming["allowed"] else "denied"
        by = f" by {coming['rule']}" if coming["rule"] and not coming["allowed"] else ""
        wait = f", again in {coming['retry_after_ms']:,} ms" if coming["retry_after_ms"] else ""
        yield f"{region}: the next check would be {outcome}{by} ({coming['reason']}){wait}: {coming['why']}"
        for row in told["rules"]:
            yield from _rule(row)
    first = next((told for told in found["regions"].values() if "next" in told), None)
    if first is not None:
        yield from _others(first)
    for key, shares in found["keys"].items():
        yield from _shares(key, shares)


def _rule(row: Mapping[str, Any]) -> Iterator[str]:
    marks = [word for word in ("override", "canary", "blocked", "unlimited") if row.get(word)]
    marks += [row["mode"]] if row["mode"] != "enforce" else []
    yield f"  {row['rule']}: {row['limit']}" + (f" ({', '.join(marks)})" if marks else "")
    bucket = row["bucket"]
    if bucket is None:
        return
    left = f"{bucket['remaining']:,} of {bucket['limit']:,} left"
    yield f"    bucket {bucket['key']}: {left}, full again in {bucket['reset_after_ms'] / 1000:,.3g} s"
    if bucket["share_units"] is not None:
        units = bucket["share_units"] / 100
        yield (
            f"    share here {units:g} % ({bucket['share']}), session for {bucket['session_left_ms'] / 1000:,.1f} s"
        )
    if bucket["leased_here"]:
        yield f"    the node that answered holds {bucket['leased_here']:,} tokens ahead"
    if bucket["degraded"]:
        yield "    answered without the region's Redis, or at the floor"


def _others(told: Mapping[str, Any]) -> Iterator[str]:
    others = told["others"]
    if others:
        yield "rules that do not apply:"
    for row in others[:_OTHERS_SHOWN]:
        idle = " (the override of this key does nothing here)" if row.get("override") else ""
        yield f"  {row['rule']}: {'; '.join(row['why_not'])}{idle}"
    more = len(others) - _OTHERS_SHOWN + told["others_left_out"]
    if more > 0:
        yield f"  and {more:,} more (--json shows up to {len(others):,})"


def _shares(key: str, shares: Mapping[str, Any]) -> Iterator[str]:
    now = ", ".join(
        f"{region} {'unknown' if units is None else f'{units / 100:g} %'}"
        for region, units in shares["shares"].items()
    )
    yield f"shares of {key} ({shares['rule']}, {shares['distribution']}): {now}"
    from services.clock import time_of_day

    for entry in shares["history"][:_HISTORY_SHOWN]:
        units = "its base" if entry["units"] is None else f"{entry['units'] / 100:g} %"
        yield f"  {time_of_day(entry['at_ms'])} {entry['region']}: {units} ({entry['kind']})"
