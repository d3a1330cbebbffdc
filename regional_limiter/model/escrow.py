"""Windows in escrow, as one enforcement point knows them.  Pure.

Of an adaptive window rule each region has a static part of every window, and is granted more in chunks.  A grant
belongs to one window, is never taken back and ends with it: there is no session, consent or clock in it, so whoever
tells a point of a grant, and however late, only tells the truth.  ``store/functions`` holds the same in Lua.

The totals only grow.  ``before``: what had been granted of the window when this variable began, where that was
after the window's beginning: it counts as used where the count was lost (see ``Enforcement.window_share``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

WINDOW_KEYS_MOST = 10_000
WINDOWS_A_KEY = 4
"""The newest of each key: about its turn two are told of, and two more where the windows' length was changed."""
USES_MOST = 2000


def window_start_ms(window: int, end_ms: int) -> int:
    """When the window begins that has this number and end.  A span's windows are numbered since 1970, those of a
    calendar by when they begin."""
    length_ms = end_ms // (window + 1)
    return window * length_ms if length_ms > 1 else window


@dataclass(frozen=True, slots=True)
class GrantedWindow:
    """``total`` share units were granted of a window that ends at ``end_ms`` of the store's clock."""

    key: str
    window: int
    end_ms: int
    total: int
    before: int


@dataclass(frozen=True, slots=True)
class WindowNews:
    """What the agent tells a point of windows.

    ``granted`` is for ``instance`` alone.  ``since`` holds for bases of ``base_version``: in a window of a domain
    that began no earlier (ms of the store's clock) the base may be used as it is.
    """

    instance: str = ""
    granted: Sequence[GrantedWindow] = ()
    base_version: int = -1
    since: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class WindowUse:
    """A window of which less than half is left, or that denied: what the agent has to know to ask for more.

    In tokens: ``used`` so far, ``offered`` since the last word (denied included), ``part``: what may be used with
    the ``granted`` share units in force; of the rule, its ``capacity`` over ``regions`` regions.
    """

    key: str
    window: int
    end_ms: int
    used: int
    offered: int
    part: int
    granted: int
    capacity: int
    regions: int


@dataclass(slots=True)
class _Row:
    window: int
    end_ms: int
    total: int
    before: int


class PointWindows:
    """What a point was told of windows, and what it has to tell of them."""

    def __init__(self) -> None:
        self._rows: dict[str, list[_Row]] = {}
        self._uses: dict[str, WindowUse] = {}
        self._base_version = -1
        self._since: Mapping[str, int] = {}

    def vouch(self, base_version: int, since: Mapping[str, int]) -> None:
        """Of an older version than the one known it is void."""
        if base_version >= self._base_version:
            self._base_version, self._since = base_version, since

    def is_vouched(self, domain: str, base_version: int, start_us: int) -> bool:
        """Whether the base of that version may be used as it is in a window that began then."""
        since_ms = self._since.get(domain)
        return base_version == self._base_version and since_ms is not None and since_ms * 1000 <= start_us

    def granted(self, key: str, window: int) -> tuple[int, int]:
        """(total, before) of a window; nothing where nothing was told."""
        for row in self._rows.get(key, ()):
            if row.window == window:
                return row.total, row.before
        return 0, 0

    def grant(self, now_ms: int, granted: Sequence[GrantedWindow]) -> None:
        for one in granted:
            if one.key not in self._rows and len(self._rows) >= WINDOW_KEYS_MOST:
                self._forget_ended(now_ms)
                if len(self._rows) >= WINDOW_KEYS_MOST:
                    continue  # not in force, which is the strict side
            self._grant(one)

    def _grant(self, one: GrantedWindow) -> None:
        rows = self._rows.setdefault(one.key, [])
        for row in rows:
            if row.window == one.window:
                row.total, row.before = max(row.total, one.total), min(row.before, one.before)
                return
        rows.append(_Row(one.window, one.end_ms, one.total, one.before))
        if len(rows) > WINDOWS_A_KEY:
            rows.remove(min(rows, key=lambda row: row.end_ms))

    def _forget_ended(self, now_ms: int) -> None:
        for key, rows in list(self._rows.items()):
            if all(row.end_ms <= now_ms for row in rows):
                del self._rows[key]

    def note(self, use: WindowUse) -> None:
        known = self._uses.get(use.key)
        if known is not None and known.window == use.window:
            use.offered += known.offered
        elif known is None and len(self._uses) >= USES_MOST:
            return
        self._uses[use.key] = use

    def take_uses(self) -> list[WindowUse]:
        taken, self._uses = list(self._uses.values()), {}
        return taken
