"""Usage messages into cells: what the running totals have grown by, and what shares the region was at.  Pure.

Totals are merged by maximum for each node's incarnation, as everywhere: repeats, late messages and agents that take
over count once.  Growth belongs to the second in which the broker stamped the message.  A region that was silent
for longer has done it all the while, so it is spread evenly; nobody knows better.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from regional_limiter.model.enforcement import BASE as AT_BASE
from regional_limiter.model.keys import rule_of
from regional_limiter.model.share import floor_of
from regional_limiter.usage import is_own_row
from services.dashboard.past.cells import EVERYTHING, MINUTE_MS, SECOND_MS, Placed, empty_cell, spread
from services.dashboard.past.key_watch import KeyWatch

USUAL_GAP_MS = 2_500
"""Messages come every second; one that is this late leaves no second without its part."""
BY_SECOND_MOST_MS = 600_000
GAP_MOST_MS = 86_400_000
SETTLING_MS = 120_000
"""After a start in the middle of the topic: what is heard of first within it was there before."""
SOURCES_MOST = 5_000
NAMES_A_SOURCE_MOST = 20_000
NAMES_MOST = 500_000
"""Of all sources together: some 100 MB."""
LET_GO_MOST = 50_000
"""Sources that are known to have been there, and no more."""
TOLD_AT_ONCE = 5_000
"""Names that are written down before anybody else has a turn: some 0.3 ms."""
REGIONS_MOST = 100
NODE, AGENT = " node ", " agent "
"""Between the region and the name of a source."""

Totals = dict[str, list[int]]
"""By rule or key: allowed and denied cost, and when they were last told."""


class GrowthState:
    """All that was known at one moment, for a file: written down source by source while more is learnt.

    Whoever changes a source has it written down first, as it was.
    """

    def __init__(self, head: dict[str, Any], sources: Mapping[str, Totals]) -> None:
        self._head = head
        self._order = list(sources)
        self._left = dict(sources)
        self._written: dict[str, msgspec.Raw] = {}

    def keep(self, source: str) -> None:
        """``source`` is about to change."""
        if (totals := self._left.pop(source, None)) is not None:
            self._write(source, totals)

    def _write(self, source: str, totals: Totals) -> None:
        self._written[source] = msgspec.Raw(msgspec.msgpack.encode(totals))

    def write_down(self) -> Iterator[None]:
        """Everything that is left, a part with each step."""
        names = 0
        while self._left:
            source, totals = self._left.popitem()
            self._write(source, totals)
            names += len(totals)
            if names >= TOLD_AT_ONCE:
                names = 0
                yield

    def encoded(self) -> bytes:
        """Once everything is written down."""
        assert not self._left
        sources = {source: self._written[source] for source in self._order}
        return msgspec.msgpack.encode({**self._head, "sources": sources})


class UsageGrowth:
    """``state`` is all that it knows, for a file; ``restore`` goes on from it."""

    def __init__(self, watch: KeyWatch | None = None) -> None:
        self._watch = watch or KeyWatch()
        self._sources: dict[str, Totals] = {}
        self._names = 0
        self._let_go: dict[bytes, None] = {}
        self._forgets = False
        """Whether some that were let go of are not even known as such any more."""
        self._heard_ms: dict[str, int] = {}
        self._settled_ms: int | None = None
        self._state: GrowthState | None = None
        self.next_offset: int | None = None

    def state(self) -> GrowthState:
        """As of now.  One at a time: of the one before nothing is written down any more."""
        head = {
            "heard_ms": dict(self._heard_ms),
            "settled_ms": self._settled_ms,
            "next_offset": self.next_offset,
            "let_go": b"".join(self._let_go),
            "forgets": self._forgets,
        }
        self._state = GrowthState(head, self._sources)
        return self._state

    def restore(self, state: Mapping[str, Any]) -> None:
        self._sources = {
            str(name): {str(one): [int(value) for value in totals] for one, totals in known.items()}
            for name, known in state["sources"].items()
        }
        self._names = sum(map(len, self._sources.values()))
        let_go = state.get("let_go", b"")
        self._let_go = {let_go[at : at + _SHORT]: None for at in range(0, len(let_go), _SHORT)}
        self._forgets = bool(state.get("forgets"))
        self._heard_ms = {str(region): int(at_ms) for region, at_ms in state["heard_ms"].items()}
        self._settled_ms, self.next_offset = state["settled_ms"], state["next_offset"]

    def take(self, usage: Mapping[str, Any], offset: int, stamp_ms: int) -> list[Placed]:
        """``stamp_ms``: the broker's.  A message that was taken before changes nothing.  Raises ValueError."""
        if self.next_offset is not None and offset < self.next_offset:
            return []
        if self.next_offset is None:
            self._settled_ms = 0 if offset == 0 else stamp_ms + SETTLING_MS
        self.next_offset = offset + 1
        region = str(usage["region"])
        if region not in self._heard_ms and len(self._heard_ms) >= REGIONS_MOST:
            return []
        begin_ms = self._begin_ms(region, stamp_ms)
        self._heard_ms[region] = stamp_ms
        placed: list[Placed] = []
        try:
            rules = self._rules(region, usage, stamp_ms)
            shares, keys = self._keys(region, usage, stamp_ms)
        except (TypeError, AttributeError, KeyError, IndexError) as error:
            raise ValueError(f"not a usage message: {error!r}") from None
        for name in {**rules, **shares}:
            placed += _cells(name, name, region, begin_ms, stamp_ms, rules.get(name, (0, 0)), shares.get(name))
        for key, rule, grown, share in keys:
            placed += _cells(key, rule, region, begin_ms, stamp_ms, grown, share)
        everything = sum(grown[0] for grown in rules.values()), sum(grown[1] for grown in rules.values())
        placed += _cells(EVERYTHING, EVERYTHING, region, begin_ms, stamp_ms, everything, None)
        return placed

    def _begin_ms(self, region: str, stamp_ms: int) -> int:
        """The end of the last second that is told already."""
        this_second_ms = stamp_ms - stamp_ms % SECOND_MS - 1
        heard_ms = self._heard_ms.get(region)
        if heard_ms is None or not USUAL_GAP_MS < stamp_ms - heard_ms <= GAP_MOST_MS:
            return this_second_ms
        return heard_ms

    def _rules(self, region: str, usage: Mapping[str, Any], now_ms: int) -> dict[str, tuple[int, int]]:
        grown: dict[str, tuple[int, int]] = {}
        for node, rows in (usage.get("counted") or {}).items():
            source, was_before = self._source(f"{region}{NODE}{node}")
            for name, values in rows.items():
                if not is_own_row(name):
                    continue
                more = self._grow(source, name, values, now_ms, was_before=was_before)
                known = grown.get(name, (0, 0))
                grown[name] = known[0] + more[0], known[1] + more[1]
        return grown

    def _keys(
        self, region: str, usage: Mapping[str, Any], now_ms: int
    ) -> tuple[dict[str, tuple[int, ...]], list[tuple[str, str, tuple[int, int], tuple[int, ...]]]]:
        """Sums of shares by rule, and (key, rule, growth, share) of the keys that have a series."""
        phase = _phase(usage)
        sums: dict[str, tuple[int, ...]] = {}
        kept: list[tuple[str, str, tuple[int, int], tuple[int, ...]]] = []
        source, _ = self._source(f"{region}{AGENT}{usage['agent']}")
        for key, entry in usage["keys"].items():
            domain, rule_id = rule_of(key)
            rule = f"{domain}/{rule_id}"
            base, named = int(usage["bases"].get(domain, 0)), int((usage.get("floors") or {}).get(domain, 0))
            share = _share(entry["share"], base, floor_of(base, named), phase)
            # An agent's totals of a key begin with what its nodes had: of a new one, only what comes after is
            # growth.
            grown = self._grow(source, key, entry["totals"], now_ms, was_before=True)
            known = sums.get(rule, (0, 0, 0, 0))
            sums[rule] = tuple(a + b for a, b in zip(known, share, strict=True))
            if self._watch.note(rule, key, sum(grown), now_ms):
                kept.append((key, rule, grown, share))
        return sums, kept

    def _source(self, name: str) -> tuple[Totals, bool]:
        """Its totals; and whether it was there before: then others were heard of since, for which it had to go."""
        if self._state is not None:
            self._state.keep(name)
        totals = self._sources.pop(name, None)
        was_before = False
        if totals is None:
            totals = {}
            short = _short(name)
            was_before = self._forgets or short in self._let_go
            self._let_go.pop(short, None)
        self._sources[name] = totals  # the last heard stands last
        while len(self._sources) > SOURCES_MOST or (self._names > NAMES_MOST and len(self._sources) > 1):
            self._let_one_go()
        return totals, was_before

    def _let_one_go(self) -> None:
        """The one that was not heard for longest."""
        name = next(iter(self._sources))
        self._drop(name)
        self._let_go[_short(name)] = None
        if len(self._let_go) > LET_GO_MOST:
            del self._let_go[next(iter(self._let_go))]
            self._forgets = True

    def _drop(self, source: str) -> None:
        self._names -= len(self._sources.pop(source))

    def _grow(self, totals: Totals, name: str, values: Any, now_ms: int, *, was_before: bool) -> tuple[int, int]:
        """``was_before``: of a name that is not known, only what comes after is growth."""
        told = int(values[2]), int(values[3])
        known = totals.pop(name, None)
        if known is None:
            if len(totals) >= NAMES_A_SOURCE_MOST:
                del totals[next(iter(totals))]
            else:
                self._names += 1
            settling = self._settled_ms is not None and now_ms < self._settled_ms
            known = [*told, now_ms] if settling or was_before else [0, 0, now_ms]
        totals[name] = [max(known[0], told[0]), max(known[1], told[1]), now_ms]  # the last told stands last
        return max(0, told[0] - known[0]), max(0, told[1] - known[1])

    def forget(self, now_ms: int, after_ms: int, over_after_ms: int) -> None:
        """Sources of a region that was not heard for ``after_ms``, and those that a region which is heard has not
        told of for ``over_after_ms``: these are over, while a region that is cut off comes back with its own."""
        for source, totals in list(self._sources.items()):
            told_ms = max((one[2] for one in totals.values()), default=0)
            heard_ms = self._heard_ms.get(source.split(" ")[0], 0)
            if now_ms - told_ms > after_ms or heard_ms - told_ms > over_after_ms:
                self._drop(source)


_SHORT = 8


def _short(source: str) -> bytes:
    """A source's name in few bytes, the same in every process."""
    return blake2b(source.encode(), digest_size=_SHORT).digest()


def _phase(usage: Mapping[str, Any]) -> str:
    """What the region's shares are: its leases while its session lives, else the floor or the base."""
    points = usage["points"]
    if any((point.get("session_left_ms") or 0) > 0 for point in points):
        return "lease"
    return "floor" if any((point.get("consent_left_ms") or 0) > 0 for point in points) else "base"


def _share(told: int | None, base: int, floor: int, phase: str) -> tuple[int, int, int, int]:
    """One key: 1, its base, what is lent of it, what is borrowed."""
    units = base if phase == "base" or told is None or told == AT_BASE else int(told)
    if phase == "floor":
        units = floor
    return 1, base, max(0, base - units), max(0, units - base)


def _cells(
    name: str,
    rule: str,
    region: str,
    begin_ms: int,
    end_ms: int,
    grown: tuple[int, int],
    share: tuple[int, ...] | None,
) -> list[Placed]:
    """The growth spread over (begin, end]; the shares where they were told.

    Of a rule only what is not 0: that its region was heard stands in EVERYTHING.
    """
    by_minute = end_ms - begin_ms > BY_SECOND_MOST_MS
    step_ms = MINUTE_MS if by_minute else SECOND_MS
    if name == rule != EVERYTHING and grown == (0, 0):
        begin_ms = end_ms - end_ms % step_ms - 1
    last_ms = end_ms - end_ms % step_ms
    if begin_ms // step_ms + 1 >= last_ms // step_ms:  # as a rule: this is done some hundred times a message
        placed = [Placed(name, rule, region, last_ms, [*grown, 1, *_NO_SHARE], by_minute)]
    else:
        allowed, denied = (list(spread(total, begin_ms, end_ms, step_ms)) for total in grown)
        placed = [
            Placed(name, rule, region, at_ms, [part, denied[number][1], 1, *_NO_SHARE], by_minute)
            for number, (at_ms, part) in enumerate(allowed)
        ]
    if share is not None:
        placed[-1].cell[3:7] = share
    return placed


_NO_SHARE = empty_cell()[3:]
