"""From the bytes of a request to a Check.  Pure.

The decoder refuses what is wrong; only then :func:`_faults` reads the body again, slowly, to name every field
that is wrong and say what would be right.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated
from urllib.parse import parse_qsl

import msgspec

from regional_limiter.model.decision import MAX_COST, MAX_VALUE_BYTES, Check
from regional_limiter.model.errors import Fault

MAX_BODY_BYTES = 64 * 1024
MAX_REQUEST_ID_BYTES = 128

_FIELDS = ("client_key", "resource", "cost", "attributes", "domain", "request_id")
_QUERY_FIELDS = ("client_key", "resource", "domain", "detail")
_OF_ATTRIBUTES = "attributes."
_OWN_FIELD = ("client_key", "resource")
_COST_EXPECTED = f"must be an integer from 0 to {MAX_COST}"


class Refused(Exception):
    """A request that is wrong: ``status`` 400 (not JSON) or 422, with every fault by its field."""

    def __init__(self, status: int, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(f"{fault.place}: {fault.problem}" for fault in faults))
        self.status = status
        self.faults = tuple(faults)


class CheckBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a check, and of a refund."""

    client_key: str
    resource: str
    cost: Annotated[int, msgspec.Meta(ge=0, le=MAX_COST)] = 1
    attributes: dict[str, str] = {}
    domain: str = "default"
    request_id: str | None = None


_decode = msgspec.json.Decoder(CheckBody).decode


def parse_check(body: bytes) -> Check:
    """The check (or refund) that a body asks for.  Raises Refused."""
    try:
        given = _decode(body)
    except msgspec.DecodeError as error:
        raise _explain(body, str(error)) from None
    attributes = given.attributes
    if not _fits(given):
        raise _explain(body, "a value is too long")
    attributes["client_key"] = given.client_key
    attributes["resource"] = given.resource
    return Check(given.domain, attributes, given.cost, given.request_id)


def parse_peek(query: bytes) -> tuple[Check, bool]:
    """(the check of cost 0, whether details are wanted) of ``client_key=…&resource=…&attributes.tier=…``.

    Raises Refused, also for a name that is not known.
    """
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=1000)
    except (UnicodeDecodeError, ValueError):
        raise Refused(422, [Fault("query", "must be percent-encoded UTF-8 of at most 1,000 fields")]) from None
    faults: list[Fault] = []
    fields: dict[str, object] = {}
    attributes: dict[str, object] = {}
    for name, value in pairs:
        if name.startswith(_OF_ATTRIBUTES) and name != _OF_ATTRIBUTES:
            attributes[name.removeprefix(_OF_ATTRIBUTES)] = value
        elif name in fields:
            faults.append(Fault(name, "is given twice"))
        elif name in _QUERY_FIELDS:
            fields[name] = value
        else:
            faults.append(Fault(name, _unknown(name, _QUERY_FIELDS)))
    detail = fields.pop("detail", "0") in ("1", "true")
    faults += _faults({**fields, "attributes": attributes})
    if faults:
        raise Refused(422, faults)
    known = {name: str(value) for name, value in attributes.items()}
    known["client_key"], known["resource"] = str(fields["client_key"]), str(fields["resource"])
    return Check(str(fields.get("domain", "default")), known, 0), detail


def wants_detail(query: bytes) -> bool:
    """Whether a check's query asks for ``detail=1``.  Other parameters mean nothing here."""
    return bool(query) and any(part in (b"detail=1", b"detail=true") for part in query.split(b"&"))


def _fits(given: CheckBody) -> bool:
    if not (_short(given.client_key) and _short(given.resource) and _short(given.domain)):
        return False
    if given.request_id is not None and not _short(given.request_id, MAX_REQUEST_ID_BYTES):
        return False
    for name, value in given.attributes.items():
        if name in _OWN_FIELD or not _short(name) or not _short(value):
            return False
    return True


def _short(value: str, bytes_most: int = MAX_VALUE_BYTES) -> bool:
    # UTF-8 takes at most four bytes a character: encode only what could be too long.
    return len(value) * 4 <= bytes_most or len(value.encode()) <= bytes_most


def _explain(body: bytes, error: str) -> Refused:
    """Why the decoder refused ``body``: 400 if it is not JSON, else 422 with the fields."""
    try:
        # Bytes that are not UTF-8 survive as lone surrogates, so that the field that holds them can be named.
        text = body.decode("utf-8", "surrogateescape")
        document = json.loads(text, parse_constant=_no_constant, parse_int=_bounded_int)
    except (ValueError, RecursionError):
        return Refused(400, [Fault("body", f"must be JSON: {error}")])
    if not isinstance(document, dict):
        return Refused(422, [Fault("body", "must be a JSON object")])
    faults = _faults(document)
    return Refused(422, faults) if faults else Refused(400, [Fault("body", f"must be JSON: {error}")])


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _bounded_int(digits: str) -> int:
    # An integer of thousands of digits is out of range whatever it is, and slow to read.
    return int(digits) if len(digits) < 20 else (-1 if digits.startswith("-") else MAX_COST + 1)


def _faults(document: Mapping[str, object]) -> list[Fault]:
    faults = [Fault(_name(name), _unknown(name, _FIELDS)) for name in document if name not in _FIELDS]
    faults += [Fault(name, "is required") for name in ("client_key", "resource") if name not in document]
    for name in ("client_key", "resource", "domain"):
        if name in document:
            faults += _text_faults(name, document[name], MAX_VALUE_BYTES)
    if document.get("request_id") is not None:
        faults += _text_faults("request_id", document["request_id"], MAX_REQUEST_ID_BYTES)
    cost = document.get("cost", 1)
    if isinstance(cost, bool) or not isinstance(cost, int) or not 0 <= cost <= MAX_COST:
        faults.append(Fault("cost", _COST_EXPECTED))
    return faults + _attribute_faults(document.get("attributes", {}))


def _attribute_faults(attributes: object) -> list[Fault]:
    if not isinstance(attributes, dict):
        return [Fault("attributes", "must be an object whose values are strings")]
    faults: list[Fault] = []
    for name, value in attributes.items():
        place = _OF_ATTRIBUTES + _name(name)
        if name in _OWN_FIELD:
            faults.append(Fault(place, f"is given by the field {name}"))
        faults += _text_faults(place, name, MAX_VALUE_BYTES) or _text_faults(place, value, MAX_VALUE_BYTES)
    return faults


def _text_faults(place: str, value: object, bytes_most: int) -> list[Fault]:
    if not isinstance(value, str):
        return [Fault(place, "must be a string")]
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return [Fault(place, "must be UTF-8")]
    return [] if size <= bytes_most else [Fault(place, f"must be at most {bytes_most:,} bytes, is {size:,}")]


def _unknown(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"unknown field; did you mean {near[0]}?" if near else f"unknown field; known are {', '.join(known)}"


def _name(name: str) -> str:
    """A field's name as a problem may repeat it: short, and valid UTF-8 whatever came in."""
    return name[:64].encode("utf-8", "replace").decode()
