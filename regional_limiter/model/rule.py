"""What is configured: rules and rule sets, after parsing.  Pure and frozen.

``regional_limiter.rules.parse`` makes these from YAML or JSON; nothing else constructs a RuleSet in production.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network

from regional_limiter.model.home import Homes
from regional_limiter.model.share import FLOOR_PER_MILLE, SHARE_UNITS, floor_of, named_floors


class Algorithm(StrEnum):
    TOKEN_BUCKET = "token_bucket"
    LEAKY_BUCKET = "leaky_bucket"
    GCRA = "gcra"
    FIXED_WINDOW = "fixed_window"
    SLIDING_WINDOW_COUNTER = "sliding_window_counter"
    SLIDING_WINDOW_LOG = "sliding_window_log"
    CONCURRENCY = "concurrency"


class Scope(StrEnum):
    REGION = "region"
    GLOBAL = "global"


class Distribution(StrEnum):
    """How a global limit is split: ``adaptive`` by the share protocol, ``static`` by the bases alone, ``home`` not
    at all (each key has one bucket, in one region)."""

    ADAPTIVE = "adaptive"
    STATIC = "static"
    HOME = "home"


class OnStoreFailure(StrEnum):
    LOCAL = "local"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Rate:
    """``tokens`` per ``period_ms`` milliseconds, as a reduced fraction; both > 0."""

    tokens: int
    period_ms: int


class CalendarUnit(StrEnum):
    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    YEAR = "year"


@dataclass(frozen=True, slots=True)
class CalendarWindow:
    """A window that begins with every ``unit`` of the calendar in ``zone`` (IANA name); weeks begin on Monday."""

    unit: CalendarUnit
    zone: str = "UTC"


Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Condition:
    """One attribute of ``match``, by texts, networks, or a range of numbers.

    Texts: the value must equal one of ``exact`` or fit one of ``wildcards``.  ``negated``: it must do neither; a
    check that does not have the attribute meets that too.  ``networks``: the value must be an address in one of
    them.  ``low`` and ``high``: it must be a number from the one to the other, both included; None: no bound.
    """

    attribute: str
    exact: frozenset[str] = frozenset()
    wildcards: tuple[str, ...] = ()
    negated: bool = False
    networks: tuple[Network, ...] = ()
    low: Decimal | None = None
    high: Decimal | None = None

    @property
    def is_range(self) -> bool:
        return self.low is not None or self.high is not None


class NormalForm(StrEnum):
    TRIM = "trim"
    LOWER = "lower"
    NFC = "nfc"
    PATH = "path"
    ADDRESS = "address"
    ADDRESS_64 = "address_64"


class Priority(StrEnum):
    CRITICAL = "critical"
    NORMAL = "normal"
    LOW = "low"


class Shed(StrEnum):
    """What a check is told that is shed under overload."""

    ALLOW = "allow"
    DENY = "deny"


class Mode(StrEnum):
    """``shadow``: counts what it would deny, changes no answer.  ``soft``: allows past its limit, and says so."""

    ENFORCE = "enforce"
    SHADOW = "shadow"
    SOFT = "soft"


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """A cost read off a number: ``attribute`` / ``per``, rounded up, at least ``at_least`` (>= 1)."""

    attribute: str
    per: int = 1
    at_least: int = 1


@dataclass(frozen=True, slots=True)
class Rule:
    """One limit.

    ``capacity`` is tokens (the buckets, gcra), requests a window (the windows) or slots (concurrency).  ``refill``
    is set for token_bucket, gcra and leaky_bucket (its leak); ``window_ms`` for the windows, or ``calendar`` for
    fixed_window; ``lease_ms`` for concurrency; ``queue`` only for leaky_bucket.

    ``homes``: of a rule whose distribution is home, which region has which key.  ``split``: over how many
    sub-buckets a key is spread.

    ``stop``: where this rule matches, later ones do not apply.  ``replaces``: the ids of rules that do not apply to
    a request that this one applies to.  ``unlimited``: it counts and never limits, and may have no numbers
    (capacity 0).  ``blocked``: it denies (only by an override).  ``cost``: what the rule adds to
    the cost of a check, or how it measures the cost instead.  ``normalise``: the normal forms in which the rule
    sees attributes.  ``canary``: the version that some keys meet instead.  ``source`` is the rule as its author
    wrote it.
    """

    id: str
    domain: str
    match: tuple[Condition, ...]
    key: tuple[str, ...]
    algorithm: Algorithm
    capacity: int
    refill: Rate | None
    window_ms: int | None
    calendar: CalendarWindow | None = None
    queue: bool = False
    lease_ms: int | None = None
    scope: Scope = Scope.REGION
    distribution: Distribution = Distribution.ADAPTIVE
    homes: Homes | None = None
    on_store_failure: OnStoreFailure = OnStoreFailure.LOCAL
    charge_denied: bool = False
    hash_key: bool = False
    headers: bool = True
    stop: bool = False
    replaces: tuple[str, ...] = ()
    unlimited: bool = False
    blocked: bool = False
    priority: Priority = Priority.NORMAL
    shed: Shed = Shed.ALLOW
    split: int = 1
    cost: int | MeasuredCost = 0
    normalise: tuple[tuple[str, tuple[NormalForm, ...]], ...] = ()
    mode: Mode = Mode.ENFORCE
    canary: Canary | None = None
    description: str = ""
    source: Mapping[str, object] = field(default_factory=dict, compare=False)


CANARY_PARTS = 10_000


@dataclass(frozen=True, slots=True)
class Canary:
    """Another version of a rule for some of its keys.  ``parts``: how many of 10,000 keys meet it; which ones a
    keyed hash of the key tells, the same in every region.  ``in_force``: the rule as it is for them."""

    parts: int
    in_force: Rule

    def meets(self, key_hash: bytes) -> bool:
        return int.from_bytes(key_hash[:4]) % CANARY_PARTS < self.parts


@dataclass(frozen=True, slots=True)
class Override:
    """One key of one rule that has other numbers, none, or no access.  ``in_force``: the rule as it is for it.

    ``until_ms``: when the leader takes it out, in milliseconds since 1970; None: nobody does.
    """

    in_force: Rule
    why: str = ""
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """What we know of a client: a check whose attributes include ``where`` gets ``attributes`` where unset."""

    where: Mapping[str, str]
    attributes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StoredSubjects:
    """More is known of clients than a set can name: it is looked up in the region's store.

    ``keep_ms``: how old what a node has looked up may be.
    """

    keep_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class RuleSet:
    """All rules of one domain, taken whole.

    ``bases``: base share per region (sums to 10,000).  ``floor_per_mille``: the part of each that is never lent.
    ``addresses``: where the nodes of a region answer those of others.
    ``overrides``: by the id of the rule, then by the values of
    its key attributes, in their order and in the rule's normal forms.  ``source`` is the document as parsed, for
    export.
    """

    domain: str
    regions: Mapping[str, int]
    bases: Mapping[str, int]
    defaults: Mapping[str, str]
    subjects: tuple[Subject, ...]
    rules: tuple[Rule, ...]
    overrides: Mapping[str, Mapping[tuple[str, ...], Override]] = field(default_factory=dict)
    stored_subjects: StoredSubjects | None = None
    floor_per_mille: int = FLOOR_PER_MILLE
    addresses: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, object] = field(default_factory=dict, compare=False)

    @property
    def floors(self) -> Mapping[str, int]:
        """By region, where the set names more than is usual."""
        return named_floors(self.bases, self.floor_per_mille)

    def floor(self, region: str) -> int:
        """What ``region`` never lends of its base."""
        return floor_of(self.bases.get(region, 0), self.floors.get(region, 0))

    def largest_share(self, region: str) -> int:
        """The largest share that ``region`` can come to hold: the whole without the floors of the others."""
        floors = self.floors
        others = (floor_of(base, floors.get(name, 0)) for name, base in self.bases.items() if name != region)
        return SHARE_UNITS - sum(others)
