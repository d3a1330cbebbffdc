"""The contracts of a region's store: what a check needs of it, what a node tells it, what the agent does to it.

Two stores fulfil them: ``memory.py`` (embedded mode and simulation) and ``redis_cluster.py``.  One suite,
``tests/contract``, runs against both.

A *point* is one enforcement point: a primary of the region's Redis Cluster and one loaded version of the
function library, named ``host:port/version``.  Everything but buckets lives in the library variable of a
point: leases, bases, beats, demand, usage totals, rules.  All of it is lost together and written again by
nodes and agent within a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol, runtime_checkable

from regional_limiter.model.decision import ShareKind, Verdict
from regional_limiter.model.enforcement import Write, WriteReply
from regional_limiter.model.escrow import WindowNews, WindowUse
from regional_limiter.model.home import Elsewhere
from regional_limiter.model.rule import Algorithm, CalendarWindow, Rate
from regional_limiter.model.share import SHARE_UNITS, region_capacity

RECORD_MS = 60_000
"""How long the answer to a ``request_id``, and what it charged, are remembered."""
DEMAND_MOST = 10_000
KEYS_TOLD = 200
"""How many of its busiest keys of global rules a node tells the totals of."""
DEMAND_A_REPLY = 2000
BEATS_MOST = 1000
BEAT_YOUNG_US = 5_000_000
CROWDED_FROM = 0.75
"""Of the bound of a queue of checks: past it the queue is crowded."""


class Sharing(IntEnum):
    """How a bucket's share is found: always 10,000; the base that the call carries; the share protocol."""

    WHOLE = 0
    STATIC = 1
    ADAPTIVE = 2


@dataclass(frozen=True, slots=True)
class BucketCall:
    """One rule of one check, compiled: everything that a store needs to decide and charge it.

    ``regions``: how many regions share the limit (1 for region scope).  ``largest_share``: the most that this
    region can come to hold of an adaptive one.  ``base`` as of ``base_version`` is this region's number for
    ``domain``, and ``floor`` what the set names as never lent of it (0: the usual part).  ``extra``: what rounding
    down leaves to it of a static limit that counts in whole units.
    ``cost`` 0 peeks: changes nothing.

    By kind: ``refill`` of the buckets, ``queue`` of a leaky bucket; ``window_ms`` of the windows, or ``calendar``
    of a fixed window; ``lease_ms`` and ``holder`` (who takes or releases; "" elsewhere) of concurrency.

    ``was_allowed``, only with ``charge_denied``: a node has allowed it already, without the store.  What is charged
    although it is not left is answered, and remembered of its request, as allowed.

    ``split``: over how many sub-buckets the key is spread; a store itself only takes 1 (see ``split_calls``).

    ``elsewhere``: in which other region the bucket is; a store itself only takes what is here (see ``home_calls``).

    ``packed`` is the store's memory of how this call is written for it, and no part of what is asked.
    """

    key: str
    algorithm: Algorithm
    capacity: int
    refill: Rate | None
    window_ms: int | None
    cost: int
    charge_denied: bool = False
    sharing: Sharing = Sharing.WHOLE
    regions: int = 1
    largest_share: int = SHARE_UNITS
    domain: str = ""
    base_version: int = 0
    base: int = SHARE_UNITS
    floor: int = 0
    extra: int = 0
    queue: bool = False
    calendar: CalendarWindow | None = None
    lease_ms: int | None = None
    holder: str = ""
    split: int = 1
    was_allowed: bool = False
    elsewhere: Elsewhere | None = None
    packed: bytes = field(default=b"", init=False, compare=False, repr=False)

    @property
    def part(self) -> int:
        """What this region may allow of a limit that follows no moving share."""
        if self.sharing is Sharing.WHOLE:
            return self.capacity
        return region_capacity(self.capacity, self.base, self.regions) + self.extra

    @property
    def largest(self) -> int:
        """A cost above it ``exceeds_capacity``: what one bucket here can come to hold of the whole."""
        if self.sharing is Sharing.ADAPTIVE:
            return region_capacity(self.capacity, self.largest_share, self.regions)
        return -(-self.capacity // self.split)


@dataclass(frozen=True, slots=True)
class ReturnedLease:
    """A token lease that a node gives back: ``tokens`` that would be out until ``edge_ms``, of them ``unspent``."""

    edge_ms: int
    tokens: int
    unspent: int


@dataclass(frozen=True, slots=True)
class TokenLease:
    """What a node was given of a bucket to spend without asking, and the bucket as that left it.

    ``tokens`` 0: nothing was given.  They may be spent for ``ends_in_us`` from *before the call was sent*, and come
    back until ``edge_ms`` of the store's clock.  ``credited``: the unspent tokens that the bucket took back.
    """

    tokens: int
    edge_ms: int
    ends_in_us: int
    credited: int
    remaining: int
    reset_after_ms: int
    share: int
    share_kind: ShareKind
    session_left_us: int
    consent_left_us: int


@dataclass(frozen=True, slots=True)
class RuleTotals:
    """Running totals of one rule on one node since the node started (they only grow; merged by maximum).

    ``degraded``: decided without the store, or at the floor; ``at_floor``: those of them that the store decided.
    """

    allowed: int = 0
    denied: int = 0
    allowed_cost: int = 0
    denied_cost: int = 0
    degraded: int = 0
    at_floor: int = 0


@dataclass(frozen=True, slots=True)
class NodeBeat:
    """What a node says of itself with every touch.

    ``node``: stable name; ``incarnation``: random, new at each start.  ``base_version``: the newest version of
    the bases that the node has stored on disk (-1: none).  ``usage``: running totals by ``domain/rule``.
    ``key_usage``: running totals of the node's busiest keys of global rules (bounded).  ``windows``: by window of
    some minutes, totals of the busiest keys of all rules; ``told``: how often they were told.  ``library``: the
    version of the function library that the node calls ("": a node too old to say).  ``traces``: of checks of
    global rules that were traced lately, as ``traceparent`` (a few).
    """

    node: str
    incarnation: str
    address: str
    rules_version: int
    base_version: int
    usage: Mapping[str, RuleTotals] = field(default_factory=dict)
    key_usage: Mapping[str, RuleTotals] = field(default_factory=dict)
    library: str = ""
    windows: Mapping[str, Mapping[str, RuleTotals]] = field(default_factory=dict)
    told: int = 0
    traces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TouchReply:
    """What a node learns with every touch.  ``nodes``: beats younger than 5 s.  -1: not known here (yet).

    ``consent_left_us``: for how long the region is bound by its consent here, from ``time_us`` on.
    """

    time_us: int
    rules_version: int
    base_version: int
    bases: Mapping[str, int]
    nodes: int
    consent_left_us: int = 0


@dataclass(frozen=True, slots=True)
class BeatSeen:
    """A node's last beat as the point has it, and how old it is on the point's clock."""

    beat: NodeBeat
    age_us: int


@dataclass(frozen=True, slots=True)
class Collected:
    """What the agent collects from a point: demand since the last collection, and the nodes' last beats."""

    demand: Mapping[str, int]
    beats: Sequence[BeatSeen]
    rules_version: int


@dataclass(frozen=True, slots=True)
class WindowsReply:
    """``instance``: of the variable that answers ("": it has no name yet).  ``uses``: windows in escrow that the
    agent should look at, since the last word of them."""

    instance: str
    time_us: int
    uses: Sequence[WindowUse]


class CheckStore(Protocol):
    """What a node needs.  Raises StoreUnavailable; never answers by itself."""

    @property
    def version(self) -> str:
        """Of the function library that this process calls: the last part of its points' names."""
        ...

    def breaker_open(self, point: str) -> bool:
        """Whether checks of this point are refused without being sent."""
        ...

    async def check(self, calls: Sequence[BucketCall], request_id: str | None = None) -> list[Verdict]:
        """Decide and charge rules whose keys share one tag, atomically: all are charged or none.

        With ``request_id`` the same verdicts come back for 60 s, charged once.  Raises OtherRequest, and does
        nothing, when it comes with other costs, or other buckets of the tag, than before.
        """
        ...

    async def refund(
        self, calls: Sequence[BucketCall], request_id: str | None = None, turn: int | None = None
    ) -> None:
        """Give the cost of each call back to its bucket, never above capacity, not into another window.

        With ``request_id`` a bucket is given back once, and never more than this request charged it within the
        last 60 s: nothing for a request that is not known.  ``calls`` are then those of its check in their order,
        with cost 0 for what keeps its charge.  When nothing of a charge is left, the same request is decided anew.
        ``turn``: of the answer whose charge was in vain; nothing is given back if the request came again since,
        for the charge is that one's now.
        """
        ...

    async def renew(self, calls: Sequence[BucketCall]) -> list[bool]:
        """Give the holder of each call a new lease for all the slots that it holds; False: it holds none any more.

        Only for calls of concurrency, whose keys differ and share one tag; a peek's cost of 0 will do.
        """
        ...

    async def release(self, calls: Sequence[BucketCall], request_id: str) -> list[bool]:
        """Free every slot of the holder of each call; False: it held none, or the call is of another kind.

        ``calls``: those of a check in their order, at a cost above 0.  What is remembered of ``request_id`` about
        them is forgotten, since what it was allowed is no longer held.
        """
        ...

    async def drop(self, call: BucketCall) -> None:
        """Delete what is kept under the call's storage key; only for kinds that are ``new_when_dropped``."""
        ...

    async def ttl_ms(self, call: BucketCall) -> int | None:
        """For how long the bucket of ``call`` is kept from now on.  None: it is not there, so as good as new."""
        ...

    async def lease(self, call: BucketCall, want: int, returned: Sequence[ReturnedLease] = ()) -> TokenLease:
        """Take back what is ``returned`` of earlier leases, then give at most ``want`` tokens (0: only return).

        For token buckets; see ``algorithms/token_lease.py`` for how much is given, and for which buckets nothing.
        """
        ...

    async def points(self) -> Sequence[str]:
        """The enforcement points that this process uses (one per primary)."""
        ...

    async def touch(self, point: str, beat: NodeBeat) -> TouchReply: ...

    async def offer(self, point: str, demand: Mapping[str, int]) -> None:
        """Add offered cost by bucket key (denied included) since the last call."""
        ...

    async def fetch_rules(self, point: str) -> tuple[int, bytes]:
        """(version, blob); version -1: the point has none."""
        ...

    async def close(self) -> None: ...


Decided = Callable[[list[Verdict] | Exception], None]
"""Called once with the verdicts of a check, or what went wrong: StoreUnavailable and OtherRequest are foreseen."""


class Allowed:
    """Every rule of a call allows at once and is of region scope: there is nothing to tell but two numbers of each,
    in the order of the calls.  ``asking``: for whoever passes it on, to say what was asked.
    """

    __slots__ = ("asking", "left", "reset_after_ms")

    def __init__(self, left: list[int], reset_after_ms: list[int]) -> None:
        self.left = left
        self.reset_after_ms = reset_after_ms
        self.asking: Any = None


DecidedPlainly = Callable[[list[Verdict] | Allowed | Exception], None]
"""As Decided, but what allows may be told shortly."""


@runtime_checkable
class SubmittingStore(Protocol):
    """A store that can also answer a check by callback, and keeps a deadline of its own."""

    def prepare(self, calls: Sequence[BucketCall], request_id: str | None) -> Any:
        """What :meth:`submit` takes: the same for the same arguments, so it may be kept and submitted again."""
        ...

    def is_crowded(self, prepared: Any) -> bool:
        """Whether the queue that ``prepared`` would join is past three quarters of its bound."""
        ...

    def submit(self, prepared: Any, done: Decided) -> None:
        """``CheckStore.check`` without a task or a future on the way; ``done`` may be called before it returns."""
        ...


@runtime_checkable
class PlainStore(SubmittingStore, Protocol):
    """One that can tell an allowance without making a verdict of it."""

    def submit_plainly(self, prepared: Any, done: DecidedPlainly) -> None:
        """:meth:`submit`, for a call without ``request_id``."""
        ...


class AgentStore(Protocol):
    """What the region's agent needs.  Raises StoreUnavailable."""

    @property
    def version(self) -> str:
        """Of the function library that this process calls: the last part of its points' names."""
        ...

    async def list_points(self) -> frozenset[str]:
        """Every enforcement point of the region by every reachable server's view, read from the servers now."""
        ...

    async def write(self, point: str, write: Write) -> WriteReply: ...

    async def collect(self, point: str) -> Collected: ...

    async def windows(self, point: str, news: WindowNews) -> WindowsReply:
        """Tell the point what was granted of windows, and hear which ones are being used up."""
        ...

    async def publish_rules(self, point: str, version: int, blob: bytes) -> None:
        """Make ``blob`` the rules that nodes fetch, unless the point knows a newer version."""
        ...

    async def drop_library(self, point: str) -> None:
        """Delete the point's version of the function library, and with it its variable, from its server.

        For a version that no node calls any more, before its writes stop.  ValueError for this process's own.
        """
        ...

    async def hold_lock(self, owner: str, ttl_ms: int) -> bool:
        """Take or renew the region's lock: True if ``owner`` holds it now for ``ttl_ms``."""
        ...

    async def release_lock(self, owner: str) -> None: ...

    async def close(self) -> None: ...
