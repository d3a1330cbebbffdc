"""From the bytes of a request to a Check.  Pure.

The decoder refuses what is wrong; only then :func:`_explain` reads the body again, slowly, to name every field
that is wrong and say what would be right.

A field that is given twice is refused: of two readers of one body (a gateway that looks at it, and we) each may
take another one, and whoever sends it may be counting on that.  The decoder takes the last in silence, so the
quotes of the body are counted: without an escape each is an end of a name or of a text, and there are exactly as
many as the fields that were decoded account for.  Where the count differs, the slow reading tells.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import Annotated, Final
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET, Meta, UnsetType

from regional_limiter.model.decision import COST_MOST, VALUE_BYTES_MOST, Check
from regional_limiter.model.errors import Fault
from regional_limiter.plan import DOMAIN_EXPECTED, ID_BYTES_MOST, is_domain

BODY_BYTES_MOST = 64 * 1024
BATCH_BYTES_MOST = 1024 * 1024
BATCH_CHECKS_MOST = 1000
FAULTS_MOST = 16
"""Unknown fields, and wrong attributes, that are told of one check: telling takes time, and others wait."""

DEFAULT_DOMAIN: Final = "default"

_FIELDS = ("client_key", "resource", "cost", "attributes", "domain", "request_id")
_IDENTITY_FIELDS = ("client_key", "resource", "attributes", "domain")
_ACQUIRE_FIELDS = ("client_key", "resource", "cost", "attributes", "domain", "lease_id")
_LEASE_FIELDS = ("client_key", "resource", "attributes", "domain", "lease_id")
_BATCH_FIELDS = ("checks",)
_QUERY_FIELDS = ("client_key", "resource", "domain", "detail")
_OF_ATTRIBUTES = "attributes."
_OWN_FIELD = ("client_key", "resource")
_OF_LEASE = (*_OWN_FIELD, "lease_id")
_COST_EXPECTED = f"must be an integer from 0 to {COST_MOST}"
_TWICE = "is given twice"
_TOO_DEEP = "is nested too deeply to be read: at most one object of attributes lies in a check"
_BATCH_EXPECTED = f"must be a list of at most {BATCH_CHECKS_MOST:,} checks"


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
    cost: Annotated[int, Meta(ge=0, le=COST_MOST, extra_json_schema={"default": 1})] | UnsetType = UNSET
    attributes: dict[str, str] | UnsetType = UNSET
    domain: Annotated[str, Meta(extra_json_schema={"default": DEFAULT_DOMAIN})] | UnsetType = UNSET
    request_id: str | UnsetType | None = UNSET


class BatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a batch."""

    checks: Annotated[list[CheckBody], Meta(max_length=BATCH_CHECKS_MOST)]


class IdentityBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a reset: whose buckets."""

    client_key: str
    resource: str
    attributes: dict[str, str] = {}
    domain: Annotated[str, Meta(extra_json_schema={"default": DEFAULT_DOMAIN})] = DEFAULT_DOMAIN


class AcquireBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of an acquisition: a check, and under which name it takes its slots (none given: a new one)."""

    client_key: str
    resource: str
    cost: Annotated[int, Meta(ge=0, le=COST_MOST)] = 1
    attributes: dict[str, str] = {}
    domain: Annotated[str, Meta(extra_json_schema={"default": DEFAULT_DOMAIN})] = DEFAULT_DOMAIN
    lease_id: str | UnsetType | None = UNSET


class LeaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a renewal, and of a release: whose slots, and under which name they were taken."""

    client_key: str
    resource: str
    lease_id: str
    attributes: dict[str, str] = {}
    domain: Annotated[str, Meta(extra_json_schema={"default": DEFAULT_DOMAIN})] = DEFAULT_DOMAIN


class RawBatch(msgspec.Struct, forbid_unknown_fields=True):
    """A batch whose checks have not been read."""

    checks: list[msgspec.Raw]


_decode = msgspec.json.Decoder(CheckBody).decode
_decode_batch = msgspec.json.Decoder(BatchBody).decode
_decode_raw_batch = msgspec.json.Decoder(RawBatch).decode


def parse_check(body: bytes) -> Check:
    """The check (or refund) that a body asks for.  Raises Refused."""
    try:
        given = _decode(body)
    except msgspec.DecodeError as error:
        raise _explain(body, str(error)) from None
    # No text is longer than the body that it was written in.
    plain = given.domain is UNSET and given.request_id is UNSET and given.attributes is UNSET
    if not ((plain and len(body) <= VALUE_BYTES_MOST) or _fits(given)):
        raise _explain(body, "a value is too long")
    if b"\\" in body or body.count(b'"') != _quotes(given):
        _refuse_repeated(body)
    return _check_of(given)


def parse_plain_batch(body: bytes) -> list[Check] | None:
    """The checks of a batch, None if anything of it has to be looked at closely.  A few ms at most."""
    try:
        given = _decode_batch(body).checks
    except (msgspec.DecodeError, RecursionError):
        return None
    if b"\\" in body or body.count(b'"') != 2 + sum(map(_quotes, given)) or not all(map(_fits, given)):
        return None
    return list(map(_check_of, given))


def parse_batch(body: bytes) -> Sequence[Check | Refused]:
    """The checks of a batch, each or what is wrong with it.  Raises Refused when it is no batch at all.

    A large one that has to be looked at closely takes some tenths of a second: call it in a thread.
    """
    plain = parse_plain_batch(body)
    if plain is not None:
        return plain
    try:
        raw = _decode_raw_batch(body).checks
    except (msgspec.DecodeError, RecursionError) as error:
        raise _explain_batch(body, error) from None
    if len(raw) > BATCH_CHECKS_MOST:
        raise Refused(422, [Fault("checks", f"{_BATCH_EXPECTED}, has {len(raw):,}")])
    items = [bytes(item) for item in raw]
    if body.count(b'"') != 2 + sum(item.count(b'"') for item in items):
        raise Refused(422, [Fault("checks", _TWICE)])
    return [_parse_item(item) for item in items]


def _parse_item(item: bytes) -> Check | Refused:
    if len(item) > BODY_BYTES_MOST:
        return Refused(422, [Fault("body", f"a check may have at most {BODY_BYTES_MOST:,} bytes")])
    try:
        return parse_check(item)
    except Refused as error:
        return error


def _explain_batch(body: bytes, error: Exception) -> Refused:
    """Why a body is no batch, by its field unless it is so large that reading it again would hold up others."""
    if len(body) <= BODY_BYTES_MOST:
        return _explain(body, str(error), _batch_faults)
    if isinstance(error, msgspec.ValidationError):
        return Refused(422, [Fault("body", f"must be a batch: {error}")])
    return _not_json(_TooDeep() if isinstance(error, RecursionError) else ValueError(), str(error))


def parse_reset(body: bytes) -> Check:
    """The identity whose buckets a reset fills, as a check of cost 0.  Raises Refused."""
    return identity_of(document_of(body, _IDENTITY_FIELDS))


def parse_acquire(body: bytes) -> Check:
    """The check of an acquisition; ``lease_id`` None: none was given.  Raises Refused."""
    return identity_of(document_of(body, _ACQUIRE_FIELDS), 1)


def parse_lease(body: bytes) -> Check:
    """Whose slots a renewal or a release is about, as a check of cost 0 with a ``lease_id``.  Raises Refused."""
    return identity_of(document_of(body, _LEASE_FIELDS, _OF_LEASE))


def document_of(body: bytes, known: tuple[str, ...], required: tuple[str, ...] = _OWN_FIELD) -> _Object:
    """A body without faults.  Raises Refused."""
    try:
        document = _read(body)
    except ValueError as error:
        raise _not_json(error) from None
    if not isinstance(document, _Object):
        raise Refused(422, [Fault("body", "must be a JSON object")])
    faults = _faults(document, known, required)
    if faults:
        raise Refused(422, faults)
    return document


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
        inner = name.removeprefix(_OF_ATTRIBUTES)
        into, key = (attributes, inner) if inner != name and inner else (fields, name)
        if key in into:
            faults.append(Fault(_name(name), _TWICE))
        elif into is attributes or name in _QUERY_FIELDS:
            into[key] = value
        else:
            faults.append(Fault(_name(name), _unknown(name[:64], _QUERY_FIELDS)))
    detail = fields.pop("detail", "0") in ("1", "true")
    document = {**fields, "attributes": attributes}
    faults += _faults(document, _IDENTITY_FIELDS)
    if faults:
        raise Refused(422, faults)
    return identity_of(document), detail


def wants_detail(query: bytes) -> bool:
    """Whether a check's query asks for ``detail=1``.  Other parameters mean nothing here."""
    return bool(query) and any(part in (b"detail=1", b"detail=true") for part in query.split(b"&"))


def _check_of(given: CheckBody) -> Check:
    attributes = {} if given.attributes is UNSET else given.attributes
    attributes["client_key"] = given.client_key
    attributes["resource"] = given.resource
    return Check(
        DEFAULT_DOMAIN if given.domain is UNSET else given.domain,
        attributes,
        1 if given.cost is UNSET else given.cost,
        None if given.request_id is UNSET else given.request_id,
    )


def identity_of(document: Mapping[str, object], cost: int = 0) -> Check:
    """The check of a document without faults.  ``cost``: if it names none."""
    given = document.get("attributes", {})
    assert isinstance(given, dict)
    attributes = {name: str(value) for name, value in given.items()}
    attributes |= {name: str(document[name]) for name in _OWN_FIELD}
    given_cost, lease_id = document.get("cost", cost), document.get("lease_id")
    assert isinstance(given_cost, int)
    assert lease_id is None or isinstance(lease_id, str)
    return Check(str(document.get("domain", DEFAULT_DOMAIN)), attributes, given_cost, lease_id=lease_id)


def _quotes(given: CheckBody) -> int:
    """How many quotes a check is written with, if no text in it has any and no field is repeated."""
    count = 8
    if given.cost is not UNSET:
        count += 2
    if given.domain is not UNSET:
        count += 4
    if given.request_id is not UNSET:
        count += 4 if given.request_id is not None else 2
    if given.attributes is not UNSET:
        count += 2 + 4 * len(given.attributes)
    return count


def _fits(given: CheckBody) -> bool:
    if not (_short(given.client_key) and _short(given.resource)):
        return False
    if given.domain is not UNSET and not is_domain(given.domain):
        return False
    request_id, attributes = given.request_id, given.attributes
    if request_id is not UNSET and request_id is not None and not 0 < len(request_id) * 4 <= ID_BYTES_MOST:
        return 0 < len(request_id.encode()) <= ID_BYTES_MOST
    if attributes is UNSET:
        return True
    for name, value in attributes.items():
        if name in _OWN_FIELD or not _short(name) or not _short(value):
            return False
    return True


def _short(value: str, bytes_most: int = VALUE_BYTES_MOST) -> bool:
    # UTF-8 takes at most four bytes a character: encode only what could be too long.
    return len(value) * 4 <= bytes_most or len(value.encode()) <= bytes_most


class _Object(dict[str, object]):
    """A JSON object.  ``repeated``: names that were given more than once."""

    repeated: Sequence[str] = ()


def _object(pairs: list[tuple[str, object]]) -> _Object:
    made = _Object(pairs)
    if len(made) < len(pairs):
        made.repeated = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    return made


def _read(body: bytes) -> object:
    """What a body says, objects as :class:`_Object`.  ValueError: it is not JSON, or too deep to be read."""
    # Bytes that are not UTF-8 survive as lone surrogates, so that the field that holds them can be named.
    text = body.decode("utf-8", "surrogateescape")
    try:
        read: object = json.loads(
            text, parse_constant=_no_constant, parse_int=_bounded_int, object_pairs_hook=_object
        )
    except RecursionError:
        raise _TooDeep from None
    return read


class _TooDeep(ValueError):
    """Nobody can tell whether it is JSON."""


def _refuse_repeated(body: bytes) -> None:
    """Raise Refused if something is wrong that the decoder does not see: a field that is given twice."""
    try:
        document = _read(body)
    except ValueError as unread:
        raise _not_json(unread) from None
    if isinstance(document, _Object) and (faults := _faults(document)):
        raise Refused(422, faults)


def _explain(body: bytes, error: str, faults_of: Callable[[_Object], list[Fault]] | None = None) -> Refused:
    """Why the decoder refused ``body``: 400 if it is not JSON, else 422 with the fields."""
    try:
        document = _read(body)
    except ValueError as unread:
        return _not_json(unread, error)
    if not isinstance(document, _Object):
        return Refused(422, [Fault("body", "must be a JSON object")])
    faults = (faults_of or _faults)(document)
    return Refused(422, faults) if faults else _not_json(ValueError(), error)


def _not_json(unread: ValueError, error: str = "") -> Refused:
    problem = _TOO_DEEP if isinstance(unread, _TooDeep) else f"must be JSON: {error or unread}"
    return Refused(400, [Fault("body", problem)])


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _bounded_int(digits: str) -> int:
    # An integer of thousands of digits is out of range whatever it is, and slow to read.
    return int(digits) if len(digits) < 20 else (-1 if digits.startswith("-") else COST_MOST + 1)


def _batch_faults(document: Mapping[str, object]) -> list[Fault]:
    """What is wrong with a batch as such; its checks are looked at one by one."""
    unknown = _some_unknown(document, _BATCH_FIELDS)
    faults = [Fault(_name(name), _unknown(name[:64], _BATCH_FIELDS)) for name in unknown]
    faults += _repeated_faults(document)
    checks = document.get("checks")
    if "checks" not in document:
        faults.append(Fault("checks", "is required"))
    elif not isinstance(checks, list):
        faults.append(Fault("checks", _BATCH_EXPECTED))
    return faults


def _repeated_faults(document: object, place: str = "") -> list[Fault]:
    return [Fault(place + _name(name), _TWICE) for name in getattr(document, "repeated", ())[:FAULTS_MOST]]


def _faults(
    document: Mapping[str, object], known: tuple[str, ...] = _FIELDS, required: tuple[str, ...] = _OWN_FIELD
) -> list[Fault]:
    faults = [Fault(_name(name), _unknown(name[:64], known)) for name in _some_unknown(document, known)]
    faults += [Fault(name, "is required") for name in required if name not in document]
    faults += _repeated_faults(document)
    for name in (*_OWN_FIELD, "domain"):
        if name in document:
            faults += _text_faults(name, document[name], VALUE_BYTES_MOST)
    domain = document.get("domain", DEFAULT_DOMAIN)
    if isinstance(domain, str) and len(domain) <= VALUE_BYTES_MOST and not is_domain(domain):
        faults.append(Fault("domain", f"must be {DOMAIN_EXPECTED}"))
    for name in ("request_id", "lease_id"):
        given = document.get(name)
        if name not in known or name not in document or (given is None and name not in required):
            continue
        faults += _text_faults(name, given, ID_BYTES_MOST)
        if given == "":
            faults.append(Fault(name, "must not be empty"))
    cost = document.get("cost", 1)
    if "cost" in known and (isinstance(cost, bool) or not isinstance(cost, int) or not 0 <= cost <= COST_MOST):
        faults.append(Fault("cost", _COST_EXPECTED))
    return faults + _attribute_faults(document.get("attributes", {}))


def _attribute_faults(attributes: object) -> list[Fault]:
    if not isinstance(attributes, dict):
        return [Fault("attributes", "must be an object whose values are strings")]
    faults = _repeated_faults(attributes, _OF_ATTRIBUTES)
    for name, value in attributes.items():
        place = _OF_ATTRIBUTES + _name(name)
        if name in _OWN_FIELD:
            faults.append(Fault(place, f"is given by the field {name}"))
        faults += _text_faults(place, name, VALUE_BYTES_MOST) or _text_faults(place, value, VALUE_BYTES_MOST)
        if len(faults) >= FAULTS_MOST:
            break
    return faults


def _text_faults(place: str, value: object, bytes_most: int) -> list[Fault]:
    if not isinstance(value, str):
        return [Fault(place, "must be a string")]
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return [Fault(place, "must be UTF-8")]
    return [] if size <= bytes_most else [Fault(place, f"must be at most {bytes_most:,} bytes, is {size:,}")]


def _some_unknown(document: Mapping[str, object], known: Sequence[str]) -> list[str]:
    return list(islice((name for name in document if name not in known), FAULTS_MOST))


@lru_cache(maxsize=1024)
def _unknown(name: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"unknown field; did you mean {near[0]}?" if near else f"unknown field; known are {', '.join(known)}"


def _name(name: str) -> str:
    """A field's name as a problem may repeat it: short, and valid UTF-8 whatever came in."""
    return name[:64].encode("utf-8", "replace").decode()
