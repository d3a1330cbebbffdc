"""``apportion rules``: apply, validate, list, export, delete, and whole domains."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from services.cli.control import HELP, NoAnswer, Refused, end_refused, open_control, reason_header
from services.cli.effects import show_change, show_dry_run
from services.cli.import_rules import app as import_app
from services.cli.output import fail, print_faults, print_json, say, stdout
from services.cli.rule_cases import EXAMPLE as TEST_EXAMPLE
from services.cli.rule_cases import try_cases
from services.cli.rule_versions import DryRunOption, called, register_versions
from services.yaml_text import yaml_text

if TYPE_CHECKING:
    from regional_limiter.model.rule import RuleSet

_HELP = "Apply, check, list and export rules."
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=_HELP)
app.add_typer(import_app, name="import")
app.command("test", epilog=TEST_EXAMPLE)(try_cases)
register_versions(app)

_ControlOption = typer.Option(None, "--control", help=HELP)
_JsonOption = typer.Option(False, "--json", help="Print JSON.")
_DomainOption = typer.Option("default", "--domain", help="The namespace of the rules.")
_FileArgument = typer.Argument(..., help="A rule set, YAML or JSON; - reads stdin.")
_FILE_BYTES_MOST = 2 * 1024 * 1024


@app.command()
def apply(
    file: str = _FileArgument,
    control: str | None = _ControlOption,
    reason: str = typer.Option("", "--reason", help="Why, for the history."),
    made_from: int | None = typer.Option(None, "--if-version", help="Refuse if this is not the newest (0: none)."),
    dry_run: bool = DryRunOption,
    replace_all: bool = typer.Option(
        False, "--replace-all", help="Drop overrides and subjects there are, also if FILE names none."
    ),
    as_json: bool = _JsonOption,
) -> None:
    """Make FILE the rules of its domain: accepted whole, or refused with every fault.

    Overrides and subjects that were made one by one stay, if FILE names none itself.

    Example: apportion rules apply rules.yaml --reason "launch" --dry-run
    """
    text = read_file(file)
    rule_set = parsed(file, text)
    headers = {"Content-Type": "application/yaml" if not text.lstrip().startswith((b"{", b"[")) else "text/plain"}
    if made_from is not None:
        headers |= {"If-None-Match": "*"} if made_from == 0 else {"If-Match": f'"{made_from}"'}
    if reason:
        headers["Apportion-Reason"] = reason.encode("ascii", "replace").decode()
    params = {"dry_run": dry_run, "keep_unnamed": not replace_all}
    try:
        answer = open_control(control).call(
            "PUT", f"/rulesets/{rule_set.domain}", params=params, content=text, headers=headers
        )
    except (Refused, NoAnswer) as error:
        end_refused(file, error)
    body = answer.json()
    if dry_run:
        show_dry_run(body, as_json)
        return
    if as_json:
        print_json(body)
    else:
        typer.echo(f"accepted: domain {body['domain']}, version {body['version']}, {len(rule_set.rules)} rules")
    for rule in body.get("rules", []):
        loaded = rule["loaded"]
        rate = loaded.get("refill") or loaded.get("leak") or {}
        if rate.get("exact") is False:
            held = f"{rate['tokens']:,} per {rate['period_ms']:,} ms"
            say(f"{rule['id']}: holds the nearest lower rate that stays exact, {held}")


@app.command(epilog="Example: apportion rules validate rules.yaml")
def validate(file: str = _FileArgument, as_json: bool = _JsonOption) -> None:
    """Check FILE without any service: every fault by its place."""
    from regional_limiter.model.errors import InvalidRules
    from regional_limiter.rules import describe, parse

    try:
        rule_set = parse(read_file(file))
    except InvalidRules as error:
        if as_json:
            faults = [{"field": fault.place, "problem": fault.problem} for fault in error.faults]
            print_json({"valid": False, "errors": faults})
            raise typer.Exit(1) from None
        print_faults(file, [(fault.place, fault.problem) for fault in error.faults])
        raise typer.Exit(1) from None
    if as_json:
        loaded = [describe(rule, rule_set) for rule in rule_set.rules]
        print_json({"valid": True, "errors": [], "domain": rule_set.domain, "rules": loaded})
    else:
        typer.echo(f"{file}: valid, domain {rule_set.domain}, {len(rule_set.rules)} rules")


@app.command("list", epilog="Example: apportion rules list --domain shop")
def list_rules(
    domain: str = _DomainOption, control: str | None = _ControlOption, as_json: bool = _JsonOption
) -> None:
    """The accepted rules of a domain, as they are held."""
    body = _get(control, "/rules", params={"domain": domain})
    while body["next"] is not None:
        page = _get(control, "/rules", params={"domain": domain, "after": body["next"]})
        body = {**page, "rules": body["rules"] + page["rules"]}
    if as_json:
        print_json(body)
        return
    from rich.table import Table

    table = Table(
        title=f"domain {domain}, version {body['version']}", title_justify="left", box=None, pad_edge=False
    )
    for column in ("rule", "limit", "scope", "key", "match", "version"):
        table.add_column(column, overflow="fold")
    for rule in body["rules"]:
        loaded = rule["loaded"]
        scope = loaded["scope"] + (f", {loaded['distribution']}" if "distribution" in loaded else "")
        match = (
            "; ".join(f"{name}: {_condition_words(value)}" for name, value in loaded["match"].items())
            or "everything"
        )
        key = ", ".join(loaded["key"]) or "one bucket"
        table.add_row(rule["id"], loaded["in_words"], scope, key, match, str(rule["version"]))
    stdout().print(table)


@app.command(epilog="Example: apportion rules export --domain shop > rules.yaml")
def export(domain: str = _DomainOption, control: str | None = _ControlOption, as_json: bool = _JsonOption) -> None:
    """The accepted document of a domain, ready to be edited and applied again."""
    body = _get(control, f"/rulesets/{domain}")
    if as_json:
        print_json(body["document"])
        return

    typer.echo(yaml_text(body["document"]), nl=False)
    say(f"version {body['version']}: apply it with --if-version {body['version']} to change nothing unseen")


@app.command(epilog="Example: apportion rules delete orders-free --reason 'no free tier any more'")
def delete(
    rule_id: str = typer.Argument(..., help="The rule's id."),
    domain: str = _DomainOption,
    control: str | None = _ControlOption,
    reason: str = typer.Option("", "--reason", help="Why, for the history."),
    dry_run: bool = DryRunOption,
    as_json: bool = _JsonOption,
) -> None:
    """Remove one rule."""
    headers, params = reason_header(reason), {"domain": domain, "dry_run": dry_run}
    body = called(rule_id, control, "DELETE", f"/rules/{rule_id}", params=params, headers=headers)
    words = "" if dry_run else f"removed: {rule_id} of domain {domain}, version {body['version']}"
    show_change(body, words, dry_run=dry_run, as_json=as_json)


@app.command("delete-domain", epilog="Example: apportion rules delete-domain shop --dry-run")
def delete_domain(
    domain: str = typer.Argument(..., help="The domain: all its rules, overrides and subjects."),
    control: str | None = _ControlOption,
    reason: str = typer.Option("", "--reason", help="Why, for the history."),
    dry_run: bool = DryRunOption,
    as_json: bool = _JsonOption,
) -> None:
    """Delete a domain.  Its checks are then answered as those of a domain that never had rules."""
    headers, params = reason_header(reason), {"dry_run": dry_run}
    body = called(domain, control, "DELETE", f"/rulesets/{domain}", params=params, headers=headers)
    show_change(body, f"domain {domain} is deleted", dry_run=dry_run, as_json=as_json)
    if not dry_run:
        say(
            f"to have it again: apportion rules versions --domain {domain}, then "
            f"apportion rules rollback VERSION --domain {domain}"
        )


def _condition_words(condition: Any) -> str:
    """``a, b``; ``cidr 10.0.0.0/8``; ``min 1, max 9``; ``not a, b``."""
    if isinstance(condition, list):
        return ", ".join(map(str, condition))
    if isinstance(condition, dict):
        return ", ".join(f"{name} {_condition_words(value)}" for name, value in condition.items())
    return str(condition)


def _get(control: str | None, path: str, **options: Any) -> dict[str, Any]:
    try:
        body: dict[str, Any] = open_control(control).call("GET", path, **options).json()
    except (Refused, NoAnswer) as error:
        end_refused(path, error)
    return body


def read_file(file: str) -> bytes:
    """A rule set's text; - is stdin.  Ends the process if there is none."""
    try:
        text = sys.stdin.buffer.read(_FILE_BYTES_MOST) if file == "-" else Path(file).read_bytes()
    except OSError as error:
        fail(f"{file}: {error.strerror}")
    if len(text) >= _FILE_BYTES_MOST:
        fail(f"{file}: too large to be a rule set")
    return text


def parsed(file: str, text: bytes) -> RuleSet:
    """The rule set that ``text`` writes.  Ends the process with every fault if it is none."""
    from regional_limiter.model.errors import InvalidRules
    from regional_limiter.rules import parse

    try:
        return parse(text)
    except InvalidRules as error:
        print_faults(file, [(fault.place, fault.problem) for fault in error.faults])
        raise typer.Exit(1) from None
