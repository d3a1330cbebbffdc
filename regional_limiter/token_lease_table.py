"""A node's token leases: which keys are hot, what it holds of them, and what it asks for and brings back.  Pure.

A key that is checked more than 200 times a second here earns a lease of what it uses in 100 ms.  While it lasts,
checks are decided here; before it runs out it is brought back and a new one asked for in the same call, as large
as the last one was quickly spent.  Meanwhile, and whenever a lease does not hold enough, the store is asked.
What is not needed goes back: after 50 ms in which nothing was spent, shortly before the end, when the store had to
deny a check of the key, and when the node stops.

A lease's life is counted from before its call was sent, so it ends here before it ends at the store.  What cannot
be brought back (an answer that never came, a rule that changed) is never spent: the bucket counts it as out until
its edge, and as spent from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from regional_limiter.algorithms.token_lease import LEVEL_PART, TOKENS_LEAST, spares
from regional_limiter.model.decision import Reason, ShareKind, Verdict
from regional_limiter.model.share import SHARE_UNITS, floor_of
from regional_limiter.store.base import BucketCall, ReturnedLease, TokenLease

WINDOW_US: Final = 100_000
CHECKS_LEAST: Final = 20
"""Checks in one window that earn a key its lease: 200 a second."""
SHORTEST_US: Final = 20_000
"""A lease that was spent in less counts as spent in this: one burst is not yet a rate."""
RENEW_BELOW: Final = 5
"""Renewed when less than a fifth of it is left."""
RENEW_BEFORE_US: Final = 15_000
"""Renewed, or brought back, this long before its end."""
IDLE_US: Final = 50_000


@dataclass(frozen=True, slots=True)
class Ask:
    """One call of ``CheckStore.lease`` to make; its end is told by ``granted`` or ``failed``."""

    call: BucketCall
    want: int
    returned: tuple[ReturnedLease, ...]
    generation: int


@dataclass(frozen=True, slots=True)
class LeaseCounts:
    """In tokens.  ``out``: held now.  Since the start: ``taken``, ``returned`` unspent, and ``lost``: neither."""

    out: int = 0
    taken: int = 0
    returned: int = 0
    lost: int = 0


class _Held:
    """One lease.  Times in us of the node's steady clock."""

    __slots__ = (
        "call",
        "consent_end_us",
        "edge_ms",
        "ends_us",
        "remaining",
        "renew_at_us",
        "renew_below",
        "reset_us",
        "seen_unspent",
        "seen_us",
        "session_end_us",
        "share",
        "share_kind",
        "taken_us",
        "tokens",
        "unspent",
    )

    def __init__(self, call: BucketCall, lease: TokenLease, asked_us: int, now_us: int) -> None:
        self.call = call
        self.edge_ms = lease.edge_ms
        self.tokens = self.unspent = self.seen_unspent = lease.tokens
        self.taken_us = self.seen_us = now_us
        self.ends_us = asked_us + lease.ends_in_us
        self.renew_at_us = self.ends_us - RENEW_BEFORE_US
        self.renew_below = -(-lease.tokens // RENEW_BELOW)
        self.remaining = lease.remaining
        self.reset_us = asked_us + lease.reset_after_ms * 1000
        self.share, self.share_kind = lease.share, lease.share_kind
        self.session_end_us = asked_us + lease.session_left_us
        self.consent_end_us = asked_us + lease.consent_left_us

    def verdict(self, now_us: int) -> Verdict:
        """What the store would say, as far as it was told last."""
        return Verdict(
            True,
            Reason.OK,
            self.remaining + self.unspent,
            0,
            self.reset_after_ms(now_us),
            self.share,
            self.share_kind,
            max(0, self.session_end_us - now_us),
            max(0, self.consent_end_us - now_us),
        )

    def reset_after_ms(self, now_us: int) -> int:
        return (self.reset_us - now_us) // 1000 if self.reset_us > now_us else 0

    def want(self, now_us: int) -> int:
        """What 100 ms use at the pace at which it was spent; 0 if less than half was, at a quarter of the pace."""
        spent, lasted_us = self.tokens - self.unspent, max(SHORTEST_US, now_us - self.taken_us)
        if 2 * spent < self.tokens and 4 * spent * WINDOW_US < self.tokens * lasted_us:
            return 0
        return -(-spent * WINDOW_US // lasted_us)

    def back(self) -> tuple[ReturnedLease]:
        return (ReturnedLease(self.edge_ms, self.tokens, self.unspent),)


class TokenLeaseTable:
    """One node's table: ``leases_most`` leases at most, and ``keys_most`` keys whose checks are counted."""

    def __init__(self, leases_most: int = 1000, keys_most: int = 5000) -> None:
        self._leases_most = leases_most
        self._keys_most = keys_most
        self.holds: dict[str, _Held] = {}
        """The leases that are here, by key."""
        self._asking: set[str] = set()
        self.due: list[Ask] = []
        """The calls that are to be made."""
        self._window: dict[str, list[int]] = {}  # key -> checks, cost
        self._window_ends_us = 0
        self._not_before: dict[str, int] = {}
        self._generation = 0
        self._taken = self._returned = self._lost = 0

    @property
    def filled(self) -> tuple[int, int]:
        """Leases, and how many there may be."""
        return len(self.holds), self._leases_most

    # ---- a check

    def spend(self, calls: Sequence[BucketCall], now_us: int) -> list[Verdict] | None:
        """Decide a check here: every rule's bucket has a lease that holds the cost.  None: ask the store."""
        if len(calls) == 1:
            lease = self.take(calls[0], now_us)
            return None if lease is None else [lease.verdict(now_us)]
        for call in calls:
            held = self.holds.get(call.key)
            if held is None or held.unspent < call.cost or now_us >= held.ends_us:
                return None
        leases = [self.take(call, now_us) for call in calls]
        return [lease.verdict(now_us) for lease in leases if lease is not None]

    def take(self, call: BucketCall, now_us: int) -> _Held | None:
        """The decision for one bucket: the lease that the cost was taken from."""
        lease = self.holds.get(call.key)
        if lease is None:
            return None
        unspent = lease.unspent - call.cost
        # Nearly always; its end is later.
        if unspent >= lease.renew_below and now_us < lease.renew_at_us:
            lease.unspent = unspent
            return lease
        if unspent < 0 or now_us >= lease.ends_us:
            return None
        lease.unspent = unspent
        self._bring_back(lease, lease.want(now_us))
        return lease

    def note(self, call: BucketCall, verdict: Verdict, now_us: int) -> None:
        """The store has decided a check of a rule that may be leased from."""
        if verdict.allowed:
            self.note_allowed(call, verdict.remaining, now_us, verdict.share, verdict.share_kind)
            return
        if now_us >= self._window_ends_us:
            self._next_window(now_us)
        if call.key in self.holds:
            # Somebody needs more than is left, and some of it lies here.
            self._bring_back(self.holds[call.key], 0)

    def note_allowed(
        self,
        call: BucketCall,
        left: int,
        now_us: int,
        share: int = SHARE_UNITS,
        share_kind: ShareKind = ShareKind.WHOLE,
    ) -> None:
        """:meth:`note` of what the store has allowed."""
        if now_us >= self._window_ends_us:
            self._next_window(now_us)
        row = self._window.get(call.key)
        if row is None:
            if len(self._window) >= self._keys_most:
                return
            row = self._window[call.key] = [0, 0]
        row[0] += 1
        row[1] += call.cost
        if row[0] >= CHECKS_LEAST and self._earns(call, left, share, share_kind, row, now_us):
            self._asking.add(call.key)
            self.due.append(Ask(call, row[1], (), self._generation))

    def _earns(
        self, call: BucketCall, left: int, share: int, share_kind: ShareKind, row: list[int], now_us: int
    ) -> bool:
        key = call.key
        return (
            key not in self.holds
            and key not in self._asking
            and len(self.holds) + len(self._asking) < self._leases_most
            and now_us >= self._not_before.get(key, 0)
            and spares(call, share, share_kind, floor_of(call.base, call.floor))
            # A lease for a few checks costs more calls than it saves.
            and left // call.split * row[0] >= LEVEL_PART * TOKENS_LEAST * row[1]
        )

    def _next_window(self, now_us: int) -> None:
        self._window_ends_us = now_us + WINDOW_US
        self._window = {}
        if self._not_before:
            self._not_before = {key: at_us for key, at_us in self._not_before.items() if at_us > now_us}

    # ---- what to ask the store

    def sweep(self, now_us: int) -> None:
        """Every some 10 ms while there are leases: what is idle, or near its end, is to be brought back."""
        for held in list(self.holds.values()):
            if held.unspent != held.seen_unspent:
                held.seen_unspent, held.seen_us = held.unspent, now_us
            if now_us >= held.renew_at_us:
                self._bring_back(held, held.want(now_us))
            elif now_us - held.seen_us >= IDLE_US:
                self._bring_back(held, 0)

    @property
    def busy(self) -> bool:
        """Whether there are leases, or will be."""
        return bool(self.holds or self._asking)

    def asks(self) -> list[Ask]:
        """The calls that are due, each once."""
        due, self.due = self.due, []
        return due

    def _bring_back(self, held: _Held, want: int) -> None:
        del self.holds[held.call.key]
        self._asking.add(held.call.key)
        self.due.append(Ask(held.call, want, held.back(), self._generation))

    def granted(self, ask: Ask, lease: TokenLease, asked_us: int, now_us: int) -> None:
        """The answer to ``ask``, which was sent at ``asked_us``."""
        self._answered(ask)
        self._taken += lease.tokens
        self._returned += lease.credited
        self._lost += sum(back.unspent for back in ask.returned) - lease.credited
        if ask.want and not lease.tokens:
            self._not_before[ask.call.key] = now_us + WINDOW_US
        if lease.tokens and ask.generation == self._generation and now_us < asked_us + lease.ends_in_us:
            self.holds[ask.call.key] = _Held(ask.call, lease, asked_us, now_us)
        else:
            self._lost += lease.tokens

    def failed(self, ask: Ask, now_us: int) -> None:
        """No answer came.  What was asked for may be out, what was brought back may be back: none is spent."""
        self._answered(ask)
        self._lost += sum(back.unspent for back in ask.returned)
        self._not_before[ask.call.key] = now_us + WINDOW_US

    def _answered(self, ask: Ask) -> None:
        if ask.generation == self._generation:
            self._asking.discard(ask.call.key)

    # ---- life

    def clear(self) -> None:
        """The rules changed: what was leased under the old ones is not spent any more."""
        self._generation += 1
        self._lost += sum(held.unspent for held in self.holds.values())
        self._lost += sum(back.unspent for ask in self.due for back in ask.returned)
        self.holds, self.due, self._window, self._asking, self._not_before = {}, [], {}, set(), {}

    def bring_all_back(self) -> list[Ask]:
        """The node stops: everything it holds."""
        for held in list(self.holds.values()):
            self._bring_back(held, 0)
        return self.asks()

    def share_of(self, key: str, now_us: int) -> int | None:
        """Under which share the tokens of ``key`` that may still be spent here were given; None: there are none."""
        held = self.holds.get(key)
        return held.share if held is not None and held.unspent and now_us < held.ends_us else None

    def held(self, key: str, now_us: int) -> tuple[int, int]:
        """(tokens of ``key`` that may still be spent here, for how long in us)."""
        held = self.holds.get(key)
        return (held.unspent, held.ends_us - now_us) if held is not None and now_us < held.ends_us else (0, 0)

    def counts(self) -> LeaseCounts:
        out = sum(held.unspent for held in self.holds.values())
        return LeaseCounts(out, self._taken, self._returned, self._lost)
