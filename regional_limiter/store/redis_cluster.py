"""The region's store on a Redis Cluster: both contracts of ``base.py`` on ``cluster.py`` and ``library.py``.  I/O.

A check is one FCALL to the primary that owns the tag's hash slot.  Everything else is a call without keys to a
named point.  The function library is loaded where a call finds it missing: a new, restarted or flushed server costs
one more round trip and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic, time_ns
from typing import Final, TypeVar, cast

from regional_limiter.algorithms.registry import functions_of
from regional_limiter.model.decision import Verdict
from regional_limiter.model.enforcement import Write, WriteReply
from regional_limiter.model.errors import OtherWindows, StoreUnavailable
from regional_limiter.model.escrow import WindowNews
from regional_limiter.model.keys import tag_of
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store import library as wire
from regional_limiter.store.base import (
    BucketCall,
    Collected,
    Decided,
    DecidedPlainly,
    NodeBeat,
    ReturnedLease,
    TokenLease,
    TouchReply,
    WindowsReply,
)
from regional_limiter.store.cluster import CallKind, Cluster, ClusterOptions
from regional_limiter.store.connection import ReplyError, pack
from regional_limiter.store.library import Encoded, Reply, build_library
from regional_limiter.store.subjects import (
    GROUPS,
    WRITE_SCRIPT,
    LookedUp,
    SubjectFound,
    SubjectWrite,
    client_storage_key,
    filling_key,
    group_of,
    held_attributes,
    position_key,
    tag_of_group,
)
from regional_limiter.store.topology import hash_slot_of, primaries_in
from regional_limiter.submitting import settled

_log = logging.getLogger("apportion.store")

_T = TypeVar("_T")

LIBRARY_PREFIX: Final = "apportion_"
LOCK_KEY: Final = "rl:agent-lock"
_LOCK_SLOT: Final = hash_slot_of(LOCK_KEY)
_GROUP_SLOTS: Final = [hash_slot_of(tag_of_group(group)) for group in range(GROUPS)]

ASKED_AGAIN_MOST: Final = 2
"""How often a call is sent anew that names another window than the store's clock is in.  Once is not enough: the
window of the clock that is told may end before the call comes."""

# Whoever holds the lock renews it; nobody else's lock is ever lengthened or deleted.
_HOLD: Final = (
    "local held = redis.call('GET', KEYS[1]) "
    "if held == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end "
    "if held then return 0 end "
    "redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) return 1"
)
_RELEASE: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Deadlines in milliseconds.

    ``deadline_ms``: one sending of a check.  ``whole_deadline_ms``: a check with its redirections.
    ``calm_deadline_ms``: whatever no caller waits for (touches, and all of the agent's calls).
    """

    deadline_ms: int = 8
    whole_deadline_ms: int = 15
    calm_deadline_ms: int = 300
    cluster: ClusterOptions = field(default_factory=ClusterOptions)


@dataclass(slots=True)
class Prepared:
    """A check as it goes out, and to the owner of which hash slot.

    ``calls``: none where it is the same at any time.  Else it names windows, is good from ``begin_ms`` until
    ``end_ms`` by the store's clock, and is written anew beyond.
    """

    command: bytes
    hash_slot: int
    calls: Sequence[BucketCall]
    request_id: str | None
    begin_ms: int
    end_ms: int


class RedisClusterStore:
    """CheckStore and AgentStore.  ``seeds``: ``host:port`` of some servers.  Connects with the first call."""

    def __init__(self, seeds: Sequence[str], times: ProtocolTimes, options: StoreOptions | None = None) -> None:
        if not seeds:
            raise ValueError("a Redis Cluster needs at least one address")
        options = options or StoreOptions()
        self._attempt_s = options.deadline_ms / 1000
        self._whole_s = max(options.deadline_ms, options.whole_deadline_ms) / 1000
        self._calm_s = options.calm_deadline_ms / 1000
        self._checks = CallKind(wire.decode_check, self._attempt_s, self._whole_s, self._load)
        self._plain_checks = CallKind(wire.decode_plain_check, self._attempt_s, self._whole_s, self._load)
        self._look_ups = CallKind(_subject_found, self._attempt_s, self._whole_s, self._load)
        self._library = build_library(times)
        self._load_command = pack("FUNCTION", "LOAD", self._library.text)
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._clock_off_ms = 0
        self.cluster = Cluster(seeds, replace(options.cluster, quick_s=self._attempt_s))

    @property
    def version(self) -> str:
        """The function library's version."""
        return self._library.version

    # ---- CheckStore

    async def check(self, calls: Sequence[BucketCall], request_id: str | None = None) -> list[Verdict]:
        prepared = self.prepare(calls, request_id)
        return await settled(lambda done: self.submit(prepared, done))

    def prepare(self, calls: Sequence[BucketCall], request_id: str | None) -> Prepared:
        hash_slot = hash_slot_of(tag_of(calls[0].key))
        windowed = any(functions_of(call).window_of for call in calls)
        prepared = Prepared(b"", hash_slot, calls if windowed else (), request_id, 0, 0)
        self._write_check(prepared, calls, self._store_ms())
        return prepared

    def _write_check(self, prepared: Prepared, calls: Sequence[BucketCall], now_ms: int) -> None:
        prepared.command = self._packed("check", wire.encode_check(calls, prepared.request_id, now_ms))
        windows = [
            window_of(call, now_ms) for call in prepared.calls if (window_of := functions_of(call).window_of)
        ]
        if windows:
            prepared.begin_ms = max(begin_ms for _, begin_ms, _ in windows)
            prepared.end_ms = min(end_ms for _, _, end_ms in windows)

    def is_crowded(self, prepared: Prepared) -> bool:
        return self.cluster.is_crowded(prepared.hash_slot)

    def submit(self, prepared: Prepared, done: Decided) -> None:
        """See SubmittingStore; a check is answered or fails within ``whole_deadline_ms``."""
        self._submit(prepared, self._checks, done)

    def submit_plainly(self, prepared: Prepared, done: DecidedPlainly) -> None:
        """See PlainStore."""
        self._submit(prepared, self._plain_checks, done)

    def _submit(self, prepared: Prepared, kind: CallKind[_T], done: Callable[[_T | Exception], None]) -> None:
        if prepared.calls:
            now_ms = self._store_ms()
            if not prepared.begin_ms <= now_ms < prepared.end_ms:
                self._write_check(prepared, prepared.calls, now_ms)
            done = self._with_its_windows(prepared, kind, done)
        self.cluster.submit(prepared.command, prepared.hash_slot, kind, done)

    def _with_its_windows(
        self, prepared: Prepared, kind: CallKind[_T], done: Callable[[_T | Exception], None]
    ) -> Callable[[_T | Exception], None]:
        """The store's clock counts: asked again by it, if it is in other windows than ours.  Nothing has run."""
        end = monotonic() + kind.whole_s
        times_left = ASKED_AGAIN_MOST

        def decided(outcome: _T | Exception) -> None:
            nonlocal times_left
            if not isinstance(outcome, OtherWindows) or not times_left or (left_s := end - monotonic()) <= 0:
                done(outcome)
                return
            times_left -= 1
            self._told_store_ms(outcome.time_ms)
            self._write_check(prepared, prepared.calls, outcome.time_ms)
            rest = kind._replace(attempt_s=min(kind.attempt_s, left_s), whole_s=left_s)
            self.cluster.submit(prepared.command, prepared.hash_slot, rest, decided)

        return decided

    def _store_ms(self) -> int:
        """The store's clock, as far as it is known here: ours, unless the store has said that ours is off."""
        return time_ns() // 1_000_000 + self._clock_off_ms

    def _told_store_ms(self, time_ms: int) -> None:
        """A difference of as much as a call may take is met at any window's edge, and says nothing of a clock."""
        if abs(time_ms - self._store_ms()) > self._whole_s * 1000:
            self._clock_off_ms += time_ms - self._store_ms()

    async def refund(
        self, calls: Sequence[BucketCall], request_id: str | None = None, turn: int | None = None
    ) -> None:
        await self._keyed("refund", calls, lambda now_ms: wire.encode_refund(calls, request_id, now_ms, turn))

    async def renew(self, calls: Sequence[BucketCall]) -> list[bool]:
        reply = await self._keyed("renew", calls, lambda now_ms: wire.encode_check(calls, None, now_ms))
        return wire.decode_renew(cast(Sequence[int], reply))

    async def release(self, calls: Sequence[BucketCall], request_id: str) -> list[bool]:
        reply = await self._keyed("release", calls, lambda now_ms: wire.encode_check(calls, request_id, now_ms))
        return wire.decode_renew(cast(Sequence[int], reply))

    async def drop(self, call: BucketCall) -> None:
        await self._of_tag(call, pack("DEL", await self._stored_under(call)))

    async def ttl_ms(self, call: BucketCall) -> int | None:
        ttl_ms = cast(int, await self._of_tag(call, pack("PTTL", await self._stored_under(call))))
        return ttl_ms if ttl_ms >= 0 else None

    async def _stored_under(self, call: BucketCall) -> str:
        """The key of a bucket now, by the clock that counts: nobody says so if a key is of another window."""
        functions, now_ms = functions_of(call), 0
        if functions.window_of is not None:
            seconds, micros = cast(list[bytes], await self._of_tag(call, pack("TIME")))
            now_ms = int(seconds) * 1000 + int(micros) // 1000
            self._told_store_ms(now_ms)
        return functions.storage_key(call, now_ms)

    async def _of_tag(self, call: BucketCall, command: bytes) -> object:
        slot = hash_slot_of(tag_of(call.key))
        return await self.cluster.call(command, hash_slot=slot, attempt_s=self._calm_s, whole_s=self._calm_s)

    async def lease(self, call: BucketCall, want: int, returned: Sequence[ReturnedLease] = ()) -> TokenLease:
        reply = await self._sent("lease", [call], wire.encode_lease(call, want, returned))
        return wire.decode_lease(cast(Sequence[int], reply))

    async def points(self) -> Sequence[str]:
        topology = await self.cluster.known(self._calm_s)
        return [f"{address}/{self.version}" for address in topology.primaries]

    async def touch(self, point: str, beat: NodeBeat) -> TouchReply:
        # Not held back by the breaker: the touch is what finds out that a shard is back.
        return wire.decode_touch(await self._at(point, "touch", wire.encode_touch(beat)))

    async def offer(self, point: str, demand: Mapping[str, int]) -> None:
        await self._at(point, "offer", wire.encode_offer(demand))

    async def fetch_rules(self, point: str) -> tuple[int, bytes]:
        return wire.decode_fetch_rules(await self._at(point, "fetch_rules", wire.encode_fetch_rules()))

    def breaker_open(self, point: str) -> bool:
        """Whether checks of this point are refused without being sent."""
        address = point.partition("/")[0]
        return self.cluster.breaker(address).is_open or not self.cluster.is_connected(address)

    # ---- AgentStore

    async def list_points(self) -> frozenset[str]:
        self.cluster.start()
        views = await self.cluster.views(self._calm_s)
        listed = await asyncio.gather(*(self._versions_at(address) for address in primaries_in(views)))
        return frozenset(point for points in listed for point in points)

    async def write(self, point: str, write: Write) -> WriteReply:
        return wire.decode_write(await self._at(point, "write", wire.encode_write(write)))

    async def collect(self, point: str) -> Collected:
        return wire.decode_collect(await self._at(point, "collect", wire.encode_collect()))

    async def windows(self, point: str, news: WindowNews) -> WindowsReply:
        return wire.decode_windows(await self._at(point, "windows", wire.encode_windows(news)))

    async def publish_rules(self, point: str, version: int, blob: bytes) -> None:
        await self._at(point, "publish_rules", wire.encode_publish_rules(version, blob))

    async def drop_library(self, point: str) -> None:
        address, _, version = point.partition("/")
        if version == self.version:
            raise ValueError("a process does not delete the library that it calls")
        # Not through the cluster: its topology may not know a server any more that still has the library.
        reply = await self.cluster.server(address).call(
            pack("FUNCTION", "DELETE", LIBRARY_PREFIX + version), self._calm_s
        )
        if isinstance(reply, ReplyError) and "Library not found" not in str(reply):
            raise StoreUnavailable(f"deleting a library: {str(reply)[:100]}", may_have_run=False)

    # ---- SubjectStore

    def look_up(self, domain: str, client_key: str, done: LookedUp) -> None:
        """Within a check's deadline, and through the breaker of its shard."""
        group = group_of(domain, client_key)
        command = pack("MGET", position_key(group), client_storage_key(group, domain, client_key))
        self.cluster.submit(command, _GROUP_SLOTS[group], self._look_ups, partial(_told_subject, done))

    async def subject_positions(self) -> list[int | None]:
        return list(await asyncio.gather(*(self._subject_position(group) for group in range(GROUPS))))

    async def _subject_position(self, group: int) -> int | None:
        reply = await self._of_group(group, pack("MGET", position_key(group), filling_key(group)))
        position, filling = cast(list[bytes | None], reply)
        place = filling if position is None else position
        return None if place is None else int(place)

    async def write_subjects(
        self, group: int, subjects: Sequence[SubjectWrite], moved: tuple[int | None, int]
    ) -> bool:
        clients = (client_storage_key(group, one.domain, one.client_key) for one in subjects)
        keys = [position_key(group), filling_key(group), *clients]
        said = [part for one in subjects for part in (one.version, one.attributes)]
        before = "" if moved[0] is None else moved[0]
        command = pack("EVAL", WRITE_SCRIPT, len(keys), *keys, before, moved[1], *said)
        return await self._of_group(group, command) == 1

    async def _of_group(self, group: int, command: bytes) -> object:
        return await self.cluster.call(
            command,
            hash_slot=_GROUP_SLOTS[group],
            attempt_s=self._calm_s,
            whole_s=self._calm_s,
            through_breaker=False,
        )

    # ---- the lock

    async def hold_lock(self, owner: str, ttl_ms: int) -> bool:
        return await self._lock(_HOLD, owner, ttl_ms) == 1

    async def release_lock(self, owner: str) -> None:
        await self._lock(_RELEASE, owner)

    async def close(self) -> None:
        await self.cluster.close()
        for task in self._loading.values():
            task.cancel()
        await asyncio.gather(*self._loading.values(), return_exceptions=True)

    # ---- calls

    def _packed(self, function: str, encoded: Encoded) -> bytes:
        keys, arguments = encoded
        return pack("FCALL", self._library.functions[function], len(keys), *keys, *arguments)

    async def _keyed(
        self, function: str, calls: Sequence[BucketCall], encoded_at: Callable[[int], Encoded]
    ) -> Reply:
        """What is no check but about one's calls.  ``encoded_at``: as it is written by a clock in ms."""
        now_ms = self._store_ms()
        for _ in range(ASKED_AGAIN_MOST):
            try:
                return await self._sent(function, calls, encoded_at(now_ms))
            except OtherWindows as error:
                now_ms = error.time_ms
                self._told_store_ms(now_ms)
        return await self._sent(function, calls, encoded_at(now_ms))

    async def _sent(self, function: str, calls: Sequence[BucketCall], encoded: Encoded) -> Reply:
        reply = await self.cluster.call(
            self._packed(function, encoded),
            hash_slot=hash_slot_of(tag_of(calls[0].key)),
            attempt_s=self._calm_s,
            whole_s=self._calm_s,
            load=self._load,
        )
        return cast(Reply, reply)

    async def _at(self, point: str, function: str, encoded: Encoded) -> Reply:
        """A call without keys at one point, which may be of another version of the library."""
        address, _, version = point.partition("/")
        own = version == self.version
        name = self._library.functions[function] if own else f"{LIBRARY_PREFIX}{function}_{version}"
        reply = await self.cluster.call(
            pack("FCALL", name, 0, *encoded[1]),
            address=address,
            attempt_s=self._calm_s,
            whole_s=self._calm_s,
            load=self._load if own else None,
            through_breaker=False,
        )
        return cast(Reply, reply)

    async def _lock(self, script: str, *arguments: str | int) -> object:
        return await self.cluster.call(
            pack("EVAL", script, 1, LOCK_KEY, *arguments),
            hash_slot=_LOCK_SLOT,
            attempt_s=self._calm_s,
            whole_s=self._calm_s,
            through_breaker=False,
        )

    # ---- the library

    async def _load(self, address: str, timeout_s: float) -> None:
        """Load the library at ``address``: once for all calls that miss it, and on when one of them gives up."""
        task = self._loading.get(address)
        if task is None:
            task = self._loading[address] = asyncio.get_running_loop().create_task(self._load_once(address))
            task.add_done_callback(lambda done: self._loaded(address, done))
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                await asyncio.shield(task)
        except TimeoutError:
            raise StoreUnavailable("loading_library", may_have_run=False) from None

    async def _load_once(self, address: str) -> None:
        reply = await self.cluster.server(address).call(self._load_command, self._calm_s)
        if isinstance(reply, ReplyError) and "already exists" not in str(reply):
            _log.error("redis %s does not take the function library: %s", address, str(reply)[:300])
            raise StoreUnavailable("loading_library", may_have_run=False)

    def _loaded(self, address: str, task: asyncio.Task[None]) -> None:
        self._loading.pop(address, None)
        if not task.cancelled():
            task.exception()  # whoever waits has it; with nobody waiting it is nobody's

    async def _versions_at(self, address: str) -> list[str]:
        """The points of one primary.  One that does not answer is named by our own version."""
        try:
            reply = await self.cluster.server(address).call(
                pack("FUNCTION", "LIST", "LIBRARYNAME", f"{LIBRARY_PREFIX}*"), self._calm_s
            )
            versions = _versions(reply)
            if self.version not in versions:
                await self._load(address, self._calm_s)
                versions.add(self.version)
        except StoreUnavailable:
            versions = {self.version}
        return [f"{address}/{version}" for version in versions]


def _told_subject(done: LookedUp, outcome: SubjectFound | Exception) -> None:
    done(outcome if isinstance(outcome, SubjectFound | StoreUnavailable) else StoreUnavailable(repr(outcome)))


def _subject_found(reply: object) -> SubjectFound:
    position, held = cast(list[bytes | None], reply)
    return SubjectFound(held_attributes(held), position is not None)


def _versions(reply: object) -> set[str]:
    """The versions in a reply of FUNCTION LIST: a list of libraries, each a flat list of names and values."""
    if not isinstance(reply, list):
        return set()
    found = set()
    for entry in reply:
        fields = dict(zip(entry[::2], entry[1::2], strict=False))
        name = fields.get(b"library_name", b"").decode()
        found.add(name.removeprefix(LIBRARY_PREFIX))
    return found
