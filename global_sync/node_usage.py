"""Running totals of a region out of its nodes' beats: repeated, late and reordered beats change nothing.  Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from global_sync.key_usage import KeyUsage, Totals, totals_of
from regional_limiter.store.base import BeatSeen, NodeBeat, RuleTotals

KEYS_MOST = 5_000
RATE_OVER_US = 1_000_000
RATE_BEATS_MOST = 8
SOURCES_MOST = 1_000
_NONE: Totals = (0, 0, 0, 0, 0, 0)


def _asked(usage: RuleTotals | None) -> int:
    return usage.allowed_cost + usage.denied_cost if usage else 0


class _Merged:
    """Totals by name: the maximum per node incarnation, summed over incarnations."""

    def __init__(self, limit: int, *, tells_rows: bool = False) -> None:
        self._limit = limit
        self._tells_rows = tells_rows
        self._grown: dict[tuple[str, str], None] = {}  # rows that have grown since they were told
        self._in_turn: list[tuple[str, str]] = []
        self._by_source: dict[str, dict[str, Totals]] = {}
        self._sums: dict[str, Totals] = {}

    def take(self, source: str, usage: Mapping[str, RuleTotals]) -> None:
        seen = self._by_source.pop(source, {})
        self._by_source[source] = seen  # the most recently heard stands last
        if len(self._by_source) > SOURCES_MOST:
            del self._by_source[next(iter(self._by_source))]
        for name, totals in usage.items():
            if name not in self._sums and len(self._sums) >= self._limit:
                continue
            old = seen.get(name, _NONE)
            new = tuple(max(pair) for pair in zip(old, totals_of(totals), strict=True))
            grown = tuple(n - o for n, o in zip(new, old, strict=True))
            if self._tells_rows and any(grown):
                self._grown[source, name] = None
            known = self._sums.get(name, _NONE)
            seen[name] = (new[0], new[1], new[2], new[3], new[4], new[5])
            added = tuple(k + g for k, g in zip(known, grown, strict=True))
            self._sums[name] = (added[0], added[1], added[2], added[3], added[4], added[5])

    def rows(self, grown_most: int, others_most: int) -> dict[str, dict[str, Totals]]:
        """Totals by source and name: of those that have grown since they were told, and of some others in turn.

        So whoever begins to listen, or missed a telling, has all of them after a while.
        """
        due = list(self._grown)[:grown_most]
        for row in due:
            del self._grown[row]
        if not self._in_turn:
            self._in_turn = [(source, name) for source, seen in self._by_source.items() for name in seen]
        due += self._in_turn[-others_most:]
        del self._in_turn[-others_most:]
        told: dict[str, dict[str, Totals]] = {}
        for source, name in due:
            totals = self._by_source.get(source, {}).get(name)
            if totals is not None:
                told.setdefault(source, {})[name] = totals
        return told

    def sums(self) -> dict[str, Totals]:
        return dict(self._sums)

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            self._sums.pop(name, None)
            for seen in self._by_source.values():
                seen.pop(name, None)


class NodeUsage:
    """What the nodes of a region have counted, and which nodes there are.

    ``take`` is given every beat that any point has, as often as it is seen, with the caller's clock in us.
    """

    def __init__(self, forget_after_us: int) -> None:
        self._forget_after_us = forget_after_us
        self._rules = _Merged(limit=20_000, tells_rows=True)
        self._keys = _Merged(limit=KEYS_MOST)
        self._windows = KeyUsage()
        self._last_heard_us: dict[str, int] = {}
        self._beats: dict[str, NodeBeat] = {}
        self._lately: dict[str, deque[tuple[int, Mapping[str, RuleTotals]]]] = {}

    def take(self, seen: BeatSeen, now_us: int) -> None:
        beat = seen.beat
        source = f"{beat.node} {beat.incarnation}"
        heard_us = now_us - seen.age_us
        if heard_us > self._last_heard_us.get(source, heard_us - 1):
            self._beats[source] = beat
            self._last_heard_us[source] = heard_us
            self._note_lately(source, heard_us, beat.key_usage)
        self._rules.take(source, beat.usage)
        self._keys.take(source, beat.key_usage)
        self._windows.take(source, beat.told, beat.windows, now_us)

    def rows(self, grown_most: int = 1000, others_most: int = 100) -> dict[str, dict[str, Totals]]:
        """What each incarnation of a node has counted by rule: the same numbers whichever agent tells them."""
        return self._rules.rows(grown_most, others_most)

    def key_rows(self, now_us: int) -> dict[str, dict[str, Totals]]:
        """What each incarnation of a node has counted by key, window by window; told as :meth:`rows` is."""
        return self._windows.rows(now_us)

    def expire(self, now_us: int) -> None:
        """Forget nodes that have been silent for long.  What they counted stays, should they come back."""
        for source, heard_us in list(self._last_heard_us.items()):
            if now_us - heard_us > self._forget_after_us:
                del self._last_heard_us[source], self._beats[source]
                self._lately.pop(source, None)

    def _note_lately(self, source: str, heard_us: int, usage: Mapping[str, RuleTotals]) -> None:
        """Beats of about the last second; one of them is older than that."""
        lately = self._lately.setdefault(source, deque())
        if lately and heard_us - lately[-1][0] < RATE_OVER_US // RATE_BEATS_MOST:
            return  # the same beat, as another point has it
        lately.append((heard_us, usage))
        while len(lately) > 2 and heard_us - lately[1][0] >= RATE_OVER_US:
            lately.popleft()
        if len(lately) > 2 * RATE_BEATS_MOST:
            lately.popleft()

    def rate(self, key: str, told_most: int) -> tuple[float, bool] | None:
        """(tokens a second that were lately asked for of ``key``, of a global rule, denied ones included; whether
        it was asked for all along: what has begun within the last second may be more by now).

        None: not known, since a node has been heard for less than a second, or has more keys than the ``told_most``
        that it tells and does not tell this one.
        """
        total, all_along = 0.0, False
        for lately in self._lately.values():
            (first_us, first), (last_us, last) = lately[0], lately[-1]
            passed_us = last_us - first_us
            if passed_us < RATE_OVER_US or (key not in last and len(last) >= told_most):
                return None
            if key in last:
                if key not in first and len(first) >= told_most:
                    return None
                began = _asked(first.get(key))
                total += (_asked(last[key]) - began) * 1_000_000 / passed_us
                all_along = all_along or _asked(lately[1][1].get(key)) > began
        return (total, all_along) if self._lately else None

    def nodes(self, now_us: int) -> list[tuple[NodeBeat, int]]:
        """Every node's newest beat with its age in us: one entry a node, the youngest incarnation."""
        newest: dict[str, tuple[NodeBeat, int]] = {}
        for source, heard_us in self._last_heard_us.items():
            beat = self._beats[source]
            if beat.node not in newest or now_us - heard_us < newest[beat.node][1]:
                newest[beat.node] = (beat, now_us - heard_us)
        return [newest[name] for name in sorted(newest)]

    def least_base_version(self, now_us: int, younger_than_us: int) -> int | None:
        """The least version of the bases that any node heard of lately may still use; None without nodes."""
        versions = [
            self._beats[source].base_version
            for source, heard_us in self._last_heard_us.items()
            if now_us - heard_us < younger_than_us
        ]
        return min(versions, default=None)

    def libraries(self, now_us: int, younger_than_us: int) -> set[str]:
        """Versions of the function library that nodes heard of lately call ("": one that does not say)."""
        return {
            self._beats[source].library
            for source, heard_us in self._last_heard_us.items()
            if now_us - heard_us < younger_than_us
        }

    def rules(self) -> dict[str, Totals]:
        return self._rules.sums()

    def keys(self, at_most: int) -> dict[str, Totals]:
        """Totals of the busiest keys."""
        sums = self._keys.sums()
        busiest = sorted(sums, key=lambda key: -(sums[key][2] + sums[key][3]))
        if len(sums) >= KEYS_MOST:  # make room for keys that come later
            self._keys.drop(busiest[KEYS_MOST // 2 :])
        return {key: sums[key] for key in busiest[:at_most]}
