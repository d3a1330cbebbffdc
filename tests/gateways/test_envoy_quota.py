"""Envoy with the example configuration decides by the quota that was pushed into it."""

from __future__ import annotations

import time
from pathlib import Path

import httpx

from tests.contract.redis_cluster import wait_until
from tests.gateways.envoy import envoy
from tests.gateways.gateway import Application
from tests.gateways.quota_node import quota_node, rules


def test_a_quota_allows_and_denies_without_a_call_and_a_changed_rule_acts_within_a_second(
    behind: Application, tmp_path: Path
) -> None:
    with (
        quota_node(rules(20, "1/h")) as node,
        envoy(tmp_path, [f"127.0.0.1:{node.port}"], behind, example="envoy-quota") as running,
        httpx.Client(trust_env=False, timeout=20) as caller,
    ):

        def ask(user: str) -> int:
            return caller.get(running.url + "/quota", headers={"x-user": user}).status_code

        assert ask("ann") == 200  # before there is a quota, as the example says
        wait_until("a quota is granted", lambda: node.counts["granted"] == 1, 10)
        time.sleep(0.3)
        # A quarter of the capacity stays with the node, to pay for changes.
        assert [ask("ann") for _ in range(20)] == [200] * 15 + [429] * 5
        assert caller.get(running.url + "/quota").status_code == 200  # nobody's bucket

        node.change(rules(40, "50/s"))
        changed_s = time.monotonic()
        while ask("ann") != 200:
            assert time.monotonic() - changed_s < 1
        # As fast as it says: nine tenths of 50 a second, which whole seconds of Envoy's must not spoil.
        began_s, allowed = time.monotonic(), 0
        while time.monotonic() - began_s < 2:
            allowed += ask("ann") == 200
        assert 60 < allowed <= 30 + 2.1 * 45

        node.change(rules(0, "1/h"))
        changed_s = time.monotonic()
        while ask("ann") != 429:
            assert time.monotonic() - changed_s < 1
        assert ask("ann") == 429
