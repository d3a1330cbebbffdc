"""``apportion history``: who changed what, when, from where and why."""

from __future__ import annotations

from typing import Any

import typer

from services.cli.output import print_json, stdout
from services.cli.rule_versions import ControlOption, JsonOption, called
from services.cli.times import shown_time

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def history(
    domain: str | None = typer.Option(None, "--domain", help="Only of this domain."),
    author: str | None = typer.Option(None, "--author", help="Only by this one."),
    rule: str | None = typer.Option(None, "--rule", help="Only of this rule."),
    text: str | None = typer.Option(None, "--text", help="In author, reason, origin or rule."),
    refused: bool = typer.Option(False, "--refused", help="Only what was refused."),
    limit: int = typer.Option(20, "--limit", min=1, max=1000, help="How many, the newest first."),
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Accepted and refused changes, the newest first.

    Example: apportion history --author ann --text launch
    """
    wanted: dict[str, Any] = {"domain": domain, "author": author, "rule": rule, "text": text, "limit": limit}
    params = {name: value for name, value in wanted.items() if value is not None}
    if refused:
        params["accepted"] = False
    body = called("history", control, "GET", "/history", params=params)
    if as_json:
        print_json(body)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("when", "who", "from", "domain", "change", "version", "why"):
        table.add_column(column, overflow="fold")
    for one in body["changes"]:
        what = " ".join(filter(None, (one["kind"], one["rule_id"] or one.get("token", {}).get("name"))))
        version = str(one["version"]) if one["accepted"] else "conflict" if one["conflict"] else "refused"
        table.add_row(
            shown_time(one["at_ms"]), one["author"], one["origin"], one["domain"], what, version, one["reason"]
        )
    stdout().print(table)
