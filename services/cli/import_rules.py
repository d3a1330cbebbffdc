"""``apportion rules import``: rules out of other limiters' configurations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from services.cli.output import print_faults, print_json, say
from services.yaml_text import yaml_text

_HELP = "Make rules out of another limiter's configuration: printed, to be looked at and applied."
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=_HELP)

_DomainOption = typer.Option("", "--domain", help="The namespace of the rules; default, or the file's own.")
_JsonOption = typer.Option(False, "--json", help="Print JSON.")


@app.command("envoy-ratelimit", epilog="Example: apportion rules import envoy-ratelimit config.yaml > rules.yaml")
def envoy_ratelimit(
    file: str = typer.Argument(..., help="A configuration of envoyproxy/ratelimit; - reads stdin."),
    like_envoy: bool = typer.Option(False, "--like-envoy", help="Denied requests are charged, as they are there."),
    domain: str = _DomainOption,
    as_json: bool = _JsonOption,
) -> None:
    """The rules that decide as FILE does; whatever cannot be taken over is named, and then nothing is printed."""
    from services.rls.envoy_config import import_config

    _print(file, lambda text: import_config(text, like_envoy=like_envoy, domain=domain or None), as_json)


@app.command("nginx", epilog="Example: nginx -T | apportion rules import nginx - > rules.yaml")
def nginx(
    file: str = typer.Argument(
        ..., help="An nginx configuration with limit_req_zone and limit_req; - reads stdin."
    ),
    domain: str = _DomainOption,
    as_json: bool = _JsonOption,
) -> None:
    """The rules that decide as FILE's limit_req does; what has no counterpart is named, and nothing is printed."""
    from services.importing.nginx import import_nginx

    _print(file, lambda text: import_nginx(text, domain=domain or None), as_json)


@app.command("kong", epilog="Example: apportion rules import kong kong.yaml > rules.yaml")
def kong(
    file: str = typer.Argument(..., help="Kong's declarative configuration, or one plugin's; - reads stdin."),
    domain: str = _DomainOption,
    as_json: bool = _JsonOption,
) -> None:
    """The rules that decide as FILE's rate-limiting plugins do; what has no counterpart is named instead."""
    from services.importing.kong import import_kong

    _print(file, lambda text: import_kong(text, domain=domain or None), as_json)


def _print(file: str, read: Callable[[bytes], Any], as_json: bool) -> None:
    """The document that ``read`` makes of the file, notes on stderr.  Ends the command with the faults."""
    from regional_limiter.model.errors import InvalidRules
    from services.cli.rules import read_file

    try:
        imported = read(read_file(file))
    except InvalidRules as error:
        print_faults(file, [(fault.place, fault.problem) for fault in error.faults])
        raise typer.Exit(1) from None
    for note in imported.notes:
        say(f"{file}: {note.place}: {note.problem}")
    if as_json:
        print_json(imported.document)
        return

    typer.echo(yaml_text(imported.document), nl=False)
