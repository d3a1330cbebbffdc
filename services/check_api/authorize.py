"""Forward-auth: a gateway asks whether a request may pass, by a request of its own that has no body.  Pure.

There are two ways to ask, and who wrote what differs:

``/v1/authorize``    nginx, Traefik, Caddy, HAProxy.  The gateway says in ``X-Forwarded-Method``, ``-Uri`` and
                     ``-Host`` what it was asked.  The query is the operator's, who wrote the address: ``domain``,
                     ``resource``, ``cost``, ``attributes.NAME``, and ``denied`` (the status of every denial, for
                     nginx, which lets only 401 and 403 stand).
``/v1/authorize/…``  Envoy, which puts its prefix before the path.  The request is what was asked, with its method
                     and its path; the query is the stranger's and means nothing here.  A denial is 429: Envoy takes
                     5xx for no answer.

A stranger writes most of what comes here, and a gateway that gets no proper answer may let the request through.  So
nothing of theirs is an error: a text that is too long is cut and hashed, and what a rule cannot read is a denial.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.parse import parse_qsl

from apportion.addresses import LOOPBACK, caller_of, grouped, networks_of
from apportion.texts import fitting

from regional_limiter.model.decision import COST_MOST, Answer, Check, Reason
from regional_limiter.model.errors import Fault, InvalidCheck
from regional_limiter.plan import DOMAIN_EXPECTED, is_domain
from services.check_api.bodies import DEFAULT_DOMAIN, Refused
from services.check_api.headers import Lines, as_lines
from services.check_api.replies import NO_STORE, PROBLEM, Reply, problem
from services.errors import QUOTA_EXCEEDED, REDUCED_CAPACITY, problem_body

AUTHORIZE_PATH: Final = "/v1/authorize"
AUTHORIZE_PREFIX: Final = AUTHORIZE_PATH + "/"
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""What is asked by another method is asked all the same; these are labels of metrics."""

STATUS_HEADER: Final = b"x-apportion-status"
"""Of a denial: the status that the caller should be told, where the gateway cannot take it from the answer."""

DENIED_STATUSES: Final = (401, 403, 429, 503)
_OWN_SOURCES: Final = ("address", "full_address", "method", "path", "host")
_HEADER: Final = "header:"
SOURCES_EXPECTED: Final = "one of " + ", ".join(_OWN_SOURCES) + ", or header:NAME"
OWN_ATTRIBUTES: Final[Mapping[str, str]] = {
    "ip": "address",
    "full_ip": "full_address",
    "method": "method",
    "path": "path",
    "host": "host",
}
ATTRIBUTES_MOST: Final = 32
ADDRESSES_KEPT: Final = 4096
FORWARDED_BYTES_KEPT: Final = 256
"""Longer lists of addresses are read each time: 1 MiB is kept at most."""
_QUERY_EXPECTED = "domain, resource, cost, denied and attributes.NAME are known here"


@dataclass(frozen=True, slots=True)
class AuthorizeOptions:
    """Where the identity of a request is taken from, and whom to believe.

    ``trusted_proxies``: addresses and networks.  ``address_header``: the list that they write.  ``client_key``: the
    first of these sources that a request has; with more than one, the value says which it was, so that nobody can
    pass one kind off as another.  ``attributes``: name -> source, beside the own ones.
    """

    trusted_proxies: Sequence[str] = LOOPBACK
    address_header: str = "x-forwarded-for"
    domain: str = DEFAULT_DOMAIN
    client_key: Sequence[str] = ("address",)
    attributes: Mapping[str, str] = field(default_factory=dict)


def is_source(text: str) -> bool:
    """Whether a value can be taken from there."""
    return text in _OWN_SOURCES or (text.startswith(_HEADER) and len(text) > len(_HEADER))


class Asked:
    """What a gateway asks.  ``denied``: the status of every denial, None: each its own.

    ``undecided``: of what cannot be decided and is not allowed without.
    """

    __slots__ = ("_denied", "_undecided", "check")

    def __init__(self, check: Check, denied: int | None, undecided: int) -> None:
        self.check = check
        self._denied = denied
        self._undecided = undecided

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for questions that are asked and answered alike."""
        check = self.check
        return check.domain, check.cost, *check.attributes.items(), self._denied, self._undecided

    def passed(self, lines: Lines) -> Reply:
        """200 without a body; ``lines``: the rate limit headers."""
        return Reply(200, lines + _NO_STORE_LINE, b"")

    def reply(self, answer: Answer, lines: Lines) -> Reply:
        """:meth:`passed`, or a denial as a problem."""
        if answer.allowed:
            return self.passed(lines)
        if answer.reason is Reason.STORE_UNAVAILABLE:
            detail = "this cannot be decided now, and is not allowed without"
            status, kind = self._undecided, REDUCED_CAPACITY
        else:
            status, kind, detail = 429, QUOTA_EXCEEDED, _DETAILS.get(answer.reason, "the limit is reached")
        said = as_lines(PROBLEM, NO_STORE, (STATUS_HEADER, b"%d" % status))
        status = self._denied or status
        extra: dict[str, object] = {
            "violated-policies": [item.rule for item in answer.verdicts if not item.verdict.allowed],
            "retry_after_ms": answer.retry_after_ms,
            "reason": answer.reason.value,
        }
        return Reply(status, lines + said, problem_body(status, detail, type_uri=kind, extra=extra))

    def refused(self, error: InvalidCheck) -> Reply:
        """What a rule cannot read of the request: a denial, since a stranger may have seen to it."""
        faults = [Fault(error.field, error.expected)]
        return problem(self._denied or 400, str(error), (STATUS_HEADER, b"400"), faults=faults)


_NO_STORE_LINE = as_lines(NO_STORE)
_DETAILS = {
    Reason.EXCEEDS_CAPACITY: "the cost is above the limit",
    Reason.ZERO_LIMIT: "the limit is zero",
    Reason.BLOCKED: "blocked",
}


class Addresses:
    """Callers' addresses by what requests say of them; the last ones are kept, since callers come again."""

    def __init__(self, trusted_proxies: Sequence[str]) -> None:
        self._trusted = networks_of(trusted_proxies)
        self._kept = lru_cache(ADDRESSES_KEPT)(self._read)

    def of(self, peer: str | None, forwarded: Sequence[str]) -> tuple[str, str] | None:
        """(what limits go by, the whole address), None if there is none.  See ``caller_of``."""
        if sum(map(len, forwarded)) > FORWARDED_BYTES_KEPT:
            return self._read(peer, tuple(forwarded))
        return self._kept(peer, tuple(forwarded))

    def _read(self, peer: str | None, forwarded: tuple[str, ...]) -> tuple[str, str] | None:
        caller = caller_of(peer, forwarded, self._trusted)
        return None if caller is None else (grouped(caller), str(caller))


class Authorizer:
    """Reads what gateways ask, as ``options`` say."""

    def __init__(self, options: AuthorizeOptions) -> None:
        self._addresses = Addresses(options.trusted_proxies)
        self._address_header = options.address_header.lower().encode()
        self._domain = options.domain
        self._client_key = [_Source(text) for text in options.client_key]
        sources = {**OWN_ATTRIBUTES, **options.attributes}
        self._attributes = {name: _Source(text) for name, text in sources.items()}

    @property
    def headers(self) -> set[bytes]:
        """Those from which something is taken, beside the ones that gateways write."""
        sources = [*self._client_key, *self._attributes.values()]
        return {self._address_header, *(source.header for source in sources if source.header is not None)}

    def read(self, scope: MutableMapping[str, Any]) -> Asked:
        """The check of one request (an ASGI scope).  Raises Refused for what the operator has to mend."""
        told = _Told(scope, self._address_header, self._addresses)
        constants = told.constants
        resource = constants.resource
        if resource is None:
            resource = f"{told.own('method')} {told.own('path')}"
        attributes = {**dict(self._values(told)), **constants.attributes}
        attributes["client_key"] = self._key(told)
        attributes["resource"] = fitting(resource)
        check = Check(constants.domain or self._domain, attributes, constants.cost)
        return Asked(check, constants.denied, told.undecided)

    def _values(self, told: _Told) -> Iterator[tuple[str, str]]:
        for name, source in self._attributes.items():
            text = source.of(told)
            if text is not None:
                yield name, fitting(text)

    def _key(self, told: _Told) -> str:
        several = len(self._client_key) > 1
        for source in self._client_key:
            text = source.of(told)
            if text:
                return fitting(f"{source.name}:{text}" if several else text)
        return ""


class _Source:
    """``name``: of the source itself, or of the header."""

    __slots__ = ("header", "name")

    def __init__(self, text: str) -> None:
        self.name = text.removeprefix(_HEADER).lower()
        self.header = self.name.encode() if text.startswith(_HEADER) else None

    def of(self, told: _Told) -> str | None:
        return told.own(self.name) if self.header is None else told.header(self.header)


@dataclass(frozen=True, slots=True)
class _Constants:
    """What the operator wrote into the query."""

    domain: str | None = None
    resource: str | None = None
    cost: int = 1
    denied: int | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


class _Told:
    """What a request says."""

    def __init__(self, scope: MutableMapping[str, Any], address_header: bytes, addresses: Addresses) -> None:
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        raw_path: bytes = scope["raw_path"]
        self._is_prefixed = scope["path"] != AUTHORIZE_PATH
        self.undecided = 429 if self._is_prefixed else 503
        query: bytes = b"" if self._is_prefixed else scope["query_string"]
        self.constants = _constants_of(query.decode("latin-1"))
        peer = scope.get("client")
        forwarded = [_text(value) for name, value in self._headers if name == address_header]
        self._addresses = addresses.of(peer[0] if peer else None, forwarded)
        self._method: str = scope["method"]
        self._path = raw_path[len(AUTHORIZE_PATH) :] if self._is_prefixed else b""

    def header(self, name: bytes) -> str | None:
        """The last one: a gateway that adds a header of its own to a stranger's puts it there."""
        found = None
        for known, value in self._headers:
            if known == name:
                found = value
        return None if found is None else _text(found)

    def own(self, source: str) -> str | None:
        match source:
            case "address":
                return None if self._addresses is None else self._addresses[0]
            case "full_address":
                return None if self._addresses is None else self._addresses[1]
            case "method":
                return self._method if self._is_prefixed else self._required(b"x-forwarded-method")
            case "path":
                uri = _text(self._path) if self._is_prefixed else self._required(b"x-forwarded-uri")
                return None if uri is None else uri.partition("?")[0].partition("#")[0]
            case _:
                return self.header(b"host" if self._is_prefixed else b"x-forwarded-host")

    def _required(self, name: bytes) -> str | None:
        text = self.header(name)
        if text is None and self.constants.resource is None:
            expected = "is required: the gateway says in it what it was asked (or resource=… in the query)"
            raise Refused(422, [Fault(name.decode(), expected)])
        return text


@lru_cache(maxsize=256)
def _constants_of(query: str) -> _Constants:
    """What the operator's query says.  Raises Refused."""
    given: dict[str, Any] = {}
    attributes: dict[str, str] = {}
    faults: list[Fault] = []
    try:
        strict = bool(query)
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=strict, errors="strict", max_num_fields=100)
    except (UnicodeDecodeError, ValueError):
        raise Refused(422, [Fault("query", "must be NAME=VALUE, percent-encoded UTF-8")]) from None
    for name, value in pairs:
        inner = name.removeprefix("attributes.")
        if inner and inner != name and inner not in ("client_key", "resource"):
            attributes[inner] = value
        elif name == "resource" or (name == "domain" and is_domain(value)):
            given[name] = value
        elif (
            name == "cost" and value.isascii() and value.isdigit() and len(value) < 11 and int(value) <= COST_MOST
        ) or (name == "denied" and value in map(str, DENIED_STATUSES)):
            given[name] = int(value)
        else:
            faults.append(Fault(name[:64], _EXPECTED.get(name, f"unknown field; {_QUERY_EXPECTED}")))
    if len(attributes) > ATTRIBUTES_MOST:
        faults.append(Fault("attributes", f"at most {ATTRIBUTES_MOST}"))
    if faults:
        raise Refused(422, faults)
    return _Constants(**given, attributes=attributes)


_EXPECTED = {
    "domain": f"must be {DOMAIN_EXPECTED}",
    "cost": f"must be an integer from 0 to {COST_MOST}",
    "denied": "must be one of " + ", ".join(map(str, DENIED_STATUSES)),
}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
