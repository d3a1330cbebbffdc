"""What the leader counts: the most that a region may be using of a key, now and until any session ends.  Pure.

    free(i)     con[i] <= now + S(D): its consent might end before a session that is extended now
    lease(k,i)  the largest record of a session that may still live; BASE reads as the booked base
    count(k,i)  max(lease, booked base if free, else the floor)
    room(k,i)   10,000 less the counts of the other regions
    fits        on every key the counts fit, or nobody holds more than its base (bases always fit)

A count rises only by this leader's own GROW, WELCOME or DONE, or when a region turns free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from global_sync.protocol.ledger import Entry, KeyLedger, Ledger, domain_of
from regional_limiter.model.enforcement import BASE
from regional_limiter.model.share import SHARE_UNITS, ProtocolTimes, domain_of_floor, floor_name, floor_of

Bases = Mapping[str, Mapping[str, int]]
UNKNOWN_CONSENT = -(2**62)


class _Moment(NamedTuple):
    """``alive``: sessions; ``resting``: domain -> region -> (base, what it uses without any lease at most)."""

    alive: set[tuple[str, int]]
    resting: dict[str, dict[str, tuple[int, int]]]


class Counts:
    """The ledger with the leader's clock: ends of sessions and consents."""

    def __init__(self, ledger: Ledger, times: ProtocolTimes, now_us: int) -> None:
        """At a takeover every session may live as long as one that was extended just now; no consent is known."""
        self.ledger = ledger
        self.times = times
        self.consents: dict[str, int] = {}
        self._session_counted_us = times.session_counted_us
        for session in ledger.sessions.values():
            session.end_us = now_us + self._session_counted_us

    # ---- time

    def consent(self, region: str) -> int:
        return self.consents.get(region, UNKNOWN_CONSENT)

    def raise_consent(self, region: str, echo_us: int) -> None:
        """Consent was extended after ``echo_us`` of this leader's clock had been read."""
        self.consents[region] = max(self.consent(region), echo_us + self.times.consent_counted_us)

    def free(self, region: str, now_us: int) -> bool:
        return self.consents.get(region, UNKNOWN_CONSENT) <= now_us + self._session_counted_us

    def alive(self, region: str, session: int, now_us: int) -> bool:
        known = self.ledger.sessions.get((region, session))
        return known is not None and now_us < known.end_us

    def extend(self, region: str, session: int, received_us: int) -> None:
        known = self.ledger.sessions[region, session]
        known.end_us = max(known.end_us, received_us + self._session_counted_us)

    # ---- one key

    def entries(self, key: str, region: str) -> list[Entry]:
        return self.ledger.keys.get(key, {}).get(region, [])

    def lease_max(self, key: str, region: str, now_us: int, booked: Bases | None = None) -> int:
        base = self._base(domain_of(key), region, booked)
        return self.lease_at(self.ledger.keys.get(key), region, base, now_us)

    def lease_at(self, ledger: KeyLedger | None, region: str, base: int, now_us: int) -> int:
        """The largest lease that may be in force by these records of a key; ``base``: what BASE reads as.

        The leader comes by here some hundred thousand times a second: no calls, no lists.
        """
        sessions = self.ledger.sessions
        if ledger is None:
            alive = any(name == region and now_us < known.end_us for (name, _), known in sessions.items())
            return base if alive else 0
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

    def floor(self, domain: str, region: str, booked: Bases | None = None) -> int:
        """What the region may use of a key of which it has less than that leased, or nothing."""
        known = self.ledger.booked if booked is None else booked
        base = known.get(domain, {}).get(region, 0)
        return floor_of(base, known.get(floor_name(domain), {}).get(region, 0))

    def count(self, key: str, region: str, now_us: int, booked: Bases | None = None) -> int:
        domain = domain_of(key)
        base = self._base(domain, region, booked)
        lease = self.lease_at(self.ledger.keys.get(key), region, base, now_us)
        return max(lease, self.resting(region, base, self.floor(domain, region, booked), now_us))

    def total(self, key: str, now_us: int, but: str | None = None, booked: Bases | None = None) -> int:
        domain, ledger, total = domain_of(key), self.ledger.keys.get(key), 0
        known = self.ledger.booked if booked is None else booked
        bases, floors = known.get(domain, {}), known.get(floor_name(domain), {})
        for region in self._regions(key):
            if region != but:
                base = bases.get(region, 0)
                lease = self.lease_at(ledger, region, base, now_us)
                resting = self.resting(region, base, floor_of(base, floors.get(region, 0)), now_us)
                total += lease if lease > resting else resting
        return total

    def room(self, key: str, region: str, now_us: int) -> int:
        return SHARE_UNITS - self.total(key, now_us, but=region)

    def fits(self, now_us: int, booked: Bases | None = None) -> bool:
        moment = self._moment(now_us, booked)
        return all(
            self._total_at(key, moment) <= SHARE_UNITS or self.key_fits(key, now_us, booked)
            for key in self._keys_to_check()
        )

    def _moment(self, now_us: int, booked: Bases | None) -> _Moment:
        """What is the same for every key of a domain, worked out once."""
        domains = self.ledger.booked if booked is None else booked
        named = self.ledger.bases
        resting: dict[str, dict[str, tuple[int, int]]] = {}
        for domain in domains.keys() | named.keys():
            if domain_of_floor(domain) is not None:
                continue
            bases = domains.get(domain, {})
            regions = bases.keys() | named.get(domain, {}).keys()
            resting[domain] = {}
            for region in regions:
                base, floor = bases.get(region, 0), self.floor(domain, region, booked)
                resting[domain][region] = (base, self.resting(region, base, floor, now_us))
        alive = {name for name, session in self.ledger.sessions.items() if now_us < session.end_us}
        return _Moment(alive, resting)

    def _total_at(self, key: str, moment: _Moment) -> int:
        """``total`` of a key that has records."""
        resting = moment.resting.get(domain_of(key), {})
        ledger = self.ledger.keys[key]
        total = sum(least for region, (_, least) in resting.items() if region not in ledger)
        for region, entries in ledger.items():
            base, count = resting.get(region, (0, 0))
            for entry in entries:
                value = base if entry.value == BASE else entry.value
                if value > count and (region, entry.session) in moment.alive:
                    count = value
            total += count
        return total

    def _keys_to_check(self) -> Iterable[str]:
        return self.ledger.keys

    def key_fits(self, key: str, now_us: int, booked: Bases | None = None) -> bool:
        if self.total(key, now_us, booked=booked) <= SHARE_UNITS:
            return True
        domain = domain_of(key)
        return all(
            self.lease_max(key, region, now_us, booked) <= self._base(domain, region, booked)
            for region in self._regions(key)
        )

    def _regions(self, key: str) -> Iterable[str]:
        """Every region that may use something of the key; in a domain that no configuration names, nobody."""
        by_region = self.ledger.booked.get(domain_of(key), {})
        ledger: KeyLedger = self.ledger.keys.get(key, {})
        return by_region.keys() | ledger.keys() | self.ledger.bases.get(domain_of(key), {}).keys()

    def _base(self, domain: str, region: str, booked: Bases | None) -> int:
        if booked is not None:
            return booked.get(domain, {}).get(region, 0)
        return self.ledger.base(domain, region)

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
