"""Namespaces of our own: a hub and regions with a network between them, which end with this process.  [IO]

``enter`` starts us again in new namespaces of processes, mounts and networks.  All that is started then lives in
them, and they live no longer than the first process in them, nor that than the one which called ``enter``: when it
ends, by itself, by Ctrl-C or by ``kill -9``, the system ends every process and takes networks and mounts away.  So
nothing can be left behind, and the network of the machine is not touched.

This process is in the hub.  Each region has a network namespace by its name with two wires to the hub: ``link``
is its link to Kafka and can be cut, in one direction too, slowed and made lossy; ``calls`` is how the load and the
observer reach it, and is always whole.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

HUB = "10.77.0.1"
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
NAMESPACES = Path("/run/netns")
INSIDE = "APPORTION_CHAOS_INSIDE"
SYNC_MARK = 100
"""Of the sync service's sockets, in sides.c; a node's is its number, a Redis server's its port."""
QUEUE_MS = 400
"""What does not fit through a slow link waits so long at most."""

Answer = TypeVar("Answer")


class NoNamespaces(Exception):
    """This machine does not let us make namespaces.  Says why."""


@dataclass(frozen=True)
class Link:
    """What a region's link lets through: nothing in one direction or both, a part, or so much a second."""

    up: bool = True
    down: bool = True
    loss_percent: int = 0
    kbit_per_s: int | None = None

    def told(self) -> str:
        if not (self.up and self.down):
            return "cut" if not (self.up or self.down) else "hears only" if self.down else "speaks only"
        return f"{self.kbit_per_s} kbit/s" if self.kbit_per_s else f"{self.loss_percent} % lost"


WHOLE = Link()


def enter(arguments: Sequence[str]) -> int:
    """The exit code of ``python -m tests.chaos ARGUMENTS`` in namespaces of its own.  Raises NoNamespaces."""
    for program in ("unshare", "nsenter", "ip", "tc", "nft", "mount"):
        if shutil.which(program) is None:
            raise NoNamespaces(f"{program} is not in PATH: python -m infra.install namespaces installs it, as root")
    command = ["unshare", "--pid", "--net", "--mount", "--ipc", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        command[1:1] = ["--user", "--map-root-user"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise NoNamespaces(f"{tried.stderr.strip()}: CAP_SYS_ADMIN and CAP_NET_ADMIN are needed, as root has them")
    inner = subprocess.Popen(
        [*command, sys.executable, "-m", "tests.chaos", *arguments],
        env={**os.environ, INSIDE: "1"},
        preexec_fn=_end_with_parent,
    )
    try:
        signal.signal(signal.SIGTERM, lambda *_: inner.kill())
        signal.signal(signal.SIGINT, lambda *_: None)  # a terminal tells it as well
        return inner.wait()
    finally:
        inner.kill()
        inner.wait()


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def is_inside() -> bool:
    return os.environ.get(INSIDE) == "1" and os.getpid() == 1


class Network:
    """The hub's side of the wires, and the regions at their other ends."""

    def __init__(self, regions: Sequence[str]) -> None:
        self.regions = tuple(regions)

    def make(self) -> None:
        """Raises NoNamespaces."""
        NAMESPACES.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "none", str(NAMESPACES))  # seen by nobody else
        _run("ip", "link", "set", "lo", "up")
        for number, bridge in ((77, "links"), (78, "callers")):
            _run("ip", "link", "add", bridge, "type", "bridge")
            _run("ip", "addr", "add", f"10.{number}.0.1/24", "dev", bridge)
            _run("ip", "link", "set", bridge, "up")
        for place, region in enumerate(self.regions):
            _run("ip", "netns", "add", region)
            _run("ip", "-n", region, "link", "set", "lo", "up")
            for wire, bridge, address in (
                ("link", "links", f"10.77.0.{11 + place}/24"),
                ("calls", "callers", f"{self.address(region)}/24"),
            ):
                ours = f"{wire}{place}"
                _run("ip", "link", "add", ours, "type", "veth", "peer", "name", wire, "netns", region)
                _run("ip", "link", "set", "dev", ours, "master", bridge, "up")
                _run("ip", "-n", region, "addr", "add", address, "dev", wire)
                _run("ip", "-n", region, "link", "set", "dev", wire, "up")

    def address(self, region: str) -> str:
        """Where the region's services are called."""
        return f"10.78.0.{11 + self.regions.index(region)}"

    def set_link(self, region: str, link: Link) -> None:
        ours = f"link{self.regions.index(region)}"
        chains = ""
        for hook, way, passes in (("input", "iifname", link.down), ("output", "oifname", link.up)):
            rule = f'{way} "link" numgen random mod 100 < {link.loss_percent} drop' if link.loss_percent else ""
            if not passes:
                rule = f'{way} "link" drop'
            chains += f"chain {hook} {{\ntype filter hook {hook} priority 0; policy accept;\n{rule}\n}}\n"
        rules = f"add table inet link\ndelete table inet link\ntable inet link {{\n{chains}}}\n"
        _run(*self.inside(region), "nft", "-f", "-", text=rules)
        for command in (["tc", "-n", region], ["tc"]):
            device = "link" if len(command) > 1 else ours
            subprocess.run([*command, "qdisc", "del", "dev", device, "root"], capture_output=True, check=False)
            if link.kbit_per_s is not None:
                shape = ["tbf", "rate", f"{link.kbit_per_s}kbit", "burst", "4kb", "latency", f"{QUEUE_MS}ms"]
                _run(*command, "qdisc", "add", "dev", device, "root", *shape)

    def cut_in_two(self, region: str, here: Collection[int], there: Collection[int]) -> None:
        """Nothing passes between the sockets of these processes of the region, by their marks (see sides.c); of
        nobody: everything does."""
        chain = "type filter hook input priority 0; policy accept;\n"
        if here and there:
            for sender, receiver in ((here, there), (there, here)):
                chain += f"meta mark {_set(sender)} socket mark {_set(receiver)} drop\n"
        table = f"table inet sides {{\nchain input {{\n{chain}}}\n}}\n"
        text = f"add table inet sides\ndelete table inet sides\n{table}"
        _run(*self.inside(region), "nft", "-f", "-", text=text)

    def inside(self, region: str) -> list[str]:
        """What comes before a command that is to run in a region."""
        return ["nsenter", f"--net={NAMESPACES / region}"]

    def call_inside(self, region: str, function: Callable[[], Answer]) -> Answer:
        """``function()`` in the region's network.  Raises what it raises."""
        answers: list[Answer] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                with (NAMESPACES / region).open() as namespace:
                    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), f"cannot enter {region}")
                answers.append(function())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return answers[0]


def _set(numbers: Iterable[int]) -> str:
    return "{ " + ", ".join(map(str, sorted(numbers))) + " }"


def _run(*command: str, text: str | None = None) -> None:
    done: Any = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoNamespaces(f"{' '.join(command)}: {done.stderr.strip()}")
