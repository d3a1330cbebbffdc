"""``apportion history``: who changed what, when, from where and why."""

from __future__ import annotations

import time
from typing import Any

import typer

from services.cli.output import fail, print_json, stdout
from services.cli.rule_versions import ControlOption, JsonOption, about, called
from services.cli.times import SPAN_EXPECTED, shown_time, span_s, zone

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def history(
    domain: str | None = typer.Option(None, "--domain", help="Only of this domain."),
    author: str | None = typer.Option(None, "--author", help="Only by this one."),
    rule: str | None = typer.Option(None, "--rule", help="Only of this rule."),
    kind: str | None = typer.Option(None, "--kind", help="Only of this kind, such as put_override."),
    text: str | None = typer.Option(None, "--text", help="In author, reason, origin, rule, key or clients."),
    since: str | None = typer.Option(None, "--since", help="How far back, such as 15min or 7d."),
    refused: bool = typer.Option(False, "--refused", help="Only what the leader refused."),
    offset: int | None = typer.Option(None, "--offset", min=0, help="Only this entry, and all that it said."),
    limit: int = typer.Option(20, "--limit", min=1, max=1000, help="How many, the newest first."),
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Accepted changes, and those that the leader refused, the newest first.

    Example: apportion history --author ann --text launch --since 7d
    """
    if offset is not None:
        _show(called(str(offset), control, "GET", f"/history/{offset}"), as_json)
        return
    wanted: dict[str, Any] = {"domain": domain, "author": author, "rule": rule, "kind": kind, "text": text}
    params = {name: value for name, value in wanted.items() if value is not None} | {"limit": limit}
    if since is not None:
        seconds = span_s(since)
        if seconds is None:
            fail(f"--since: must be {SPAN_EXPECTED}, not {since}")
        params["since_ms"] = int(time.time() * 1000) - 1000 * seconds
    if refused:
        params["accepted"] = False
    body = called("history", control, "GET", "/history", params=params)
    if as_json:
        print_json(body)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("offset", f"when ({zone()})", "who", "from", "domain", "change", "version", "why"):
        table.add_column(column, overflow="fold")
    for one in body["changes"]:
        what = " ".join(filter(None, (one["kind"], about(one) or one.get("token", {}).get("name"))))
        version = str(one["version"]) if one["accepted"] else "conflict" if one["conflict"] else "refused"
        who_where = one["author"], one["origin"], one["domain"]
        table.add_row(str(one["offset"]), shown_time(one["at_ms"]), *who_where, what, version, one["reason"])
    stdout().print(table)


def _show(one: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(one)
        return
    from services.yaml_text import yaml_text

    said = {name: value for name, value in one.items() if value not in (None, "", [], {})}
    typer.echo(yaml_text({**said, "at_ms": f"{one['at_ms']} ({shown_time(one['at_ms'])} {zone()})"}), nl=False)
