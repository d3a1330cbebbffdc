"""An application that holds a token lease is killed: nothing but its lease is held back."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from apportion import Client

from tests.contract.redis_cluster import wait_until
from tests.contract.region_processes import Region
from tests.gateways.leaseholder import COUNTERS

CAPACITY = 100_000
LEASE_S_MOST = 0.5

pytestmark = pytest.mark.timeout(120)


def lost_by(url: str) -> int:
    """Tokens of leases of its own that a node has lost."""
    text = httpx.get(f"{url}/metrics", trust_env=False, timeout=20).text
    found = re.search(r'^ratelimit_lease_tokens\w*\{.*event="lost".*\} ([0-9.]+)$', text, re.MULTILINE)
    return int(float(found[1])) if found else 0


def test_an_application_that_is_killed_takes_at_most_its_lease_with_it(region: Region, tmp_path: Path) -> None:
    file = tmp_path / "counters"
    file.write_bytes(bytes(COUNTERS.size))
    before = {url: lost_by(url) for url in region.urls.values()}
    command = [sys.executable, "-m", "tests.gateways.leaseholder", region.urls[1], str(file)]
    process = subprocess.Popen(command)
    try:
        wait_until("it decides by itself", lambda: COUNTERS.unpack(file.read_bytes())[1] > 0, 30)
        threshold = COUNTERS.unpack(file.read_bytes())[0] + 2000
        wait_until("it has decided much", lambda: COUNTERS.unpack(file.read_bytes())[0] > threshold, 30)
    finally:
        process.kill()
        process.wait()
    allowed, largest = COUNTERS.unpack(file.read_bytes())
    assert allowed < CAPACITY
    with Client(region.urls[2], timeout_s=20, on_no_answer="raise") as client:

        def settled() -> bool:
            # The nodes bring back what they had leased of the key themselves.
            lost_by_nodes = sum(lost_by(url) - before[url] for url in region.urls.values())
            answer = client.peek("everybody", "leased")
            assert answer.remaining is not None
            gone = CAPACITY - answer.remaining
            assert gone >= allowed
            # While it renews it holds two: what is left of one, and the next.
            return gone <= allowed + lost_by_nodes + 2 * largest + 1

        wait_until("all but its lease is back", settled, 2 * LEASE_S_MOST + 1)
        # The rest can be used, now: nobody has to wait for the dead.
        answer = client.peek("everybody", "leased")
        assert client.check("everybody", "leased", cost=answer.remaining or 0).allowed
