"""The past over HTTP: series, busiest keys, shares at a moment, the log's steps, incidents, sync.

Answers are bounded, and carry an ETag: what has not changed is not sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Query, Request, Response

from regional_limiter.model.keys import rule_of
from regional_limiter.model.share import window_static
from services.clock import wall_ms
from services.dashboard.past.asked import BadQuestion, columns, has_seconds, span, wanted
from services.dashboard.past.bases_over_time import BaseChange
from services.dashboard.past.cells import MINUTE_MS, SECOND_MS
from services.dashboard.past.file import AnswerTookTooLong
from services.dashboard.past.holding import Holding
from services.dashboard.past.recorder import Recorder
from services.dashboard.past.share_steps import BASES, WINDOW, WINDOW_OVER, Step, with_ends
from services.dashboard.past.stored_steps import STEPS_TOLD_MOST
from services.errors import problem_response

AT_ONCE = 4
INCIDENTS_TOLD_MOST = 500
DAY_MS = 86_400_000
LIVE_MS = 3_000
NO_KEY = "key: must be a bucket key of a domain that has rules, rl:{…}:domain/rule:identity"

Moment = Annotated[int | None, Query(ge=0, le=2**53, description="Milliseconds since 1970.")]
Until = Annotated[int | None, Query(ge=0, le=2**53, alias="to")]
Since = Annotated[int | None, Query(ge=0, le=2**53, alias="from")]
Name = Annotated[str | None, Query(max_length=200)]
Needed = Annotated[str, Query(max_length=200)]
Key = Annotated[str | None, Query(max_length=2000)]
Answer = TypeVar("Answer")


class Past:
    """``bases``: region -> what it holds of a domain's rules at rest now; ``in_windows``: whether the windows of a
    rule are in escrow; ``regions``: in the order in which pages show them."""

    def __init__(
        self,
        recorder: Recorder,
        bases: Callable[[str], Mapping[str, int]],
        in_windows: Callable[[str, str], bool],
        regions: Callable[[], Sequence[str]],
        live: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._recorder = recorder
        self._bases = bases
        self._is_in_windows = in_windows
        self._regions = regions
        self._live = live
        self._at_once = asyncio.Semaphore(AT_ONCE)

    async def _ask(self, question: Callable[[], Answer]) -> Answer:
        async with self._at_once:
            return await asyncio.to_thread(question)

    async def series(
        self,
        domain: str | None,
        rule: str | None,
        key: str | None,
        time: tuple[int | None, int | None],
        step: int | None,
    ) -> dict[str, Any]:
        now_ms = wall_ms()
        asked = wanted(domain, rule, key, span(*time, now_ms), step, now_ms)
        found = await self._ask(lambda: self._recorder.rollups.series(asked))
        return columns(asked, found, self._regions())

    async def keys(self, domain: str, rule: str, time: tuple[int | None, int | None], limit: int) -> dict[str, Any]:
        now_ms = wall_ms()
        begin, until = span(*time, now_ms)
        source_ms = SECOND_MS if has_seconds(begin, now_ms) else MINUTE_MS
        found = await self._ask(
            lambda: self._recorder.rollups.busiest(f"{domain}/{rule}", source_ms, begin, until, limit)
        )
        rows = [{"key": key, "allowed": allowed, "denied": denied} for key, allowed, denied in found]
        return {"from_ms": begin, "to_ms": until, "keys": rows}

    async def shares_at(self, at_ms: int, key: str | None, limit: int) -> dict[str, Any]:
        """Of one key, or of all that somebody was granted other than its base of."""
        steps = self._recorder.stored_steps
        since_ms = await self._ask(steps.since_ms)
        leader = await self._ask(lambda: steps.leader_at(at_ms))
        if key is not None:
            keys = [key]
        elif at_ms >= wall_ms() - LIVE_MS:  # no search of the whole file every second
            keys = self._recorder.steps.moved(limit, at_ms)
        else:
            keys = await self._ask(lambda: steps.moved_at(at_ms, limit))
        told = []
        bases_at = self._bases_at()
        for one in keys:
            bases = bases_at(one, at_ms)
            if not bases:
                if key is not None:
                    raise BadQuestion(NO_KEY)
                continue  # its domain has no rules, and it is not known that it had any
            held = await self._ask(lambda one=one, bases=bases: steps.at(one, at_ms, bases))  # type: ignore[misc]
            regions = {region: share.shown(bases[region]) for region, share in held.items()}
            together = sum(share.units for share in held.values())
            told.append({"key": one, "regions": regions, "together": together, "in_windows": self._in_windows(one)})
        return {
            "time_ms": at_ms,
            "known": since_ms is not None and at_ms >= since_ms,
            "since_ms": since_ms,
            "epoch": leader.epoch if leader is not None else None,
            "keys": told,
        }

    async def steps(self, key: str, time: tuple[int | None, int | None]) -> dict[str, Any]:
        """How a key's shares moved: what held at the beginning, then each step, sessions too."""
        begin, until = span(*time, wall_ms())
        self._bases_of(key, begin)  # a wrong key is not looked for
        steps = self._recorder.stored_steps
        found = await self._ask(lambda: steps.steps([key, ""], begin, until, STEPS_TOLD_MOST))
        if len(found) == STEPS_TOLD_MOST:
            begin = found[0].at_ms
        running = await self._ask(lambda: steps.windows_at(key, begin))
        told = sorted(
            [*with_ends(found, until, running), *self._rests(key, begin, until)], key=lambda one: one.at_ms
        )
        if len(told) > STEPS_TOLD_MOST:
            told = told[-STEPS_TOLD_MOST:]
            begin = told[0].at_ms
        bases, bases_at = self._bases_of(key, begin), self._bases_at()
        holding = Holding(*await self._ask(lambda: steps.last(key, begin)), bases, begin)
        at_begin = {region: share.shown(bases[region]) for region, share in holding.held().items()}
        bases_then = [bases_at(key, one.at_ms) for one in told]
        return {
            "key": key,
            "from_ms": begin,
            "to_ms": until,
            "since_ms": await self._ask(steps.since_ms),
            "bases": dict(bases),
            "begin": at_begin,
            "steps": await self._ask(lambda: _followed(holding, told, bases_then)),
            "in_windows": self._in_windows(key),
        }

    async def records(self, time: tuple[int | None, int | None], key: str | None, limit: int) -> dict[str, Any]:
        begin, until = span(*time, wall_ms())
        keys = None if key is None else [key, ""]
        found = await self._ask(lambda: self._recorder.stored_steps.steps(keys, begin, until, limit))
        bases_at = self._bases_at()
        told = [_shown(step, bases_at(step.key, step.at_ms)) for step in reversed(found)]
        return {"from_ms": begin, "to_ms": until, "steps": told}

    async def incidents(self, since: int | None, until: int | None, limit: int) -> dict[str, Any]:
        begin, end = span(since, until, wall_ms(), DAY_MS)
        found = await self._ask(lambda: self._recorder.stored_incidents.since(begin, end + 1, limit))
        return {"since_ms": begin, "incidents": found}

    async def sync(self) -> dict[str, Any]:
        recorder, now_ms = self._recorder, wall_ms()
        return {
            "now_ms": now_ms,
            **self._live(),
            "log": {
                "epoch": recorder.steps.epoch,
                "next_offset": recorder.steps.next_offset,
                "keys_moved": recorder.steps.keys_moved(now_ms),
                "silent_ms": recorder.feed.silent_ms("rl.log") if recorder.feed is not None else None,
            },
            "leases": recorder.convergence.shown(now_ms),
            "history": await self._ask(recorder.shown),
        }

    def _in_windows(self, key: str) -> bool:
        return self._is_in_windows(*_rule_of(key))

    def _bases_of(self, key: str, at_ms: int) -> Mapping[str, int]:
        """Region -> what it held of a key at rest, then.  Raises BadQuestion."""
        bases = self._bases_at()(key, at_ms)
        if not bases:
            raise BadQuestion(NO_KEY)
        return bases

    def _bases_at(self) -> Callable[[str, int], Mapping[str, int]]:
        """The same for the steps of one answer, and nothing of a domain that is not known to have had rules.

        What a version of the bases means for a rule is worked out once: there may be thousands of steps.
        """
        known: dict[tuple[str, str, int], Mapping[str, int]] = {}

        def bases_at(key: str, at_ms: int) -> Mapping[str, int]:
            domain, rule = _rule_of(key)
            then = self._recorder.bases.at(domain, at_ms)
            place = domain, rule, 0 if then is None else then.at_ms
            if place not in known:
                known[place] = self._at_rest(domain, rule, self._bases(domain), then)
            return known[place]

        return bases_at

    def _at_rest(
        self, domain: str, rule: str, now: Mapping[str, int], then: BaseChange | None
    ) -> Mapping[str, int]:
        """A base, of windows in escrow the static part of it."""
        bases = now
        if then is not None and then.bases:
            bases = {region: then.bases.get(region, 0) for region in {**now, **then.bases}}
        if not self._is_in_windows(domain, rule):
            return bases
        return {region: window_static(base) for region, base in bases.items()}

    def _rests(self, key: str, begin: int, until: int) -> list[Step]:
        """As steps: what bases came into force, of each region that has another one from then on."""
        bases_at = self._bases_at()
        domain, _ = _rule_of(key)
        rests = []
        for change in self._recorder.bases.between(domain, begin, until):
            before, after = bases_at(key, change.at_ms - 1), bases_at(key, change.at_ms)
            rests += [
                Step("", region, change.at_ms, base, BASES, 0, 0, change.version, 0)
                for region, base in after.items()
                if before.get(region) != base
            ]
        return rests


def _followed(holding: Holding, steps: Sequence[Step], bases: Sequence[Mapping[str, int]]) -> list[dict[str, Any]]:
    """Steps as they are told.  ``held``: what regions hold from each on, of those that held something else before;
    ``base``, of the kind ``bases``: what the region has at rest."""
    told = []
    for step, then in zip(steps, bases, strict=True):
        if step.kind == BASES:
            base = step.units or 0
            held = holding.rest(step.region, base, step.at_ms)
            told.append({**_shown(step._replace(units=None), then), "base": base, "held": held})
        else:
            told.append({**_shown(step, then), "held": holding.take(step)})
    return told


def _shown(step: Step, bases: Mapping[str, int]) -> dict[str, Any]:
    """``bases``: of the step's key.  ``units``: the share in all, also of a window."""
    units, session = step.units, step.session
    if step.kind in (WINDOW, WINDOW_OVER):
        units, session = bases.get(step.region, 0) + (step.units or 0), 0
    return {
        "at_ms": step.at_ms,
        "key": step.key,
        "region": step.region,
        "units": units,
        "kind": step.kind,
        "epoch": step.epoch,
        "n": step.n,
        "session": session,
        "offset": step.log_offset,
    }


def past_router(past: Past) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.get("/series")
    async def series(
        request: Request, domain: Name = None, rule: Name = None, key: Key = None, begin: Since = None,
        until: Until = None, step: Annotated[int | None, Query(ge=1, le=2**40)] = None,
    ) -> Response:  # fmt: skip
        return await _answer(request, past.series(domain, rule, key, (begin, until), step))

    @router.get("/keys")
    async def keys(
        request: Request, domain: Needed, rule: Needed,
        begin: Since = None, until: Until = None, limit: Annotated[int, Query(ge=1, le=200)] = 20,
    ) -> Response:  # fmt: skip
        return await _answer(request, past.keys(domain, rule, (begin, until), limit))

    @router.get("/shares/at")
    async def shares_at(
        request: Request, time: Annotated[int, Query(ge=0, le=2**53)], key: Key = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> Response:  # fmt: skip
        return await _answer(request, past.shares_at(time, key, limit))

    @router.get("/shares/steps")
    async def steps(
        request: Request, key: Annotated[str, Query(max_length=2000)], begin: Since = None, until: Until = None
    ) -> Response:
        return await _answer(request, past.steps(key, (begin, until)))

    @router.get("/shares/records")
    async def records(
        request: Request, key: Key = None, begin: Since = None, until: Until = None,
        limit: Annotated[int, Query(ge=1, le=STEPS_TOLD_MOST)] = 200,
    ) -> Response:  # fmt: skip
        return await _answer(request, past.records((begin, until), key, limit))

    @router.get("/incidents")
    async def incidents(
        request: Request, since: Moment = None, until: Moment = None,
        limit: Annotated[int, Query(ge=1, le=INCIDENTS_TOLD_MOST)] = 100,
    ) -> Response:  # fmt: skip
        return await _answer(request, past.incidents(since, until, limit))

    @router.get("/sync")
    async def sync(request: Request) -> Response:
        return await _answer(request, past.sync())

    return router


async def _answer(request: Request, asking: Any) -> Response:
    try:
        body = msgspec.json.encode(await asking)
    except BadQuestion as error:
        return problem_response(422, str(error))
    except AnswerTookTooLong as error:
        return problem_response(503, str(error))
    tag = f'"{blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def _rule_of(key: str) -> tuple[str, str]:
    """Domain and rule of a bucket key; two empty ones of what is none."""
    try:
        return rule_of(key) if key.startswith("rl:{") else ("", "")
    except ValueError:
        return "", ""
