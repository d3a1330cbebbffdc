"""``apportion local``: the whole system on this machine."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer

from infra.local import local
from infra.local.hints import addresses, command_line, things_to_try
from infra.local.layout import DEFAULT_DIRECTORY, PORTS
from infra.region.cli import AsJson, OrFail, told_errors
from infra.words import OutputLost, Steps, words

app = typer.Typer(
    help="The whole system on this machine: Kafka, three regions, control API, dashboard, traffic.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Directory = Annotated[
    Path, typer.Option("--dir", envvar="APPORTION_LOCAL_DIR", help="Where the system keeps its files; one each.")
]
RegionName = Annotated[str, typer.Argument(help="The region, such as ap-south.")]

_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, an end asked for, and a terminal that was closed: all the same to us."""


@app.command(epilog="Example: apportion local up --base-port 9100 --dir .local/second")
def up(
    directory: Directory = DEFAULT_DIRECTORY,
    base_port: Annotated[
        int | None, typer.Option(help=f"It uses the {PORTS} ports from here on (8100, or as last time).")
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
    """Start everything, show the addresses, and wait for Ctrl-C (or return, with --detach).

    Ctrl-C, a closed terminal, or nobody who reads the output any more, end what this command started.

    A system that runs already, detached or by another `up`, stays as it is: its addresses are shown (and --rules
    loaded), and Ctrl-C here does not end it. What a crash has left of a system is completed; if its `up` is gone,
    it is ours from then on.
    """
    _take_signals()
    steps = Steps(words, must_be_heard=True)
    is_up = False
    ran_before = local.runs(directory)
    try:
        with told_errors():
            found = local.up(
                directory,
                base_port=base_port,
                time_scale=scale,
                rules=rules,
                traffic=traffic,
                say=steps,
                last_resort=stand_in,
            )
        is_up = True
        _tell_up(found, example_rules=rules is None)
        steps.check_heard()
        if not local.is_ours(directory):
            return
        if detach:
            words.say(f"It goes on running. End it with: {command_line('down', directory)}")
            steps.check_heard()
            local.leave_running(directory)
            return
        words.say("Ctrl-C ends it.")
        local.wait_while_running(directory, steps)
    except KeyboardInterrupt:
        _end(directory)
        raise typer.Exit(0 if is_up else 130) from None
    except OutputLost:
        _end(directory)
        raise typer.Exit(1) from None
    except Exception:
        if not ran_before:
            _end(directory)
        raise


def _take_signals() -> None:
    """The first of ``_ENDS`` interrupts; the others do not leave half of everything behind."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        _ignore_signals()
        raise KeyboardInterrupt

    for number in _ENDS:
        # A shell that starts us with & lets us ignore SIGINT, which is no wish of anybody; nohup is one.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


def _ignore_signals() -> None:
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)


def _end(directory: Path) -> None:
    """End everything, if it is ours; whether or not anybody reads what we say of it."""
    _ignore_signals()
    if not local.is_ours(directory):
        return
    words.say("ending everything")
    with told_errors():
        local.down(directory, Steps(words))


@app.command(epilog="Example: apportion local down")
def down(directory: Directory = DEFAULT_DIRECTORY) -> None:
    """End everything of the system, however much of it runs."""
    with told_errors():
        local.down(directory, Steps(words))


@app.command(epilog="Example: apportion local status --json")
def status(directory: Directory = DEFAULT_DIRECTORY, as_json: AsJson = False, check: OrFail = False) -> None:
    """Show addresses, processes and links."""
    with told_errors():
        told = local.status(directory)
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    else:
        _show(told)
    if check and not told["ready"]:
        raise typer.Exit(1)


@app.command(epilog="Example: apportion local cut us-east")
def cut(region: RegionName, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Make a region's link to Kafka a black hole: connections stay, nothing passes."""
    with told_errors():
        local.cut(directory, region)
    words.say(f"{region} is cut off; heal it with: {command_line(f'heal {region}', directory)}")


@app.command(epilog="Example: apportion local heal us-east")
def heal(region: RegionName, directory: Directory = DEFAULT_DIRECTORY) -> None:
    """Let everything pass a region's link again."""
    with told_errors():
        local.heal(directory, region)
    words.say(f"{region} is linked")


@app.command(epilog="Example: apportion local slow us-east --ms 300")
def slow(
    region: RegionName,
    delay_ms: Annotated[int, typer.Option("--ms", min=0, max=60_000, help="Milliseconds, each direction.")] = 150,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Delay a region's link to Kafka."""
    with told_errors():
        local.slow(directory, region, delay_ms)
    back = command_line(f"heal {region}", directory)
    words.say(f"{region} is {delay_ms} ms away, each direction; back to no delay: {back}")


@app.command(epilog="Example: apportion local logs us-east/node-1")
def logs(
    name: Annotated[str | None, typer.Argument(help="Such as kafka, control_api or us-east/node-1.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="How many of the last lines.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    directory: Directory = DEFAULT_DIRECTORY,
) -> None:
    """Show the end of a log, or the names of all."""
    with told_errors():
        known = local.logs(directory)
    if name is None:
        for one, path in known.items():
            typer.echo(f"{one}\t{path}")
        return
    if name not in known:
        words.say(f"no log {name}; there are: {', '.join(known)}")
        raise typer.Exit(2)
    tail = [shutil.which("tail") or "tail", "-n", str(lines), *(["-F"] if follow else []), str(known[name])]
    raise typer.Exit(subprocess.run(tail, check=False).returncode)


# ---- showing


def _tell_up(found: local.Up, *, example_rules: bool) -> None:
    directory = found.layout.directory
    if found.ran:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found.owner.since_s))
        whose = "detached" if found.owner.detached else f"started by another up (pid {found.owner.process.pid})"
        words.say(f"It runs already, since {since}, {whose}.")
    for line in (
        "",
        *addresses(found.layout),
        "",
        "Try:",
        *things_to_try(found.layout, example_rules=example_rules),
    ):
        words.say(line)
    words.say()
    if not local.is_ours(directory):
        words.say(f"End it with: {command_line('down', directory)}")


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
    pids = told["pids"]
    for name in ("control_api", "dashboard"):
        typer.echo(f"{name:<12} {told[name]} {_running(pids[name])}")
    kafka = told["kafka"]
    state = "given" if kafka["kind"] == "given" else f"{kafka['kind']} {_running(kafka['pid'])}"
    typer.echo(f"{'kafka':<12} {kafka['bootstrap']} {state}")
    typer.echo(f"{'traffic':<12} {_running(pids['traffic'])}")


def _running(pid: int | None) -> str:
    return f"pid {pid}" if pid else "does not run"


def _readiness(ready: bool) -> str:
    return "ready" if ready else "not ready"
