"""``apportion hub …``: Kafka's topics, and the hub's own services as systemd units."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.hub.systemd import SystemdHub
from infra.region.cli import DryRun, Root, told_errors
from infra.words import words
from services.cli.hub import app

__all__ = ["app"]

HubConfig = Annotated[
    Path, typer.Option("--config", "-c", help="The hub's TOML file.", exists=True, dir_okay=False)
]


def _say(message: str) -> None:
    words.say(f"hub: {message}")


@app.command(epilog="Example: apportion hub install -c hub.toml --dry-run")
def install(config: HubConfig, root: Root = Path("/"), dry_run: DryRun = False) -> None:
    """Write the units of control API and dashboard, and start what does not run.  A second time changes nothing."""
    with told_errors():
        hub = SystemdHub(config, root)
        changes = hub.plan() if dry_run else hub.install(_say)
    for path, change in changes.items():
        typer.echo(f"{change:8} {path}")


@app.command(epilog="Example: apportion hub remove -c hub.toml --dry-run")
def remove(config: HubConfig, root: Root = Path("/"), dry_run: DryRun = False) -> None:
    """End control API and dashboard and delete their units; what they keep, and the settings, stay."""
    with told_errors():
        hub = SystemdHub(config, root)
        there = [path for path, change in hub.plan().items() if change != "new"]
        if not dry_run:
            hub.remove(_say)
    for path in there:
        typer.echo(f"{'remove':8} {path}")
