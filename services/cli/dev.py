"""``apportion dev``: all regions in one process, in memory, behind the same API."""

from __future__ import annotations

import asyncio
import importlib
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
import uvicorn
import uvloop

from regional_limiter.model.errors import InvalidRules
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.rules import parse_document
from regional_limiter.rules.text import read_document
from services.check_api.app import NodeOptions, create_app
from services.check_api.server import SignalFreeServer, serve_node
from services.embedded import Embedded
from services.listening import bind
from services.logs import configure_logging
from services.settings import (
    ControlApiSettings,
    DashboardSettings,
    HubRegion,
    HubSettings,
    KafkaSettings,
    url_of,
)

HOST = "127.0.0.1"
TIME_SCALE = 0.2
"""No network and no failover to wait for: shares move, lapse and come back five times as fast."""
DEFAULT_RULES = Path(__file__).resolve().parents[2] / "infra" / "local" / "rules.yaml"


def register(app: typer.Typer) -> None:
    @app.command(epilog="Example: apportion dev --base-port 9100")
    def dev(
        rules: Annotated[
            Path, typer.Option(exists=True, dir_okay=False, help="The rule set to start with.")
        ] = DEFAULT_RULES,
        base_port: Annotated[
            int, typer.Option(min=1024, max=65_000, help="Node of region k: base + 10 k + 1.")
        ] = 8100,
    ) -> None:
        """Run every region of a rule set in this process, without Redis and Kafka, until Ctrl-C.

        The same limiter, sync and API as in earnest, but in memory: nothing outlives the process.
        """
        sys.exit(uvloop.run(run(rules, base_port)))


async def run(rules: Path, base_port: int) -> int:
    """Serve until SIGINT or SIGTERM; the exit code."""
    configure_logging("dev", level="warning")
    try:
        document: Any = read_document(await asyncio.to_thread(rules.read_bytes), None)
        regions = list(parse_document(document).regions) or ["local"]
    except InvalidRules as error:
        for fault in error.faults:
            print(f"{rules}: {fault.place}: {fault.problem}", file=sys.stderr)
        return 1
    ports = {name: base_port + 10 * place + 1 for place, name in enumerate(regions)}
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with tempfile.TemporaryDirectory(prefix="apportion-dev-") as state_dir:
        return await _serve(document, ports, base_port, Path(state_dir), stop)


async def _serve(
    document: dict[str, object], ports: dict[str, int], base_port: int, state_dir: Path, stop: asyncio.Event
) -> int:
    addresses = {name: url_of(HOST, port) for name, port in ports.items()}
    hub_ports = (base_port + 90, base_port + 91)
    try:
        listeners = {name: bind(HOST, port) for name, port in ports.items()}
        hub_listeners = [bind(HOST, port) for port in hub_ports]
    except OSError as error:
        print(f"a port from {base_port} on is taken: {error.strerror}; try --base-port", file=sys.stderr)
        return 2
    system = Embedded(list(ports), ProtocolTimes.scaled(TIME_SCALE), state_dir, addresses)
    # Before anything keeps time here: loading them stops this process for longer than a point may stand still.
    hub_apps = _hub_apps(system, addresses, hub_ports, state_dir)
    await system.start()
    await system.put_rules(document)
    serving = [
        asyncio.create_task(
            serve_node(
                create_app(region.limiter, NodeOptions(region=name, node=f"{name}-1")), listeners[name], stop
            )
        )
        for name, region in system.regions.items()
    ]
    serving.append(asyncio.create_task(_serve_hub(hub_apps, hub_listeners, stop)))
    await _until_ready(system, stop)
    print(_banner(addresses, *(url_of(HOST, port) for port in hub_ports)), file=sys.stderr, flush=True)
    await stop.wait()
    await asyncio.gather(*serving, return_exceptions=True)
    await system.stop()
    return 0


async def _until_ready(system: Embedded, stop: asyncio.Event) -> None:
    """Until every region has taken the rules, as long as nobody ends us."""
    limiters = [region.limiter for region in system.regions.values()]
    while not stop.is_set() and not all(limiter.ready for limiter in limiters):  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.02)


def _hub_apps(
    system: Embedded, addresses: dict[str, str], ports: tuple[int, int], state_dir: Path
) -> tuple[Any, Any]:
    """Control API and dashboard."""
    control, dashboard = map(importlib.import_module, ("services.control_api.app", "services.dashboard.app"))
    settings = HubSettings(
        time_scale=TIME_SCALE,
        kafka=KafkaSettings(bootstrap=f"{HOST}:{ports[0]}"),  # never asked: the transport is in memory
        control_api=ControlApiSettings(port=ports[0], state_dir=state_dir / "control", trusted_proxies=[HOST]),
        dashboard=DashboardSettings(port=ports[1], control_without_token=True),
        regions={name: HubRegion(nodes=[address]) for name, address in addresses.items()},
    )
    return (
        control.create_app(system.hub.transport("control"), settings, mode="embedded"),
        dashboard.create_app(system.hub.transport("dashboard"), settings, mode="embedded"),
    )


async def _serve_hub(apps: tuple[Any, Any], listeners: list[socket.socket], stop: asyncio.Event) -> None:
    """Control API and dashboard until ``stop``."""
    servers = [
        SignalFreeServer(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1))
        for app in apps
    ]
    serving = [
        asyncio.create_task(server.serve(sockets=[listener]))
        for server, listener in zip(servers, listeners, strict=True)
    ]
    await stop.wait()
    apps[1].state.broadcaster.close()  # its streams never end by themselves
    for server in servers:
        server.should_exit = True
    await asyncio.gather(*serving, return_exceptions=True)


def _banner(addresses: dict[str, str], control: str, dashboard: str) -> str:
    first = next(iter(addresses.values()))
    rows = "\n".join(f"  {name:<14} {address}" for name, address in addresses.items())
    return f"""
EMBEDDED: all regions in this one process, in memory. No Redis, no Kafka; nothing outlives it.

{rows}
  {"control API":<14} {control}
  {"dashboard":<14} {dashboard}

Try:
  curl -s {first}/v1/check -d '{{"client_key": "user:42", "resource": "GET /items"}}'
  export APPORTION_CONTROL_URL={control}  # for commands that ask the control API:
  apportion status

Ctrl-C ends it.
"""
