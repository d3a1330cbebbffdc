"""What leader and regions say to each other.  Pure and frozen; ``global_sync.codec`` turns them into bytes.

Log records are written by the leader only and read by everyone in the log's one order.  Reports may be lost,
repeated and reordered.  All times are microseconds of the clock that the field names.

A *key* is a bucket key (``regional_limiter.model.keys``).  A *session* is named by (region, number).
A *seq* is (epoch, n): which leader spoke, and the order of its records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Seq = tuple[int, int]
"""(epoch, n), compared lexicographically."""

Times = tuple[int, ...]
"""``ProtocolTimes.signature`` of the writer; empty: not said."""

Bases = Mapping[str, Mapping[str, int]]
"""domain -> region -> base share."""


class Kind(StrEnum):
    GROW = "grow"  # set the value; needs room
    KEEP = "keep"  # the minimum of current and new; always safe


@dataclass(frozen=True, slots=True)
class Mark:
    """Leadership ``epoch`` begins here.  ``leader_us``: the leader's clock before the append.

    ``times``: the writer's session, patience and gap.  They must be the same everywhere: each side counts on
    the other's.
    """

    epoch: int
    nonce: str
    leader_us: int
    times: Times = ()


@dataclass(frozen=True, slots=True)
class Beat:
    """The leader's clock.  ``renewals``: region -> (session, basis): the session lives to basis + D.

    ``receipts``: region -> (agent id, basis): that report has been taken in (so its keys need no repeating).
    """

    epoch: int
    leader_us: int
    renewals: Mapping[str, tuple[int, int]]
    receipts: Mapping[str, tuple[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Welcome:
    """Session ``session`` of ``region`` belongs to ``agent``.  Every key starts at BASE, except ``low``."""

    epoch: int
    n: int
    region: str
    agent: str
    session: int
    basis: int
    low: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """One lease of one region: GROW sets ``value``, KEEP takes the minimum.  BASE (-1) only with GROW."""

    epoch: int
    n: int
    key: str
    region: str
    session: int
    kind: Kind
    value: int


@dataclass(frozen=True, slots=True)
class Config:
    """New bases, as version ``version``: they may be lowered from here."""

    epoch: int
    version: int
    bases: Bases


@dataclass(frozen=True, slots=True)
class Done:
    """Bases of ``version`` may be raised from here.

    ``since``: since when nobody has more of a domain than these bases say; ms by the leader's wall clock, 0: ever
    (of a log that follows a lost one: by the clock of whoever began it).
    """

    epoch: int
    version: int
    since: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gone:
    """``region`` is destroyed, by an operator's word: what it held counts no more, its name is not used again.

    Unsafe if it is not true: a region that lives on uses its base, which others may have by then.
    """

    epoch: int
    region: str


@dataclass(frozen=True, slots=True)
class WindowGrant:
    """``region`` was granted ``total`` share units of one window of ``key`` in all, on top of its static part.

    ``window``: its number, as the stores name it; ``end_ms``: when it ends, by their clocks.  Of any number of
    these the largest counts, whoever tells of it and however late.
    """

    epoch: int
    n: int
    key: str
    region: str
    window: int
    end_ms: int
    total: int


WindowTotals = tuple[int, int, Mapping[str, int]]
"""(window, end_ms, region -> total)."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Part ``part`` of ``parts`` of the leader's ledger, verbatim; valid once every part has been read.

    Part 0 carries all but the keys: ``sessions`` alive as (region, number, seq of its WELCOME), ``current``
    session by region, ``agents`` as region -> agent id -> session, configuration and booked bases, and the regions
    that are ``gone``.  Every part carries ``ledger``: key -> region -> [(seq, value, session)].  ``number`` grows
    within an epoch: a snapshot that is not newer than one already read is a repeat and void.

    ``windows``: key -> what was granted of its windows, in parts of their own; of windows that ended at or
    before ``windows_ended_ms`` nothing is known any more, and nothing may be granted; nor of windows that began
    before ``windows_from_ms``, since a log that is lost may have told of those.  ``since``: of the newest DONE;
    below 0 of a domain that a later CONFIG has changed.
    """

    epoch: int
    number: int
    part: int
    parts: int
    sessions: tuple[tuple[str, int, Seq], ...]
    current: Mapping[str, int]
    agents: Mapping[str, Mapping[str, int]]
    version: int
    bases: Bases
    done_version: int
    booked: Bases
    ledger: Mapping[str, Mapping[str, tuple[tuple[Seq, int, int], ...]]]
    times: Times = ()
    gone: tuple[str, ...] = ()
    windows: Mapping[str, tuple[WindowTotals, ...]] = field(default_factory=dict)
    windows_ended_ms: int = 0
    since: Mapping[str, int] = field(default_factory=dict)
    windows_from_ms: int = 0


Record = Mark | Beat | Welcome | LeaseRecord | Config | Done | Gone | WindowGrant | Snapshot


@dataclass(frozen=True, slots=True)
class WindowAsk:
    """What a region would have granted of one window, in share units: ``wanted`` in all, ``held`` so far as it has
    read; less than ``least`` at a time is no token."""

    window: int
    end_ms: int
    held: int
    wanted: int
    least: int


@dataclass(frozen=True, slots=True)
class Want:
    """What a region would use of a key if nobody limited it, in share units (may exceed 10,000)."""

    want: int
    peak: int


@dataclass(frozen=True, slots=True)
class Report:
    """A region's word to every coordinator.

    ``session`` 0: hello.  ``basis``: this process's counter.  Everything else is *settled*: ``echo``: consent
    was extended after this leader time had been read, in that epoch; ``base_version``: bases of that version
    or lower are in force; ``settled``: key -> (seq, hold): by records up to seq the region never uses more
    than hold in this session (BASE: its base).  ``wants`` and ``settled`` carry what has changed since the
    last receipt.  So do ``asks``: of which windows it would have more.
    """

    region: str
    agent: str
    session: int
    basis: int
    echo: tuple[int, int]
    base_version: int
    settled: Mapping[str, tuple[Seq, int]]
    wants: Mapping[str, Want] = field(default_factory=dict)
    times: Times = ()
    asks: Mapping[str, WindowAsk] = field(default_factory=dict)
