"""``python -m tests.lanes``: every test, in three lanes at once.

Tests that start services wait for most of their time.  So whole systems run beside single services, and beside both
what only computes.  Each lane has what the one before it leaves of the machine (``nice``): whole systems, which are
held to rates and times, hardly notice the others.  What is broken at random comes last, and alone: it is judged by
how soon all is whole again.  The exit code is 0 when all lanes passed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

TESTS = Path(__file__).resolve().parent
SYSTEMS = ("anger", "e2e", "gateways", "integration")
ALONE = ("chaos",)
COMPUTING = ("architecture", "golden", "regressions", "simulation", "unit")
"""The rest start single services, and keep real time: they are the lane between these two."""
TIMEOUT_S = 600
"""For a test that has to wait for the machine."""


@dataclass
class Lane:
    name: str
    folders: list[str]
    nice: int
    more: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] = field(init=False, repr=False)

    def start(self, out: IO[bytes] | None) -> None:
        """``out``: where it writes; None: to the terminal."""
        command = [sys.executable, "-m", "pytest", *self.more, *(str(TESTS / name) for name in self.folders)]
        nice = self.nice
        self.process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT if out else None,
            preexec_fn=lambda: os.nice(nice) and None,
        )


LAST = Lane("broken at random", list(ALONE), 0)


def lanes() -> list[Lane]:
    """Those that run at once.  Every folder with tests is in one of them, or in the last."""
    folders = sorted(path.name for path in TESTS.iterdir() if any(path.glob("**/test_*.py")))
    between = [name for name in folders if name not in (*SYSTEMS, *COMPUTING, *ALONE)]
    return [
        Lane("whole systems", list(SYSTEMS), 0),
        Lane("single services", between, 5, (f"--timeout={TIMEOUT_S}",)),
        Lane("what only computes", list(COMPUTING), 15, (f"--timeout={TIMEOUT_S}",)),
    ]


def main() -> int:
    began = time.monotonic()
    first, *beside = lanes()
    failed = 0
    with ExitStack() as stack:
        said = [stack.enter_context(tempfile.TemporaryFile()) for _ in beside]
        for lane, out in zip([first, *beside], [None, *said], strict=True):
            print(f"{lane.name}: {' '.join(lane.folders)}", flush=True)
            lane.start(out)
            stack.callback(_end, lane)
        for lane, out in zip([first, *beside], [None, *said], strict=True):
            failed = lane.process.wait() or failed
            if out is not None:
                out.seek(0)
                sys.stdout.buffer.write(out.read())
            print(f"{lane.name}: over after {_minutes(began)}", flush=True)
        print(f"{LAST.name}: {' '.join(LAST.folders)}", flush=True)
        LAST.start(None)
        stack.callback(_end, LAST)
        failed = LAST.process.wait() or failed
    print(f"all tests: {_minutes(began)}, {'FAILED' if failed else 'passed'}")
    return failed


def _end(lane: Lane) -> None:
    lane.process.terminate()
    lane.process.wait()


def _minutes(began: float) -> str:
    minutes, seconds = divmod(int(time.monotonic() - began), 60)
    return f"{minutes} min {seconds} s"


if __name__ == "__main__":
    sys.exit(main())
