"""How much of its windows a region should ask for: in chunks, a little before they are needed.  Pure.

A store tells of a window when less than half of it is left, or when it denied.  As much is asked for as will be
used in about a second at the present rate, denied included, as soon as what is left would not last for as long as a
grant takes, and some more.  Nothing is asked for of windows that last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, exp

from global_sync.protocol.messages import WindowAsk
from regional_limiter.model.escrow import WindowUse
from regional_limiter.model.share import SHARE_UNITS, WINDOW_POOL

_LASTS_S = 0.6
_CHUNK_S = 1.0
_AVERAGED_US = 300_000
_FIRST_US = 100_000
KEYS_MOST = 5_000

Held = Callable[[str, int], int]
"""(key, window) -> the share units granted of it, as far as has been read."""


@dataclass(slots=True)
class _Window:
    use: WindowUse
    time_ms: int  # of the store, when it told
    told_us: int
    rate: float = 0.0  # tokens a second
    is_new: bool = True  # nothing was asked for since the store told


class WindowDemand:
    """The windows of one region that are being used up."""

    def __init__(self) -> None:
        self._keys: dict[str, _Window] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def take(self, use: WindowUse, time_ms: int, now_us: int) -> None:
        """What a store told at ``time_ms`` of its clock; ``now_us``: any clock that only goes forward."""
        known = self._keys.pop(use.key, None)
        if known is None:
            if len(self._keys) >= KEYS_MOST:
                del self._keys[next(iter(self._keys))]  # the one that was told of longest ago
            known = _Window(use, time_ms, now_us - _FIRST_US)
        self._keys[use.key] = known
        since_us = max(1, now_us - known.told_us)
        gain = 1.0 if known.rate == 0.0 else 1 - exp(-since_us / _AVERAGED_US)
        known.rate += (use.offered * 1e6 / max(since_us, 10_000) - known.rate) * gain
        known.use, known.time_ms, known.told_us, known.is_new = use, time_ms, now_us, True

    def asks(self, now_us: int, held: Held) -> dict[str, WindowAsk]:
        """What is to be asked for now, of the windows that the stores told of since the last time."""
        asks: dict[str, WindowAsk] = {}
        for key, known in list(self._keys.items()):
            if known.time_ms + (now_us - known.told_us) // 1000 >= known.use.end_ms:
                del self._keys[key]
            elif known.is_new:
                known.is_new = False
                ask = _ask(known, held(key, known.use.window))
                if ask is not None:
                    asks[key] = ask
        return asks


def _ask(known: _Window, held: int) -> WindowAsk | None:
    use = known.use
    spread = use.capacity - use.regions
    if spread <= 0 or use.part - use.used >= _LASTS_S * known.rate:
        return None
    left_s = max(0.0, (use.end_ms - known.time_ms) / 1000)
    tokens = use.used - use.part + max(1, ceil(known.rate * min(left_s, _LASTS_S + _CHUNK_S)))
    if tokens <= 0:
        return None
    wanted = min(WINDOW_POOL, use.granted + ceil(tokens * SHARE_UNITS / spread))
    if wanted <= held:
        return None
    return WindowAsk(use.window, use.end_ms, held, wanted, ceil(SHARE_UNITS / spread))
