"""``apportion usage``: what was allowed and denied, minute by minute, over all regions."""

from __future__ import annotations

import time
from typing import Any

import typer

from services.cli.control import NoAnswer, Refused, end_refused, open_control
from services.cli.output import fail, print_json, say, stdout
from services.cli.rule_versions import ControlOption, JsonOption, called
from services.cli.times import SPAN_EXPECTED, shown_time, span_s

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_BY = ("rule", "region", "domain", "key")
_ROWS_MOST = 100_000


@app.command()
def usage(
    domain: str | None = typer.Option(None, "--domain", help="Only of this domain."),
    rule: str | None = typer.Option(None, "--rule", help="Only of this rule."),
    by: str = typer.Option("rule", "--by", help="rule, region, domain, or key (the busiest)."),
    since: str = typer.Option("1h", "--since", help="How far back, such as 15min or 7d."),
    total: bool = typer.Option(False, "--total", help="One row for the whole time, not one a minute."),
    as_csv: bool = typer.Option(False, "--csv", help="Print CSV."),
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """What was allowed and denied, and what it cost, by the minute and over all regions.

    Example: apportion usage --rule orders-free --since 1d --csv
    """
    seconds = span_s(since)
    if seconds is None:
        fail(f"--since: must be {SPAN_EXPECTED}, not {since}")
    if by not in _BY:
        fail(f"--by: must be one of {', '.join(_BY)}, not {by}")
    wanted: dict[str, Any] = {"domain": domain, "rule": rule, "by": by, "total": total, "limit": _ROWS_MOST}
    params = {name: value for name, value in wanted.items() if value is not None}
    params["since_ms"] = int(time.time() * 1000) - 1000 * seconds
    if as_csv:
        try:
            text = open_control(control).call("GET", "/v1/usage/minutes", params={**params, "format": "csv"}).text
        except (Refused, NoAnswer) as error:
            end_refused("usage", error)
        typer.echo(text, nl=False)
        return
    body = called("usage", control, "GET", "/v1/usage/minutes", params=params)
    if as_json:
        print_json(body)
        return
    _print(body)


def _print(body: dict[str, Any]) -> None:
    from rich.table import Table

    rows = body["rows"]
    names = [name for name in ("domain", "rule", "variant", "key", "region") if rows and name in rows[0]]
    counts = ("allowed", "denied", "allowed_cost", "denied_cost", "degraded")
    has_minutes = bool(rows) and "minute_ms" in rows[0]
    table = Table(box=None, pad_edge=False)
    for column in (*(("minute",) if has_minutes else ()), *names):
        table.add_column(column, overflow="fold")
    for column in counts:
        table.add_column(column.replace("_", " "), justify="right")
    for row in rows:
        minute = (shown_time(row["minute_ms"])[:-3],) if has_minutes else ()
        table.add_row(*minute, *(str(row[name]) for name in names), *(f"{row[name]:,}" for name in counts))
    stdout().print(table)
    since_ms = body["complete_since_ms"]
    if since_ms is None:
        say("nothing has been counted yet")
    elif since_ms > body["since_ms"]:
        say(f"counted whole from {shown_time(since_ms)} on")
