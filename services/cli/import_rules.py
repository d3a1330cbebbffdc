"""``apportion rules import``: rules out of other limiters' configurations."""

from __future__ import annotations

import typer

from services.cli.output import print_faults, print_json, say

_HELP = "Make rules out of another limiter's configuration: printed, to be looked at and applied."
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=_HELP)


@app.command("envoy-ratelimit")
def envoy_ratelimit(
    file: str = typer.Argument(..., help="A configuration of envoyproxy/ratelimit; - reads stdin."),
    like_envoy: bool = typer.Option(False, "--like-envoy", help="Denied requests are charged, as they are there."),
    domain: str = typer.Option("", "--domain", help="The namespace of the rules, if not the file's own."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """The rules that decide as FILE does; whatever cannot be taken over is named, and then nothing is printed."""
    from regional_limiter.model.errors import InvalidRules
    from services.cli.rules import read_file
    from services.rls.envoy_config import import_config

    try:
        imported = import_config(read_file(file), like_envoy=like_envoy, domain=domain or None)
    except InvalidRules as error:
        print_faults(file, [(fault.place, fault.problem) for fault in error.faults])
        raise typer.Exit(1) from None
    for note in imported.notes:
        say(f"{file}: {note.place}: {note.problem}")
    if as_json:
        print_json(imported.document)
        return
    import yaml

    typer.echo(yaml.safe_dump(imported.document, sort_keys=False, allow_unicode=True, width=110), nl=False)
