"""``apportion region …``: one region from one file, as processes of its own or as systemd units."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from infra.install import InstallFailed
from infra.processes import StartFailed
from infra.region.redis_cluster import OwnCluster
from infra.region.region import Region
from infra.region.resp import ServerError
from infra.region.systemd import SystemdRegion
from infra.words import words
from services.cli.regions import register_regions
from services.settings import InvalidSettings

app = typer.Typer(
    help="Deploy one region from its file; its life among the others: join, leave, reweight, rename, destroyed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

register_regions(app)

Config = Annotated[
    Path, typer.Option("--config", "-c", help="The region's TOML file.", exists=True, dir_okay=False)
]
Wait = Annotated[float, typer.Option(min=0, max=600, help="Seconds to wait until all are ready.")]
OrFail = Annotated[bool, typer.Option("--check", help="Exit 1 when a part does not answer or is not ready.")]
Root = Annotated[
    Path,
    typer.Option(help="Where the files go: / (this machine), or an image that is booted later.", file_okay=False),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; do nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@contextmanager
def told_errors() -> Iterator[None]:
    """Expected failures end the command with their message: exit 2 for wrong settings, 1 for the rest."""
    try:
        yield
    except InvalidSettings as error:
        words.say(f" {error}", before="settings refused:", style="red")
        raise typer.Exit(2) from None
    except (StartFailed, InstallFailed) as error:
        words.say(f" {error}", before="failed:", style="red")
        raise typer.Exit(1) from None


def _say(region: Region) -> Any:
    return lambda message: words.say(f"{region.settings.name}: {message}")


@app.command(epilog="Example: apportion region up -c region.toml")
def up(config: Config, wait: Wait = 15.0) -> None:
    """Start whatever does not run of the region, and wait until it answers."""
    with told_errors():
        region = Region(config)
        left = region.up(_say(region), ready_s=wait)
    if left:
        words.say(
            f"{', '.join(left)}: not ready yet. A node is ready once it knows its rules, a sync service once it"
            " follows Kafka's log; see their /readyz and logs."
        )


@app.command(epilog="Example: apportion region status -c region.toml --json")
def status(config: Config, as_json: AsJson = False, check: OrFail = False) -> None:
    """Show what runs."""
    with told_errors():
        told = Region(config).status()
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    else:
        _show(told)
    running = [told["sync"]["ready"], *(node["ready"] for node in told["nodes"])]
    running += [server.get("state") == "ok" for server in told["redis"] if "port" in server]
    if check and not all(running):
        raise typer.Exit(1)


@app.command(epilog="Example: apportion region drain -c region.toml")
def drain(config: Config) -> None:
    """End the nodes one after another, each when it has answered what it began."""
    with told_errors():
        region = Region(config)
        units = SystemdRegion(region)
        left = [] if units.is_here else region.drain(_say(region))
        if units.is_here:
            units.drain(_say(region))
    if left:
        words.say(f"still running: {', '.join(left)}")
        raise typer.Exit(1)


@app.command(epilog="Example: apportion region restart -c region.toml")
def restart(config: Config) -> None:
    """End and start every part, one after another: for new code or settings, under load."""
    with told_errors():
        region = Region(config)
        units = SystemdRegion(region)
        (units if units.is_here else region).restart(_say(region))


@app.command(epilog="Example: apportion region down -c region.toml")
def down(config: Config) -> None:
    """End everything of the region."""
    with told_errors():
        region = Region(config)
        units = SystemdRegion(region)
        (units if units.is_here else region).down(_say(region))


@app.command(epilog="Example: apportion region install -c region.toml --dry-run")
def install(config: Config, root: Root = Path("/"), dry_run: DryRun = False) -> None:
    """Write the region's systemd units and start what does not run.  A second time changes nothing."""
    with told_errors():
        region = Region(config)
        units = SystemdRegion(region, root)
        changes = units.plan() if dry_run else units.install(_say(region))
    for path, change in changes.items():
        typer.echo(f"{change:8} {path}")


@app.command(epilog="Example: apportion region remove -c region.toml --dry-run")
def remove(config: Config, root: Root = Path("/"), dry_run: DryRun = False) -> None:
    """End every part and delete the systemd units; state and settings stay."""
    with told_errors():
        region = Region(config)
        units = SystemdRegion(region, root)
        there = [path for path, change in units.plan().items() if change != "new"]
        if not dry_run:
            units.remove(_say(region))
    for path in there:
        typer.echo(f"{'remove':8} {path}")


@app.command("reshape-redis", epilog="Example: apportion region reshape-redis -c region.toml --dry-run")
def reshape_redis(
    config: Config,
    dry_run: DryRun = False,
    old_port: Annotated[
        list[int] | None,
        typer.Option(help="A running server that the file does not name, where systemd runs it; again for each."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Bring the running Redis to what the file says, under load: more shards, or other servers.

    Change primaries or base_port in the file first.  Ended early, the same command finishes it.
    """
    with told_errors():
        region = Region(config)
        units = SystemdRegion(region)
        ports = [*(old_port or []), *(region.own_redis_ports() if units.is_here else [])]
        reshape = region.reshape_redis(units.end_redis if units.is_here else None, ports)
        try:
            plan = reshape.plan() if dry_run else reshape.carry_out(_say(region))
        except ServerError as error:
            raise StartFailed(str(error)) from None
    if as_json:
        typer.echo(json.dumps({"dry_run": dry_run, **plan.shown()}, indent=2))
        return
    if plan.nothing:
        typer.echo("Redis is as the file says")
    for verb, servers in (("start", plan.start), ("retire", plan.retire)):
        for port in servers:
            typer.echo(f"{verb:8} {port}")
    for move in plan.moves:
        typer.echo(f"{'move':8} {len(move.slots):6,} slots from {move.source} to {move.target}")


@app.command(hidden=True)
def configure_redis(config: Config, port: Annotated[int, typer.Argument()]) -> None:
    """Write the configuration of the region's own server on PORT: called by its unit."""
    with told_errors():
        _own_cluster(config).configure(port)


@app.command(hidden=True)
def form_redis(config: Config) -> None:
    """Make one cluster of the region's own servers: called by its unit."""
    with told_errors():
        _own_cluster(config).assemble()


def _own_cluster(config: Path) -> OwnCluster:
    cluster = Region(config).cluster()
    if cluster is None:
        raise InvalidSettings(str(config), [("redis.own", "is needed: this region's Redis is somebody else's")])
    return cluster


def _show(told: dict[str, Any]) -> None:
    table = Table(title=f"region {told['region']}")
    for column in ("part", "address", "pid", "state"):
        table.add_column(column)
    for server in told["redis"]:
        if "port" in server:
            table.add_row(
                f"redis {server['role'] or ''}", str(server["port"]), _pid(server), server["state"] or "down"
            )
        else:
            table.add_row("redis (not ours)", server["server"], "", "")
    for node in told["nodes"]:
        table.add_row(f"node {node['node']}", node["url"], _pid(node), "ready" if node["ready"] else "not ready")
    sync = told["sync"]
    table.add_row("sync service", sync["url"], _pid(sync), "ready" if sync["ready"] else "not ready")
    Console().print(table)


def _pid(part: dict[str, Any]) -> str:
    return str(part["pid"] or "-")
