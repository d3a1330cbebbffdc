"""A bounded table of bucket states in memory.  Pure: time is an argument.

When it is full, the bucket that would be full again first goes.  If that one still limits, it is not forgiven:
its state goes on in a coarser bucket, which stands for every bucket of its rule that has no state of its own.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from zlib import crc32

Held = tuple[bytes, int, str, int]
"""A bucket's state, when it expires, its group, and what is left in it (see :meth:`BucketTable.put`)."""

_COARSE_A_GROUP = 16
_COARSE_MOST = 65_536


class BucketTable:
    """key -> (state, when it expires).  ``most``: how many buckets it holds."""

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._held: dict[str, Held] = {}
        self._by_expiry: list[tuple[int, str]] = []
        self._coarse: dict[tuple[str, int], tuple[bytes, int, int]] = {}
        self.merged = 0
        """How many buckets had to go while they limited, and live on in a coarser one."""

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: str, group: str, now_ms: int) -> bytes | None:
        """The state of ``key``, or the coarser one that stands for it.  None: as good as new."""
        held = self._held.get(key)
        if held is not None:
            if now_ms < held[1]:
                return held[0]
            del self._held[key]
        if self._coarse:
            coarse = self._coarse.get(_coarse_key(group, key))
            if coarse is not None and now_ms < coarse[1]:
                return coarse[0]
        return None

    def put(self, key: str, group: str, state: bytes, ttl_ms: int, now_ms: int, left: int = 0) -> None:
        """``group``: the buckets whose states may stand for one another: one rule, and one window of it.

        ``left``: of what does not refill.  What refills has used up more the later it is full.
        """
        if key not in self._held and len(self._held) >= self._most:
            self._evict(now_ms)
        self._held[key] = (state, now_ms + ttl_ms, group, left)
        heappush(self._by_expiry, (now_ms + ttl_ms, key))
        if len(self._by_expiry) > 4 * len(self._held) + 1000:
            self._by_expiry = [(expires_ms, name) for name, (_, expires_ms, _, _) in self._held.items()]
            heapify(self._by_expiry)

    def drop(self, key: str) -> None:
        """Forget the state of ``key``."""
        self._held.pop(key, None)

    def ttl_ms(self, key: str, now_ms: int) -> int | None:
        """For how long ``key`` itself is kept, None if it is not."""
        held = self._held.get(key)
        return held[1] - now_ms if held is not None and now_ms < held[1] else None

    def expires(self) -> dict[str, int]:
        """key -> when it expires, in ms (for tests)."""
        return {key: expires_ms for key, (_, expires_ms, _, _) in self._held.items()}

    def purge(self, now_ms: int) -> None:
        """Drop what is due, as a timer would; :meth:`get` does not need it."""
        self._held = {key: held for key, held in self._held.items() if now_ms < held[1]}
        self._coarse = {key: held for key, held in self._coarse.items() if now_ms < held[1]}

    def clear(self) -> None:
        self._held.clear()
        self._by_expiry.clear()
        self._coarse.clear()

    def _evict(self, now_ms: int) -> None:
        while self._by_expiry:
            expires_ms, key = heappop(self._by_expiry)
            held = self._held.get(key)
            if held is None or held[1] != expires_ms:
                continue
            del self._held[key]
            if now_ms < expires_ms:
                self._keep_coarsely(key, held, now_ms)
            return

    def _keep_coarsely(self, key: str, held: Held, now_ms: int) -> None:
        self.merged += 1
        state, expires_ms, group, left = held
        coarse_key = _coarse_key(group, key)
        known = self._coarse.get(coarse_key)
        # The one that has used up more stands for both.
        if known is None or known[1] <= now_ms or (-known[2], known[1]) < (-left, expires_ms):
            self._coarse[coarse_key] = (state, expires_ms, left)
        if len(self._coarse) > _COARSE_MOST:
            self._coarse = {name: kept for name, kept in self._coarse.items() if now_ms < kept[1]}
            while len(self._coarse) > _COARSE_MOST:
                del self._coarse[min(self._coarse, key=lambda name: self._coarse[name][1])]


def _coarse_key(group: str, key: str) -> tuple[str, int]:
    return group, crc32(key.encode()) % _COARSE_A_GROUP
