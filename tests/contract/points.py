"""One enforcement point in Python, one in Redis, driven alike: with a clock that the test moves.

The Redis one runs the function library with its test clock.  Keys that are due by that clock are deleted before
every call, as Redis does by its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol

import redis

from regional_limiter.model.decision import Verdict
from regional_limiter.model.enforcement import Write, WriteReply
from regional_limiter.model.errors import OtherRequest, StoreUnavailable
from regional_limiter.model.escrow import WindowNews
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store import library as wire
from regional_limiter.store.base import (
    BucketCall,
    Collected,
    NodeBeat,
    ReturnedLease,
    TokenLease,
    TouchReply,
    WindowsReply,
)
from regional_limiter.store.memory import MemoryPoint
from tests.contract.redis_server import RedisServer

States = Mapping[str, tuple[bytes, int]]
"""key -> (state, when it expires in ms)."""

Share = tuple[int, int, int, int, int, int]
"""Share, its kind, since when, the share before, since when, what is not below the floor."""


_SWEEP = """#!lua name=test_sweep
-- The state as Python has it, whatever Redis keeps it in.
local function state(key)
  local kind = redis.call('TYPE', key).ok
  if kind == 'string' then return redis.call('GET', key) end
  if kind == 'list' then return table.concat(redis.call('LRANGE', key, 0, -1)) end
  local heads, slots = '', {}
  for _, head in ipairs({'t', 'o', 'r'}) do
    local score = redis.call('ZSCORE', key, head)
    if score then heads = heads .. struct.pack('<I6', -score) end
  end
  local members = redis.call('ZRANGEBYSCORE', key, 0, '+inf', 'WITHSCORES')
  for i = 1, #members, 2 do slots[#slots + 1] = struct.pack('<I6', members[i + 1] + 0) .. members[i] end
  return heads .. table.concat(slots)
end

local function sweep(keys, args)
  local reply = {}
  for _, key in ipairs(redis.call('KEYS', '*')) do
    local time = redis.call('PEXPIRETIME', key)
    if time > 0 and time <= tonumber(args[1]) then
      redis.call('DEL', key)
    else
      reply[#reply + 1] = key
      reply[#reply + 1] = state(key)
      reply[#reply + 1] = time
    end
  end
  return reply
end

redis.register_function{function_name = 'test_sweep', callback = sweep, flags = {'allow-cross-slot-keys'}}
"""


class Point(Protocol):
    """What both can do; ``now_us`` is the point's clock."""

    def check(self, now_us: int, calls: Sequence[BucketCall], request_id: str | None = None) -> list[Verdict]: ...
    def refund(
        self, now_us: int, calls: Sequence[BucketCall], request_id: str | None = None, turn: int | None = None
    ) -> None: ...
    def renew(self, now_us: int, calls: Sequence[BucketCall]) -> list[bool]: ...
    def release(self, now_us: int, calls: Sequence[BucketCall], request_id: str) -> list[bool]: ...
    def lease(
        self, now_us: int, call: BucketCall, want: int, returned: Sequence[ReturnedLease] = ()
    ) -> TokenLease: ...
    def touch(self, now_us: int, beat: NodeBeat) -> TouchReply: ...
    def offer(self, now_us: int, demand: Mapping[str, int]) -> None: ...
    def fetch_rules(self, now_us: int) -> tuple[int, bytes]: ...
    def write(self, now_us: int, write: Write) -> WriteReply: ...
    def collect(self, now_us: int) -> Collected: ...
    def windows(self, now_us: int, news: WindowNews) -> WindowsReply: ...
    def publish_rules(self, now_us: int, version: int, blob: bytes) -> None: ...
    def lose(self) -> None: ...
    def states(self, now_us: int) -> States: ...
    def share(self, now_us: int, key: str, domain: str) -> Share: ...


OTHER_REQUEST = "other request"
NOT_ANSWERED = "not answered"


def told(point: object, name: str, *arguments: object) -> object:
    """What ``point`` returns, OTHER_REQUEST for a request's id that was another one's, NOT_ANSWERED by a store."""
    try:
        return getattr(point, name)(*arguments)
    except OtherRequest:
        return OTHER_REQUEST
    except StoreUnavailable:
        return NOT_ANSWERED


class RequestIds:
    """Ids for a tenth of all calls; those of checks come again, for the same and for others, and with refunds."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._used = ["x"]

    def of_check(self, calls: Sequence[BucketCall]) -> str | None:
        random = self._random
        if random.random() >= 0.1:
            return None
        asked = "".join(f" {call.key} {call.cost}" for call in calls) if random.random() < 0.6 else ""
        self._used = [*self._used[-5:], random.choice("xyz") + asked]
        return self._used[-1]

    def of_refund(self) -> str | None:
        return self._random.choice(self._used) if self._random.random() < 0.1 else None


class PythonPoint(MemoryPoint):
    def states(self, now_us: int) -> States:
        now_ms = now_us // 1000
        held = self.buckets.expires()
        return {
            key: (state, at_ms)
            for key, at_ms in held.items()
            if now_ms < at_ms and (state := self.buckets.get(key, "", now_ms)) is not None
        }

    def share(self, now_us: int, key: str, domain: str) -> Share:
        self.enforcement.enter(now_us)
        share = self.enforcement.share(now_us, key, domain)
        history = share.since_us, share.share_before, share.before_since_us
        return share.share, int(share.kind), *history, share.floor


class RedisPoint:
    def __init__(self, server: RedisServer, times: ProtocolTimes) -> None:
        self._server = server
        self._library = wire.build_library(times, test_clock=True)
        self._swept_at_us = -1
        self.skew_ms = 0
        """How far ahead of the server's the caller's clock is, by which it chooses calendar windows."""
        server.client.flushall()
        server.client.function_load(_SWEEP, replace=True)
        self.lose()

    def lose(self) -> None:
        self._server.load(self._library)  # REPLACE empties the variable

    def check(self, now_us: int, calls: Sequence[BucketCall], request_id: str | None = None) -> list[Verdict]:
        return wire.decode_check(
            self._keyed("check", now_us, lambda now_ms: wire.encode_check(calls, request_id, now_ms))
        )

    def refund(
        self, now_us: int, calls: Sequence[BucketCall], request_id: str | None = None, turn: int | None = None
    ) -> None:
        def encoded_at(now_ms: int) -> wire.Encoded:
            return wire.encode_refund(calls, request_id, now_ms, turn)

        self._keyed("refund", now_us, encoded_at)

    def renew(self, now_us: int, calls: Sequence[BucketCall]) -> list[bool]:
        return wire.decode_renew(self._numbers("renew", wire.encode_check(calls), now_us))

    def release(self, now_us: int, calls: Sequence[BucketCall], request_id: str) -> list[bool]:
        return wire.decode_renew(
            self._keyed("release", now_us, lambda now_ms: wire.encode_check(calls, request_id, now_ms))
        )

    def lease(self, now_us: int, call: BucketCall, want: int, returned: Sequence[ReturnedLease] = ()) -> TokenLease:
        return wire.decode_lease(self._numbers("lease", wire.encode_lease(call, want, returned), now_us))

    def touch(self, now_us: int, beat: NodeBeat) -> TouchReply:
        return wire.decode_touch(self._call("touch", wire.encode_touch(beat), now_us))

    def offer(self, now_us: int, demand: Mapping[str, int]) -> None:
        self._call("offer", wire.encode_offer(demand), now_us)

    def fetch_rules(self, now_us: int) -> tuple[int, bytes]:
        return wire.decode_fetch_rules(self._call("fetch_rules", wire.encode_fetch_rules(), now_us))

    def write(self, now_us: int, write: Write) -> WriteReply:
        return wire.decode_write(self._call("write", wire.encode_write(write), now_us))

    def collect(self, now_us: int) -> Collected:
        return wire.decode_collect(self._call("collect", wire.encode_collect(), now_us))

    def windows(self, now_us: int, news: WindowNews) -> WindowsReply:
        return wire.decode_windows(self._call("windows", wire.encode_windows(news), now_us))

    def publish_rules(self, now_us: int, version: int, blob: bytes) -> None:
        self._call("publish_rules", wire.encode_publish_rules(version, blob), now_us)

    def states(self, now_us: int) -> States:
        return {key: state for key, state in self._sweep(now_us).items() if "#" not in key}

    def share(self, now_us: int, key: str, domain: str) -> Share:
        told = self._numbers("share", ([], [key.encode(), domain.encode()]), now_us)
        share, kind, since_us, before, before_since_us, floor = told
        return share, kind, since_us, before, before_since_us, floor

    def _sweep(self, now_us: int) -> dict[str, tuple[bytes, int]]:
        """Delete what is due; what is left, and when it is due."""
        flat = self._server.client.fcall("test_sweep", 0, now_us // 1000 + wire.TEST_EXPIRY_OFFSET_MS)
        left: dict[str, tuple[bytes, int]] = {}
        for key, state, time_ms in zip(flat[::3], flat[1::3], flat[2::3], strict=True):
            assert time_ms > 0, f"{key!r} has no end"
            left[key.decode()] = (state, time_ms - wire.TEST_EXPIRY_OFFSET_MS)
        return left

    def _keyed(self, function: str, now_us: int, encoded_at: Callable[[int], wire.Encoded]) -> list[int]:
        """As the store does it: a second time by the server's clock, if the caller's windows are not around it."""
        try:
            return self._numbers(function, encoded_at(now_us // 1000 + self.skew_ms), now_us)
        except redis.ResponseError as error:
            kind, time_ms, *_ = str(error).split()
            if (kind, time_ms) != (wire.OTHER_WINDOWS, str(now_us // 1000)):
                raise
            return self._numbers(function, encoded_at(int(time_ms)), now_us)

    def _call(self, function: str, encoded: wire.Encoded, now_us: int) -> list[int | bytes]:
        if now_us != self._swept_at_us:
            self._sweep(now_us)
            self._swept_at_us = now_us
        return self._server.call(self._library, function, encoded, now_us)

    def _numbers(self, function: str, encoded: wire.Encoded, now_us: int) -> list[int]:
        return [int(number) for number in self._call(function, encoded, now_us)]


class Walk(Protocol):
    def step(self) -> None: ...


def walk_through(walk: Walk, steps: int, seed: object, after: Callable[[], None] = lambda: None) -> None:
    """Take ``steps`` steps, ``after`` each of them that; a difference names ``seed`` and the step."""
    for number in range(steps):
        try:
            walk.step()
        except AssertionError as difference:
            difference.add_note(f"seed {seed}, step {number}")
            raise
        after()
