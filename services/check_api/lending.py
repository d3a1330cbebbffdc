"""``POST /v1/token-lease``: from a body to what an application brings back and wants, and back to bytes.  Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from regional_limiter.lending import Brought, Lent
from regional_limiter.model.decision import COST_MOST, Check
from regional_limiter.model.errors import Fault
from services.check_api.bodies import DEFAULT_DOMAIN, Refused, document_of, identity_of

LEASE_PATH: Final = "/v1/token-lease"
_FIELDS: Final = ("client_key", "resource", "attributes", "domain", "want", "back")
_REQUIRED: Final = ("client_key", "resource", "want")
_BACK_FIELDS: Final = ("lease", "tokens", "unspent", "checks")
_LEASE_BYTES_MOST: Final = 64
_INTEGER = f"must be an integer from 0 to {COST_MOST}"


class BackBody(msgspec.Struct, forbid_unknown_fields=True):
    """A lease that is brought back: of how many tokens, how many are unspent, how many checks took the others."""

    lease: str
    tokens: Annotated[int, Meta(ge=0, le=COST_MOST)]
    unspent: Annotated[int, Meta(ge=0, le=COST_MOST)]
    checks: Annotated[int, Meta(ge=0, le=COST_MOST)]


class TokenLeaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request for a token lease.  ``want``: tokens, 0: only bring back."""

    client_key: str
    resource: str
    want: Annotated[int, Meta(ge=0, le=COST_MOST)]
    attributes: dict[str, str] = {}
    domain: Annotated[str, Meta(extra_json_schema={"default": DEFAULT_DOMAIN})] = DEFAULT_DOMAIN
    back: BackBody | None = None


class LentBody(msgspec.Struct):
    """The body of the answer: see ``regional_limiter.lending.Lent``."""

    tokens: int
    ends_in_ms: int
    lease: str
    rule: str | None
    limit: int | None
    remaining: int
    reset_after_ms: int
    credited: int
    again_after_ms: int


def parse_token_lease(body: bytes) -> tuple[Check, int, Brought | None]:
    """(whose tokens, how many are wanted, what is brought back).  Raises Refused, with every fault by its field."""
    document = document_of(body, _FIELDS, _REQUIRED)
    faults = [] if _is_count(document["want"]) else [Fault("want", _INTEGER)]
    back = document.get("back")
    brought = None
    if isinstance(back, Mapping):
        faults += _faults_of(back)
        if not faults:
            brought = Brought(*(back[name] for name in _BACK_FIELDS))
    elif back is not None:
        faults.append(Fault("back", "must be an object"))
    if faults:
        raise Refused(422, faults)
    want = document["want"]
    assert isinstance(want, int)
    return identity_of(document), want, brought


def _faults_of(back: Mapping[str, object]) -> list[Fault]:
    known = ", ".join(_BACK_FIELDS)
    faults = [
        Fault(f"back.{name[:64]}", f"unknown; known are {known}") for name in back if name not in _BACK_FIELDS
    ]
    faults += [Fault(f"back.{name}", "is given twice") for name in getattr(back, "repeated", ())]
    faults += [Fault(f"back.{name}", "is required") for name in _BACK_FIELDS if name not in back]
    counts = [name for name in _BACK_FIELDS[1:] if name in back and not _is_count(back[name])]
    faults += [Fault(f"back.{name}", _INTEGER) for name in counts]
    lease = back.get("lease", "")
    if not isinstance(lease, str) or len(lease) > _LEASE_BYTES_MOST:
        faults.append(Fault("back.lease", "must be the lease as it was lent"))
    if not faults and int(str(back["unspent"])) > int(str(back["tokens"])):
        faults.append(Fault("back.unspent", "must be at most tokens"))
    return faults[:16]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= COST_MOST


def encode_lent(lent: Lent) -> bytes:
    """The body of the answer."""
    return msgspec.json.encode(
        LentBody(
            lent.tokens,
            lent.ends_in_ms,
            lent.lease,
            lent.rule,
            lent.limit,
            lent.remaining,
            lent.reset_after_ms,
            lent.credited,
            lent.again_after_ms,
        )
    )
