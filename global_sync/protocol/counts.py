"""What the leader counts: the most that a region may be using of a key, now and until any session ends.  Pure.

    free(i)     con[i] <= now + S(D): its consent might end before a session that is extended now
    lease(k,i)  the largest record of a session that may still live; BASE reads as the booked base
    count(k,i)  max(lease, booked base if free, else the floor)
    room(k,i)   10,000 less the counts of the other regions
    fits        on every key the counts fit, or nobody holds more than its base (bases always fit)

A count rises only by this leader's own GROW, WELCOME or DONE, or when a region turns free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from global_sync.protocol.ledger import KeyLedger, Ledger, domain_of
from regional_limiter.model.enforcement import BASE
from regional_limiter.model.share import SHARE_UNITS, ProtocolTimes, floor_name, floor_of

Bases = Mapping[str, Mapping[str, int]]
UNKNOWN_CONSENT = -(2**62)


class Resting(NamedTuple):
    """Of a domain at one moment.  ``of``: region -> (base, what it uses without any lease at most); ``total``: of
    the latter."""

    of: dict[str, tuple[int, int]]
    total: int


_NO_BASE = (0, 0)


class Counts:
    """The ledger with the leader's clock: ends of sessions and consents."""

    def __init__(self, ledger: Ledger, times: ProtocolTimes, now_us: int) -> None:
        """At a takeover every session may live as long as one that was extended just now; no consent is known."""
        self.ledger = ledger
        self.times = times
        self.consents: dict[str, int] = {}
        self._session_counted_us = times.session_counted_us
        self._resting_us = now_us
        self._resting_changes = ledger.changes
        self._resting: dict[str, Resting] = {}
        self._fitted: tuple[object, ...] = ()
        self._unfit: set[str] = set()
        self._touched: set[str] = set()
        ledger.touched = self._touched
        for session in ledger.sessions.values():
            session.end_us = now_us + self._session_counted_us

    # ---- time

    def consent(self, region: str) -> int:
        return self.consents.get(region, UNKNOWN_CONSENT)

    def raise_consent(self, region: str, echo_us: int) -> None:
        """Consent was extended after ``echo_us`` of this leader's clock had been read."""
        self.consents[region] = max(self.consent(region), echo_us + self.times.consent_counted_us)
        self._resting.clear()

    def free(self, region: str, now_us: int) -> bool:
        return self.consents.get(region, UNKNOWN_CONSENT) <= now_us + self._session_counted_us

    def alive(self, region: str, session: int, now_us: int) -> bool:
        known = self.ledger.sessions.get((region, session))
        return known is not None and now_us < known.end_us

    def extend(self, region: str, session: int, received_us: int) -> None:
        known = self.ledger.sessions[region, session]
        known.end_us = max(known.end_us, received_us + self._session_counted_us)

    # ---- one key

    def lease_max(self, key: str, region: str, now_us: int) -> int:
        base = self.ledger.base(domain_of(key), region)
        return self.lease_at(self.ledger.keys.get(key), region, base, now_us)

    def lease_at(self, ledger: KeyLedger | None, region: str, base: int, now_us: int) -> int:
        """The largest lease that may be in force by these records of a key; ``base``: what BASE reads as.

        The leader comes by here some hundred thousand times a second: no calls, no lists.
        """
        sessions = self.ledger.sessions
        if ledger is None:
            for (name, _), session in sessions.items():
                if name == region and now_us < session.end_us:
                    return base
            return 0
        most = 0
        for entry in ledger.get(region, ()):
            value = base if entry.value == BASE else entry.value
            if value > most:
                known = sessions.get((region, entry.session))
                if known is not None and now_us < known.end_us:
                    most = value
        return most

    def resting(self, region: str, base: int, floor: int, now_us: int) -> int:
        """What a region uses without any lease, at most."""
        return base if self.free(region, now_us) else floor

    def count(self, key: str, region: str, now_us: int) -> int:
        base, resting = self._resting_of(domain_of(key), now_us).of.get(region, _NO_BASE)
        ledger = self.ledger.keys.get(key)
        if ledger is None and base <= resting:
            return resting
        lease = self.lease_at(ledger, region, base, now_us)
        return lease if lease > resting else resting

    def total(self, key: str, now_us: int) -> int:
        """The sum of the counts of all regions."""
        return self._total_beside(self._resting_of(domain_of(key), now_us), key, now_us)

    def _total_beside(self, resting: Resting, key: str, now_us: int) -> int:
        ledger, total = self.ledger.keys.get(key), resting.total
        for region in resting.of if ledger is None else ledger:
            base, least = resting.of.get(region, _NO_BASE)
            lease = self.lease_at(ledger, region, base, now_us)
            if lease > least:
                total += lease - least
        return total

    def _resting_of(self, domain: str, now_us: int) -> Resting:
        """Worked out once for all keys of a domain that are looked at in one moment, as long as no base, and no
        consent, changes."""
        if self._resting_us != now_us or self._resting_changes != self.ledger.changes:
            self._resting_us, self._resting_changes = now_us, self.ledger.changes
            self._resting.clear()
        known = self._resting.get(domain)
        if known is None:
            known = self._resting[domain] = self._rest(domain, now_us, self.ledger.booked)
        return known

    def _rest(self, domain: str, now_us: int, booked: Bases) -> Resting:
        bases, floors = booked.get(domain, {}), booked.get(floor_name(domain), {})
        of = {}
        for region in bases.keys() | self.ledger.bases.get(domain, {}).keys():
            base = bases.get(region, 0)
            of[region] = (base, self.resting(region, base, floor_of(base, floors.get(region, 0)), now_us))
        return Resting(of, sum([least for _, least in of.values()]))

    def room(self, key: str, region: str, now_us: int) -> int:
        return SHARE_UNITS - self.total(key, now_us) + self.count(key, region, now_us)

    def fits(self, now_us: int, booked: Bases | None = None) -> bool:
        """Every key fits.  ``booked``: with these bases instead of the booked ones.

        A key that did fit goes on doing so until its records change, or anything that all keys depend on does: who
        is alive, whose consent is known to last, the bases.  So only such keys are looked at again.
        """
        if booked is not None:
            domains = {domain_of(key) for key in self.ledger.keys}
            resting = {domain: self._rest(domain, now_us, booked) for domain in domains}
            return all(self.key_fits(key, now_us, resting[domain_of(key)]) for key in self.ledger.keys)
        alive = frozenset([name for name, session in self.ledger.sessions.items() if now_us < session.end_us])
        bound = frozenset([region for region in self.consents if not self.free(region, now_us)])
        moment, known = (alive, bound, self.ledger.changes), self.ledger.keys
        again = self._unfit | self._touched if moment == self._fitted else known
        self._unfit = {
            key
            for key in again
            if key in known and not self.key_fits(key, now_us, self._resting_of(domain_of(key), now_us))
        }
        self._fitted = moment
        self._touched.clear()
        return not self._unfit

    def key_fits(self, key: str, now_us: int, resting: Resting) -> bool:
        """``resting``: of the key's domain."""
        return self._total_beside(resting, key, now_us) <= SHARE_UNITS or self._all_at_base(resting, key, now_us)

    def _all_at_base(self, resting: Resting, key: str, now_us: int) -> bool:
        """Nobody has more of the key leased than its base."""
        ledger = self.ledger.keys[key]
        for region in ledger:
            base, _ = resting.of.get(region, _NO_BASE)
            if self.lease_at(ledger, region, base, now_us) > base:
                return False
        return True

    # ---- what is dead

    def forget_dead(self, now_us: int) -> None:
        """Drop sessions that are over (but the current ones, which a new one follows) and their records."""
        dead = [
            (region, number)
            for (region, number), session in self.ledger.sessions.items()
            if now_us >= session.end_us and self.ledger.current.get(region) != number
        ]
        for name in dead:
            del self.ledger.sessions[name]

    def drop_dead_records(self, key: str, now_us: int) -> None:
        ledger = self.ledger.keys[key]
        for region in list(ledger):
            ledger[region] = [entry for entry in ledger[region] if self.alive(region, entry.session, now_us)]
            if not ledger[region]:
                del ledger[region]

    def is_at_base(self, key: str) -> bool:
        """Every record left is an acknowledged (or implicit) BASE: as good as no record at all."""
        return all(
            entry.value == BASE and (entry.acked or entry.implicit)
            for entries in self.ledger.keys[key].values()
            for entry in entries
        )
