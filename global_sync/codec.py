"""Records and reports as bytes, and back.  Pure.

JSON, so that an operator can read the log with any tool: ``{"v":1,"records":[["beat",{…}],…]}`` and
``{"v":1,"report":{…}}``.  Whatever cannot be read, is of another version, or says something that no leader and
no region can mean, is one error: :class:`MalformedRecord`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from global_sync.protocol.messages import (
    Bases,
    Beat,
    Config,
    Done,
    Gone,
    Kind,
    LeaseRecord,
    Mark,
    Record,
    Report,
    Snapshot,
    Welcome,
    WindowAsk,
    WindowGrant,
)
from regional_limiter.model.enforcement import BASE
from regional_limiter.model.share import SHARE_UNITS, domain_of_floor

VERSION = 1
BYTES_MOST = 900_000
"""Kafka's default bound on a message is 1 MB."""

_TAGS: dict[str, type[Any]] = {
    "mark": Mark,
    "beat": Beat,
    "welcome": Welcome,
    "lease": LeaseRecord,
    "config": Config,
    "done": Done,
    "gone": Gone,
    "window": WindowGrant,
    "snapshot": Snapshot,
    "snapshot of windows": Snapshot,
    "config with floors": Config,
    "snapshot with floors": Snapshot,
    "snapshot after a lost log": Snapshot,
}
_TAG_OF = {kind: tag for tag, kind in reversed(_TAGS.items())}
_U64 = 2**64


class MalformedRecord(ValueError):
    """These bytes are no record or report of version 1; the text says why."""


class _Records(msgspec.Struct):
    v: int
    records: list[tuple[str, msgspec.Raw]]


class _Report(msgspec.Struct):
    v: int
    report: Report


class _Version(msgspec.Struct):
    v: int


class _Trace(msgspec.Struct):
    trace: str = ""


_encoder = msgspec.json.Encoder()
_records_decoder = msgspec.json.Decoder(_Records)
_report_decoder = msgspec.json.Decoder(_Report)
_version_decoder = msgspec.json.Decoder(_Version)
_trace_decoder = msgspec.json.Decoder(_Trace)
_decoders = {tag: msgspec.json.Decoder(kind) for tag, kind in _TAGS.items()}


def kind_of(record: Record) -> str:
    """How a record is called; leases by what they do: grow or keep."""
    return record.kind if isinstance(record, LeaseRecord) else _TAG_OF[type(record)]


def encode_records(records: Sequence[Record], trace: str = "") -> bytes:
    """One message that carries ``records``, to be applied in order.  ``trace``: see :func:`trace_of`."""
    said = {"v": VERSION, "records": [[_tag_of(one), one] for one in records]}
    return _encoder.encode({**said, "trace": trace} if trace else said)


def _tag_of(record: Record) -> str:
    """A process that knows nothing of windows must not take a snapshot for whole that has some; nor one that takes
    all floors for the usual ones lead where a set names larger ones, or claim that it keeps to them; nor one lead
    after a lost log that would grant windows anew.  Who knows a later of these tags knows the earlier."""
    if isinstance(record, Snapshot) and record.windows_from_ms:
        return "snapshot after a lost log"
    if isinstance(record, Snapshot) and record.windows:
        return "snapshot of windows"
    if _has_floors(record):
        return "config with floors" if isinstance(record, Config) else "snapshot with floors"
    return _TAG_OF[type(record)]


def _has_floors(record: Record) -> bool:
    if not isinstance(record, Config | Snapshot):
        return False
    tables = (record.bases, record.booked) if isinstance(record, Snapshot) else (record.bases,)
    return any(
        domain_of_floor(name) is not None and any(floors.values())
        for table in tables
        for name, floors in table.items()
    )


def trace_of(data: bytes) -> str:
    """The ``traceparent`` that a message or report goes by; "": none.  Whoever does not trace does not read it."""
    if b'"trace":' not in data:
        return ""
    try:
        return _trace_decoder.decode(data).trace
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def encode_batches(records: Iterable[Record], max_bytes: int = BYTES_MOST, trace: str = "") -> list[bytes]:
    """The same in as many messages as it takes to keep each below ``max_bytes`` (one record at least each).

    Grants of windows go by themselves, and so do floors, not with each other either: a process that does not know
    one of them refuses the message that has it.
    """
    batches: list[bytes] = []
    batch: list[Record] = []
    size, kind = 0, ""
    for record in records:
        one, apart = len(_encoder.encode(record)) + 20, _apart(record)
        if batch and (apart != kind or size + one > max_bytes):
            batches.append(encode_records(batch, trace))
            batch, size = [], 0
        batch.append(record)
        size, kind = size + one, apart
    if batch:
        batches.append(encode_records(batch, trace))
    return batches


def _apart(record: Record) -> str:
    """What a process has to know to read the message that ``record`` is in; "": nothing of late."""
    return "windows" if isinstance(record, WindowGrant) else "floors" if _has_floors(record) else ""


def decode_records(data: bytes) -> list[Record]:
    """The records of one message.  Raises MalformedRecord; a message is taken whole or not at all."""
    _check_version(data)
    try:
        return [_decode_one(tag, raw) for tag, raw in _records_decoder.decode(data).records]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRecord(str(error)) from error


def encode_report(report: Report, trace: str = "") -> bytes:
    said = {"v": VERSION, "report": report}
    return _encoder.encode({**said, "trace": trace} if trace else said)


def decode_report(data: bytes) -> Report:
    """Raises MalformedRecord."""
    _check_version(data)
    try:
        report = _report_decoder.decode(data).report
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRecord(str(error)) from error
    _check_counters("report", report.session, report.basis, report.echo[0])
    for seq, hold in report.settled.values():
        _check_counters("settled", *seq)
        _check_share("settled", hold)
    if any(want.want < 0 or want.peak < 0 for want in report.wants.values()):
        raise MalformedRecord("a want is below 0")
    for ask in report.asks.values():
        _check_ask(ask)
    return report


def _check_ask(ask: WindowAsk) -> None:
    _check_counters("ask", ask.window, ask.end_ms, ask.held, ask.least)
    if not 0 <= ask.wanted <= SHARE_UNITS:
        raise MalformedRecord(f"ask: {ask.wanted} is not in 0 to 10,000")


def _check_version(data: bytes) -> None:
    try:
        version = _version_decoder.decode(data).v
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedRecord(str(error)) from error
    if version != VERSION:
        raise MalformedRecord(f"version {version}: this process reads version {VERSION}")


def _decode_one(tag: str, raw: msgspec.Raw) -> Record:
    decoder = _decoders.get(tag)
    if decoder is None:
        raise MalformedRecord(f"no record is called {tag[:40]!r}")
    record: Record = decoder.decode(raw)
    _check(record)
    return record


def _check(record: Record) -> None:
    """What the types do not say."""
    _check_counters("epoch", record.epoch)
    if isinstance(record, LeaseRecord):
        _check_counters("lease", record.n, record.session)
        _check_share("lease", record.value)
        if record.kind is Kind.KEEP and record.value == BASE:
            raise MalformedRecord("KEEP needs a number")
    elif isinstance(record, Welcome):
        _check_counters("welcome", record.n, record.session, record.basis)
        for value in record.low.values():
            _check_share("welcome", value)
    elif isinstance(record, Beat):
        for session, basis in record.renewals.values():
            _check_counters("beat", session, basis)
    elif isinstance(record, Config):
        _check_counters("config", record.version)
        _check_bases(record.bases)
    elif isinstance(record, Done):
        _check_counters("done", record.version, *record.since.values())
    elif isinstance(record, WindowGrant):
        _check_counters("window", record.n, record.window, record.end_ms)
        _check_granted(record.total)
    elif isinstance(record, Snapshot):
        _check_snapshot(record)


def _check_snapshot(record: Snapshot) -> None:
    _check_counters("snapshot", record.number, record.version, record.done_version)
    if not 0 <= record.part < record.parts:
        raise MalformedRecord(f"part {record.part} of {record.parts}")
    _check_bases(record.bases)
    _check_bases(record.booked)
    for by_region in record.ledger.values():
        for entries in by_region.values():
            for seq, value, session in entries:
                _check_counters("snapshot", *seq, session)
                _check_share("snapshot", value)
    _check_counters("snapshot", record.windows_ended_ms, record.windows_from_ms)
    for windows in record.windows.values():
        for window, end_ms, totals in windows:
            _check_counters("snapshot", window, end_ms)
            for total in totals.values():
                _check_granted(total)


def _check_counters(where: str, *numbers: int) -> None:
    if not all(0 <= number < _U64 for number in numbers):
        raise MalformedRecord(f"{where}: a counter is not in 0 to 2^64-1")


def _check_share(where: str, value: int) -> None:
    if value != BASE and not 0 <= value <= SHARE_UNITS:
        raise MalformedRecord(f"{where}: {value} is no share")


def _check_granted(total: int) -> None:
    if not 0 <= total <= SHARE_UNITS:
        raise MalformedRecord(f"window: {total} is not in 0 to 10,000")


def _check_bases(bases: Bases) -> None:
    for by_region in bases.values():
        if not all(0 <= base <= SHARE_UNITS for base in by_region.values()):
            raise MalformedRecord("a base is not in 0 to 10,000")
