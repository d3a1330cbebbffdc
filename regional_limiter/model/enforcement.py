"""The enforcement point: what share of a key is in force in one Redis primary, now.  Pure.

One variable per primary and loaded function library; ``store/functions`` holds the same rules in Lua.
All of it is kept or lost together.  Lost means: the floor for a whole consent, then the base, which is never
more than the leader counts.  So nothing here is replicated, and nothing here needs to be.

E1  every call begins with :meth:`Enforcement.enter`: a variable that is new, or whose clock went back or
    jumped by more than the gap, is born anew.
E2  :meth:`Enforcement.share`: in session the lease (or the base, or the floor when not all leases are known);
    after it, while the region's consent lasts, the floor; after that the base.
E3  :meth:`Enforcement.write`: the agent's write, ordered by (session, version), void for another instance.
E4  the history that ``share`` returns: since when the share holds, and what held before it, so that a lazily
    refilled bucket accrues at the share that was in force (see ``algorithms/token_bucket.py``).

What it was told of windows in escrow is in ``escrow.py``; it is kept and lost with the rest.

Besides, it knows which keys nodes have lately leased tokens of, and under which share: such tokens may be spent a
moment after the share has fallen, and the reply to the write that lowers it says so.

Times are integer microseconds of the primary's own clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from regional_limiter.model.decision import ShareKind
from regional_limiter.model.escrow import PointWindows, WindowNews, WindowUse
from regional_limiter.model.share import ProtocolTimes, domain_of_floor, floor_name, floor_of, window_static

BASE = -1
"""A lease value that means: whatever my base is."""
FLOOR = -2
"""Not a lease: what E2 says while a key has none and not all are known, or in consent without session."""
DEFAULT = -3
"""Not a lease: the key follows what holds for keys without a lease."""

LEASES_MOST = 50_000
LEASES_KEPT = 25_000
"""Above the first, leases that say nothing of their own are forgotten down to the second; a write that would
leave more is refused (and so never acknowledged)."""

DOMAINS_MOST = 1000
BASES_REMEMBERED = 8
"""Of each domain, with when they began: what a region's part of a window is, is decided by all of the window."""
LEASED_MOST = 5000
"""Keys that tokens are leased of at a time; of further ones none is."""


@dataclass(frozen=True, slots=True)
class Write:
    """One write of the agent.

    ``instance``: the instance that the agent knows (``nonce`` names an unnamed variable).  ``until_us``: end of
    the session on this primary's clock.  ``extend``: extend the consent from now.  ``leases``: key -> share or
    BASE.  ``all_known``: with this write every key that is not at BASE has been written.
    ``bases``: base per domain as of ``base_version``, and the floor where a set names one (``share.floor_name``).
    """

    nonce: str
    instance: str
    session: int
    version: int
    until_us: int
    extend: bool
    leases: Mapping[str, int]
    all_known: bool
    base_version: int
    bases: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WriteReply:
    """``accepted`` False only tells the instance and the time.

    ``resting``: keys of the write of which nodes may hold tokens that they leased under a larger share than now.
    """

    accepted: bool
    instance: str
    time_us: int
    age_us: int
    session: int
    version: int
    resting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareInForce:
    """``share`` holds since ``since_us``; ``share_before`` held from ``before_since_us`` until then.

    Where the share before is not known, ``before_since_us == since_us``.  ``floor``: what is not below it.
    """

    share: int
    kind: ShareKind
    since_us: int
    share_before: int
    before_since_us: int
    session_left_us: int
    consent_left_us: int
    floor: int = 0


@dataclass(slots=True)
class _Series:
    """What is in force (a lease value, BASE or FLOOR), since when, and what was before, since when."""

    now: int
    since: int
    before: int
    before_since: int

    def turn(self, value: int, at: int) -> None:
        if value != self.now:
            self.now, self.since, self.before, self.before_since = value, at, self.now, self.since

    def just_before(self, at: int) -> tuple[int, int]:
        """(what it was just before ``at``, since when), ``at`` no earlier than its last change."""
        return (self.before, self.before_since) if self.since == at else (self.now, self.since)

    def copy(self) -> _Series:
        return _Series(self.now, self.since, self.before, self.before_since)


@dataclass(slots=True)
class _Lease:
    value: int  # what the agent wrote: a share, BASE, or DEFAULT
    series: _Series  # what was in force as of the last write


@dataclass(slots=True)
class _Base:
    """``held``: (since when, base) of the last ones, oldest first.  ``floor``: as the set names it, else 0."""

    version: int
    series: _Series
    held: list[tuple[int, int]]
    floor: _Series

    def turn(self, base: int, at: int) -> None:
        if base == self.series.now:
            return
        self.series.turn(base, at)
        self.held.append((at, base))
        if len(self.held) > BASES_REMEMBERED:
            del self.held[0]

    def least_since(self, at: int) -> int:
        """The least base in force at any time from ``at`` until now; 0 where that is not known here."""
        least = self.series.now
        for since, base in reversed(self.held):
            least = min(least, base)
            if since <= at:
                return least
        return 0


@dataclass(slots=True)
class _Variable:
    born: int
    last: int
    written_at: int
    instance: str = ""
    named_at: int = 0
    session: int = 0
    version: int = 0
    until: int = 0
    consent: int = 0
    all_known: bool = False
    replication_id: str = ""
    default: _Series = field(default_factory=lambda: _Series(FLOOR, 0, FLOOR, 0))
    leases: dict[str, _Lease] = field(default_factory=dict)
    bases: dict[str, _Base] = field(default_factory=dict)
    base_version: int = -1
    vector: dict[str, int] = field(default_factory=dict)
    leased: dict[str, tuple[int, str]] = field(default_factory=dict)  # key -> (largest share, domain)
    leased_before: dict[str, tuple[int, str]] = field(default_factory=dict)
    leased_since: int = 0
    windows: PointWindows = field(default_factory=PointWindows)


class Enforcement:
    """One primary's variable.  ``times`` gives the gap and the consent."""

    def __init__(self, times: ProtocolTimes) -> None:
        self._gap_us = times.gap_us
        self._consent_us = times.consent_us
        self._lease_remembered_us = times.lease_remembered_us
        self._variable: _Variable | None = None
        self._births = 0

    # ---- E1

    def enter(self, now_us: int) -> None:
        """Start of every call."""
        variable = self._variable
        if variable is None or now_us < variable.last or now_us > variable.last + self._gap_us:
            self._born(now_us)
        else:
            variable.last = now_us

    def lose(self) -> None:
        """The process restarted, or the library was replaced: everything here is gone."""
        self._variable = None

    @property
    def births(self) -> int:
        """Grows with every loss: whatever else a point keeps in its variable is lost with it."""
        return self._births

    def _born(self, now_us: int) -> _Variable:
        self._births += 1
        variable = _Variable(
            born=now_us,
            last=now_us,
            written_at=now_us,
            consent=now_us + self._consent_us,
            leased_since=now_us,
        )
        variable.default = _Series(FLOOR, now_us, FLOOR, now_us)
        self._variable = variable
        return variable

    def _current(self) -> _Variable:
        if self._variable is None:
            raise RuntimeError("enter() begins every call")
        return self._variable

    # ---- E2

    def know_base(self, now_us: int, domain: str, version: int, base: int, floor: int = 0) -> None:
        """The caller's numbers count if their version is newer than the one known here; of equals the least.

        (Until a change of bases is done, what a region counts is the least of what it has read, and two readers
        may have read different parts.)  ``floor``: as the set names it, 0 if it does not.
        """
        variable = self._current()
        known = variable.bases.get(domain)
        if known is None:
            if len(variable.bases) < DOMAINS_MOST:
                bases, floors = _Series(base, now_us, base, now_us), _Series(floor, now_us, floor, now_us)
                variable.bases[domain] = _Base(version, bases, [(now_us, base)], floors)
        elif version > known.version:
            known.version = version
            known.turn(base, now_us)
            known.floor.turn(floor, now_us)
        elif version == known.version:
            known.turn(min(base, known.series.now), now_us)
            known.floor.turn(min(floor, known.floor.now), now_us)

    def known_bases(self) -> tuple[int, Mapping[str, int]]:
        """(version, base by domain) as the agent last wrote them; version -1: it has not."""
        variable = self._current()
        return variable.base_version, variable.vector

    def consent_left(self, now_us: int) -> int:
        """Microseconds for which the region is still bound by its consent (after ``enter``)."""
        return max(0, self._current().consent - now_us)

    def share(self, now_us: int, key: str, domain: str) -> ShareInForce:
        """What share of ``key`` is in force, and its history (after ``enter`` and ``know_base``)."""
        variable = self._current()
        series = self._in_force(variable, self._series_of(variable, key), now_us)
        known = variable.bases.get(domain)
        nothing = _Series(0, variable.born, 0, variable.born)
        bases, floors = (known.series, known.floor) if known else (nothing, nothing)
        since = max(series.since, bases.since, floors.since)
        value_before, value_since = series.just_before(since)
        base_before, base_since = bases.just_before(since)
        floor_before, floor_since = floors.just_before(since)
        kind = {BASE: ShareKind.BASE, FLOOR: ShareKind.FLOOR}.get(series.now, ShareKind.LEASE)
        return ShareInForce(
            share=_resolve(series.now, bases.now, floors.now),
            kind=kind,
            since_us=since,
            share_before=_resolve(value_before, base_before, floor_before),
            before_since_us=min(max(value_since, base_since, floor_since), since),
            session_left_us=max(0, variable.until - now_us),
            consent_left_us=max(0, variable.consent - now_us),
            floor=floor_of(bases.now, floors.now),
        )

    def _series_of(self, variable: _Variable, key: str) -> _Series:
        lease = variable.leases.get(key)
        if lease is None:
            return variable.default
        return lease.series

    def _in_force(self, variable: _Variable, series: _Series, now_us: int) -> _Series:
        """The series with the ends of session and consent that have passed since the last write."""
        current = series.copy()
        session_end, consent_end = variable.until, max(variable.until, variable.consent)
        if variable.written_at < session_end <= now_us and session_end < consent_end:
            current.turn(FLOOR, session_end)
        if variable.written_at < consent_end <= now_us:
            current.turn(BASE, consent_end)
        return current

    def _value_at(self, variable: _Variable, series: _Series, then_us: int) -> int:
        """What :meth:`_in_force` says last, without its history."""
        written_at, session_end = variable.written_at, variable.until
        consent_end = max(session_end, variable.consent)
        if written_at < consent_end <= then_us:
            return BASE
        return FLOOR if written_at < session_end <= then_us else series.now

    # ---- E3

    def write(self, now_us: int, write: Write, replication_id: str = "") -> WriteReply:
        """The agent's write (begins with E1).  Another server's replication id resets the variable."""
        self.enter(now_us)
        variable = self._current()
        if variable.replication_id and replication_id and variable.replication_id != replication_id:
            variable = self._born(now_us)
        variable.replication_id = replication_id
        if not variable.instance:
            variable.instance, variable.named_at = write.nonce, now_us
        accepted = (
            write.instance == variable.instance
            and write.session > 0
            and (write.session, write.version) > (variable.session, variable.version)
            and self._has_room(variable, write)
        )
        if accepted:
            self._apply(variable, now_us, write)
        return WriteReply(
            accepted,
            variable.instance,
            now_us,
            now_us - variable.named_at,
            write.session,
            write.version,
            tuple(key for key in write.leases if self._rests(variable, now_us, key)) if accepted else (),
        )

    def _apply(self, variable: _Variable, now_us: int, write: Write) -> None:
        new_session = write.session != variable.session
        in_session_throughout = not new_session and now_us < variable.until and now_us < write.until_us
        if not in_session_throughout:
            # Bring every series up to now before the timers that it depends on are moved.
            variable.default = self._in_force(variable, variable.default, now_us)
            for lease in variable.leases.values():
                lease.series = self._in_force(variable, lease.series, now_us)
        if new_session:
            variable.all_known = False
            for lease in variable.leases.values():
                lease.value = DEFAULT
        variable.session, variable.version, variable.until = write.session, write.version, write.until_us
        variable.written_at = now_us
        turned_known = write.all_known and not variable.all_known
        variable.all_known = variable.all_known or write.all_known
        if write.extend:
            variable.consent = max(variable.consent, now_us + self._consent_us)
        self._learn_bases(variable, now_us, write)
        for key, value in write.leases.items():
            known = variable.leases.setdefault(key, _Lease(value, variable.default.copy()))
            known.value = value
        if in_session_throughout and not turned_known:
            touched = [variable.leases[key] for key in write.leases]
        else:
            touched = list(variable.leases.values())
            variable.default.turn(self._says(variable, DEFAULT, now_us), now_us)
        for lease in touched:
            lease.series.turn(self._says(variable, lease.value, now_us), now_us)

    def _learn_bases(self, variable: _Variable, now_us: int, write: Write) -> None:
        """Bases of an older version than the one written last are a deposed process's: void."""
        if write.base_version < variable.base_version:
            return
        if write.base_version > variable.base_version:
            variable.base_version, variable.vector = write.base_version, {}
        for name, base in write.bases.items():
            if domain_of_floor(name) is None:
                self.know_base(now_us, name, write.base_version, base, write.bases.get(floor_name(name), 0))
            variable.vector[name] = min(base, variable.vector.get(name, base))

    def _says(self, variable: _Variable, value: int, now_us: int) -> int:
        """E2 for a lease value at a write."""
        if now_us < variable.until:
            if value == DEFAULT:
                return BASE if variable.all_known else FLOOR
            return value
        return FLOOR if now_us < variable.consent else BASE

    def _has_room(self, variable: _Variable, write: Write) -> bool:
        def needed() -> int:
            return len(variable.leases) + sum(key not in variable.leases for key in write.leases)

        if needed() > LEASES_MOST:
            self._forget(variable)
        return needed() <= LEASES_MOST

    def _forget(self, variable: _Variable) -> None:
        """Keys that follow what holds without a lease go, longest unchanged first.

        Their history becomes that of every key without a lease: unknown before the last of theirs, which is the
        strict side.
        """
        idle = sorted(
            (lease.series.since, key)
            for key, lease in variable.leases.items()
            if lease.value == DEFAULT or (lease.value == BASE and variable.all_known)
        )
        default = variable.default
        for since, key in idle[: max(0, len(variable.leases) - LEASES_KEPT)]:
            del variable.leases[key]
            default.since = default.before_since = max(default.since, since)
            default.before = default.now

    # ---- windows in escrow

    def window_share(self, now_us: int, key: str, domain: str, window: int, start_us: int) -> ShareInForce:
        """What may be used of one window of ``key``, which began at ``start_us`` (after ``know_base``).

        ``share_before``: what counts as used where no count of the window is stored: the variable is younger than
        the window, so there may have been one that was lost.  Nothing of it is in force by time.
        """
        variable = self._current()
        static = window_static(self._base_of_window(variable, domain, start_us))
        total, before = variable.windows.granted(key, window)
        is_young = variable.born > start_us - self._gap_us
        return ShareInForce(
            share=static + total,
            kind=ShareKind.LEASE if total else ShareKind.BASE,
            since_us=0,
            share_before=static + before if is_young else 0,
            before_since_us=0,
            session_left_us=max(0, variable.until - now_us),
            consent_left_us=max(0, variable.consent - now_us),
        )

    @staticmethod
    def _base_of_window(variable: _Variable, domain: str, start_us: int) -> int:
        """A base that was raised counts from the next window on: others may have used this one by the old bases."""
        known = variable.bases.get(domain)
        if known is None:
            return 0
        if variable.windows.is_vouched(domain, known.version, start_us):
            return known.series.now
        return known.least_since(start_us)

    def note_use(self, use: WindowUse) -> None:
        """A check has met a window that the agent should look at (after ``enter``)."""
        self._current().windows.note(use)

    def granted(self, key: str, window: int) -> int:
        """Share units granted of a window, as far as is known here (after ``enter``)."""
        return self._current().windows.granted(key, window)[0]

    def tell_windows(self, now_us: int, news: WindowNews) -> str:
        """What the region was granted of windows, and the like (begins with E1).  The name of this instance: what
        is meant for another is not taken."""
        self.enter(now_us)
        variable = self._current()
        variable.windows.vouch(news.base_version, news.since)
        if news.instance and news.instance == variable.instance:
            variable.windows.grant(now_us // 1000, news.granted)
        return variable.instance

    def take_uses(self) -> list[WindowUse]:
        """What was noted since the last time (after ``enter``)."""
        return self._current().windows.take_uses()

    # ---- token leases of nodes

    def may_be_leased(self, now_us: int, key: str) -> bool:
        """Whether a lease of the key could be noted (after ``enter``); if not, none is to be given."""
        variable = self._current()
        self._turn_leased(variable, now_us)
        return key in variable.leased or len(variable.leased) < LEASED_MOST

    def note_lease(self, key: str, domain: str, share: int) -> None:
        """Tokens of ``key`` were given to a node under ``share`` (after ``may_be_leased``)."""
        leased = self._current().leased
        leased[key] = (max(share, leased.get(key, (0, domain))[0]), domain)

    def _turn_leased(self, variable: _Variable, now_us: int) -> None:
        """What was leased is known for one to two turns: two tables instead of an end for each key."""
        passed_us = now_us - variable.leased_since
        if passed_us >= self._lease_remembered_us:
            variable.leased_before = variable.leased if passed_us < 2 * self._lease_remembered_us else {}
            variable.leased, variable.leased_since = {}, now_us

    def _rests(self, variable: _Variable, now_us: int, key: str) -> bool:
        self._turn_leased(variable, now_us)
        known = [table[key] for table in (variable.leased, variable.leased_before) if key in table]
        return any(leased > self.share(now_us, key, domain).share for leased, domain in known)

    # ---- for displays, tests and checkers

    @property
    def instance(self) -> str:
        return self._variable.instance if self._variable else ""

    def _alive(self, now_us: int) -> _Variable | None:
        """The variable, unless the next call would find it lost (E1)."""
        variable = self._variable
        if variable is None or now_us < variable.last or now_us > variable.last + self._gap_us:
            return None
        return variable

    def peek_share(self, now_us: int, key: str, base: int, floor: int = 0) -> int:
        """What a call would use now with this ``base`` and named ``floor``, without making the call."""
        if self._alive(now_us) is None:
            return floor_of(base, floor)
        return self.foresee_share(now_us, now_us, key, base, floor)

    def foresee_share(self, now_us: int, then_us: int, key: str, base: int, floor: int = 0) -> int:
        """What a call would use ``then_us``, if until then calls go on and nothing is written."""
        variable = self._alive(now_us)
        if variable is None:
            return base if then_us > now_us + self._consent_us + 2 else floor_of(base, floor)
        return _resolve(self._value_at(variable, self._series_of(variable, key), then_us), base, floor)

    def peek_base(self, now_us: int, domain: str) -> tuple[int, int, int] | None:
        """(version, base, named floor) of ``domain`` as known here; None: not known, or lost."""
        variable = self._alive(now_us)
        known = variable.bases.get(domain) if variable is not None else None
        return (known.version, known.series.now, known.floor.now) if known is not None else None

    def peek_consent_end(self, now_us: int) -> int | None:
        """When the consent ends or has ended, on this clock; None: lost."""
        variable = self._alive(now_us)
        return variable.consent if variable is not None else None


def _resolve(value: int, base: int, named_floor: int) -> int:
    floor = floor_of(base, named_floor)
    if value == BASE:
        return base
    return floor if value == FLOOR else max(floor, value)
