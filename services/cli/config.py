"""``apportion config``: check and show the settings that a process would run with."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import typer

from services.cli.output import fail, print_faults, print_json

_HELP = "Check and show the settings of a process."
app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=_HELP)

_FileArgument = typer.Argument(..., help="region.toml or hub.toml", exists=False)


@app.command(epilog="Example: apportion config check region.toml")
def check(file: str = _FileArgument, as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Whether FILE, with the environment on top, is right; every fault by its field."""
    kind, _ = load_settings(file, as_json)
    if as_json:
        print_json({"valid": True, "kind": kind, "errors": []})
    else:
        typer.echo(f"{file}: valid settings of a {kind}")


@app.command(epilog="Example: apportion config show region.toml")
def show(
    file: str = _FileArgument,
    redacted: bool = typer.Option(True, "--redacted", help="Secrets are never shown; this is always on."),
) -> None:
    """Everything in force as JSON: file, environment and defaults, with stars for secrets."""
    _, settings = load_settings(file, as_json=False)
    print_json(settings.redacted())


def load_settings(file: str, as_json: bool) -> tuple[str, Any]:
    """ "region" or "hub", and what FILE says with the environment on top.  Ends the process for a wrong one."""
    from services.settings import InvalidSettings, load_hub, load_region

    kind = _kind(file)
    try:
        return kind, load_hub(file) if kind == "hub" else load_region(file)
    except InvalidSettings as error:
        if as_json:
            faults = [{"field": field, "problem": problem} for field, problem in error.faults]
            print_json({"valid": False, "kind": kind, "errors": faults})
        else:
            print_faults(file, error.faults)
        raise typer.Exit(1) from None


def _kind(file: str) -> str:
    """A hub's file names regions or the control API; everything else should be a region's."""
    try:
        document = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        fail(f"{file}: {error.strerror}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        return "region"  # the loader says what is wrong with it
    return "hub" if {"control_api", "dashboard", "regions"} & set(document) else "region"
