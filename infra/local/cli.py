"""``apportion local``: the whole system on this machine."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from infra.local import local
from infra.local.layout import Layout
from infra.region.cli import AsJson, OrFail, told_errors

app = typer.Typer(
    help="The whole system on this machine: Kafka, three regions, control API, dashboard, traffic.",
    no_args_is_help=True,
)

Directory = Annotated[
    Path, typer.Option("--dir", envvar="APPORTION_LOCAL_DIR", help="Where the system keeps its files; one each.")
]
RegionName = Annotated[str, typer.Argument(help="The region, such as ap-south.")]

_words = Console(stderr=True, highlight=False, soft_wrap=True)


class _Steps:
    """Tells each step with the seconds since the start."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def __call__(self, message: str) -> None:
        # One call a line: steps are told from several threads.
        _words.print(f"[dim]{time.monotonic() - self._began:6.1f} s[/dim]  {escape(message)}")


@app.command()
def up(
    directory: Directory = local.DEFAULT_DIRECTORY,
    base_port: Annotated[
        int | None, typer.Option(help="It uses the 200 ports from here on (8100, or as last time).")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when it answers; end it with down.")
    ] = False,
    scale: Annotated[
        float | None, typer.Option(help="The share protocol's times by this; 0.33 is the least that stays calm.")
    ] = None,
    rules: Annotated[Path | None, typer.Option(help="Rules to load (YAML).", exists=True, dir_okay=False)] = None,
    stand_in: Annotated[
        bool, typer.Option(help="Where Apache Kafka cannot be had, use noida-db, which keeps nothing safe.")
    ] = True,
    traffic: Annotated[bool, typer.Option(help="Send checks that follow the sun around the regions.")] = True,
) -> None:
    """Start everything, show the addresses, and wait for Ctrl-C (or return, with --detach)."""
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell that starts us with & lets us ignore SIGINT
        signal.signal(number, _interrupt)
    steps = _Steps()
    is_up = False
    ran_before = local.runs(directory)
    try:
        with told_errors():
            layout = local.up(
                directory,
                base_port=base_port,
                time_scale=scale,
                rules=rules,
                traffic=traffic,
                say=steps,
                last_resort=stand_in,
            )
        is_up = True
        _show_addresses(layout)
        if detach:
            return
        _words.print("Ctrl-C ends it.")
        local.wait_while_running(directory, steps)
    except KeyboardInterrupt:
        _end(directory, steps)
        raise typer.Exit(0 if is_up else 130) from None
    except typer.Exit as failed:
        if failed.exit_code and not ran_before:
            _end(directory, steps)
        raise


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _end(directory: Path, steps: _Steps) -> None:
    """End everything; a second Ctrl-C does not leave half of it behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _words.print("ending everything")
    with told_errors():
        local.down(directory, steps)


@app.command()
def down(directory: Directory = local.DEFAULT_DIRECTORY) -> None:
    """End everything of the system, however much of it runs."""
    with told_errors():
        local.down(directory, _Steps())


@app.command()
def status(directory: Directory = local.DEFAULT_DIRECTORY, as_json: AsJson = False, check: OrFail = False) -> None:
    """Show addresses, processes and links."""
    with told_errors():
        told = local.status(directory)
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    else:
        _show(told)
    if check and not told["ready"]:
        raise typer.Exit(1)


@app.command()
def cut(region: RegionName, directory: Directory = local.DEFAULT_DIRECTORY) -> None:
    """Make a region's link to Kafka a black hole: connections stay, nothing passes."""
    with told_errors():
        local.cut(directory, region)
    _words.print(f"{region} is cut off; heal it with: {_program()} local heal {region}", markup=False)


@app.command()
def heal(region: RegionName, directory: Directory = local.DEFAULT_DIRECTORY) -> None:
    """Let everything pass a region's link again."""
    with told_errors():
        local.heal(directory, region)
    _words.print(f"{region} is linked", markup=False)


@app.command()
def slow(
    region: RegionName,
    delay_ms: Annotated[int, typer.Option("--ms", min=0, max=60_000, help="Milliseconds, each direction.")] = 150,
    directory: Directory = local.DEFAULT_DIRECTORY,
) -> None:
    """Delay a region's link to Kafka."""
    with told_errors():
        local.slow(directory, region, delay_ms)
    _words.print(f"{region} is {delay_ms} ms away, each direction", markup=False)


@app.command()
def logs(
    name: Annotated[str | None, typer.Argument(help="Such as kafka, control_api or us-east/node-1.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many of the last lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    directory: Directory = local.DEFAULT_DIRECTORY,
) -> None:
    """Show the end of a log, or the names of all."""
    with told_errors():
        known = local.logs(directory)
    if name is None:
        for one, path in known.items():
            typer.echo(f"{one}\t{path}")
        return
    if name not in known:
        _words.print(f"no log {name}; there are: {', '.join(known)}", markup=False)
        raise typer.Exit(2)
    tail = [shutil.which("tail") or "tail", "-n", str(lines), *(["-F"] if follow else []), str(known[name])]
    raise typer.Exit(subprocess.run(tail, check=False).returncode)


# ---- showing


def _show_addresses(layout: Layout) -> None:
    _words.print()
    rows = [
        (region, f"{'  '.join(layout.node_urls(region))}  sync {layout.sync_url(region)}")
        for region in layout.regions
    ]
    rows += [("control API", f"{layout.control_api}  (docs: /docs)"), ("dashboard", layout.dashboard)]
    rows += [("Kafka", f"{layout.hub_bootstrap}  ({layout.kafka})")]
    for name, addresses in rows:
        _words.print(f"  {name:<12} {addresses}", markup=False)
    node = layout.node_urls(layout.regions[0])[0]
    check = json.dumps({"client_key": "user:42", "resource": "GET /items"})
    rule = json.dumps(
        {
            "match": {"resource": "POST /orders", "tier": "free"},
            "algorithm": "token_bucket",
            "capacity": 20,
            "refill_per_second": 10,
        }
    )
    _words.print("\nTry:")
    for line in (
        f"curl -s {node}/v1/check -d '{check}'",
        f"curl -s {layout.control_api}/v1/status",
        f"curl -s -X PUT {layout.control_api}/rules/orders-free -H 'content-type: application/json' -d '{rule}'",
    ):
        _words.print(f"  {line}", markup=False)
    program = _program()
    options = "" if layout.directory == local.DEFAULT_DIRECTORY.resolve() else f" --dir {layout.directory}"
    _words.print(f"  {program} status --control {layout.control_api} --watch", markup=False)
    for command in ("cut", "heal"):
        _words.print(f"  {program} local {command} {layout.regions[-1]}{options}", markup=False)
    _words.print()


def _program() -> str:
    """How a person here calls us: by the path where we are not in PATH."""
    beside = Path(sys.executable).with_name("apportion")
    if not beside.exists() or shutil.which("apportion") == str(beside):
        return "apportion"
    here = Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)


def _show(told: dict[str, Any]) -> None:
    typer.echo(told["directory"])
    for name, region in told["regions"].items():
        delay = f" {region['link_delay_ms']} ms" if region["link_delay_ms"] else ""
        servers = [server for server in region["redis"] if "port" in server]
        serving = sum(1 for server in servers if server["state"] == "ok")
        typer.echo(f"{name:<12} link {region['link']}{delay}, Redis {serving} of {len(servers)} ok")
        for url, ready in zip(region["nodes"], region["nodes_ready"], strict=True):
            typer.echo(f"{'':<12} node {url} {_readiness(ready)}")
        typer.echo(f"{'':<12} sync {region['sync']} {_readiness(region['sync_ready'])}")
    for name in ("control_api", "dashboard"):
        pid = told["pids"][name]
        typer.echo(f"{name:<12} {told[name]} {f'pid {pid}' if pid else 'does not run'}")
    kafka = told["kafka"]
    typer.echo(
        f"{'kafka':<12} {kafka['bootstrap']} {kafka['kind']}" + (f" pid {kafka['pid']}" if kafka["pid"] else "")
    )


def _readiness(ready: bool) -> str:
    return "ready" if ready else "not ready"
