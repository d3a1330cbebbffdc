"""``apportion subject``: what is known of clients, such as their tier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import typer

from services.cli.control import reason_header
from services.cli.effects import show_change
from services.cli.output import fail, print_json, say, stdout
from services.cli.rule_versions import ControlOption, DomainOption, DryRunOption, JsonOption, ReasonOption, called

_HELP = "What is known of clients, such as their tier."
IMPORT_TIMEOUT_S = 600.0
"""For the answer to an import: what was sent last may wait for a leader."""
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
    words = f"{client_key}: {', '.join(attributes)}{_place(body)}"
    show_change(body, words, dry_run=dry_run, as_json=as_json)


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


@app.command()
def show(
    client_key: str = _KeyArgument,
    domain: str = DomainOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """What is known of one client.

    Example: apportion subject show acme
    """
    path = f"/subjects/{quote(client_key, safe='')}"
    body = called(client_key, control, "GET", path, params={"domain": domain})
    if as_json:
        print_json(body)
    else:
        typer.echo(f"{client_key}: {_pairs(body['set'])}{_place(body)}")


@app.command("list")
def list_subjects(
    domain: str = DomainOption,
    limit: int = typer.Option(100, "--limit", min=1, max=1000, help="How many of those that are stored."),
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """What is known of clients in a domain: all that the set says, and the first of those that are stored.

    Example: apportion subject list
    """
    found: list[dict[str, Any]] = []
    skip: int | None = 0
    while skip is not None:
        params = {"domain": domain, "limit": 1000, "skip": skip}
        body = called(domain, control, "GET", "/subjects", params=params)
        found += body["subjects"]
        skip = body["next"]
    stored = called(domain, control, "GET", "/subjects:stored", params={"domain": domain, "limit": limit})
    for one in found:
        one["stands_in"] = "the set, beneath what is stored" if one.pop("also_stored") else "the set"
    place = "stored" if stored["looked_up"] else "stored, but not looked up"
    found += [
        {"where": {"client_key": one["client_key"]}, "set": one["set"], "stands_in": place}
        for one in stored["subjects"]
    ]
    if as_json:
        print_json({"domain": domain, "subjects": found, "stored": stored["clients"]})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("found by", "known", "stands in"):
        table.add_column(column, overflow="fold")
    for one in found:
        where, known = one["where"], one["set"]
        by = where["client_key"] if list(where) == ["client_key"] else _pairs(where)
        table.add_row(by, _pairs(known), one["stands_in"])
    stdout().print(table)
    if stored["next"] is not None:
        say(f"the first {limit:,} of the {stored['clients']:,} that are stored: --limit shows more")
    if stored["clients"] and not stored["looked_up"]:
        say("what is stored does not count: the set does not say stored_subjects")


@app.command("import")
def import_subjects(
    file: str = typer.Argument(
        ..., help="CSV with a column client_key, JSON lines, or a JSON list; - reads stdin."
    ),
    domain: str = DomainOption,
    dry_run: bool = DryRunOption,
    reason: str = ReasonOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Say what is known of many clients; those that FILE does not name stay.

    Example: apportion subject import tiers.csv --reason "contracts of May"
    """
    from services.cli.subject_files import opened, parts_of

    source = opened(file)
    params = {"domain": domain, "dry_run": dry_run}
    headers = {"Content-Type": source.media, **reason_header(reason)}
    with parts_of(source, is_shown=not as_json) as parts:
        body = called(
            file,
            control,
            "POST",
            "/subjects:import",
            params=params,
            content=parts,
            headers=headers,
            timeout=IMPORT_TIMEOUT_S,
        )
    words = f"{body['imported']:,} clients" if "imported" in body else ""
    show_change(body, words, dry_run=dry_run, as_json=as_json)


def _place(body: Mapping[str, Any]) -> str:
    """Said only where it may be in two."""
    places = body.get("stands_in", ["set"])
    return {1: " (stored)", 2: " (stored, and what else the set says)"}[len(places)] if "stored" in places else ""


def _pairs(attributes: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in attributes.items())


def _named(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        fail(f"{text}: must be NAME=VALUE, such as tier=gold")
    return name, value
