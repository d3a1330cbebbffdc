"""An application's token leases: what it holds of which keys, what it asks for and brings back.  Pure.

The same as a node does for its hot keys.  A key that is checked more than 200 times a second here earns a lease of
what it uses in 100 ms.  While it lasts, checks are decided here; before it runs out a new one is asked for, as
large as this one was quickly spent.  A node is further away from an application than the store is from a node, so
the old one is spent meanwhile, and what is left of it goes back when the new one is there.  Whenever a lease does
not hold enough, a node is asked.  What is not needed goes back as well: after 50 ms in which nothing was spent,
shortly before the end, when a node had to deny the key, and when the application ends.

A lease's life is counted from before it was asked for, so it ends here before it ends in the region's store.  What
cannot be brought back is never spent: the bucket counts it as out until its life is over, and then as spent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from apportion._types import Answer

MS: Final = 1_000_000
WINDOW_NS: Final = 100 * MS
CHECKS_LEAST: Final = 20
"""In one window: 200 a second."""
SHORTEST_NS: Final = 20 * MS
"""A lease that was spent in less counts as spent in this: one burst is not yet a rate."""
RENEW_BELOW: Final = 5
"""Renewed when less than a fifth of it is left."""
RENEW_BEFORE_NS: Final = 30 * MS
BACK_BEFORE_NS: Final = 15 * MS
"""What has not been renewed by then is brought back."""
IDLE_NS: Final = 50 * MS
FAILED_AGAIN_NS: Final = 100 * MS
NEVER: Final = 1 << 62

Identity = tuple[str, str, tuple[tuple[str, str], ...]]
"""Client key, resource, attributes in the order of their names."""


class Key:
    """One key, with its lease if it has one.  Times in ns of the application's steady clock."""

    __slots__ = (
        "answer",
        "asking",
        "checks",
        "ends_ns",
        "identity",
        "lease",
        "not_before_ns",
        "renew_at_ns",
        "renew_below",
        "seen_ns",
        "seen_unspent",
        "taken_ns",
        "tokens",
        "unspent",
        "window_checks",
        "window_cost",
        "window_ends_ns",
    )

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.window_checks = self.window_cost = self.window_ends_ns = self.not_before_ns = 0
        self.asking = False
        self.answer: Answer | None = None
        self.forget()

    def forget(self) -> None:
        """Nothing is held any more."""
        self.lease = ""
        self.tokens = self.unspent = self.checks = 0
        self.seen_unspent = self.seen_ns = self.taken_ns = 0
        self.ends_ns = self.renew_at_ns = 0
        self.renew_below = NEVER

    def spend(self, cost: int, now_ns: int) -> Answer | None:
        """Decide a check here; None: ask a node."""
        unspent = self.unspent - cost
        # Nearly always; its end is later.
        if unspent >= self.renew_below and now_ns < self.renew_at_ns:
            self.unspent = unspent
            self.checks += 1
            return self.answer
        if not self.lease or unspent < 0 or now_ns >= self.ends_ns:
            return None
        self.unspent = unspent
        self.checks += 1
        return self.answer

    @property
    def holds(self) -> bool:
        return bool(self.lease)

    def is_due(self, now_ns: int) -> bool:
        """Whether the lease is to be renewed."""
        if not self.lease or self.asking or now_ns < self.not_before_ns:
            return False
        return self.unspent < self.renew_below or now_ns >= self.renew_at_ns

    def is_over(self, now_ns: int) -> bool:
        """Asked every some 10 ms: whether the lease is to go back, nearly over or not spent from for a while."""
        if self.unspent != self.seen_unspent:
            self.seen_unspent, self.seen_ns = self.unspent, now_ns
        if not self.lease:
            return False
        return now_ns - self.seen_ns >= IDLE_NS or now_ns >= self.ends_ns - BACK_BEFORE_NS

    def note(self, answer: Answer, cost: int, now_ns: int) -> int:
        """A node has decided a check: how many tokens to ask for now, 0 for none."""
        if now_ns >= self.window_ends_ns:
            self.window_checks = self.window_cost = 0
            self.window_ends_ns = now_ns + WINDOW_NS
        if not answer.allowed or not answer.decided or answer.degraded:
            return 0
        self.window_checks += 1
        self.window_cost += cost
        earned = self.window_checks >= CHECKS_LEAST and now_ns >= self.not_before_ns
        return self.window_cost if earned and not self.holds and not self.asking else 0

    def want(self, now_ns: int) -> int:
        """What 100 ms use at the pace at which it was spent; 0 if it was hardly used."""
        spent, lasted_ns = self.tokens - self.unspent, max(SHORTEST_NS, now_ns - self.taken_ns)
        if 2 * spent < self.tokens and 4 * spent * WINDOW_NS < self.tokens * lasted_ns:
            return 0
        return -(-spent * WINDOW_NS // lasted_ns)

    def give_back(self) -> dict[str, Any] | None:
        """The lease as a node takes it back; nothing is spent of it any more."""
        if not self.lease:
            return None
        back = {"lease": self.lease, "tokens": self.tokens, "unspent": self.unspent, "checks": self.checks}
        self.forget()
        return back

    def granted(self, lent: Mapping[str, Any], asked_ns: int, now_ns: int) -> bool:
        """What a node has lent when it was asked at ``asked_ns``; whether it can be spent."""
        self.asking = False
        tokens, ends_ns = int(lent["tokens"]), asked_ns + int(lent["ends_in_ms"]) * MS
        self.not_before_ns = now_ns + int(lent["again_after_ms"]) * MS
        if tokens <= 0 or now_ns >= ends_ns:
            return False
        self.lease = str(lent["lease"])
        self.tokens = self.unspent = self.seen_unspent = tokens
        self.checks = 0
        self.taken_ns = self.seen_ns = now_ns
        self.ends_ns, self.renew_at_ns = ends_ns, ends_ns - RENEW_BEFORE_NS
        self.renew_below = -(-tokens // RENEW_BELOW)
        left, reset_after_ms = int(lent["remaining"]) + tokens, int(lent["reset_after_ms"])
        self.answer = Answer(True, "ok", lent["limit"], left, 0, reset_after_ms, lent["rule"])
        return True

    def failed(self, now_ns: int) -> None:
        """No answer came: what was asked for may be out, what was brought back may be back; neither is spent."""
        self.asking = False
        self.not_before_ns = now_ns + FAILED_AGAIN_NS


@dataclass(slots=True)
class LeaseCounts:
    """In tokens, since the start.  ``lost``: neither spent nor taken back; they count as spent in the region."""

    taken: int = 0
    spent: int = 0
    returned: int = 0
    lost: int = 0


class Lending:
    """One call to a node: a lease that is brought back, or a new one that is wanted."""

    __slots__ = ("_asked_ns", "back", "key", "want")

    def __init__(self, key: Key, want: int, back: dict[str, Any] | None = None) -> None:
        self.key = key
        self.want = want
        self.back = back
        self._asked_ns = 0
        if want:
            key.asking = True

    def begins(self, now_ns: int) -> None:
        """The call goes out."""
        self._asked_ns = now_ns

    def ended(self, lent: Mapping[str, Any] | None, now_ns: int, counts: LeaseCounts) -> Lending | None:
        """``lent``: what the node said; None, or no such answer: nothing that is known.

        Gives the call that is to follow: the lease that a new one has taken the place of goes back.
        """
        back = self.back or {"tokens": 0, "unspent": 0}
        counts.spent += back["tokens"] - back["unspent"]
        try:
            if lent is None:
                raise ValueError("no answer")
            credited, tokens = int(lent["credited"]), int(lent["tokens"])
            old = self.key.give_back() if tokens > 0 else None
            if self.want and not self.key.granted(lent, self._asked_ns, now_ns):
                counts.lost += tokens
        except (KeyError, TypeError, ValueError):
            if self.want:
                self.key.failed(now_ns)
            counts.lost += back["unspent"]
            return None
        counts.taken += tokens
        counts.returned += credited
        counts.lost += back["unspent"] - credited
        return None if old is None else Lending(self.key, 0, old)


def due(key: Key, now_ns: int) -> Lending | None:
    """What to call for a key that has just been spent from; it goes on to be spent from."""
    want = key.want(now_ns) if key.is_due(now_ns) else 0
    return Lending(key, want) if want else None


def returning(key: Key) -> Lending | None:
    """What to call so that a key holds nothing any more."""
    back = key.give_back()
    return None if back is None else Lending(key, 0, back)


class Table:
    """Keys by identity, at most ``keys_most``: of more, those that hold nothing go first."""

    def __init__(self, keys_most: int) -> None:
        self.counts = LeaseCounts()
        self._keys_most = keys_most
        self._keys: dict[Identity, Key] = {}

    def key(self, client_key: str, resource: str, attributes: Mapping[str, str] | None) -> Key | None:
        """The key of a check; None: the table is full of keys that hold leases."""
        identity = (client_key, resource, tuple(sorted(attributes.items())) if attributes else ())
        key = self._keys.get(identity)
        if key is None:
            if len(self._keys) >= self._keys_most:
                self._keys = {name: one for name, one in self._keys.items() if one.holds or one.asking}
                if len(self._keys) >= self._keys_most:
                    return None
            key = self._keys[identity] = Key(identity)
        return key

    def knows(self, key: Key) -> bool:
        """Whether ``key`` is still one of the table's: others would hold what nobody brings back."""
        return self._keys.get(key.identity) is key

    def sweep(self, now_ns: int) -> list[Lending]:
        """Every some 10 ms while the table is busy: what is to be called."""
        lendings = [returning(key) if key.is_over(now_ns) else due(key, now_ns) for key in self.holding()]
        return [lending for lending in lendings if lending is not None]

    def holding(self) -> list[Key]:
        return [key for key in self._keys.values() if key.holds]

    @property
    def is_busy(self) -> bool:
        return any(key.holds or key.asking for key in self._keys.values())
