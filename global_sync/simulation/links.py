"""The way between a place and the hub: how long it takes, and what goes wrong on it.  Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random


@dataclass(slots=True)
class Law:
    """How long one way takes: ``base_us``, up to ``jitter_us`` more, and in a ``slow`` part up to ``slow_us`` more.

    ``loss``: the part that never arrives.  ``repeat``: the part that arrives a second time.
    """

    base_us: int
    jitter_us: int = 0
    slow: float = 0.0
    slow_us: int = 0
    loss: float = 0.0
    repeat: float = 0.0

    def draw(self, random: Random) -> int:
        delay_us = self.base_us
        if self.jitter_us:
            delay_us += random.randint(0, self.jitter_us)
        if self.slow and random.random() < self.slow:
            delay_us += random.randint(0, self.slow_us)
        return delay_us


@dataclass(slots=True)
class Way:
    """One direction.  What it carries while it is cut waits for it to heal, if it waits at all."""

    law: Law
    is_cut: bool = False
    messages: int = 0
    bytes: int = 0
    _waiting: list[Callable[[], None]] = field(default_factory=list)

    def when_open(self, act: Callable[[], None]) -> None:
        """``act`` now, or as soon as it is open."""
        if self.is_cut:
            self._waiting.append(act)
        else:
            act()

    def cut(self) -> None:
        self.is_cut = True

    def heal(self) -> None:
        self.is_cut = False
        waiting, self._waiting = self._waiting, []
        for act in waiting:
            act()

    def count(self, size: int) -> None:
        self.messages += 1
        self.bytes += size


@dataclass(slots=True)
class Link:
    """Both ways between one region and the hub."""

    up: Way
    down: Way

    @classmethod
    def of(cls, one_way_us: int) -> Link:
        return cls(Way(Law(one_way_us)), Way(Law(one_way_us)))

    @property
    def is_cut(self) -> bool:
        return self.up.is_cut or self.down.is_cut
