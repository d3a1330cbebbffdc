"""The regions of a deployment over HTTP: how they are, their weights, and the end of one that is destroyed."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import JSONResponse

from global_sync.changes import PUT_REGIONS, REGION_DESTROYED
from regional_limiter.model.errors import Fault, InvalidRules
from regional_limiter.model.share import ProtocolTimes
from services.accepted_rules import LoadedSet
from services.bases_seen import BasesSeen
from services.clock import wall_ms
from services.control_api import examples
from services.control_api.access import Role
from services.control_api.changing import (
    APPLIED_WAIT_S,
    DomainInPath,
    DryRun,
    changed,
    etag,
    proposed,
    require_change,
    unread_rules,
)
from services.control_api.documented import (
    CHANGING,
    READING,
    Anything,
    Named,
    answer,
    answers,
    body,
    changed_or_tried,
)
from services.control_api.guard import readable, require
from services.control_api.knowledge import Hub
from services.control_api.requests import read_mapping, who_where_why
from services.errors import problem_response
from services.health import RegionHealth

RegionInPath = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]

_REGION = {
    "link": "linked",
    "link_age_ms": 400,
    "session_left_ms": 19_000,
    "consent_left_ms": 29_000,
    "gone": False,
    "weights": Named({"default": 2}),
    "bases": Named({"default": 6667}),
    "old_bases": Named({"default": 5000}),
    "old_floors": Named({"default": 500}),
}
_REGIONS = {
    "now_ms": 1_790_000_000_000,
    "session_ms": 20_000,
    "consent_ms": 30_000,
    "config_version": 18,
    "done_version": 17,
    "leader_told": True,
    "domains": Named({"default": {"version": 18, "weights": Named({"us-east": 2, "eu-west": 1})}}),
    "regions": Named({"us-east": _REGION}),
}
_WEIGHTS = Named({"us-east": 2, "eu-west": 1})
_SET_WEIGHTS = {"domain": "default", "version": 18, "regions": _WEIGHTS}
_ENDED = {"region": "eu-west", "gone": True, "bases": Named({"default": 3333})}


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known here: the accepted ``sets``, how regions are, what the log says of bases; and the ``leader``'s
    own view, None where it could not be asked."""

    sets: Mapping[str, LoadedSet]
    health: Collection[RegionHealth]
    bases: BasesSeen
    leader: Mapping[str, Any] | None


class Late(NamedTuple):
    """By domain and region, what the leader still reckons with above the newest bases, and floors named."""

    bases: Mapping[str, Mapping[str, int]]
    floors: Mapping[str, Mapping[str, int]]


def regions_router(hub: Hub) -> APIRouter:
    router = APIRouter(tags=["regions"])
    _add_reading(router, hub)
    _add_weights(router, hub)
    _add_destroyed(router, hub)
    return router


def _add_reading(router: APIRouter, hub: Hub) -> None:
    @router.get(
        "/v1/regions",
        summary="Every region: its link, weights and bases, and how far a change of bases is",
        description="Bases are out of 10,000. `done_version` reaches `config_version` when a change is in force; "
        "`old_bases`: what the leader still reckons a region with, above its new base; `old_floors`: the same of "
        "floors that sets name.",
        responses=answers({200: answer("The regions", _REGIONS)}, *READING),
    )
    async def regions(request: Request) -> Response:
        if (unread := await unread_rules(hub)) is not None:
            return unread
        document = regions_document(await _seen(hub), hub.settings.times(), wall_ms(), readable(request))
        return JSONResponse(document, headers={"Cache-Control": "no-store"})


def _add_weights(router: APIRouter, hub: Hub) -> None:
    @router.put(
        "/rulesets/{domain}/regions",
        summary="Replace the weights of a domain's regions, and nothing else of its set",
        openapi_extra=body(Anything(_WEIGHTS)),
        responses=answers(
            {200: changed_or_tried("The weights, or what they would do", _SET_WEIGHTS, examples.DRY_RUN)},
            *CHANGING,
        ),
    )
    async def put_weights(domain: DomainInPath, request: Request, dry_run: DryRun = False) -> Response:
        require_change(request, domain, dry_run=dry_run)
        weights = await read_mapping(request)
        if faults := [
            Fault(f"regions.{name}", "was destroyed: its name is not used again")
            for name in weights
            if name in hub.picture.bases.gone
        ]:
            raise InvalidRules(faults)
        done = await changed(hub, request, domain, PUT_REGIONS, {"regions": weights}, dry_run=dry_run)
        if isinstance(done, Response):
            return done
        version = done.outcome.version
        await hub.book.reached(domain, version, APPLIED_WAIT_S)
        return JSONResponse({"domain": domain, "version": version, "regions": weights}, headers=etag(version))


def _add_destroyed(router: APIRouter, hub: Hub) -> None:
    @router.post(
        "/v1/regions/{region}:destroyed",
        summary="Say that a region is lost for good, so that others may have its base",
        description="Only an admin of every domain, with a reason. Refused while the region is heard of, or may "
        "still have a session. **If it is not true the bound is broken**: a region that lives on unheard uses its "
        "base, which others have by then. It cannot be taken back, and the name is not used again.",
        responses=answers({200: answer("It is gone, and had these bases", _ENDED)}, *CHANGING),
    )
    async def destroyed(region: RegionInPath, request: Request, dry_run: DryRun = False) -> Response:
        require(request, Role.ADMIN)
        if not dry_run and not who_where_why(request)["reason"]:
            raise InvalidRules([Fault("Apportion-Reason", "must say why: it is kept in the history")])
        if (unread := await unread_rules(hub)) is not None:
            return unread
        seen = await _seen(hub)
        told = {"region": region, "gone": True, "bases": dict(seen.bases.base_of(region))}
        if region in seen.bases.gone:
            return JSONResponse(told)
        if (refused := _not_destroyed(region, seen)) is not None:
            return refused
        if dry_run:
            return JSONResponse({**told, "gone": False})
        outcome = await proposed(hub, request, "", REGION_DESTROYED, {"region": region})
        return outcome if isinstance(outcome, Response) else JSONResponse(told)


def _not_destroyed(region: str, seen: Seen) -> Response | None:
    """What is known here already speaks against it; the leader looks again."""
    health = next((one for one in seen.health if one.name == region), None)
    if health is None and not seen.bases.base_of(region):
        return problem_response(404, f"no region is called {region}")
    if health is not None and health.link in ("linked", "silent"):
        heard_s = (health.link_age_ms or 0) / 1000
        return problem_response(409, f"{region} was heard of {heard_s:.1f} s ago: it is not destroyed")
    return None


async def _seen(hub: Hub) -> Seen:
    probes = await hub.probes.look()
    leading = [probe.leader for probe in probes.values() if probe.leader and probe.leader.get("leading")]
    leader = leading[0] if len(leading) == 1 else None
    return Seen(hub.book.sets(), hub.picture.health(probes, wall_ms()), hub.picture.bases, leader)


def regions_document(
    seen: Seen, times: ProtocolTimes, now_ms: int, domains: Collection[str] | None = None
) -> dict[str, Any]:
    """``domains``: those to tell of; None: all.  Pure."""
    sets = {domain: known for domain, known in seen.sets.items() if domains is None or domain in domains}
    leader = seen.leader or {}
    late = Late(leader.get("waiting_for_bases") or {}, leader.get("waiting_for_floors") or {})
    health = {one.name: one for one in seen.health}
    names = {*health, *seen.bases.gone, *(name for known in sets.values() for name in known.rule_set.regions)}
    return {
        "now_ms": now_ms,
        "session_ms": times.session_us // 1000,
        "consent_ms": times.consent_us // 1000,
        "config_version": seen.bases.version,
        "done_version": seen.bases.done_version,
        "leader_told": seen.leader is not None,
        "domains": {
            domain: {"version": known.version, "weights": dict(known.rule_set.regions)}
            for domain, known in sets.items()
        },
        "regions": {name: _region(name, health.get(name), sets, late, seen.bases) for name in sorted(names)},
    }


def _region(
    name: str,
    health: RegionHealth | None,
    sets: Mapping[str, LoadedSet],
    late: Late,
    bases: BasesSeen,
) -> dict[str, Any]:
    return {
        "link": health.link if health is not None else "gone" if name in bases.gone else "unknown",
        "link_age_ms": health.link_age_ms if health is not None else None,
        "session_left_ms": health.session_left_ms if health is not None else None,
        "consent_left_ms": health.consent_left_ms if health is not None else None,
        "gone": name in bases.gone,
        "weights": {d: known.rule_set.regions[name] for d, known in sets.items() if name in known.rule_set.regions},
        "bases": {d: known.rule_set.bases[name] for d, known in sets.items() if name in known.rule_set.bases},
        "old_bases": _parts_of(name, late.bases, sets),
        "old_floors": _parts_of(name, late.floors, sets),
    }


def _parts_of(region: str, late: Mapping[str, Mapping[str, int]], sets: Container[str]) -> dict[str, int]:
    return {d: by_region[region] for d, by_region in late.items() if d in sets and region in by_region}
