"""``apportion dev`` as a user starts it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from services.cli import dev
from services.embedded import Embedded


def free_base() -> int:
    """A base port whose five ports are free, as far as one can know."""
    for base in range(35_000, 60_000, 100):
        probes = [socket.socket() for _ in range(5)]
        try:
            for probe, port in zip(probes, (1, 11, 21, 90, 91), strict=True):
                probe.bind(("127.0.0.1", base + port))
            return base
        except OSError:
            continue
        finally:
            for probe in probes:
                probe.close()
    raise AssertionError("no free ports")


def check(base: int) -> dict[str, object]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{base + 1}/v1/check",
        data=b'{"client_key": "user:42", "resource": "POST /orders"}',
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        found: dict[str, object] = json.load(answer)
        return found


NOBODY_ANSWERED = 2


def answered(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """What a command says."""
    command = [sys.executable, "-m", "services.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def answered_first(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """The first answer: while a busy machine still starts what gives it, the command is asked again."""
    for _ in range(3):
        done = answered(arguments)
        if done.returncode != NOBODY_ANSWERED:
            return done
    return answered(arguments)


def explain_says_the_same(base: int) -> None:
    """As an operator asks it, over the control API, in every region."""
    arguments = ["explain", "--client-key", "acme", "--resource", "POST /orders"]
    asked = [*arguments, "--control", f"http://127.0.0.1:{base + 90}"]
    done = answered_first(asked)
    assert done.returncode == 0, done.stderr
    for words in (
        "us-east: the next check would be allowed",
        "orders-gold: 300 at once, then 150/s",
        'logins: resource is "POST /orders", and must be POST /login',
        "shares of rl:{",
    ):
        assert words in done.stdout
    told = answered([*asked, "--cost", "5000", "--json"])
    assert told.returncode == 1, told.stderr
    found = json.loads(told.stdout)
    assert {region["next"]["reason"] for region in found["regions"].values()} == {"exceeds_capacity"}
    [shares] = found["keys"].values()
    assert sum(shares["shares"].values()) <= 10_000


async def test_everything_is_loaded_before_anything_keeps_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading stops the process: a point that stands still for longer than the gap loses its variable."""
    order: list[str] = []
    listeners: list[socket.socket] = []
    load, bind = dev._hub_apps, dev.bind

    class Enough(Exception):
        pass

    async def start(_: Embedded) -> None:
        order.append("start")
        raise Enough

    def apps(*arguments: Any) -> Any:
        made = load(*arguments)
        order.append("loaded")
        return made

    def bound(host: str, port: int) -> socket.socket:
        listeners.append(bind(host, port))
        return listeners[-1]

    monkeypatch.setattr(dev, "_hub_apps", apps)
    monkeypatch.setattr(dev, "bind", bound)
    monkeypatch.setattr(Embedded, "start", start)
    base = free_base()
    with pytest.raises(Enough):
        await dev._serve({}, {"us": base + 1}, base, tmp_path, asyncio.Event())
    for listener in listeners:
        listener.close()
    assert order == ["loaded", "start"]


@pytest.mark.timeout(180)
def test_dev_says_that_it_is_embedded_answers_checks_and_ends_by_ctrl_c() -> None:
    base = free_base()
    process = subprocess.Popen(
        [sys.executable, "-m", "services.cli.main", "dev", "--base-port", str(base)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        began = time.monotonic()
        banner = ""
        while "Ctrl-C ends it" not in banner:
            line = process.stderr.readline()
            assert line, f"ended early: {banner}"
            banner += line
        print(f"answers after {time.monotonic() - began:.1f} s")
        assert "EMBEDDED" in banner
        assert f"export APPORTION_CONTROL_URL=http://127.0.0.1:{base + 90} " in banner
        answer = check(base)
        assert (answer["allowed"], answer["rule"], answer["degraded"]) == (True, "orders-free", False)
        explain_says_the_same(base)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(timeout=60)
        finally:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
    assert code == 0
