"""What shadow rules would have done, over all nodes: their counts, and examples of the keys denied last.  [IO]"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from services.control_api.access import Role
from services.control_api.changing import Domain, unread_rules
from services.control_api.documented import READING, Named, answer, answers
from services.control_api.guard import require
from services.control_api.knowledge import Hub
from services.errors import problem_response

EXAMPLES_SHOWN = 20

_COUNTED = {
    "would_allow": 812,
    "would_deny": 31,
    "would_deny_cost": 31,
    "undecided": 0,
    "examples": [{"key": "user%3A42", "times": 7, "region": "us-east"}],
}
_SHOWN = {
    "domain": "default",
    "nodes_asked": 6,
    "nodes_silent": ["http://127.0.0.1:7012"],
    "rules": Named({"orders-free": _COUNTED}),
}


def shadow_router(hub: Hub) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["usage"])

    @router.get(
        "/shadow",
        summary="What rules in shadow mode would have done, on the nodes that answer, since those began",
        responses=answers(
            {200: answer("By rule; keys as buckets are named, or their hashes", _SHOWN)}, 404, *READING
        ),
    )
    async def shadow(
        request: Request,
        domain: Domain = "default",
        rule: Annotated[str | None, Query(max_length=64, description="Only this rule.")] = None,
    ) -> Response:
        require(request, Role.READER, domain)
        views = await hub.probes.ask_nodes("/v1/shadow")
        found: dict[str, dict[str, Any]] = {}
        for view in views.values():
            for name, counted in (view or {}).get("rules", {}).items():
                of_domain, _, of_rule = name.partition("/")
                if of_domain == domain and rule in (None, of_rule):
                    _add(found.setdefault(of_rule, _nothing()), counted, str((view or {}).get("region", "")))
        if rule is not None and rule not in found:  # a node may have rules of a file that nobody has applied
            known = hub.book.get(domain)
            if known is None or known.place_of(rule) is None:
                detail = f"there is no rule {rule} in domain {domain}"
                return await unread_rules(hub, domain) or problem_response(404, detail)
        for one in found.values():
            one["examples"] = sorted(one["examples"], key=lambda example: -example["times"])[:EXAMPLES_SHOWN]
        silent = sorted(url for url, view in views.items() if view is None)
        body = {"domain": domain, "nodes_asked": len(views), "nodes_silent": silent, "rules": found}
        return JSONResponse(body, headers={"Cache-Control": "no-store"})

    return router


def _nothing() -> dict[str, Any]:
    return {"would_allow": 0, "would_deny": 0, "would_deny_cost": 0, "undecided": 0, "examples": []}


def _add(found: dict[str, Any], counted: dict[str, Any], region: str) -> None:
    for name in ("would_allow", "would_deny", "would_deny_cost", "undecided"):
        found[name] += int(counted.get(name, 0))
    found["examples"] += [{**example, "region": region} for example in counted.get("examples", [])]
