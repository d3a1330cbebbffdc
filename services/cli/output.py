"""How commands speak: data on stdout, words on stderr, colours only where wanted."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console

WIDE = 240
LEVEL = "APPORTION_CLI_LOG_LEVEL"


def stdout() -> Console:
    """For tables.  Rich itself heeds NO_COLOR; into a pipe, no line is broken for want of a screen's width."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else WIDE)


def print_json(document: Any) -> None:
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False))


def say(text: str) -> None:
    """A word on stderr, unless ``--quiet``."""
    if os.environ.get(LEVEL) != "error":
        typer.echo(text, err=True)


def fail(text: str, code: int = 2) -> NoReturn:
    """End with an error on stderr.  1: refused or not well; 2: wrong usage, or no answer."""
    typer.echo(text, err=True)
    raise typer.Exit(code)


def write_page(path: Path, text: str) -> None:
    """The page that ``--html`` names, and a word of it.  Ends the process where it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"--html {path}: {error.strerror}")
    say(f"drawn in {path}")


def print_faults(source: str, faults: list[tuple[str, str]]) -> None:
    """Every fault on a line of its own, on stderr."""
    typer.echo(f"{source}: refused, {len(faults)} fault{'' if len(faults) == 1 else 's'}", err=True)
    for place, problem in faults:
        typer.echo(f"  {place}: {problem}", err=True)
