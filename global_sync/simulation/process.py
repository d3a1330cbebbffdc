"""One simulated process: its loop, its clock, and whether it still lives.  Pure."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from global_sync.simulation.clock import Clock
from global_sync.simulation.scheduler import ProcessLoop, Scheduler


class Process:
    """``new_id(bytes)``: hexadecimal and never the same twice, as ``secrets.token_hex``, but from the seed."""

    def __init__(
        self, name: str, scheduler: Scheduler, random: Random, clock: Clock, failed: Callable[[str], None]
    ) -> None:
        self.name = name
        self.scheduler = scheduler
        self.clock = clock
        self.loop = ProcessLoop(scheduler, clock, failed)  # type: ignore[abstract]
        self._random = random

    @property
    def alive(self) -> bool:
        return not self.loop.dead

    def now_us(self) -> int:
        """The process's own steady clock."""
        return self.clock.read(self.scheduler.now_us)

    def new_id(self, size: int) -> str:
        return self._random.randbytes(size).hex()

    def kill(self) -> None:
        self.loop.kill()
