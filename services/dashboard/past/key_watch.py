"""Which keys have a series of their own: the busiest of each rule, so that what is kept is bounded.  Pure."""

from __future__ import annotations

from dataclasses import dataclass

KEYS_A_RULE = 16
KEYS_MOST = 1_000
IDLE_MS = 600_000
SMOOTHING = 0.1
BUSIER = 2
"""A key takes the place of another when it is so many times as busy: two equal ones do not take turns."""


@dataclass(slots=True)
class _Kept:
    busy: float
    used_ms: int


class KeyWatch:
    def __init__(self, keys_a_rule: int = KEYS_A_RULE, keys_most: int = KEYS_MOST) -> None:
        self._keys_a_rule = keys_a_rule
        self._keys_most = keys_most
        self._rules: dict[str, dict[str, _Kept]] = {}
        self._count = 0

    def note(self, rule: str, key: str, cost: int, now_ms: int) -> bool:
        """Whether the key's series is kept, now that ``cost`` more was asked of it in some region."""
        kept = self._rules.get(rule)
        known = kept.get(key) if kept is not None else None
        if known is not None:
            known.busy += SMOOTHING * (cost - known.busy)
            if cost > 0:
                known.used_ms = now_ms
            return True
        if cost <= 0:
            return False
        return self._admit(rule, key, cost, now_ms)

    def _admit(self, rule: str, key: str, cost: int, now_ms: int) -> bool:
        kept = self._rules.setdefault(rule, {})
        for idle in [name for name, one in kept.items() if now_ms - one.used_ms > IDLE_MS]:
            del kept[idle]
            self._count -= 1
        if len(kept) >= self._keys_a_rule or self._count >= self._keys_most:
            if not kept:
                return False
            least = min(kept, key=lambda name: kept[name].busy)
            if cost * SMOOTHING <= BUSIER * kept[least].busy:
                return False
            del kept[least]
            self._count -= 1
        kept[key] = _Kept(cost * SMOOTHING, now_ms)
        self._count += 1
        return True
