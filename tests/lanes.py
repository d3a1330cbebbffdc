"""``python -m tests.lanes``: every test, in two lanes at once.

Tests that start services wait for most of their time; those that only compute would wait for them.  So the second
kind runs beside the first, with what the first leaves of the machine (``nice``): the times that services are held
to are not touched.  The exit code is 0 when both lanes passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

TESTS = Path(__file__).resolve().parent
COMPUTING = ("architecture", "golden", "regressions", "simulation", "unit")
"""The rest are tests of services, and of whatever else keeps real time."""
NICE = 15
TIMEOUT_S = 600
"""For a test that has to wait for the machine."""


def lanes() -> tuple[list[str], list[str]]:
    """The folders of tests of services, and of those that compute.  Every folder with tests is in one of them."""
    folders = sorted(path.name for path in TESTS.iterdir() if any(path.glob("**/test_*.py")))
    return [name for name in folders if name not in COMPUTING], [name for name in folders if name in COMPUTING]


def _start(folders: list[str], *more: str, out: IO[bytes] | None = None, nice: int = 0) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pytest", *more, *(str(TESTS / name) for name in folders)]
    return subprocess.Popen(
        command, stdout=out, stderr=subprocess.STDOUT if out else None, preexec_fn=lambda: os.nice(nice) and None
    )


def main() -> int:
    services, computing = lanes()
    began = time.monotonic()
    with tempfile.TemporaryFile() as said:
        beside = _start(computing, f"--timeout={TIMEOUT_S}", out=said, nice=NICE)
        try:
            print(f"services: {' '.join(services)}\nbeside them: {' '.join(computing)}", flush=True)
            first = _start(services).wait()
            print(f"services: {_minutes(began)}; waiting for the others", flush=True)
            second = beside.wait()
        finally:
            beside.terminate()
            beside.wait()
        said.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(said.read())
    print(f"all tests: {_minutes(began)}, {'passed' if first == second == 0 else 'FAILED'}")
    return first or second


def _minutes(began: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - began), 60)
    return f"{minutes} min {seconds} s"


if __name__ == "__main__":
    sys.exit(main())
