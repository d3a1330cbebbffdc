"""Envoy's rate limit service on a limiter: a request's descriptors -> checks -> an answer, by callback.

- A descriptor is a check: its entries are attributes (``naming.py``).
- Several descriptors are one request: all are charged or none.  Each has its status, in the order of the request.
- A limit that a descriptor brings along stands in for what is configured, if its domain has rules at all.
- Negative hits are given back, also if another descriptor is over its limit.
- A domain without rules, or a descriptor that no rule matches, is OK.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from regional_limiter import engine
from regional_limiter.limiter import DonePlainly
from regional_limiter.model.decision import COST_MOST, Answer, Check, Reason
from regional_limiter.model.errors import InvalidCheck, RulesUnavailable, StoreUnavailable
from regional_limiter.model.rule import Algorithm, Rule
from regional_limiter.plan import answer_in_full, is_domain
from regional_limiter.store.base import Allowed
from regional_limiter.submitting import settled
from regional_limiter.together import Asked, Together
from services.check_api.check_limiter import CheckLimiter, plainest
from services.check_api.counts import Series
from services.check_api.headers import HeaderMode, answer_lines
from services.rls.allowances import Allowances
from services.rls.messages import (
    OK,
    OVER_LIMIT,
    UINT32_MOST,
    UNIT_MS,
    UNIT_OF_MS,
    Descriptor,
    Limit,
    Override,
    Request,
    Response,
    Status,
    Unit,
)
from services.rls.naming import KEYS, keys_text, numbered
from services.rls.rpc import INVALID_ARGUMENT, UNAVAILABLE, Failed
from services.rls.wire import write_one

NO_RULES: Final = Failed(UNAVAILABLE, "no valid rule set has been in force here yet")

_SOFT_LIMITED: Final = Reason.SOFT_LIMITED
_NO_LIMIT: Final = Status(OK)

Told = Callable[[Response | Exception], None]
"""Called once: with the response, or with Failed, or with an exception that nobody foresaw."""


class RateLimitService:
    """``headers``: which of them responses ask the gateway to add.  ``tells_metadata``: whether they carry some."""

    def __init__(
        self,
        limiter: CheckLimiter,
        checked: Callable[[str, Answer], None],
        counted: Callable[[Series], None] = lambda series: None,
        *,
        headers: HeaderMode = HeaderMode.DRAFT_11,
        tells_metadata: bool = False,
        missed_domain: Callable[[], None] = lambda: None,
        traced: Callable[[str, Answer | Allowed], None] | None = None,
    ) -> None:
        """``checked`` counts an answer by its domain, ``counted`` one that is told shortly, ``missed_domain`` a
        request for a domain without rules.  ``traced`` hears of every answer before it is told; None: nobody."""
        self._limiter = limiter
        self._submit = plainest(limiter)
        self._checked = checked
        self._counted = counted
        self._headers = headers
        self._allowances = None if tells_metadata else Allowances(headers)
        self._tells_metadata = tells_metadata
        self._missed_domain = missed_domain
        self._traced = traced

    def should_rate_limit(self, request: Request, told: Told) -> None:
        """Decide ``request``; ``told`` may be called before this returns.  Raises Failed, then never calls it."""
        domain, descriptors, hits = request
        if not domain:
            raise Failed(INVALID_ARGUMENT, "domain: must not be empty")
        if not descriptors:
            raise Failed(INVALID_ARGUMENT, "descriptors: must name at least one")
        if not self._limiter.ready:
            raise NO_RULES
        if not is_domain(domain):
            # No rule set can have this name: a domain without rules like any other.
            self._missed_domain()
            self._tell(told, "", engine.NO_RULE, [engine.NO_RULE] * len(descriptors))
            return
        asked = [
            Asked(_check(domain, descriptor, hits or 1, place), _limit(domain, descriptor, place))
            for place, descriptor in enumerate(descriptors)
        ]
        try:
            if any(descriptor.negative for descriptor in descriptors):
                self._give_back(descriptors, asked, told)
            elif len(asked) == 1 and asked[0].limit is None:
                self._decide(asked[0].check, told)
            else:
                self._decide_together(domain, asked, told)
        except InvalidCheck as error:
            raise Failed(INVALID_ARGUMENT, str(error)) from None
        except RulesUnavailable:
            raise _unreadable(domain) from None

    def plain(self, request: Request) -> Check | None:
        """The one check that ``request`` is, if it is no more than that."""
        domain, descriptors, hits = request
        if len(descriptors) != 1 or not is_domain(domain):
            return None
        (descriptor,) = descriptors
        if descriptor.override is not None or descriptor.negative:
            return None
        return _check(domain, descriptor, hits or 1, 0)

    def submit(self, check: Check, done: DonePlainly) -> None:
        """Decide what :meth:`plain` made, and leave the telling to the caller.  Raises Failed."""
        if not self._limiter.ready:
            raise NO_RULES
        try:
            self._submit(check, done)
        except InvalidCheck as error:
            raise Failed(INVALID_ARGUMENT, str(error)) from None
        except RulesUnavailable:
            raise _unreadable(check.domain) from None

    def encoded(self, domain: str, answer: Answer | Allowed) -> bytes:
        """The message that tells the answer to one check, which is counted."""
        if self._traced is not None:
            self._traced(domain, answer)
        if isinstance(answer, Allowed):
            shortly = self._allowances.told(answer) if self._allowances is not None else None
            if shortly is not None:
                self._counted(shortly[0])
                return shortly[1]
            answer = answer_in_full(answer)
        self._note(domain, answer)
        return in_full(answer, self._headers, _metadata(answer) if self._tells_metadata else None)

    def _note(self, domain: str, answer: Answer) -> None:
        self._checked(domain, answer)
        if answer.rule is None and domain and not self._limiter.knows(domain):
            self._missed_domain()

    async def answer(self, request: Request) -> Response:
        """The same by ``await``.  Raises Failed, and what nobody foresaw."""
        return await settled(lambda told: self.should_rate_limit(request, told))

    # ---- ways to decide

    def _decide(self, check: Check, told: Told) -> None:
        def done(outcome: Answer | Exception) -> None:
            if isinstance(outcome, Exception):
                told(failure(outcome))
            else:
                self._tell(told, check.domain, outcome, (outcome,))

        self._limiter.submit(check, done)

    def _decide_together(self, domain: str, asked: Sequence[Asked], told: Told) -> None:
        def done(outcome: Together | Exception) -> None:
            if isinstance(outcome, Exception):
                told(failure(outcome))
            else:
                self._tell(told, domain, outcome.whole, outcome.each)

        self._limiter.submit_together(asked, done)

    def _give_back(self, descriptors: Sequence[Descriptor], asked: Sequence[Asked], told: Told) -> None:
        """Give back what is negative, then decide the rest, with a look at what has been given back."""
        for descriptor, one in zip(descriptors, asked, strict=True):
            if descriptor.negative and one.limit is not None:
                raise Failed(INVALID_ARGUMENT, "descriptors: hits of a limit that comes along cannot be negative")
        backs = [one.check for one, descriptor in zip(asked, descriptors, strict=True) if descriptor.negative]
        rest = [
            one._replace(check=replace(one.check, cost=0)) if descriptor.negative else one
            for one, descriptor in zip(asked, descriptors, strict=True)
        ]
        domain = backs[0].domain

        async def give_back() -> None:
            try:
                for check in backs:
                    await self._limiter.refund(check)
                self._decide_together(domain, rest, told)
            except StoreUnavailable as error:
                told(Failed(UNAVAILABLE, f"the hits could not be given back: {error.cause}"))
            except Exception as error:
                told(failure(error))

        task = asyncio.get_running_loop().create_task(give_back())
        _GIVING_BACK.add(task)
        task.add_done_callback(_GIVING_BACK.discard)

    # ---- what is told

    def _tell(self, told: Told, domain: str, whole: Answer, each: Sequence[Answer]) -> None:
        try:
            if self._traced is not None:
                self._traced(domain, whole)
            self._note(domain, whole)
            response = Response(
                OK if whole.allowed else OVER_LIMIT,
                [_status(answer) for answer in each],
                self._header_values(whole),
                _metadata(whole) if self._tells_metadata else None,
            )
        except Exception as error:
            told(error)
            return
        told(response)

    def _header_values(self, answer: Answer) -> Sequence[tuple[str, str]]:
        lines = answer_lines(answer, self._headers)
        if not lines:
            return ()
        return [tuple(line.split(": ", 1)) for line in lines.decode("ascii")[:-2].split("\r\n")]  # type: ignore[misc]


def in_full(answer: Answer, mode: HeaderMode, metadata: dict[str, str | bool | int] | None = None) -> bytes:
    """The message that tells the answer to one check."""
    code = OK if answer.allowed else OVER_LIMIT
    return write_one(code, _status(answer), answer_lines(answer, mode), metadata)


_GIVING_BACK: set[asyncio.Task[None]] = set()
"""The loop itself keeps no task alive."""


def _unreadable(domain: str) -> Failed:
    return Failed(UNAVAILABLE, f"the rules of domain {domain} cannot be read here, and none are in force")


def failure(error: Exception) -> Exception:
    """An error that is the request's own, as gRPC names it; one that nobody foresaw stays as it is."""
    if isinstance(error, InvalidCheck):
        return Failed(INVALID_ARGUMENT, str(error))
    return error


def _check(domain: str, descriptor: Descriptor, hits: int, place: int) -> Check:
    entries = descriptor.entries
    if not entries:
        raise Failed(INVALID_ARGUMENT, f"descriptors[{place}].entries: must name at least one")
    cost = hits if descriptor.hits is None else descriptor.hits
    if cost > COST_MOST:
        raise Failed(INVALID_ARGUMENT, f"descriptors[{place}].hits_addend: at most {COST_MOST}")
    attributes = dict(entries)
    if len(attributes) < len(entries):
        attributes = dict(zip(numbered([key for key, _ in entries]), [value for _, value in entries], strict=True))
    if "" in attributes:
        raise Failed(INVALID_ARGUMENT, f"descriptors[{place}].entries: a key must not be empty")
    attributes[KEYS] = keys_text(tuple([key for key, _ in entries]))
    return Check(domain, attributes, cost)


def _limit(domain: str, descriptor: Descriptor, place: int) -> Rule | None:
    override = descriptor.override
    if override is None:
        return None
    if override.unit not in UNIT_MS:
        raise Failed(INVALID_ARGUMENT, f"descriptors[{place}].limit.unit: one of {', '.join(_UNIT_NAMES)}")
    return _rule_of(domain, override, tuple(name for name, _ in descriptor.entries))


_UNIT_NAMES = [unit.name for unit in UNIT_MS]


@lru_cache(maxsize=1024)
def _rule_of(domain: str, override: Override, keys: tuple[str, ...]) -> Rule:
    """The rule that a limit of a request is.  What was counted under another number counts on."""
    unit = Unit(override.unit)
    return Rule(
        id=f"limit-of-request.{unit.name.lower()}",
        domain=domain,
        match=(),
        key=(KEYS, *numbered(keys)),
        algorithm=Algorithm.FIXED_WINDOW,
        capacity=override.requests_per_unit,
        refill=None,
        window_ms=UNIT_MS[unit],
    )


def _status(answer: Answer) -> Status:
    limit = answer.limit
    if limit is None or answer.remaining is None:
        return _NO_LIMIT if answer.allowed else Status(OVER_LIMIT)
    span_ms = next((item.window_ms for item in answer.verdicts if item.rule == answer.rule), None)
    # Past a soft limit the request passes, and only its descriptor's own status says so.
    within = answer.allowed and answer.reason is not _SOFT_LIMITED
    return Status(
        OK if within else OVER_LIMIT,
        Limit(min(limit, UINT32_MOST), UNIT_OF_MS.get(span_ms or 0, 0), answer.rule or ""),
        min(answer.remaining, UINT32_MOST),
        answer.reset_after_ms,
    )


def _metadata(answer: Answer) -> dict[str, str | bool | int]:
    """What the gateway's logs and filters may know of a decision."""
    said: dict[str, str | bool | int] = {"reason": answer.reason.value, "degraded": answer.degraded}
    if answer.rule is not None:
        said["rule"] = answer.rule
    if answer.limit is not None:
        said["limit"] = answer.limit
    if answer.remaining is not None:
        said["remaining"] = answer.remaining
    if answer.retry_after_ms:
        said["retry_after_ms"] = answer.retry_after_ms
    return said
