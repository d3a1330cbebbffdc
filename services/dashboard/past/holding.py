"""What each region held of a key by the steps of the log, at a moment and from step to step.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from regional_limiter.model.share import SHARE_UNITS
from services.dashboard.past.share_steps import GONE, OVER, SESSIONS, WINDOW, Step
from services.granted import without_released

_ENDED = {OVER: "over", GONE: "gone"}


@dataclass(frozen=True, slots=True)
class Held:
    """What a region was granted of a key at a moment, in units of 10,000.  ``is_base``: it rested at its base.

    ``session``: alive, over (it used at most its base), gone (destroyed) or unknown.  ``kind`` and the rest: the
    step that said so; None, 0: no step of this key is kept, so it was at its base.

    ``window``: ``units`` has what was granted of one beyond the static part, ``is_base`` once that window has ended
    (at ``since_ms``); it counts whether a session lives or not.

    ``given_back``: what the records say beyond ``units``; as another was granted it later, this one must have
    released it without a record.
    """

    units: int
    is_base: bool
    session: str
    kind: str | None = None
    since_ms: int | None = None
    epoch: int = 0
    n: int = 0
    given_back: int = 0

    def shown(self, base: int) -> dict[str, Any]:
        return {
            "units": self.units,
            "base": base,
            "lent": max(0, base - self.units),
            "borrowed": max(0, self.units - base),
            "is_base": self.is_base,
            "session": self.session,
            "said_by": self.kind,
            "since_ms": self.since_ms,
            "epoch": self.epoch,
            "n": self.n,
            "given_back": self.given_back,
        }


class Holding:
    """What is held at a moment, by the last steps of a key (``said``) and of the sessions, by region; ``take`` and
    ``rest`` move it on.  ``bases``: of every region to be told of.

    Of a window in escrow a region holds its base (the static part) and what was granted: no session is needed.
    """

    def __init__(
        self, said: Mapping[str, Step], sessions: Mapping[str, Step], bases: Mapping[str, int], at_ms: int
    ) -> None:
        self._said, self._sessions, self._bases = dict(said), dict(sessions), dict(bases)
        self._granted = {region: self._of(region, at_ms) for region in bases}
        self._sum = sum(min(one.units, SHARE_UNITS) for one in self._granted.values())
        self._told = {region: one.units for region, one in self.held().items()}

    def held(self) -> dict[str, Held]:
        left = self._left()
        return {
            region: replace(one, units=left[region], is_base=one.is_base and left[region] == one.units,
                            given_back=one.units - left[region])
            for region, one in self._granted.items()
        }  # fmt: skip

    def take(self, step: Step) -> dict[str, int]:
        """What regions hold from that step on, of those that held something else before: also others than the
        step's, if they must have given something back without a record."""
        (self._sessions if step.key == SESSIONS else self._said)[step.region] = step
        return self._moved(step.region, step.at_ms)

    def rest(self, region: str, base: int, at_ms: int) -> dict[str, int]:
        """The same from when this base of a region came into force."""
        if region in self._bases:
            self._bases[region] = base
        return self._moved(region, at_ms)

    def _moved(self, region: str, at_ms: int) -> dict[str, int]:
        if region not in self._granted:
            return {}
        before = self._sum
        self._sum -= min(self._granted[region].units, SHARE_UNITS)
        one = self._granted[region] = self._of(region, at_ms)
        units = min(one.units, SHARE_UNITS)
        self._sum += units
        moved = self._left() if max(before, self._sum) > SHARE_UNITS else {region: units}
        moved = {region: units for region, units in moved.items() if units != self._told[region]}
        self._told |= moved
        return moved

    def _left(self) -> dict[str, int]:
        newest = {region: (one.epoch, one.n) for region, one in self._granted.items() if one.session == "alive"}
        shares = {region: min(one.units, SHARE_UNITS) for region, one in self._granted.items()}
        return without_released(shares, newest)

    def _of(self, region: str, at_ms: int) -> Held:
        """What the records grant."""
        base, step, session = self._bases[region], self._said.get(region), self._sessions.get(region)
        alive = "unknown" if session is None else _ENDED.get(session.kind, "alive")
        if alive == "gone" and session is not None:
            return Held(0, False, alive, GONE, session.at_ms, session.epoch, session.n)
        if step is not None and step.kind == WINDOW:
            of_window = (step.units or 0) if at_ms < step.session else 0
            since_ms = step.at_ms if of_window else step.session
            return Held(base + of_window, of_window == 0, alive, step.kind, since_ms, step.epoch, step.n)
        if alive == "over" and session is not None:
            return Held(base, True, alive, OVER, session.at_ms, session.epoch, session.n)
        if step is None:
            return Held(base, True, alive)
        units = base if step.units is None else step.units
        return Held(units, step.units is None, alive, step.kind, step.at_ms, step.epoch, step.n)
