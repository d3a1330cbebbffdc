"""A clock that no one but the world knows to be wrong: its own start, a rate, and steps.  Pure."""

from __future__ import annotations

_MILLION = 1_000_000


class Clock:
    """Shows integer microseconds; ``ppm``: how much faster than the true time it runs."""

    def __init__(self, start_us: int = 0, ppm: int = 0) -> None:
        self.ppm = ppm
        self._true, self._shown = 0, start_us * _MILLION

    def read(self, true_us: int) -> int:
        return self._raw(true_us) // _MILLION

    def _raw(self, true_us: int) -> int:
        return self._shown + (true_us - self._true) * (_MILLION + self.ppm)

    def set_rate(self, true_us: int, ppm: int) -> None:
        self._shown, self._true, self.ppm = self._raw(true_us), true_us, ppm

    def step(self, true_us: int, by_us: int) -> None:
        """Set it forward or back."""
        self._shown, self._true = self._raw(true_us) + by_us * _MILLION, true_us

    def true_duration(self, shown_us: int) -> int:
        """True time until the clock shows ``shown_us`` more, rounded up."""
        return -(-shown_us * _MILLION // (_MILLION + self.ppm))
