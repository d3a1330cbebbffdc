"""Who asks, and whether they may ask at all: in front of every address of the control API.  [IO]

A token that is known lets its bearer in, whatever others at the same address did: it is found by the hash of 256
random bits, so nobody comes nearer to it by trying.  Any other token costs its address a failed login; an address
that has none left is refused before its next token is compared with the configured one, which a person may have
chosen.  Who comes through a proxy that is trusted says which address that is, so it costs the proxy one as well, of
more than an address has.  Where that cannot be decided, it is refused too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from apportion.addresses import caller_of, grouped, networks_of
from fastapi import Request, Response
from starlette.exceptions import HTTPException

from regional_limiter.model.decision import Answer
from services.check_api.headers import answer_lines, as_headers
from services.clock import wall_ms
from services.control_api.access import Principal, Role
from services.control_api.knowledge import Hub
from services.control_api.own_limits import Asked, OwnLimits
from services.errors import problem_response
from services.own_machine import is_for_own_machine, why_not_own
from services.settings import ControlApiSettings
from services.tokens import bears_token

OPEN_PATHS = ("/livez", "/readyz")
_READS = ("GET", "HEAD", "OPTIONS")

ANYBODY = Principal("anybody", Role.ADMIN, is_named=False)
"""Where no token is configured: whoever reaches the listener, then a loopback one, and is no other site's page."""
CONFIGURED = Principal("configured-token", Role.ADMIN, is_named=False)
"""The bearer of the token in the settings, who makes the first of the others."""

_TOO_MANY = {
    Asked.LOGIN: "too many wrong tokens came from this address",
    Asked.LOGIN_THROUGH: "too many wrong tokens came through this proxy",
}

Next = Callable[[Request], Awaitable[Response]]


class Guard:
    """Where the settings have no token, none is needed.  ``limits`` is set while the application runs."""

    def __init__(self, hub: Hub, settings: ControlApiSettings) -> None:
        self._hub = hub
        self._token = settings.token.get_secret_value() if settings.token is not None else None
        self._by_name = is_for_own_machine(settings)
        self._trusted = networks_of(settings.trusted_proxies)
        self.limits: OwnLimits | None = None

    async def __call__(self, request: Request, call_next: Next) -> Response:
        if request.url.path in OPEN_PATHS:
            return await call_next(request)
        request.state.address = self._address(request, request.headers.getlist("x-forwarded-for"))
        found = await self._who(request)
        if isinstance(found, Response):
            return found
        request.state.principal = found
        asked = Asked.READ if request.method in _READS else Asked.CHANGE
        who = f"{found.name} {address_of(request)}" if found is ANYBODY else found.name
        refused = await self._over(asked, who)
        return refused if refused is not None else await call_next(request)

    def _address(self, request: Request, forwarded: Sequence[str]) -> str:
        peer = request.client.host if request.client else ""
        found = caller_of(peer, forwarded, self._trusted)
        return grouped(found) if found is not None else peer or "unknown"

    async def _who(self, request: Request) -> Principal | Response:
        authorization = request.headers.get("authorization")
        if authorization is None:
            if self._token is None:
                why = why_not_own(request.method, request.headers, by_name=self._by_name)
                return ANYBODY if why is None else problem_response(403, why)
            return _unknown("a bearer token is needed")
        scheme, _, text = authorization.partition(" ")
        found = self._hub.tokens.find(text.strip(), wall_ms()) if scheme.lower() == "bearer" else None
        if found is not None:
            return found
        refused = await self._failed_logins(request, cost=0)
        if refused is not None:
            return refused
        if self._token is not None and bears_token(authorization, self._token):
            return CONFIGURED
        if (why := self._hub.why_tokens_unknown()) is not None:
            return problem_response(503, why, headers={"Retry-After": "2"})
        await self._failed_logins(request, cost=1)
        return _unknown("this bearer token is not known, or it is over or revoked")

    async def _failed_logins(self, request: Request, cost: int) -> Response | None:
        """Charge the address that is named and the peer that names it; the answer where one has none left."""
        address, peer = address_of(request), self._address(request, ())
        refused = await self._over(Asked.LOGIN, address, cost)
        if peer == address:
            return refused
        return await self._over(Asked.LOGIN_THROUGH, peer, cost) or refused

    async def _over(self, asked: Asked, who: str, cost: int = 1) -> Response | None:
        answer = await self.limits.admit(asked, who, cost) if self.limits is not None else None
        if answer is None:
            if asked is Asked.READ:
                return None
            return problem_response(503, "how much is asked cannot be told just now: refused, to be safe")
        if answer.allowed and not (cost == 0 and answer.remaining == 0):
            return None
        return problem_response(429, _TOO_MANY.get(asked, f"too many {asked}s"), headers=_headers(answer))


def _headers(answer: Answer) -> dict[str, str]:
    headers = {name.decode(): value.decode() for name, value in as_headers(answer_lines(answer))}
    return {"retry-after": "1", **headers}


def _unknown(detail: str) -> Response:
    return problem_response(401, detail, headers={"WWW-Authenticate": "Bearer"})


def address_of(request: Request) -> str:
    """The caller's address, IPv6 cut to its /64: the peer's own, or what the proxies that are trusted say."""
    address: str = request.state.address
    return address


def who(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


def require(request: Request, role: Role, domain: str | None = None) -> None:
    """Raises HTTPException 403 naming what would be needed."""
    principal = who(request)
    if not principal.may(role, domain):
        where = f"in domain {domain}" if domain is not None else "in every domain"
        mine = "every domain" if principal.everywhere else ", ".join(sorted(principal.domains))
        raise HTTPException(403, f"needs the role {role} {where}; {principal.name} is {principal.role} in {mine}")


def readable(request: Request) -> frozenset[str] | None:
    """The domains that the caller may read; None: all."""
    principal = who(request)
    return None if principal.everywhere else principal.domains
