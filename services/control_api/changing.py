"""A change over HTTP: its precondition, what it would do, its proposal, and what its outcome is answered.  [IO]"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Path, Query, Request, Response
from fastapi.responses import JSONResponse

from global_sync.changes import DELETE_RULE, PUT_RULE, ChangeRefused, History
from regional_limiter.model.errors import Fault
from regional_limiter.rules.effects import effects
from services.accepted_rules import LoadedSet
from services.control_api.access import Role
from services.control_api.guard import require
from services.control_api.knowledge import Hub
from services.control_api.proposals import NoOutcome, NotProposed, TooLarge, TooManyPending
from services.control_api.requests import Precondition, precondition, who_where_why
from services.errors import problem_response

NAME = r"^[a-z0-9._-]{1,64}$"
APPLIED_WAIT_S = 1.0
PAGE_MOST = 1000

Domain = Annotated[str, Query(pattern=NAME, description="The namespace of the rule.")]
DomainInPath = Annotated[str, Path(pattern=NAME, description="The namespace of the rules.")]
RuleId = Annotated[str, Path(pattern=NAME)]
DryRun = Annotated[bool, Query(description="Only tell what the change would do.")]
Limit = Annotated[int, Query(ge=1, le=PAGE_MOST, description="Entries of one page.")]


@dataclass(frozen=True, slots=True)
class Done:
    """``known``: the domain's set before, as read here; None: it had none."""

    outcome: History
    known: LoadedSet | None


def require_change(request: Request, domain: str, *, dry_run: bool) -> None:
    """Whoever may read may also try.  Before the body is read: a stranger's is not looked at."""
    require(request, Role.READER if dry_run else Role.OPERATOR, domain)


async def changed(
    hub: Hub,
    request: Request,
    domain: str,
    kind: str,
    fields: Mapping[str, Any],
    *,
    dry_run: bool = False,
    told: Mapping[str, Any] | None = None,
) -> Done | Response:
    """Make a change of a domain's rules; the response where it is refused, or was only to be tried.

    ``fields`` are those of a Proposal.  ``told``: what else a dry run is answered.  Raises InvalidRules, and
    HTTPException for a wrong precondition.
    """
    require_change(request, domain, dry_run=dry_run)
    wanted = precondition(request)
    rule_id = fields.get("rule_id") if kind in (PUT_RULE, DELETE_RULE) else None
    if (early := await _refused_early(hub, domain, rule_id, wanted)) is not None:
        return early
    known = hub.book.get(domain)
    made_from = fields.get("made_from", _made_from(wanted, known, rule_id))
    change = {**fields, "made_from": made_from}
    if known is None and kind == PUT_RULE:  # the first rule brings the regions of this deployment with it
        change["regions"] = hub.book.default_regions()
    try:
        after = await asyncio.to_thread(hub.book.after, domain, kind, change)
    except ChangeRefused as refused:
        detail = "; ".join(fault.problem for fault in refused.faults)
        return problem_response(404, f"{detail}, in domain {domain}")
    if dry_run:
        effect = await asyncio.to_thread(effects, known.rule_set if known else None, after)
        version = version_of(known, rule_id)
        tried = {"dry_run": True, "domain": domain, "made_from": version, "effect": effect}
        return JSONResponse({**tried, **(told or {})})
    outcome = await proposed(hub, request, domain, kind, change)
    return outcome if isinstance(outcome, Response) else Done(outcome, known)


async def proposed(
    hub: Hub, request: Request, domain: str, kind: str, change: Mapping[str, Any]
) -> History | Response:
    """The accepted outcome, or the problem to answer with."""
    try:
        outcome = await hub.proposer.propose(domain, kind, **change, **who_where_why(request))
    except NotProposed as error:
        detail = "Kafka does not answer. Nothing is changed yet, but the proposal may still be written and accepted"
        return problem_response(503, detail, extra={"proposal": error.proposal}, headers={"Retry-After": "2"})
    except NoOutcome as error:
        detail = "proposed, but no leader has decided it in time; it may still be accepted: see GET /history"
        return problem_response(504, detail, extra={"proposal": error.proposal})
    except TooManyPending:
        return problem_response(503, "too many changes wait for their outcome", headers={"Retry-After": "2"})
    except TooLarge as error:
        return problem_response(413, str(error))
    if outcome.accepted:
        return outcome
    faults = [Fault(fault.get("place", ""), fault.get("problem", "")) for fault in outcome.faults]
    extra: dict[str, object] = {"proposal": outcome.id}
    if outcome.conflict:
        detail = "somebody else's change came first: read the newest version and decide again"
        return problem_response(409, detail, faults=faults, extra={**extra, "newest": outcome.version})
    return problem_response(422, "refused by the leader", faults=faults, extra=extra)


async def _refused_early(hub: Hub, domain: str, rule_id: str | None, wanted: Precondition) -> Response | None:
    """What the accepted rules, as read here, already rule out."""
    if (unread := await unread_rules(hub, domain)) is not None:
        return unread
    version = version_of(hub.book.get(domain), rule_id)
    if wanted.exists and version == 0:
        return problem_response(412, "If-Match: *, but there is none")
    if wanted.version is not None and wanted.version != version:
        newest = f"version {version} is the newest" if version else "there is none"
        return problem_response(412, f"made from version {wanted.version}, but {newest}", extra={"newest": version})
    return None


def version_of(known: LoadedSet | None, rule_id: str | None) -> int:
    """The version of a rule or, without one, of the set; 0 for what is not there."""
    if known is None:
        return 0
    if rule_id is None:
        return known.version
    return known.rule_versions.get(rule_id, 0) if known.place_of(rule_id) is not None else 0


def _made_from(wanted: Precondition, known: LoadedSet | None, rule_id: str | None) -> int | None:
    return version_of(known, rule_id) if wanted.exists else wanted.version


async def unread_rules(hub: Hub, domain: str | None = None) -> Response | None:
    """A problem while the accepted rules (of ``domain``) are not known: "no rule" would be a guess."""
    if not await hub.rules_known():
        detail = hub.why_not_ready() or "the accepted rules have not been read yet"
        return problem_response(503, detail, headers={"Retry-After": "2"})
    if domain in hub.book.not_understood:
        problem = hub.book.not_understood[domain]
        detail = f"the rules of {domain} are not understood by this version of the control API: {problem}"
        return problem_response(503, f"{detail}. They are in force where they are understood; update this process")
    return None


async def unread_history(hub: Hub) -> Response | None:
    if await hub.history_known():
        return None
    return problem_response(503, "the history has not been read yet", headers={"Retry-After": "2"})


def etag(version: int) -> dict[str, str]:
    return {"ETag": f'"{version}"', "Cache-Control": "no-cache"}
