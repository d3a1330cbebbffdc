"""Changes of what is stored of clients: one, or as many as a body has lines, in changes of bounded size.  [IO]"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from global_sync.changes import DELETE_SUBJECTS, FORGET_SUBJECTS, STORE_SUBJECTS, History
from global_sync.subject_records import faults_of
from regional_limiter.model.errors import Fault, InvalidRules
from regional_limiter.rules.stored_subjects import faults_of_subject
from services.control_api.changing import APPLIED_WAIT_S, changed, proposed
from services.control_api.knowledge import Hub
from services.control_api.known_clients import count_named, effect_on, known_of, named_by
from services.control_api.requests import BODY_DEADLINE_S
from services.control_api.subject_lines import Format, Line, SubjectLines
from services.errors import problem_response
from services.patient_timer import patient_timeout

CLIENTS_A_CHANGE = 5_000
BYTES_A_CHANGE = 600_000
MOVED = "stored from now on, and named by the set no longer"
TRIES = 10
TRY_AGAIN_S = 1.0
OTHERS_FIRST_MOST = 3
"""So often others may change the set just before clients are taken out of it."""
FAULTS_TOLD_MOST = 20

_Made = TypeVar("_Made")

Said = Mapping[str, Mapping[str, str] | None]
"""By client key; None: nothing is to be known."""


async def unread_subjects(hub: Hub) -> Response | None:
    if await hub.subjects.known(3.0):
        return None
    return problem_response(503, "what is stored of clients has not been read yet", headers={"Retry-After": "2"})


async def stored(hub: Hub, request: Request, domain: str, said: Said, *, dry_run: bool) -> History | Response:
    """Store (or forget, all of them) clients in one change; raises InvalidRules."""
    subjects = _subjects(said)
    put = None not in said.values()
    faults = faults_of(subjects, put=put)
    if faults:
        raise InvalidRules(faults)
    if dry_run:
        if (unread := await unread_subjects(hub)) is not None:
            return unread
        known = await known_of(hub, domain, list(said))
        return dry_run_answer(hub, domain, effect_on(known, said), count_named(known))
    outcome = await proposed(
        hub, request, domain, STORE_SUBJECTS if put else FORGET_SUBJECTS, {"subjects": subjects}
    )
    if isinstance(outcome, History):
        await hub.subjects.reached(outcome.version, APPLIED_WAIT_S)
    return outcome


async def no_longer_named(hub: Hub, request: Request, domain: str, client_keys: Collection[str]) -> Response | None:
    """Take clients out of the set; the answer where that is refused though the set still names some of them.

    Of what counts from now on as it is stored, after storing it, and of what is forgotten, before that: at no time
    does what the set says count by itself.  To ask for the whole once more mends what stopped between.
    """
    refused: Response | None = None
    for _ in range(OTHERS_FIRST_MOST):
        known = hub.book.get(domain)
        named = named_by(known, client_keys)
        if known is None or not named:
            return None
        done = await changed(hub, request, domain, DELETE_SUBJECTS, {"subjects": _subjects(dict.fromkeys(named))})
        if not isinstance(done, Response):
            await hub.book.reached(domain, done.outcome.version, APPLIED_WAIT_S)
            return None
        # Why it is refused does not tell whether somebody else has taken them out meanwhile: a newer set does.
        refused = done
        if await hub.book.reached(domain, known.version + 1, APPLIED_WAIT_S) is None:
            break
    return refused if named_by(hub.book.get(domain), client_keys) else None


def dry_run_answer(hub: Hub, domain: str, effect: Mapping[str, int], named: int) -> Response:
    """In the form that every dry run has; ``subjects``: how many clients appear, change and vanish.  ``named``: how
    many of them the set would no longer name.
    """
    known = hub.book.get(domain)
    there_are = len(known.rule_set.subjects) if known is not None else 0
    of_set = {"subjects": {"before": there_are, "after": there_are - named, "note": MOVED}} if named else {}
    whole = {
        "nothing": not any(effect.values()) and not named,
        "appear": 0,
        "change": 0,
        "vanish": 0,
        "rules": [],
        "overrides": [],
        "set": of_set,
        "subjects": dict(effect),
    }
    return JSONResponse({"dry_run": True, "domain": domain, "made_from": 0, "effect": whole})


def _subjects(said: Said) -> list[dict[str, Any]]:
    return [
        {"client_key": client_key} if attributes is None else {"client_key": client_key, "set": attributes}
        for client_key, attributes in said.items()
    ]


# ---- many


@dataclass(slots=True)
class _Import:
    """``gathered``: what has not been proposed yet, the last word on each client.  ``lines``: those imported."""

    gathered: dict[str, Mapping[str, str]] = field(default_factory=dict)
    bytes: int = 0
    lines: int = 0
    lines_gathered: int = 0
    changes: int = 0
    version: int = 0
    faults: list[Fault] = field(default_factory=list)
    effect: dict[str, int] = field(default_factory=lambda: {"appear": 0, "change": 0, "vanish": 0})
    named: int = 0

    def add(self, line: Line) -> None:
        subject = line.subject
        found = [line.fault] if line.fault is not None else _faults_of(line)
        if found or subject is None:
            self.faults += found[: max(0, FAULTS_TOLD_MOST - len(self.faults))]
            return
        self.gathered[subject["client_key"]] = subject["set"]
        self.lines_gathered += 1
        self.bytes += len(msgspec.json.encode(subject))

    @property
    def is_full(self) -> bool:
        return len(self.gathered) >= CLIENTS_A_CHANGE or self.bytes >= BYTES_A_CHANGE

    def taken(self) -> dict[str, Mapping[str, str]]:
        gathered, self.gathered, self.bytes = self.gathered, {}, 0
        return gathered


def _faults_of(line: Line) -> list[Fault]:
    return [
        Fault(f"line {line.number}{one.place}", one.problem) for one in faults_of_subject(line.subject, put=True)
    ]


async def lines_of(request: Request, format: Format) -> AsyncIterator[Iterable[Line]]:
    """The lines of a body as it comes.  Raises HTTPException, and ValueError for what cannot be read on."""
    lines = SubjectLines(format)
    parts = request.stream().__aiter__()
    while True:
        try:
            async with patient_timeout(BODY_DEADLINE_S):
                part = await anext(parts)
        except StopAsyncIteration:
            break
        except TimeoutError:
            raise HTTPException(408, f"nothing came for {BODY_DEADLINE_S} s in the middle of the body") from None
        except ClientDisconnect:
            raise HTTPException(400, "the caller went away in the middle of the body") from None
        yield lines.feed(part)
    yield lines.end()


async def imported(hub: Hub, request: Request, domain: str, format: Format, *, dry_run: bool) -> Response:
    """Store what a body says, however long: what has come is proposed before the rest is read.

    It stops at the first change that has a fault, or that nobody decides; what came before it stays.  To send all
    of it once more changes nothing of what is there already.
    """
    if dry_run and (unread := await unread_subjects(hub)) is not None:
        return unread
    job = _Import()
    try:
        async for lines in lines_of(request, format):
            for line in lines:
                job.add(line)
                if (
                    job.is_full
                    and (refused := await _propose(hub, request, domain, job, dry_run=dry_run)) is not None
                ):
                    return refused
    except ValueError as error:
        job.faults.append(Fault("body", str(error)))
    if (refused := await _propose(hub, request, domain, job, dry_run=dry_run)) is not None:
        return refused
    if dry_run:
        return _faulty(job) if job.faults else dry_run_answer(hub, domain, job.effect, job.named)
    if not job.changes:
        return problem_response(422, "the body has no lines: there is nothing to import")
    await hub.subjects.reached(job.version, APPLIED_WAIT_S)
    return JSONResponse({"domain": domain, "imported": job.lines, "changes": job.changes, "version": job.version})


async def _propose(hub: Hub, request: Request, domain: str, job: _Import, *, dry_run: bool) -> Response | None:
    """One change out of what was gathered; the answer where it was not made."""
    if job.faults and not dry_run:
        return _faulty(job)
    said = job.taken()
    if not said:
        return None
    if dry_run:
        known = await known_of(hub, domain, list(said))
        for name, count in effect_on(known, said).items():
            job.effect[name] += count
        job.named += count_named(known)
        return None
    done = await _patiently(lambda: proposed(hub, request, domain, STORE_SUBJECTS, {"subjects": _subjects(said)}))
    if isinstance(done, Response):
        return _stopped(job, done, _so_far(job))
    job.lines, job.changes, job.version = job.lines + job.lines_gathered, job.changes + 1, done.version
    job.lines_gathered = 0
    refused = await _patiently(lambda: no_longer_named(hub, request, domain, said))
    if refused is None:
        return None
    return _stopped(
        job, refused, f"{job.lines:,} lines are stored, but the set still names clients of the last ones"
    )


async def _patiently(make: Callable[[], Awaitable[_Made | Response]]) -> _Made | Response:
    """What comes of a change, made anew while nobody decides it: what was accepted meanwhile stays as it is."""
    for _ in range(TRIES - 1):
        made = await make()
        if not isinstance(made, Response) or made.status_code not in (503, 504):
            return made
        await asyncio.sleep(TRY_AGAIN_S)
    return await make()


def _stopped(job: _Import, refused: Response, so_far: str) -> Response:
    told = msgspec.json.decode(refused.body)
    detail = f"{told.get('detail', '')}; {so_far}"
    faults = [Fault(one.get("field", ""), one.get("problem", "")) for one in told.get("errors", [])]
    return problem_response(refused.status_code, detail, faults=faults, extra={"imported": job.lines})


def _faulty(job: _Import) -> Response:
    return problem_response(
        422, f"lines that cannot be stored; {_so_far(job)}", faults=job.faults, extra={"imported": job.lines}
    )


def _so_far(job: _Import) -> str:
    return f"{job.lines:,} lines before them are stored" if job.lines else "nothing is stored"


def listed(subjects: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, str]]:
    """A list of subjects by client key.  Raises InvalidRules."""
    faults = faults_of(subjects, put=True)
    if faults:
        raise InvalidRules(faults)
    return {str(one["client_key"]): one["set"] for one in subjects}
