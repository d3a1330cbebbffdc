"""``apportion token``: access tokens of the control API."""

from __future__ import annotations

from typing import Any

import typer

from services.cli.control import reason_header
from services.cli.output import fail, print_json, say, stdout
from services.cli.rule_versions import ControlOption, JsonOption, ReasonOption, called
from services.cli.times import SPAN_EXPECTED, shown_time, span_s, zone

_HELP = "Make, list and revoke access tokens of the control API."
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=_HELP)

_EVERYWHERE = ["*"]
_DomainsOption = typer.Option(_EVERYWHERE, "--domain", help="Where it counts; again for several; *: everywhere.")


@app.command()
def create(
    name: str = typer.Argument(..., help="Whose it is: the author of what it changes."),
    role: str = typer.Option("reader", "--role", help="reader sees, operator changes rules, admin makes tokens."),
    domain: list[str] = _DomainsOption,
    lasting: str | None = typer.Option(None, "--for", help="For how long, such as 12h or 30d; else for ever."),
    reason: str = ReasonOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Make a token and print it: it is shown now and never again.

    Example: apportion token create ann --role operator --domain shop --for 30d
    """
    wanted: dict[str, Any] = {"name": name, "role": role, "domains": domain}
    if lasting is not None:
        seconds = span_s(lasting)
        if seconds is None:
            fail(f"--for: must be {SPAN_EXPECTED}, not {lasting}")
        wanted["expires_in_s"] = seconds
    body = called(name, control, "POST", "/tokens", json=wanted, headers=reason_header(reason))
    if as_json:
        print_json(body)
        return
    typer.echo(body["token"])
    ends = f"until {shown_time(body['expires_at_ms'])}" if body["expires_at_ms"] is not None else "for ever"
    say(f"{name}, {role} in {', '.join(body['domains'])}, {ends}; revoke it: apportion token revoke {body['id']}")


@app.command("list")
def list_tokens(control: str | None = ControlOption, as_json: bool = JsonOption) -> None:
    """The tokens that have not been revoked.

    Example: apportion token list
    """
    body = called("tokens", control, "GET", "/tokens", params={"limit": 1000})
    found = list(body["tokens"])
    while body["next"] is not None:
        body = called("tokens", control, "GET", "/tokens", params={"limit": 1000, "after": body["next"]})
        found += body["tokens"]
    if as_json:
        print_json({"tokens": found})
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("id", "name", "role", "domains", "made by", f"made ({zone()})", "ends"):
        table.add_column(column, overflow="fold")
    for one in found:
        ends = "never" if one["expires_at_ms"] is None else shown_time(one["expires_at_ms"])
        table.add_row(
            one["id"],
            one["name"],
            one["role"],
            ", ".join(one["domains"]),
            one["created_by"],
            shown_time(one["created_at_ms"]),
            f"{ends} (over)" if one["expired"] else ends,
        )
    stdout().print(table)


@app.command()
def revoke(
    token_id: str = typer.Argument(..., metavar="ID", help="As `apportion token list` tells it."),
    reason: str = ReasonOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Make a token worthless at once.

    Example: apportion token revoke 9f86d081884c7d65 --reason "left"
    """
    body = called(token_id, control, "DELETE", f"/tokens/{token_id}", headers=reason_header(reason))
    if as_json:
        print_json(body)
    else:
        typer.echo(f"revoked: {token_id}")
