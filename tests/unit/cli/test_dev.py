"""``apportion dev`` as a user starts it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest


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
    with urllib.request.urlopen(request, timeout=2) as answer:
        found: dict[str, object] = json.load(answer)
        return found


@pytest.mark.timeout(60)
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
        answer = check(base)
        assert (answer["allowed"], answer["rule"], answer["degraded"]) == (True, "orders-free", False)
    finally:
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(timeout=20)
        finally:
            process.kill()
            if process.stderr is not None:
                process.stderr.close()
    assert code == 0
