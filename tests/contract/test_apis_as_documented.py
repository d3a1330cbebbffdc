"""Both APIs against their own OpenAPI documents: whatever is sent, the answer is one that is documented."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = int(os.environ.get("APPORTION_TEST_EXAMPLES", "6"))
QUICK = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)


@dataclass(frozen=True)
class Running:
    node: str
    control: str


def _free_base() -> int:
    for base in range(36_000, 60_000, 100):
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


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """All regions in one process, which needs neither Redis nor Kafka."""
    base = _free_base()
    process = subprocess.Popen([sys.executable, "-m", "services.cli.main", "dev", "--base-port", str(base)])
    there = Running(f"http://127.0.0.1:{base + 1}", f"http://127.0.0.1:{base + 90}")
    try:
        deadline = time.monotonic() + 40
        while not all(map(_ready, (there.node, there.control))):
            assert process.poll() is None
            assert time.monotonic() < deadline, "not ready in time"
            time.sleep(0.05)
        yield there
        assert process.poll() is None, "it did not live through this"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _failures(url: str) -> list[str]:
    """What was answered otherwise than documented, over all addresses; each with the request that shows it."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    found = []
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            try:
                _try(operation, mode)
            except Unsatisfiable:  # there is no way to ask wrongly
                continue
            except BaseExceptionGroup as group:
                found += [f"{operation.label}: {error!r}" for error in group.exceptions]
            except Exception as error:
                found.append(f"{operation.label}: {error!r}")
    return found


def _try(operation: Any, mode: GenerationMode) -> None:
    @QUICK
    @given(case=operation.as_strategy(generation_mode=mode))
    def one(case: Any) -> None:
        case.call_and_validate(checks=CHECKS)

    one()


@pytest.mark.timeout(120 + 20 * EXAMPLES)
@pytest.mark.parametrize("api", ["control", "node"])
def test_whatever_is_sent_the_answer_is_a_documented_one(running: Running, api: str) -> None:
    failures = _failures(getattr(running, api))
    assert not failures, "\n\n".join(failures)
