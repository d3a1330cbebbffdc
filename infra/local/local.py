"""A whole Apportion on this machine: Kafka, links, regions, control API, dashboard, traffic.

Every region is started by ``infra.region`` from a file, as a real one is.  Several systems live side by side,
each with its own directory and base port.  Processes are detached: they run until ``down``.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infra import install
from infra.install import Say, silent
from infra.local.first_rules import RULES, load_rules, regions_of, wait_for_rules
from infra.local.hints import command_line
from infra.local.layout import DEFAULT_DIRECTORY, DEFAULT_REGIONS, HOST, PORTS, Layout, load_layout
from infra.local.link_proxy import command
from infra.local.owner import Owner, forget_owner, read_owner
from infra.processes import (
    Busy,
    Process,
    ProcessDirectory,
    StartFailed,
    check_wanted,
    refuse_starts,
    refuse_taken,
    stop,
    unusable_ports,
    wait_ready,
)
from infra.region.region import Region, answers
from services.settings import InvalidSettings

SERVICE_READY_S = 40.0
HUB_SERVICES = ("control_api", "dashboard")
TOLD_MOST = 4
"""Occupied ports that an error names; of a second system on the same ports it would be all sixty."""


@dataclass(frozen=True, slots=True)
class Up:
    """What ``up`` found or made.  ``ran``: all of it ran already, and belongs to ``owner``."""

    layout: Layout
    owner: Owner
    ran: bool


def up(
    directory: Path = DEFAULT_DIRECTORY,
    *,
    base_port: int | None = None,
    time_scale: float | None = None,
    rules: Path | None = None,
    traffic: bool = True,
    say: Say = silent,
    last_resort: bool = True,
    services: str = "services",
) -> Up:
    """Start whatever does not run of the system in ``directory``, and wait until it answers.

    ``base_port`` and ``time_scale``: unless given, those of the last time, or 8100 and 1.0.
    ``rules``: loaded into domain ``default``; without it the example set, unless the domain has one.
    ``last_resort`` False refuses a Kafka that is none.  The system belongs to this process from then on, unless
    it ran and has an owner (``infra.local.owner``).  Raises InvalidSettings, StartFailed, InstallFailed; what
    cannot be started is refused before anything is written or started.  What did start before another failure
    still runs (``down`` ends it).
    """
    refuse_starts(False)
    directory = directory.resolve()
    layout, kafka = _planned(directory, base_port, time_scale, rules or RULES, last_resort, say)
    processes = ProcessDirectory(directory)
    with processes.locked():
        _refuse_other(layout)  # again: somebody else may have started it since
        owner = read_owner(directory) if runs(directory) else None
        owned = owner if owner is not None and owner.in_charge() else None
        ran = owned is not None and not ended(directory)
        if owned is None:
            owned = Owner.this_process()
            owned.save(directory)
        if not ran:
            layout.save()
            _start_all(layout, kafka, processes, services, say)
        if not ran or rules is not None:
            say("rules")
            version = load_rules(layout, rules or RULES, replace=rules is not None)
            late = wait_for_rules(layout, version)
            if late:
                say(f"these nodes do not use the rules yet: {', '.join(late)}")
        if traffic and not ran:
            start_traffic(layout)
        if not ran:
            say("ready")
    return Up(layout, owned, ran)


def leave_running(directory: Path) -> None:
    """The system goes on when this process, its owner, ends."""
    owner = read_owner(directory)
    if owner is not None and owner.is_this_process():
        owner.left_running().save(directory)


def is_ours(directory: Path) -> bool:
    """Whether the system in ``directory`` ends with this process."""
    owner = read_owner(directory)
    return owner is not None and owner.is_this_process()


def down(directory: Path = DEFAULT_DIRECTORY, say: Say = silent) -> None:
    """End everything of the system in ``directory``, however much of it runs."""
    directory = directory.resolve()
    processes = ProcessDirectory(directory)
    if not processes.run.is_dir():
        say(f"nothing runs in {directory}")
        return
    layout = load_layout(directory)
    with processes.locked():
        forget_owner(directory)  # first: who waits for it need not be told of every process that ends
        places = [place for place in directory.iterdir() if (place / "run").is_dir()]
        everything = [processes, *map(ProcessDirectory, places)]
        if any(one.running() for one in everything):
            _stop_all(processes, layout, places, say)
            say("stopped")
        else:
            say(f"nothing runs in {directory}")
        for one in everything:
            one.forget(one.known())


def status(directory: Path = DEFAULT_DIRECTORY) -> dict[str, Any]:
    """What runs: addresses, pids (None: does not run), links.  Raises StartFailed when there is no system."""
    layout = _layout(directory)
    processes = ProcessDirectory(layout.directory)
    links = _try_link(layout, "status") if layout.has_links else {}
    with ThreadPoolExecutor(len(layout.regions)) as pool:
        regions = dict(pool.map(functools.partial(_region_status, layout, links), layout.regions))
    hub = {name: processes.find(name) for name in ("kafka", "link_proxy", *HUB_SERVICES, "traffic")}
    pids = {name: process.pid if process else None for name, process in hub.items()}
    return {
        "directory": str(layout.directory),
        "base_port": layout.base_port,
        "time_scale": layout.time_scale,
        "regions": regions,
        "control_api": layout.control_api,
        "dashboard": layout.dashboard,
        "kafka": {"kind": layout.kafka, "bootstrap": layout.hub_bootstrap, "pid": pids["kafka"]},
        "pids": pids,
        "ready": all(region["ready"] for region in regions.values())
        and answers(f"{layout.control_api}/readyz", timeout_s=5.0),
    }


def cut(directory: Path, region: str) -> None:
    """Make the region's link to Kafka a black hole.  Raises StartFailed where that cannot be done."""
    _command_link(directory, f"cut {region}")


def heal(directory: Path, region: str) -> None:
    """Let everything pass the region's link again, without delay."""
    _command_link(directory, f"heal {region}")


def slow(directory: Path, region: str, delay_ms: int) -> None:
    """Delay each direction of the region's link."""
    _command_link(directory, f"slow {region} {delay_ms}")


def runs(directory: Path) -> bool:
    """Whether anything of the system in ``directory`` runs."""
    layout = load_layout(directory)
    return layout is not None and any(ProcessDirectory(place).running() for place in _places(layout).values())


def logs(directory: Path = DEFAULT_DIRECTORY) -> dict[str, Path]:
    """Every log of the system by ``kafka``, ``control_api``, ``REGION/node-1``, …"""
    layout = _layout(directory)
    return {
        f"{prefix}{log.stem}": log
        for prefix, place in _places(layout).items()
        for log in sorted((place / "logs").glob("*.log"))
    }


def start_traffic(layout: Layout) -> Process:
    """Start the traffic generator unless it runs."""
    command_line = [sys.executable, "-m", "infra.local.traffic", "--dir", str(layout.directory)]
    return ProcessDirectory(layout.directory).start("traffic", command_line)


def ended(directory: Path) -> list[str]:
    """The processes that were started, not ended by us, and do not run any more."""
    layout = _layout(directory)
    gone = []
    for prefix, place in _places(layout).items():
        processes = ProcessDirectory(place)
        gone += [f"{prefix}{name}" for name in processes.known() if processes.find(name) is None]
    return gone


# ---- starting


def _planned(
    directory: Path, base_port: int | None, time_scale: float | None, rules: Path, last_resort: bool, say: Say
) -> tuple[Layout, install.KafkaChoice]:
    """What is to run, if it can.  Raises InvalidSettings, StartFailed, InstallFailed; starts and writes nothing."""
    regions = regions_of(rules) or DEFAULT_REGIONS
    before = load_layout(directory) or Layout(directory)
    try:
        layout = Layout(
            directory,
            before.base_port if base_port is None else base_port,
            regions,
            before.time_scale if time_scale is None else time_scale,
        )
    except ValueError as error:
        option, _, problem = str(error).partition(": ")
        raise InvalidSettings("local up", [(option, problem)]) from None
    install.redis_server(say)
    kafka = install.kafka(say, last_resort=last_resort)
    layout = replace(layout, kafka=kafka.kind, kafka_bootstrap=kafka.bootstrap)
    _refuse_other(layout)
    _refuse_taken_ports(layout)
    return layout, kafka


def _refuse_taken_ports(layout: Layout) -> None:
    """Before anything is started: half a system is of no use."""
    running = {
        f"{prefix}{name}" for prefix, place in _places(layout).items() for name in ProcessDirectory(place).running()
    }
    wanted = {port: name for name, ports in layout.ports().items() if name not in running for port in ports}
    unusable = unusable_ports(HOST, wanted)
    if not unusable:
        return
    told = [f"{port} ({wanted[port]})" for port in sorted(unusable)]
    more = f" and {len(told) - TOLD_MOST} more" if len(told) > TOLD_MOST else ""
    reasons = ", ".join(sorted({reason.lower() for reason in unusable.values()}))
    raise StartFailed(
        f"port{'s' if len(told) > 1 else ''} {', '.join(told[:TOLD_MOST])}{more} cannot be used: {reasons};"
        f" give {PORTS} other ports with --base-port (now {layout.base_port})"
    )


def _refuse_other(layout: Layout) -> None:
    """A running system is completed, but not moved to other ports or times."""
    before = load_layout(layout.directory)
    if before is None or before == layout:
        return
    if runs(layout.directory):
        raise Busy(
            f"{layout.directory} runs with base port {before.base_port}, scale {before.time_scale}, Kafka"
            f" {before.kafka} and regions {', '.join(before.regions)}: end it first with"
            f" {command_line('down', layout.directory)}, or use another --dir"
        )


def _start_all(
    layout: Layout, kafka: install.KafkaChoice, processes: ProcessDirectory, services: str, say: Say
) -> None:
    """Kafka beside the regions; what needs it (sync services, control API) waits, and costs nothing meanwhile."""
    from infra.local.kafka_server import start_kafka  # not at the top: its client takes long to import

    kafka_ready = threading.Event()

    def wait_for_kafka() -> None:
        while not kafka_ready.wait(0.2):
            check_wanted()

    def start_hub() -> None:
        _start_links(layout, processes)
        say("Kafka")
        start_kafka(layout, kafka, processes)
        kafka_ready.set()
        say("Kafka ready; control API and dashboard")
        _start_hub_services(layout, processes, services)
        say("control API and dashboard ready")

    def start_region(region: str) -> None:
        tell = functools.partial(_tell_region, say, region)
        Region(layout.region_config(region), services=services).up(tell, before_sync=wait_for_kafka)

    regions = {region: functools.partial(start_region, region) for region in layout.regions}
    _all_at_once({"hub": start_hub, **regions})


def _start_links(layout: Layout, processes: ProcessDirectory) -> None:
    if not layout.has_links or processes.find("link_proxy") is not None:
        return
    for port in (layout.links_port, *(layout.link_port(region) for region in layout.regions)):
        refuse_taken(HOST, port)
    processes.start("link_proxy", [sys.executable, "-m", "infra.local.link_proxy", str(layout.links_config)])


def _start_hub_services(layout: Layout, processes: ProcessDirectory, services: str) -> None:
    urls = {"control_api": layout.control_api, "dashboard": layout.dashboard}
    ports = {"control_api": layout.control_api_port, "dashboard": layout.dashboard_port}
    started = {}
    for name in HUB_SERVICES:
        if (running := processes.find(name)) is None:
            refuse_taken(HOST, ports[name])
        module = [sys.executable, "-m", f"{services}.{name}", "--config", str(layout.hub_config)]
        started[name] = running or processes.start(name, module)
    for name, process in started.items():
        lives = functools.partial(answers, f"{urls[name]}/livez")
        wait_ready(processes, process, lives, patience_s=SERVICE_READY_S)


def _all_at_once(work: dict[str, Callable[[], None]]) -> None:
    """Do all of it side by side, to its end.  Raises the first failure once everything has ended."""
    if not work:
        return
    with ThreadPoolExecutor(len(work)) as pool:
        futures = [pool.submit(one) for one in work.values()]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            refuse_starts()  # the others need not go on
            raise


# ---- stopping


def _stop_all(processes: ProcessDirectory, layout: Layout | None, places: list[Path], say: Say) -> None:
    say("traffic, dashboard, control API")
    stop(_named(processes, ("traffic", *HUB_SERVICES)), patience_s=8.0)
    if layout is not None and layout.has_links:
        for region in layout.regions:
            _try_link(layout, f"heal {region}")  # a cut region would say its last word into a black hole
    say("regions")
    _all_at_once({place.name: functools.partial(_stop_region, place, say) for place in places})
    say("Kafka")
    stop(processes.running().values(), patience_s=15.0)


def _stop_region(place: Path, say: Say) -> None:
    tell = functools.partial(_tell_region, say, place.name)
    try:
        Region(place / "region.toml").down(tell)
    except InvalidSettings:
        # Its file is gone or broken; its processes are still known.
        processes = ProcessDirectory(place)
        stop(processes.running().values())
        processes.forget(processes.known())


def _tell_region(say: Say, region: str, message: str) -> None:
    say(f"{region}: {message}")


def _named(processes: ProcessDirectory, names: Iterable[str]) -> list[Process]:
    found = [processes.find(name) for name in names]
    return [process for process in found if process is not None]


# ---- telling


def _layout(directory: Path) -> Layout:
    layout = load_layout(directory)
    if layout is None:
        raise StartFailed(f"no local system in {directory}: start one with: {command_line('up', directory)}")
    return layout


def _places(layout: Layout) -> dict[str, Path]:
    """Where pid files and logs are, by what comes before a process's name."""
    return {"": layout.directory, **{f"{region}/": layout.directory / region for region in layout.regions}}


def _region_status(layout: Layout, links: dict[str, Any], region: str) -> tuple[str, dict[str, Any]]:
    told = Region(layout.region_config(region)).status()
    link = links.get(region, {"link": "down" if layout.has_links else "direct", "delay_ms": 0})
    return region, {
        "nodes": [node["url"] for node in told["nodes"]],
        "node_pids": [node["pid"] for node in told["nodes"]],
        "sync": told["sync"]["url"],
        "sync_pid": told["sync"]["pid"],
        "redis": told["redis"],
        "link": link["link"],
        "link_delay_ms": link["delay_ms"],
        "config": str(layout.region_config(region)),
        "nodes_ready": [node["ready"] for node in told["nodes"]],
        "sync_ready": told["sync"]["ready"],
        "ready": all(node["ready"] for node in told["nodes"]),
    }


# ---- links


def _try_link(layout: Layout, line: str) -> dict[str, Any]:
    """The proxy's answer; nothing when it does not run."""
    try:
        return command(layout.links_port, line)
    except (OSError, ValueError):
        return {}


def _command_link(directory: Path, line: str) -> None:
    layout = _layout(directory)
    if not layout.has_links:
        raise StartFailed(f"links can be steered with Apache Kafka only; this system uses {layout.kafka}")
    try:
        command(layout.links_port, line)
    except ValueError as error:
        raise StartFailed(str(error)) from None
    except OSError as error:
        raise StartFailed(f"the links do not answer on port {layout.links_port}: {error}") from None


def wait_while_running(directory: Path, say: Say, *, every_s: float = 2.0) -> None:
    """Return when ``down`` has ended our system; say once of each process that ends otherwise."""
    told: set[str] = set()
    while is_ours(directory):
        for name in set(ended(directory)) - told:
            told.add(name)
            say(f"{name} has ended")
        time.sleep(every_s)
    say("ended by another command")
