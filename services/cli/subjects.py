"""``apportion subject``: what is known of clients, such as their tier."""

from __future__ import annotations

import csv
import io
import json
from typing import Any
from urllib.parse import quote

import typer

from services.cli.control import reason_header
from services.cli.effects import show_change
from services.cli.output import fail, print_json, stdout
from services.cli.rule_versions import ControlOption, DomainOption, DryRunOption, JsonOption, ReasonOption, called

_HELP = "What is known of clients, such as their tier."
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=_HELP)

_KeyArgument = typer.Argument(..., metavar="CLIENT_KEY", help="The client_key of its checks.")

_AttributesArgument = typer.Argument(..., metavar="NAME=VALUE...", help="Such as tier=gold.")


@app.command("set")
def set_subject(
    client_key: str = _KeyArgument,
    attributes: list[str] = _AttributesArgument,
    domain: str = DomainOption,
    dry_run: bool = DryRunOption,
    reason: str = ReasonOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Say what is known of a client, in place of what was.

    Example: apportion subject set acme tier=gold country=DE
    """
    said = dict(map(_named, attributes))
    params = {"domain": domain, "dry_run": dry_run}
    path = f"/subjects/{quote(client_key, safe='')}"
    body = called(client_key, control, "PUT", path, params=params, json=said, headers=reason_header(reason))
    show_change(body, f"{client_key}: {', '.join(attributes)}", dry_run=dry_run, as_json=as_json)


@app.command()
def delete(
    client_key: str = _KeyArgument,
    domain: str = DomainOption,
    dry_run: bool = DryRunOption,
    reason: str = ReasonOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Know nothing of a client any more.

    Example: apportion subject delete acme
    """
    params = {"domain": domain, "dry_run": dry_run}
    path = f"/subjects/{quote(client_key, safe='')}"
    body = called(client_key, control, "DELETE", path, params=params, headers=reason_header(reason))
    show_change(body, f"{client_key}: nothing is known any more", dry_run=dry_run, as_json=as_json)


@app.command("list")
def list_subjects(
    domain: str = DomainOption, control: str | None = ControlOption, as_json: bool = JsonOption
) -> None:
    """All that is known of clients in a domain.

    Example: apportion subject list
    """
    found: list[dict[str, Any]] = []
    skip: int | None = 0
    while skip is not None:
        params = {"domain": domain, "limit": 1000, "skip": skip}
        body = called(domain, control, "GET", "/subjects", params=params)
        found += body["subjects"]
        skip = body["next"]
    if as_json:
        print_json({"domain": domain, "subjects": found})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("found by", "known"):
        table.add_column(column, overflow="fold")
    for one in found:
        where, known = one["where"], one["set"]
        by = where["client_key"] if list(where) == ["client_key"] else _pairs(where)
        table.add_row(by, _pairs(known))
    stdout().print(table)


@app.command("import")
def import_subjects(
    file: str = typer.Argument(..., help="CSV with a column client_key, or a JSON list; - reads stdin."),
    domain: str = DomainOption,
    dry_run: bool = DryRunOption,
    reason: str = ReasonOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Say what is known of many clients in one change; those that FILE does not name stay.

    Example: apportion subject import tiers.csv --reason "contracts of May"
    """
    from services.cli.rules import read_file

    subjects = _read(file, read_file(file))
    params = {"domain": domain, "dry_run": dry_run}
    body = called(
        file, control, "POST", "/subjects:import", params=params, json=subjects, headers=reason_header(reason)
    )
    show_change(body, f"{len(subjects):,} clients", dry_run=dry_run, as_json=as_json)


def _read(file: str, content: bytes) -> list[dict[str, Any]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        fail(f"{file}: must be UTF-8")
    if text.lstrip().startswith("["):
        try:
            subjects: list[dict[str, Any]] = json.loads(text)
        except ValueError as error:
            fail(f"{file}: must be a JSON list: {error}")
        return subjects
    rows = csv.DictReader(io.StringIO(text))
    if "client_key" not in (rows.fieldnames or ()):
        fail(f"{file}: must be CSV whose first line names a column client_key, or a JSON list")
    return [
        {
            "client_key": row["client_key"],
            "set": {name: value for name, value in row.items() if name and name != "client_key" and value},
        }
        for row in rows
    ]


def _pairs(attributes: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in attributes.items())


def _named(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        fail(f"{text}: must be NAME=VALUE, such as tier=gold")
    return name, value
