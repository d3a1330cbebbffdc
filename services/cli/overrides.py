"""``apportion override``: other limits for one key of a rule, for a while; or no access."""

from __future__ import annotations

from typing import Any

import typer

from services.cli.control import reason_header
from services.cli.effects import show_change
from services.cli.output import fail, print_json, say, stdout
from services.cli.rule_versions import ControlOption, DomainOption, DryRunOption, JsonOption, ReasonOption, called
from services.cli.times import SPAN_EXPECTED, after, shown_time, span_s, zone

_HELP = "Other limits for one key, for a while; or block it."
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=_HELP)

_RuleArgument = typer.Argument(..., metavar="RULE", help="The rule's id.")
_KeyArgument = typer.Argument(..., metavar="NAME=VALUE...", help="The key, such as client_key=hooli.")
_UntilOption = typer.Option(None, "--until", help="When it ends, such as 2026-12-31T18:00:00+01:00.")
_ForOption = typer.Option(None, "--for", help="For how long, such as 90min or 2d.")


@app.command()
def put(
    rule: str = _RuleArgument,
    key: list[str] = _KeyArgument,
    multiply: float | None = typer.Option(None, "--multiply", help="Amount and rate times this."),
    capacity: int | None = typer.Option(None, "--capacity", help="Another capacity."),
    refill: str | None = typer.Option(None, "--refill", help="Another refill, such as 50/s."),
    limit: int | None = typer.Option(None, "--limit", help="Another limit of a window."),
    unlimited: bool = typer.Option(False, "--unlimited", help="No limit."),
    until: str | None = _UntilOption,
    lasting: str | None = _ForOption,
    why: str = ReasonOption,
    domain: str = DomainOption,
    dry_run: bool = DryRunOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Give one key of RULE another limit.

    Example: apportion override put orders-free client_key=hooli --multiply 10 --for 2d --reason "launch"
    """
    numbers = {"multiply": multiply, "capacity": capacity, "refill": refill, "limit": limit}
    changes: dict[str, Any] = {name: value for name, value in numbers.items() if value is not None}
    if unlimited:
        changes["unlimited"] = True
    _put(rule, key, changes, until, lasting, why, domain, dry_run, control, as_json)


@app.command()
def block(
    rule: str = _RuleArgument,
    key: list[str] = _KeyArgument,
    until: str | None = _UntilOption,
    lasting: str | None = _ForOption,
    why: str = ReasonOption,
    domain: str = DomainOption,
    dry_run: bool = DryRunOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Deny one key of RULE whatever it has left.

    Example: apportion override block orders-free client_key=mallory --for 1h --reason "scraping"
    """
    _put(rule, key, {"block": True}, until, lasting, why, domain, dry_run, control, as_json)


@app.command("list")
def list_overrides(
    rule: str | None = typer.Argument(None, metavar="[RULE]", help="Only of this rule."),
    domain: str = DomainOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """The overrides of a domain, and when they end.

    Example: apportion override list orders-free
    """
    params: dict[str, Any] = {"domain": domain, "limit": 1000, **({"rule": rule} if rule else {})}
    body = called(domain, control, "GET", "/overrides", params=params)
    found = list(body["overrides"])
    while body["next"] is not None:
        body = called(domain, control, "GET", "/overrides", params={**params, "after": body["next"]})
        found += body["overrides"]
    if as_json:
        print_json({"domain": domain, "overrides": found})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("id", "rule", "key", "limit", f"until ({zone()})", "why"):
        table.add_column(column, overflow="fold")
    for one in found:
        key = ", ".join(f"{name}={value}" for name, value in one["key"].items()) or "all"
        until = shown_time(one["until_ms"]) if one["until_ms"] is not None else "taken out"
        table.add_row(one["id"], one["rule"], key, one["in_words"], until, one["source"].get("why", ""))
    stdout().print(table)


@app.command()
def end(
    override_id: str = typer.Argument(..., metavar="ID", help="As `apportion override list` tells it."),
    domain: str = DomainOption,
    reason: str = ReasonOption,
    dry_run: bool = DryRunOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Take an override out now.

    Example: apportion override end 5f2c9d1e7a3b4c68
    """
    params = {"domain": domain, "dry_run": dry_run}
    path = f"/overrides/{override_id}"
    body = called(override_id, control, "DELETE", path, params=params, headers=reason_header(reason))
    words = f"ended: {override_id}, version {body['version']}" if not dry_run else ""
    show_change(body, words, dry_run=dry_run, as_json=as_json)


def _put(
    rule: str,
    key: list[str],
    changes: dict[str, Any],
    until: str | None,
    lasting: str | None,
    why: str,
    domain: str,
    dry_run: bool,
    control: str | None,
    as_json: bool,
) -> None:
    override = {"rule": rule, "key": dict(map(_named, key)), **changes}
    if until is not None and lasting is not None:
        fail("--until and --for: give one of them")
    if lasting is not None:
        seconds = span_s(lasting)
        if seconds is None:
            fail(f"--for: must be {SPAN_EXPECTED}, not {lasting}")
        until = after(seconds)
    if until is not None:
        override["until"] = until
    if why:
        override["why"] = why
    params = {"domain": domain, "dry_run": dry_run}
    body = called(rule, control, "PUT", "/overrides", params=params, json=override, headers=reason_header(why))
    ends = f"until {until}" if until else "until it is taken out"
    words = f"{body.get('id')}: {', '.join(key) or 'all'} of {rule}: {body.get('in_words', 'made')}, {ends}"
    show_change(body, words, dry_run=dry_run, as_json=as_json)
    if "warning" in body and not as_json:
        say(f"warning: this override {body['warning']}")
    if until is None and not (dry_run or as_json):
        say(f"give it an end with --for or --until, or end it: apportion override end {body['id']}")


def _named(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        fail(f"{text}: must be NAME=VALUE, such as client_key=hooli")
    return name, value
