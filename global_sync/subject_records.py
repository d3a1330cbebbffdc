"""Subjects that are stored: how a change of them is checked, and how they stand in their topic.  Pure.

The topic is compacted: a record for each client, by domain and client key, says what is known of it since which
change.  A client of whom nothing is known any more keeps a record that says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from regional_limiter.model.errors import Fault
from regional_limiter.rules.stored_subjects import faults_of_subject
from regional_limiter.store.subjects import SubjectWrite

VERSION = 1
_NOTHING = b"null"


class _Record(msgspec.Struct, frozen=True):
    v: int
    n: int
    set: msgspec.Raw


def faults_of(subjects: Sequence[Mapping[str, Any]], *, put: bool) -> list[Fault]:
    """What is wrong with a change of stored subjects: each names one ``client_key``, once."""
    faults: list[Fault] = []
    seen: set[str] = set()
    for place, subject in enumerate(subjects):
        faults += [
            Fault(f"subjects[{place}]{fault.place}", fault.problem) for fault in faults_of_subject(subject, put=put)
        ]
        client_key = subject.get("client_key") if isinstance(subject, Mapping) else None
        if isinstance(client_key, str) and client_key in seen:
            faults.append(Fault(f"subjects[{place}].client_key", "is named twice in one change"))
        seen.add(str(client_key))
    return faults


def encode_records(
    domain: str, subjects: Sequence[Mapping[str, Any]], version: int, *, put: bool
) -> tuple[list[bytes], list[bytes]]:
    """(keys, values) of the topic, for a change that was accepted as ``version``."""
    keys = [f"{domain}/{subject['client_key']}".encode() for subject in subjects]
    values = [
        msgspec.json.encode({"v": VERSION, "n": version, "set": subject["set"] if put else None})
        for subject in subjects
    ]
    return keys, values


def decode_record(key: bytes | None, value: bytes) -> SubjectWrite:
    """Raises ValueError."""
    domain, slash, client_key = (key or b"").decode().partition("/")
    try:
        record = msgspec.json.decode(value, type=_Record)
    except msgspec.DecodeError as error:
        raise ValueError(f"no subject: {error}") from error
    if record.v != VERSION or not slash:
        raise ValueError(f"no subject of version {VERSION} with a key")
    said = bytes(record.set)
    return SubjectWrite(domain, client_key, record.n, b"" if said == _NOTHING else said)
