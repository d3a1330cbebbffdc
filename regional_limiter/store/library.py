"""The function library that every Redis primary runs: its text, its version, and each function's wire.  Pure.

The text is ``functions/*.lua``, one after another, with the protocol's times filled in; its version is a hash of
the outcome and part of the library's and every function's name, so two versions live side by side in one server,
each with its own variable.  ``1_head.lua`` describes the arguments and replies; here are both ends of them, so
that a client of Redis only moves bytes: ``encode_*`` gives (keys, arguments) for ``FCALL``, ``decode_*`` reads
its reply.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib import resources

import msgspec

from regional_limiter.algorithms.concurrency import SLOTS_A_HOLDER, holder_digest
from regional_limiter.algorithms.outcome import (
    REBASE_EVERY_MS,
    RETRY_FOR_LARGER_SHARE_MS,
    SHARE_ZERO_RESET_MS,
    STEP_KEPT_MS,
)
from regional_limiter.algorithms.registry import ALGORITHMS, functions_of
from regional_limiter.algorithms.sliding_window_log import TRIM_MOST
from regional_limiter.algorithms.token_lease import (
    CAPACITY_LEAST,
    EDGE_EVERY_MS,
    LEVEL_PART,
    RETURNS_MOST,
    TOKENS_LEAST,
)
from regional_limiter.model.decision import Reason, ShareKind, Verdict
from regional_limiter.model.enforcement import (
    BASES_REMEMBERED,
    DOMAINS_MOST,
    LEASED_MOST,
    LEASES_KEPT,
    LEASES_MOST,
    Write,
    WriteReply,
)
from regional_limiter.model.errors import OtherRequest
from regional_limiter.model.escrow import (
    USES_MOST,
    WINDOW_KEYS_MOST,
    WINDOWS_A_KEY,
    WindowNews,
    WindowUse,
)
from regional_limiter.model.keys import tag_of
from regional_limiter.model.share import (
    ADAPTIVE_EDGE_EVERY_MS,
    FLOOR_PER_MILLE,
    LARGEST_EXACT_INTEGER,
    SHARE_UNITS,
    WINDOW_STATIC_PER_MILLE,
    ProtocolTimes,
)
from regional_limiter.store.base import (
    BEAT_YOUNG_US,
    BEATS_MOST,
    DEMAND_A_REPLY,
    DEMAND_MOST,
    RECORD_MS,
    Allowed,
    BeatSeen,
    BucketCall,
    Collected,
    NodeBeat,
    ReturnedLease,
    TokenLease,
    TouchReply,
    WindowsReply,
)

FUNCTIONS = (
    "check",
    "refund",
    "renew",
    "release",
    "lease",
    "touch",
    "offer",
    "collect",
    "write",
    "windows",
    "publish_rules",
    "fetch_rules",
)

PARTS = (
    "1_head.lua",
    "2_shares.lua",
    "2_windows.lua",
    "3_limits.lua",
    "4_tokens_out.lua",
    "4_bucket.lua",
    "4_fixed_window.lua",
    "4_sliding_window_counter.lua",
    "4_sliding_window_log.lua",
    "4_concurrency.lua",
    "5_checks.lua",
    "5_token_lease.lua",
    "6_nodes_and_agent.lua",
)
"""The text, in order: a later part uses the locals of the earlier ones."""

OTHER_WINDOWS = "OTHERWINDOWS"
"""The error of a call that names another window than the store's clock is in; that clock's time in ms follows."""

ASKED_BYTES = 8
"""Of the digest of what a request asked for."""

Encoded = tuple[list[bytes], list[bytes]]
"""(keys, arguments) of an FCALL."""

Reply = Sequence[int | bytes]

TEST_EXPIRY_OFFSET_MS = 10**13
"""With a test clock keys expire this long after their time, so that Redis's real clock never does it."""

_TEST_CLOCK = f"""
local expires_from_ms
local function clock(args)
  local t = table.remove(args) + 0
  expires_from_ms = floor(t / 1000) + {TEST_EXPIRY_OFFSET_MS}
  return t
end
"""

_TEST_SHARE = """
register('share', function(keys, args)
  local t = enter(args)
  return {share_of(t, args[1], args[2])}
end, {})
"""


_NUMBERS = {
    "SHARE_UNITS": SHARE_UNITS,
    "FLOOR_PER_MILLE": FLOOR_PER_MILLE,
    "WINDOW_STATIC_PER_MILLE": WINDOW_STATIC_PER_MILLE,
    "WINDOW_KEYS_MOST": WINDOW_KEYS_MOST,
    "WINDOWS_A_KEY": WINDOWS_A_KEY,
    "USES_MOST": USES_MOST,
    "BASES_REMEMBERED": BASES_REMEMBERED,
    "EXACT": LARGEST_EXACT_INTEGER - 1,
    "DEMAND_MOST": DEMAND_MOST,
    "DEMAND_A_REPLY": DEMAND_A_REPLY,
    "BEATS_MOST": BEATS_MOST,
    "BEAT_YOUNG_US": BEAT_YOUNG_US,
    "RECORD_MS": RECORD_MS,
    "OTHER_WINDOWS": OTHER_WINDOWS,
    "RETRY_FOR_LARGER_SHARE_MS": RETRY_FOR_LARGER_SHARE_MS,
    "SHARE_ZERO_RESET_MS": SHARE_ZERO_RESET_MS,
    "STEP_KEPT_MS": STEP_KEPT_MS,
    "REBASE_EVERY_MS": REBASE_EVERY_MS,
    "TRIM_MOST": TRIM_MOST,
    "SLOTS_A_HOLDER": SLOTS_A_HOLDER,
    "ASKED_BYTES": ASKED_BYTES,
    "EDGE_EVERY_MS": EDGE_EVERY_MS,
    "ADAPTIVE_EDGE_EVERY_MS": ADAPTIVE_EDGE_EVERY_MS,
    "LEASE_CAPACITY_LEAST": CAPACITY_LEAST,
    "LEASE_LEVEL_PART": LEVEL_PART,
    "LEASE_TOKENS_LEAST": TOKENS_LEAST,
}
"""The numbers that Python and Lua must agree on, written once, in Python."""


@dataclass(frozen=True, slots=True)
class Library:
    """``name`` is for FUNCTION LIST and DELETE, ``functions`` maps ``check``, ``touch``… to the names to FCALL."""

    version: str
    name: str
    text: str
    functions: Mapping[str, str]


def build_library(times: ProtocolTimes, *, test_clock: bool = False) -> Library:
    """The library for these protocol times.

    ``test_clock``: for tests only: every call takes the time in microseconds as one more, last argument, and
    keys expire by it (see TEST_EXPIRY_OFFSET_MS); one more function, ``share`` (key, domain), tells the share
    in force with its history.
    """
    folder = resources.files("regional_limiter.store").joinpath("functions")
    text = "\n".join(folder.joinpath(part).read_text("utf-8") for part in PARTS)
    if test_clock:
        text = re.sub(r"--@clock begin\n.*?--@clock end", lambda _: _TEST_CLOCK.strip(), text, flags=re.DOTALL)
        text = text.replace("'PX', ", "'PXAT', expires_from_ms + ") + _TEST_SHARE
        text = text.replace("'PEXPIRE', s.key, ", "'PEXPIREAT', s.key, expires_from_ms + ")
    text = re.sub(r"--@clock (begin|end)\n", "", text)
    constants = {
        "GAP_US": times.gap_us,
        "CONSENT_US": times.consent_us,
        "LEASES_MOST": LEASES_MOST,
        "LEASES_KEPT": LEASES_KEPT,
        "DOMAINS_MOST": DOMAINS_MOST,
        "LEASED_MOST": LEASED_MOST,
        "LEASE_REMEMBERED_US": times.lease_remembered_us,
        **_NUMBERS,
    }
    for name, value in constants.items():
        text = text.replace(f"@{name}@", str(value))
    version = blake2b(text.encode(), digest_size=5).hexdigest()
    return Library(
        version=version,
        name=f"apportion_{version}",
        text=text.replace("@VERSION@", version),
        functions={
            function: f"apportion_{function}_{version}"
            for function in (*FUNCTIONS, *(("share",) if test_clock else ()))
        },
    )


# ---- check and refund

_REASONS = (Reason.OK, Reason.LIMITED, Reason.EXCEEDS_CAPACITY, Reason.ZERO_LIMIT)
_SHARE_KINDS = tuple(ShareKind(number) for number in range(4))
_VERDICT_FIELDS = 9


def limit_of(call: BucketCall, now_ms: int) -> bytes:
    """The LIMIT argument of a call: the same bytes for every call of a rule (for the time of a calendar window)."""
    if call.packed:
        return call.packed
    if call.split > 1:
        raise ValueError("a split key is asked of its sub-buckets")
    functions = functions_of(call)
    numbers = ",".join(map(str, functions.numbers(call, now_ms)))
    shares = f"{int(call.sharing)} {call.regions} {call.largest_share} {call.base_version} {call.base}"
    charges = 2 if call.was_allowed else int(call.charge_denied)
    own = f"{shares} {call.floor} {call.extra}"
    text = f"{functions.number} {call.capacity} {numbers} {charges} {own} {call.domain}"
    packed = text.encode()
    if call.calendar is None:
        object.__setattr__(call, "packed", packed)
    return packed


def record_key(calls: Sequence[BucketCall], request_id: str) -> str:
    """Where the answer to ``request_id`` is kept, in the slot of its buckets: one answer a tag."""
    return f"rl:{{{tag_of(calls[0].key)}}}:#c:{blake2b(request_id.encode(), digest_size=12).hexdigest()}"


def asked_digest(calls: Sequence[BucketCall]) -> bytes:
    """What a request asked for, which is kept with its answer: how much of which buckets."""
    text = "\0".join(f"{call.key}\0{call.cost}" for call in calls)
    return blake2b(text.encode(), digest_size=ASKED_BYTES).digest()


def charge_key(call: BucketCall, request_id: str) -> str:
    """Where it is kept what ``request_id`` may still give back to this bucket."""
    text = f"{request_id}\0{call.key}"
    return f"rl:{{{tag_of(call.key)}}}:#h:{blake2b(text.encode(), digest_size=12).hexdigest()}"


def encode_check(calls: Sequence[BucketCall], request_id: str | None = None, now_ms: int = 0) -> Encoded:
    """A check, or what is about its calls, in their order.

    Buckets must differ and share one hash tag.  ``now_ms`` is the caller's clock, which names fixed windows only.
    """
    keys, arguments = _encode_calls(calls, now_ms)
    if request_id is not None:
        keys += _records_of(calls, request_id)
        arguments.append(asked_digest(calls))
    return keys, arguments


def encode_refund(
    calls: Sequence[BucketCall], request_id: str | None = None, now_ms: int = 0, turn: int | None = None
) -> Encoded:
    """See CheckStore.refund, and :func:`encode_check`."""
    keys, arguments = encode_check(calls, request_id, now_ms)
    if request_id is not None:
        arguments.append(b"-" if turn is None else b"%d" % turn)
    return keys, arguments


def decode_check(reply: Sequence[int]) -> list[Verdict]:
    """Raises OtherRequest."""
    if reply[0] < 0:
        if len(reply) == 1:
            raise OtherRequest
        return [
            Verdict(True, Reason.OK, ~left, 0, reset_after_ms)
            for left, reset_after_ms in zip(reply[::2], reply[1::2], strict=True)
        ]
    if len(reply) == _VERDICT_FIELDS:
        return [_verdict(*reply)]
    return [_verdict(*reply[at : at + _VERDICT_FIELDS]) for at in range(0, len(reply), _VERDICT_FIELDS)]


def decode_plain_check(reply: Sequence[int]) -> list[Verdict] | Allowed:
    """As :func:`decode_check`, but as shortly as it was said where every rule allows at once."""
    if reply[0] >= 0 or len(reply) == 1:
        return decode_check(reply)
    if len(reply) == 2:
        return Allowed([~reply[0]], [reply[1]])
    return Allowed([~left for left in reply[::2]], list(reply[1::2]))


def _verdict(
    allowed: int,
    reason: int,
    remaining: int,
    wait: int,
    reset_after_ms: int,
    share: int,
    share_kind: int,
    session_left_us: int,
    consent_left_us: int,
) -> Verdict:
    held_before = 0
    if wait < 0 and allowed & 1:
        held_before, wait = -wait, 0
    # By place: names cost a third more, and every check comes here.
    return Verdict(
        allowed & 1 == 1,
        _REASONS[reason],
        remaining,
        0 if allowed & 1 else None if wait < 0 else wait,
        reset_after_ms,
        share,
        _SHARE_KINDS[share_kind],
        session_left_us,
        consent_left_us,
        False,
        allowed & 2 == 2,
        wait if allowed & 1 else 0,
        allowed >> 2,
        held_before,
    )


def _records_of(calls: Sequence[BucketCall], request_id: str) -> list[bytes]:
    names = (record_key(calls, request_id), *(charge_key(call, request_id) for call in calls))
    return [name.encode() for name in names]


def decode_renew(reply: Sequence[int]) -> list[bool]:
    """Whether the holder of each call still held what it has a new lease for, or what is free now (``release``)."""
    return [held == 1 for held in reply]


def encode_lease(call: BucketCall, want: int, returned: Sequence[ReturnedLease]) -> Encoded:
    if len(returned) > RETURNS_MOST:
        raise ValueError(f"at most {RETURNS_MOST} leases come back in one call")
    arguments = [limit_of(call, 0), b"%d" % want]
    for back in returned:
        arguments += (b"%d" % number for number in (back.edge_ms, back.tokens, back.unspent))
    return [call.key.encode()], arguments


def decode_lease(reply: Sequence[int]) -> TokenLease:
    *numbers, share, kind, session_left_us, consent_left_us = reply
    tokens, edge_ms, ends_in_us, credited, remaining, reset_after_ms = numbers
    return TokenLease(
        tokens,
        edge_ms,
        ends_in_us,
        credited,
        remaining,
        reset_after_ms,
        share,
        _SHARE_KINDS[kind],
        session_left_us,
        consent_left_us,
    )


def _encode_calls(calls: Sequence[BucketCall], now_ms: int) -> Encoded:
    if len(calls) > 1 and len({call.key for call in calls}) != len(calls):
        raise ValueError("one bucket twice in one call")
    keys = [functions_of(call).storage_key(call, now_ms).encode() for call in calls]
    arguments = [b"%d" % len(calls)]
    holders: list[bytes] = []
    for call in calls:
        arguments.append(b"%d" % call.cost)
        arguments.append(limit_of(call, now_ms))
        if ALGORITHMS[call.algorithm].holder:
            holders.append(holder_digest(call.holder))
    return keys, arguments + holders if holders else arguments


# ---- nodes

_beat_encoder = msgspec.msgpack.Encoder()
_beat_decoder = msgspec.msgpack.Decoder(NodeBeat)


def encode_touch(beat: NodeBeat) -> Encoded:
    return [], [beat.node.encode(), _beat_encoder.encode(beat)]


def decode_touch(reply: Reply) -> TouchReply:
    time_us, rules_version, base_version, nodes, consent_left_us = (_integer(field) for field in reply[:5])
    bases = {_text(domain): _integer(base) for domain, base in _pairs(reply[6:])}
    return TouchReply(time_us, rules_version, base_version, bases, nodes, consent_left_us)


def encode_offer(demand: Mapping[str, int]) -> Encoded:
    arguments: list[bytes] = []
    for key, cost in demand.items():
        arguments.append(key.encode())
        arguments.append(b"%d" % cost)
    return [], arguments


# ---- agent


def encode_collect() -> Encoded:
    return [], []


def decode_collect(reply: Reply) -> Collected:
    split = 2 + 2 * _integer(reply[1])
    demand = {_text(key): _integer(cost) for key, cost in _pairs(reply[2:split])}
    beats = [BeatSeen(_beat_decoder.decode(_bytes(blob)), _integer(age)) for blob, age in _pairs(reply[split:])]
    return Collected(demand, beats, _integer(reply[0]))


def encode_write(write: Write) -> Encoded:
    numbers = (
        write.session,
        write.version,
        write.until_us,
        int(write.extend),
        int(write.all_known),
        write.base_version,
        len(write.leases),
    )
    arguments = [write.nonce.encode(), write.instance.encode(), *(b"%d" % number for number in numbers)]
    for table in (write.leases, write.bases):
        for name, value in table.items():
            arguments.append(name.encode())
            arguments.append(b"%d" % value)
    return [], arguments


def decode_write(reply: Reply) -> WriteReply:
    return WriteReply(
        accepted=reply[0] == 1,
        instance=_text(reply[1]),
        time_us=_integer(reply[2]),
        age_us=_integer(reply[3]),
        session=_integer(reply[4]),
        version=_integer(reply[5]),
        resting=tuple(_text(key) for key in reply[6:]),
    )


_USE_FIELDS = 9


def encode_windows(news: WindowNews) -> Encoded:
    arguments = [news.instance.encode(), b"%d" % news.base_version, b"%d" % len(news.since)]
    for domain, since_ms in news.since.items():
        arguments += (domain.encode(), b"%d" % since_ms)
    for one in news.granted:
        arguments.append(one.key.encode())
        arguments += (b"%d" % number for number in (one.window, one.end_ms, one.total, one.before))
    return [], arguments


def decode_windows(reply: Reply) -> WindowsReply:
    rows = range(2, len(reply), _USE_FIELDS)
    uses = [WindowUse(_text(reply[at]), *map(_integer, reply[at + 1 : at + _USE_FIELDS])) for at in rows]
    return WindowsReply(_text(reply[0]), _integer(reply[1]), uses)


def encode_publish_rules(version: int, blob: bytes) -> Encoded:
    return [], [b"%d" % version, blob]


def encode_fetch_rules() -> Encoded:
    return [], []


def decode_fetch_rules(reply: Reply) -> tuple[int, bytes]:
    """(version, blob); version -1: the point has none."""
    return _integer(reply[0]), _bytes(reply[1])


def _pairs(fields: Reply) -> list[tuple[int | bytes, int | bytes]]:
    return list(zip(fields[::2], fields[1::2], strict=True))


def _integer(field: int | bytes) -> int:
    return field if isinstance(field, int) else int(field)


def _bytes(field: int | bytes) -> bytes:
    if isinstance(field, int):
        raise ValueError("an integer where text was due")
    return field


def _text(field: int | bytes) -> str:
    return _bytes(field).decode()
