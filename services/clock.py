"""Wall-clock time, for displays and stamps only: no limit depends on it."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Milliseconds since 1970 by this machine's clock."""
    return time.time_ns() // 1_000_000


def time_of_day(at_ms: int) -> str:
    """``14:03:59``, where this process runs."""
    return time.strftime("%H:%M:%S", time.localtime(at_ms / 1000))
