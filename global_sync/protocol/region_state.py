"""What a region's agent knows: view, session, keys, bases, points.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from global_sync.protocol.escrow import EscrowRegion
from global_sync.protocol.invariants import Evidence
from global_sync.protocol.ledger import domain_of
from global_sync.protocol.messages import Seq, Want, WindowAsk
from global_sync.protocol.points import NEVER, LeaderTime, Listing, ListingStart, Point
from global_sync.protocol.snapshots import SnapshotParts
from regional_limiter.model.enforcement import BASE
from regional_limiter.model.share import ProtocolTimes

KEYS_MOST = 100_000
MARKS_KEPT = 400
STATES_KEPT = 16
LISTINGS_KEPT = 16
LAST_SESSION = LAST_VERSION = 2**52
"""Above every session and every version of bases, and exact where numbers are doubles: of a region that is gone."""
_NO_SEQ: Seq = (0, 0)


class KeyState(NamedTuple):
    """A key's lease value from ``stamp`` on, by records up to ``seq``."""

    stamp: int
    seq: Seq
    value: int


@dataclass(slots=True)
class KeyHistory:
    """``states``: the newest last, from the last settled one on.

    ``void_up_to``: records up to this seq belong to an earlier life of the key.  ``released``: the newest record
    says BASE, and the region holds less by its own will.
    """

    states: list[KeyState]
    void_up_to: Seq
    released: bool = False
    settled: tuple[Seq, int] | None = None

    @property
    def state(self) -> KeyState:
        return self.states[-1]

    def add(self, state: KeyState) -> None:
        self.states.append(state)
        if len(self.states) > STATES_KEPT:
            del self.states[1]


@dataclass(slots=True)
class SentReport:
    settled: dict[str, tuple[Seq, int]] = field(default_factory=dict)
    wants: dict[str, Want] = field(default_factory=dict)
    asks: dict[str, WindowAsk] = field(default_factory=dict)


class RegionState:
    """The agent's protocol state, and what others may look at."""

    def __init__(self, region: str, agent_id: str, times: ProtocolTimes) -> None:
        self.region = region
        self.times = times
        self.evidence = Evidence()
        self._wants: dict[str, Want] = {}
        self._listing_token = 0  # goes on after a restart: a listing begun before it settles nothing
        self._start(agent_id)

    def _start(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.epoch = 0
        self.session = 0
        self.deposed = False
        self.gone = False
        """This region was said to be destroyed: it has no base any more, whatever later records say."""
        self.keys_refused = 0
        self._welcome_seq: Seq = _NO_SEQ
        self._watermark: Seq = _NO_SEQ
        self._snapshot = SnapshotParts()
        self._at_start = True
        self._leader_time: LeaderTime = NEVER
        self._settled_time: LeaderTime = NEVER
        self._config_version = 0
        self._done = False
        self._bases: dict[str, int] = {}
        self._next_bases: dict[str, int] = {}
        self._bases_since: dict[str, int] = {}
        self._settled_base_version = 0
        self._stamp = 1
        self._keys: dict[str, KeyHistory] = {}
        self._open: dict[str, None] = {}
        self._before_base: dict[str, int] = {}
        self._points: dict[str, Point] = {}
        self._version = 0
        self._listing: Listing | None = None
        self._listings_begun: dict[int, ListingStart] = {}
        self._basis = 0
        self._marks: dict[int, dict[str, tuple[str, int]]] = {}
        self._sent_reports: dict[int, SentReport] = {}
        self._unreported: dict[str, None] = {}
        self._unreported_wants: dict[str, None] = dict.fromkeys(self._wants)
        self.escrow = EscrowRegion(self.region)
        self.news = True

    def restart(self, agent_id: str) -> None:
        """Records were missed (A7): begin again as a new process.  Wants are kept: they are the region's."""
        self._start(agent_id)

    # ---- what others may look at

    @property
    def base_version(self) -> int:
        """2 * the CONFIG's version, plus 1 once its DONE has been read: as written to points and nodes."""
        if self.gone:
            return LAST_VERSION
        return 2 * self._config_version + self._done

    @property
    def bases(self) -> Mapping[str, int]:
        return self._bases

    @property
    def bases_since(self) -> Mapping[str, int]:
        """By domain: in a window that began no earlier (in ms since 1970) the base may be used as it is."""
        return self._bases_since

    @property
    def points(self) -> frozenset[str]:
        """The points that are written: those of the newest listing."""
        return frozenset(self._points)

    def want(self, key: str) -> Want | None:
        return self._wants.get(key)

    @property
    def settled_echo(self) -> LeaderTime:
        return self._settled_time

    @property
    def settled_base_version(self) -> int:
        return self._settled_base_version

    @property
    def listing_due(self) -> bool:
        """Something has been read since the newest listing began: only another listing can settle it."""
        return self._listing is None or self._stamp > self._listing.start.stamp

    def shares(self) -> dict[str, int]:
        """Lease value by key; a key that is not here is at BASE."""
        return {key: entry.state.value for key, entry in self._keys.items()}

    def held(self, key: str) -> tuple[int, bool]:
        """(the key's share as a number, whether it has a lease of its own)."""
        return self._present(key), key in self._keys

    # ---- keys

    def _present(self, key: str) -> int:
        """The key's lease as a number."""
        entry = self._keys.get(key)
        if entry is None or entry.state.value == BASE:
            return self._bases.get(domain_of(key), 0)
        return entry.state.value

    def _set(self, key: str, seq: Seq, value: int) -> None:
        self._stamp += 1
        state = KeyState(self._stamp, seq, value)
        entry = self._keys.get(key)
        if entry is not None:
            entry.add(state)
        elif len(self._keys) < KEYS_MOST:
            self._keys[key] = KeyHistory([state], self._watermark)
        else:
            self.keys_refused += 1  # never acknowledged, so the leader goes on counting it
            return
        self._open[key] = None
        for point in self._points.values():
            point.pending[key] = None
