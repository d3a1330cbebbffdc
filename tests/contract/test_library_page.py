"""docs/library.md: its code runs as it stands, and does what it says."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from regional_limiter.in_process import in_memory, on_redis
from regional_limiter.model.decision import Check
from regional_limiter.model.errors import InvalidRules
from regional_limiter.store.redis_cluster import StoreOptions
from tests.contract.redis_cluster import RedisCluster

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "library.md").read_text()
IN_MEMORY, ON_REDIS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PATIENT = StoreOptions(deadline_ms=2000, whole_deadline_ms=2000)
SECRET = b"0123456789abcdef"
GLOBAL = {
    "regions": {"us": 1, "eu": 3},
    "rules": [
        {"id": "a", "capacity": 40, "refill": "1/h", "scope": "global", "distribution": "static", "match": {}}
    ],
}
CHECK = Check("default", {"client_key": "alice", "resource": "r"})


def ran(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "docs/library.md", "exec"), names)
    return names


def test_the_code_in_memory_does_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(IN_MEMORY)["allowed"] == [True, True, True, False]
    rule, reason, wait_ms = capsys.readouterr().out.split()
    assert (rule, reason) == ("per-client", "limited")
    assert 0 < int(wait_ms) <= 60_000
    assert "`allowed` is `[True, True, True, False]`" in PAGE


async def test_the_code_on_redis_does_what_the_page_says(calm_cluster: RedisCluster) -> None:
    code, count = re.subn(r"SERVERS = .*", f"SERVERS = {json.dumps(calm_cluster.addresses[:2])}", ON_REDIS)
    # The page's deadlines are those of production; a machine that runs many tests needs more.
    code = code.replace("secret=SECRET)", "secret=SECRET, options=PATIENT)")
    code = "from tests.contract.test_library_page import PATIENT\n" + code
    names = await asyncio.to_thread(ran, code)
    assert (count, names["remaining"]) == (1, (1, 2))
    assert "`remaining` is `(1, 2)`" in PAGE


async def test_a_static_global_limit_is_the_base_of_the_region() -> None:
    async with in_memory(GLOBAL, region="us") as limiter:
        answers = [await limiter.check(CHECK) for _ in range(11)]
    assert [answer.allowed for answer in answers] == [True] * 10 + [False]


async def test_a_global_rule_needs_to_know_which_region_it_is_in() -> None:
    with pytest.raises(InvalidRules, match=r"regions: .*here, among us, eu"):
        async with in_memory(GLOBAL):
            pass


async def test_wrong_rules_and_a_short_secret_are_told_before_anything_starts() -> None:
    with pytest.raises(InvalidRules, match="rules"):
        async with in_memory("{}"):
            pass
    with pytest.raises(ValueError, match="secret: at least 16 bytes"):
        async with on_redis(["127.0.0.1:1"], GLOBAL, secret=b"short"):
            pass


async def test_without_redis_the_rules_decide_from_the_first_check_on() -> None:
    rules = {"rules": [{"id": "a", "match": {}, "capacity": 2, "refill": "1/h"}]}
    async with on_redis(["127.0.0.1:1"], rules, secret=SECRET) as limiter:
        answers = [await limiter.check(CHECK) for _ in range(3)]
    assert [(answer.allowed, answer.degraded) for answer in answers] == [(True, True)] * 2 + [(False, True)]
