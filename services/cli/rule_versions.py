"""``apportion rules versions|diff|rollback|mode|shadow``: a set over time, and a rule before it is enforced."""

from __future__ import annotations

from typing import Any

import typer

from services.cli.control import HELP, NoAnswer, Refused, end_refused, open_control, reason_header
from services.cli.effects import show_change, show_effect
from services.cli.output import fail, print_json, say, stdout
from services.cli.times import shown_time, zone

ControlOption = typer.Option(None, "--control", help=HELP)
JsonOption = typer.Option(False, "--json", help="Print JSON.")
DomainOption = typer.Option("default", "--domain", help="The namespace of the rules.")
ReasonOption = typer.Option("", "--reason", help="Why, for the history.")
DryRunOption = typer.Option(False, "--dry-run", help="Only tell what would change.")


def register_versions(app: typer.Typer) -> None:
    for command in (versions, diff, rollback, mode, shadow):
        app.command()(command)


def called(source: str, control: str | None, method: str, path: str, **options: Any) -> dict[str, Any]:
    """The body of the answer; ends the process with a word when it is refused or nobody answers."""
    try:
        body: dict[str, Any] = open_control(control).call(method, path, **options).json()
    except (Refused, NoAnswer) as error:
        end_refused(source, error)
    return body


def versions(
    domain: str = DomainOption,
    limit: int = typer.Option(20, "--limit", min=1, max=1000, help="How many, the newest first."),
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """The versions that a domain has had, with who, when and why.

    Example: apportion rules versions --domain default
    """
    body = called(domain, control, "GET", f"/rulesets/{domain}/versions", params={"limit": limit})
    if as_json:
        print_json(body)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("version", f"when ({zone()})", "who", "change", "why"):
        table.add_column(column, overflow="fold")
    for one in body["versions"]:
        what = f"{one['kind']} {about(one)}".strip()
        what += f" (back to {one['restores']})" if one["restores"] is not None else ""
        table.add_row(str(one["version"]), shown_time(one["at_ms"]), one["author"], what, one["reason"])
    stdout().print(table)


def about(one: dict[str, Any]) -> str:
    """The rule, key or clients that a change is about, as far as its row tells them."""
    key = ", ".join(f"{name}={text}" for name, text in (one["key"] or {}).items())
    return " ".join(filter(None, (one["rule_id"], key, ", ".join(one["clients"] or []))))


def diff(
    since: int = typer.Argument(..., metavar="FROM", help="A version."),
    to: int | None = typer.Argument(None, metavar="TO", help="Another one; default: the newest."),
    domain: str = DomainOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """What is not the same between two versions of a domain.

    Example: apportion rules diff 17 21
    """
    params = {"from": since, **({"to": to} if to is not None else {})}
    body = called(domain, control, "GET", f"/rulesets/{domain}/diff", params=params)
    if as_json:
        print_json(body)
    else:
        show_effect(body["effect"])


def rollback(
    to: int = typer.Argument(..., metavar="VERSION", help="The version to go back to."),
    domain: str = DomainOption,
    dry_run: bool = DryRunOption,
    reason: str = ReasonOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Go back to a version that the domain has had; that is a new version, and can be gone back from.

    Example: apportion rules rollback 17 --dry-run
    """
    params = {"to": to, "dry_run": dry_run}
    path = f"/rulesets/{domain}:rollback"
    body = called(str(to), control, "POST", path, params=params, headers=reason_header(reason))
    words = f"back: domain {domain} is as it was with version {to}; that is version {body.get('version')} now"
    show_change(body, words, dry_run=dry_run, as_json=as_json)


def mode(
    rule_id: str = typer.Argument(..., metavar="RULE", help="The rule's id."),
    wanted: str = typer.Argument(..., metavar="MODE", help="enforce, shadow or soft."),
    domain: str = DomainOption,
    dry_run: bool = DryRunOption,
    reason: str = ReasonOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Put a rule into shadow, soft or enforce; what its buckets hold stays.  Refused if somebody was first.

    Example: apportion rules mode orders-free enforce --reason "a week in shadow"
    """
    if wanted not in ("enforce", "shadow", "soft"):
        fail(f"MODE must be enforce, shadow or soft, not {wanted}")
    known = called(rule_id, control, "GET", f"/rules/{rule_id}", params={"domain": domain})
    source = {**known["source"], "mode": wanted}
    headers = {"If-Match": f'"{known["version"]}"', **reason_header(reason)}
    params = {"domain": domain, "dry_run": dry_run}
    body = called(rule_id, control, "PUT", f"/rules/{rule_id}", params=params, json=source, headers=headers)
    words = f"{rule_id}: {known['loaded']['mode']} -> {wanted}, version {body.get('version')}"
    show_change(body, words, dry_run=dry_run, as_json=as_json)


def shadow(
    rule_id: str | None = typer.Argument(None, metavar="[RULE]", help="Only this rule."),
    domain: str = DomainOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """What rules in shadow would have denied, on all nodes since they began, with the keys denied last.

    Example: apportion rules shadow orders-free
    """
    params = {"domain": domain, **({"rule": rule_id} if rule_id else {})}
    body = called(rule_id or domain, control, "GET", "/v1/shadow", params=params)
    if as_json:
        print_json(body)
        return
    if not body["rules"]:
        say(f"no rule in shadow has seen a check in domain {domain}")
    for name, one in body["rules"].items():
        seen = one["would_allow"] + one["would_deny"]
        part = f" ({100 * one['would_deny'] / seen:.2f} %)" if seen else ""
        typer.echo(f"{name}: would have denied {one['would_deny']:,} of {seen:,}{part}")
        if one["undecided"]:
            typer.echo(f"    not asked, or not answered: {one['undecided']:,}")
        for example in one["examples"]:
            typer.echo(f"    {example['key']}: {example['times']:,} in {example['region']}")
    if body["nodes_silent"]:
        say(f"nodes that did not answer, so are not in this: {', '.join(body['nodes_silent'])}")
