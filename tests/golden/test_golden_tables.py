"""One numbered table, both languages: every case of the YAML files against the Python and against Redis's Lua."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from regional_limiter.model.rule import Algorithm, CalendarUnit, CalendarWindow, Rate
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.store.base import BucketCall, Sharing
from tests.contract.points import OTHER_REQUEST, Point, PythonPoint, RedisPoint, told
from tests.contract.redis_server import RedisServer
from tests.contract.split_point import SplitPoint

START_MS = 20_000 * 86_400_000
TABLES = sorted(Path(__file__).parent.glob("*.yaml"))
AS_TOKEN_BUCKETS = (Algorithm.GCRA, Algorithm.LEAKY_BUCKET)
"""Kinds that decide as a token bucket: its table is theirs as well."""
CASES = [
    pytest.param(case, kind, id=f"{kind or table.stem}: {case['case']}")
    for table in TABLES
    for kind in ((None, *AS_TOKEN_BUCKETS) if table.stem == Algorithm.TOKEN_BUCKET else (None,))
    for case in yaml.safe_load(table.read_text())
]
OF_THE_LAST = ("remaining", "retry_after_ms", "reset_after_ms", "reason", "wait_ms")
KNOWN = {
    "at",
    "times",
    "cost",
    "say",
    "limit",
    "refund",
    "request",
    "check",
    "key",
    "stored",
    "holder",
    "renew",
    *OF_THE_LAST,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture(params=["python", "redis"])
def point(request: pytest.FixtureRequest) -> Point:
    if request.param == "python":
        return PythonPoint(ProtocolTimes())
    server: RedisServer = request.getfixturevalue("server")
    return RedisPoint(server, ProtocolTimes())


def call_of(name: str, key: str, limit: dict[str, Any], cost: int, holder: str) -> BucketCall:
    refill, window_ms, calendar = limit.get("refill"), limit.get("window"), limit.get("calendar")
    static = "share" in limit
    usual = Algorithm.FIXED_WINDOW if window_ms or calendar else Algorithm.TOKEN_BUCKET
    return BucketCall(
        key=f"rl:{{tag}}:default/{name}:{key}",
        algorithm=Algorithm(limit.get("algorithm", usual)),
        capacity=limit["capacity"],
        refill=Rate(*refill) if refill else None,
        window_ms=window_ms,
        cost=cost,
        charge_denied=limit.get("charge_denied", False),
        sharing=Sharing.STATIC if static else Sharing.WHOLE,
        regions=limit.get("regions", 1),
        base=limit.get("share", 10_000),
        extra=limit.get("extra", 0),
        queue=limit.get("queue", False),
        lease_ms=limit.get("lease"),
        holder=holder,
        split=limit.get("split", 1),
        calendar=CalendarWindow(CalendarUnit(calendar[0]), calendar[1]) if calendar else None,
    )


def take(
    point: Point | SplitPoint, case: dict[str, Any], step: dict[str, Any], at: float, limits: dict[str, Any]
) -> list[Any]:
    """One step at one time: whether each of its checks was allowed, and the last one's verdicts."""
    start = case.get("start")
    start_ms = START_MS if start is None else round(start.timestamp() * 1000)
    now_us = (start_ms + round(at * 1000)) * 1000
    names = step.get("check", list(limits))
    cost = step.get("refund", step.get("cost", 1))
    calls = [call_of(name, step.get("key", "u"), limits[name], cost, step.get("holder", "h")) for name in names]
    if "renew" in step:
        assert point.renew(now_us, calls) == [step["renew"]]
        return []
    if "refund" in step:
        point.refund(now_us, calls, step.get("request"))
        return []
    answers = [told(point, "check", now_us, calls, step.get("request")) for _ in range(step.get("times", 1))]
    if "stored" in step:
        assert len(point.states(now_us)) == step["stored"]
    return answers


def letter_of(answer: Any) -> str:
    if answer == OTHER_REQUEST:
        return "R"
    return "A" if all(verdict.allowed for verdict in answer) else "D"


@pytest.mark.parametrize(("case", "kind"), CASES)
def test_golden(point: Point | SplitPoint, case: dict[str, Any], kind: Algorithm | None) -> None:
    every = {} if kind is None else {"algorithm": kind}
    limits = case.get("limits") or {"rule": case["limit"] | every}
    if any("split" in limit for limit in limits.values()):
        point = SplitPoint(point)
    for number, step in enumerate(case["steps"]):
        assert set(step) <= KNOWN, f"step {number}: {set(step) - KNOWN}"
        if "limit" in step:
            limits = {"rule": step["limit"] | every}
        times = step["at"] if isinstance(step["at"], list) else [step["at"]]
        said = ""
        for place, at in enumerate(times):
            answers = take(point, case, step, at, limits)
            said += "".join(map(letter_of, answers))
            for field in OF_THE_LAST:
                if field in step:
                    expected = step[field][place] if isinstance(step[field], list) else step[field]
                    got = dict(zip(step.get("check", list(limits)), answers[-1], strict=True))
                    by_rule = {name: getattr(verdict, field) for name, verdict in got.items()}
                    assert (by_rule if "limits" in case else by_rule["rule"]) == expected, f"step {number}: {field}"
        assert said == step.get("say", ""), f"step {number}"


def test_every_table_has_cases() -> None:
    assert {table.stem for table in TABLES} == {
        "calendar_window",
        "concurrency",
        "fixed_window",
        "leaky_bucket",
        "several_rules",
        "sliding_window_counter",
        "sliding_window_log",
        "split",
        "token_bucket",
    }
    assert len(CASES) >= 40
