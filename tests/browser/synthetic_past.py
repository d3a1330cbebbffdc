"""What a dashboard remembers of a hundred regions, made up: as long as its answers may be."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.dashboard.past.asked import columns, span, wanted
from services.dashboard.past.cells import SECOND_MS, Cell

STEPS = 2_000
"""Of one key in a quarter of an hour: two a second."""
INCIDENTS = 60


def cell(at_ms: int, place: int, step_ms: int) -> Cell:
    """Demand goes around the regions; what one lends another has on loan."""
    wave = math.sin(at_ms / 60_000 + place)
    seconds = step_ms // SECOND_MS
    allowed, denied = int(seconds * (40 + 30 * wave)), int(seconds * (5 + 4 * wave))
    return [allowed, denied, seconds, seconds, 100 * seconds, 20 * seconds, int(30 * seconds * (1 + wave)), 1, 1]


class SyntheticPast:
    """``keys``: of one rule."""

    def __init__(self, regions: Sequence[str], keys: Sequence[str]) -> None:
        self._regions = regions
        self._keys = keys
        self._base = 10_000 // len(regions)

    def routes(self) -> list[Route]:
        answers: dict[str, Callable[[Request, int], Any]] = {
            "/v1/series": self.series,
            "/v1/keys": self.keys,
            "/v1/shares/steps": self.steps,
            "/v1/shares/records": self.records,
            "/v1/shares/at": self.shares_at,
            "/v1/incidents": self.incidents,
            "/v1/sync": self.sync,
            "/v1/region": self.region,
        }
        return [Route(path, _answering(answer)) for path, answer in answers.items()]

    def series(self, request: Request, now_ms: int) -> Any:
        asked = request.query_params
        rule = asked.get("rule")
        domain = asked.get("domain") if rule is not None else None
        step = int(asked["step"]) if "step" in asked else None
        one = wanted(domain, rule, asked.get("key"), _span(request, now_ms), step, now_ms)
        found = {
            region: {at_ms: cell(at_ms, place, one.step_ms) for at_ms in one.begins()}
            for place, region in enumerate(self._regions)
        }
        return columns(one, found, self._regions)

    def keys(self, request: Request, now_ms: int) -> Any:
        begin, until = _span(request, now_ms)
        rows = [{"key": key, "allowed": 9_000 - place, "denied": 40} for place, key in enumerate(self._keys)]
        return {"from_ms": begin, "to_ms": until, "keys": rows}

    def _steps(self, begin: int, until: int, key: str) -> list[dict[str, Any]]:
        """The same at every asking, so that a row that has been told stays the same row."""
        every_ms = 450
        first = begin - begin % every_ms + every_ms
        return [
            {
                "at_ms": at_ms,
                "key": key,
                "region": self._regions[at_ms // every_ms * 7 % len(self._regions)],
                "units": self._base * (60 + at_ms // every_ms % 81) // 100,
                "kind": "grow" if at_ms // every_ms % 2 else "keep",
                "epoch": 3,
                "n": at_ms // every_ms % 1_000_000,
                "session": 1,
                "offset": at_ms // every_ms % 1_000_000,
            }
            for at_ms in range(first, until, every_ms)
        ][-STEPS:]

    def _held(self, second: int) -> dict[str, Any]:
        return {
            region: {
                "units": units,
                "base": self._base,
                "lent": max(0, self._base - units),
                "borrowed": max(0, units - self._base),
                "is_base": units == self._base,
                "session": "alive",
                "said_by": "grow",
                "since_ms": 1,
                "epoch": 3,
                "n": place,
                "given_back": 0,
            }
            for place, region in enumerate(self._regions)
            for units in (self._base * (60 + (place + second) % 81) // 100,)
        }

    def steps(self, request: Request, now_ms: int) -> Any:
        begin, until = _span(request, now_ms)
        return {
            "key": request.query_params["key"],
            "from_ms": begin,
            "to_ms": until,
            "since_ms": begin - 60_000,
            "bases": dict.fromkeys(self._regions, self._base),
            "begin": self._held(0),
            "steps": [
                {**step, "held": {step["region"]: step["units"]}}
                for step in self._steps(begin, until, request.query_params["key"])
            ],
            "in_windows": False,
        }

    def records(self, request: Request, now_ms: int) -> Any:
        begin, until = _span(request, now_ms)
        most = int(request.query_params["limit"])
        steps = self._steps(begin, until, self._keys[0])[-most:]
        return {"from_ms": begin, "to_ms": until, "steps": steps[::-1]}

    def shares_at(self, request: Request, now_ms: int) -> Any:
        at_ms = int(request.query_params["time"])
        asked, most = request.query_params.get("key"), int(request.query_params["limit"])
        keys = [asked] if asked else [f"{self._keys[0]}-{number}" for number in range(most)]
        held = self._held(at_ms // 1000)
        return {
            "time_ms": at_ms,
            "known": True,
            "since_ms": at_ms - 3_600_000,
            "epoch": 3,
            "keys": [{"key": key, "regions": held, "together": 10_000, "in_windows": False} for key in keys],
        }

    def incidents(self, request: Request, now_ms: int) -> Any:
        told = [
            {"id": number, "at_ms": at_ms, "level": "warn", "kind": "leader", "text": f"Number {number}.",
             "region": None, "domain": None, "rule": None}
            for number in range(now_ms // 5_000 - INCIDENTS, now_ms // 5_000)
            for at_ms in (number * 5_000,)
        ]  # fmt: skip
        return {"since_ms": now_ms - 3_600_000, "incidents": told[::-1]}

    def sync(self, request: Request, now_ms: int) -> Any:
        return {
            "now_ms": now_ms,
            "leader": {"epoch": 3, "region": self._regions[0], "beat_age_ms": 120, "late": False, "lag_ms": 20},
            "regions": [],
            "refused": {region: {"agent": 0, "leader": 0} for region in self._regions},
            "behind": {region: {"rl.log": 0} for region in self._regions},
            "behind_here": {"rl.log": 0},
            "log_age_ms": dict.fromkeys(self._regions, 90),
            "candidates": {},
            "log": {"epoch": 3, "next_offset": now_ms // 100, "keys_moved": 800, "silent_ms": 5},
            "leases": {
                "grows_per_s": 30.0, "keeps_per_s": 28.5, "settled": 100, "settled_ms_p50": 60,
                "settled_ms_p95": 140, "settled_ms_max": 300, "waiting": 4, "waiting_ms_max": 80,
            },
            "history": {
                "kept_in": "file", "why_in_memory": None, "bytes": 100_000_000, "left_out": 0, "begun_anew": 0,
                "seconds_since_ms": now_ms - 3_600_000, "minutes_since_ms": now_ms - 86_400_000,
                "shares_since_ms": now_ms - 86_400_000, "problem": None, "catching_up": False,
            },
        }  # fmt: skip

    def region(self, request: Request, now_ms: int) -> Any:
        seconds = now_ms // 1000
        points = [
            {
                "point": f"127.0.0.1:{7000 + number}/v",
                "ok": True,
                "session_left_ms": 18_000,
                "consent_left_ms": 28_000,
            }
            for number in range(12)
        ]
        shards = [
            {"point": point["point"], "breaker": "closed", "answers": True, "unanswered": 0,
             "took": {"bounds_s": [0.001, 0.004], "counts": [seconds * 9, seconds, 0]}}
            for point in points
        ]  # fmt: skip
        view = {
            "node": "n",
            "ready": True,
            "rules_version": 1,
            "leases": {"out": 3},
            "degraded": {},
            "shards": shards,
        }
        return {
            "name": request.query_params["name"],
            "now_ms": now_ms,
            "nodes": [
                {"url": f"http://127.0.0.1:{8000 + number}", "answers": True, "clock_error_ms": 1,
                 "give_or_take_ms": 2, "view": {**view, "node": f"n{number}"}}
                for number in range(20)
            ],
            "agent": {"agent": "a", "active": True, "epoch": 3, "session": 1, "link_age_ms": 80, "points": points,
                      "nodes": [], "bases": {"default": self._base}, "age_ms": 0, "violations": 0, "malformed": 0},
            "hot": {
                point["point"]: [{"key": key, "allowed_per_s": 30.0, "denied_per_s": 1.0} for key in self._keys[:3]]
                for point in points
            },
            "busiest": [
                {"key": f"{key}-{seconds % 7}", "allowed_per_s": 30.0, "denied_per_s": 1.0} for key in self._keys
            ],
        }  # fmt: skip


def _span(request: Request, now_ms: int) -> tuple[int, int]:
    begin, until = (request.query_params.get(name) for name in ("from", "to"))
    return span(int(begin) if begin else None, int(until) if until else None, now_ms)


def _answering(answer: Callable[[Request, int], Any]) -> Callable[[Request], Response]:
    def answering(request: Request) -> Response:
        body = json.dumps(answer(request, int(time.time() * 1000)))
        return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})

    return answering
