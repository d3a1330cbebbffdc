"""A look at processes: one missed question is no alarm, and looking is bounded."""

from __future__ import annotations

from collections import Counter

import httpx
import pytest
from pydantic import SecretStr

from services.probes import TRIES, Probes
from services.settings import HubRegion

REGIONS = {"us-east": HubRegion(nodes=["http://n:1", "http://n:2"], sync="http://sync:3")}


class Processes:
    """``misses``: how many questions each host and port does not answer at first."""

    def __init__(self, **misses: int) -> None:
        self.misses = Counter({f"http://{name.replace('_', ':')}": count for name, count in misses.items()})
        self.asked: Counter[str] = Counter()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        address = f"http://{request.url.host}:{request.url.port}"
        self.asked[address] += 1
        if self.asked[address] <= self.misses[address]:
            raise httpx.ReadTimeout("too busy")
        return httpx.Response(200, json={"agent": {"session": 1}, "leader": {"leading": True}})


@pytest.mark.parametrize(("misses", "ready"), [(0, True), (1, True), (TRIES, None)])
async def test_a_node_does_not_answer_once_it_has_missed_two_questions_in_a_row(
    misses: int, ready: bool | None
) -> None:
    processes = Processes(n_1=misses, sync_3=misses)
    probes = Probes(REGIONS, httpx.MockTransport(processes))
    seen = (await probes.look())["us-east"]
    await probes.close()
    assert [node.ready for node in seen.nodes] == [ready, True]
    assert (seen.agent is not None) == (ready is True)
    assert processes.asked["http://n:1"] <= TRIES


async def test_a_sync_service_that_wants_a_token_is_given_its_own() -> None:
    given: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        given.append(request.headers.get("authorization"))
        return httpx.Response(200, json={"agent": {"session": 1}})

    regions = {"us-east": HubRegion(nodes=["http://n:1"], sync="http://sync:3", token=SecretStr("of us-east"))}
    probes = Probes(regions, httpx.MockTransport(answer))
    await probes.look()
    await probes.close()
    assert given == [None, "Bearer of us-east"]
