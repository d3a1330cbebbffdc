"""Examples that the documentation of the control API shows.  Pure."""

from __future__ import annotations

from services.control_api.documented import Anything, Named

RULE = Anything(
    match={"resource": "POST /orders", "tier": ["free", "trial"]},
    algorithm="token_bucket",
    capacity=20,
    refill_per_second=10,
)
RULE_SET = Anything(
    domain="default",
    regions={"us-east": 2, "eu-west": 1},
    rules=[{"id": "orders-free", "capacity": 20, "refill": "10/s"}],
)
SHOWN_RULE = {
    "id": "orders-free",
    "domain": "default",
    "version": 17,
    "loaded": Anything(capacity=20, in_words="20 at once, then 10/s"),
    "source": Anything(id="orders-free", capacity=20, refill="10/s"),
}
EFFECT = {
    "nothing": False,
    "appear": 0,
    "change": 1,
    "vanish": 0,
    "rules": [{"rule": "orders-free", "effect": "change", "in_words": "30 at once, then 10/s"}],
    "overrides": [
        {
            "rule": "orders-free",
            "key": Named(client_key="hooli"),
            "effect": "appear",
            "in_words": "200 at once, then 100/s",
            "until_ms": None,
        }
    ],
    "set": Anything(),
}
DRY_RUN = {"dry_run": True, "domain": "default", "made_from": 17, "effect": EFFECT}
CHANGE = {
    "offset": 17,
    "id": "2b6f0cc904d137be2e1730235f5664094b831186",
    "domain": "default",
    "kind": "put_rule",
    "rule_id": None,
    "key": None,
    "clients": None,
    "accepted": True,
    "conflict": False,
    "version": 18,
    "restores": None,
    "author": "ann",
    "origin": "192.0.2.7",
    "reason": "launch",
    "at_ms": 1_790_000_000_000,
    "made_from": None,
    "epoch": 3,
    "errors": [{"field": "rules[0].capacity", "problem": "must be from 0"}],
}
OVERRIDE = Anything(
    rule="orders-free", key={"client_key": "hooli"}, multiply=10, until="2026-12-31T18:00:00+01:00", why="launch"
)
SHOWN_OVERRIDE = {
    "id": "5f2c9d1e7a3b4c68",
    "rule": "orders-free",
    "key": Named(client_key="hooli"),
    "in_words": "200 at once, then 100/s",
    "until_ms": None,
    "source": OVERRIDE,
}
NEW_TOKEN = Anything(name="ann", role="operator", domains=["default"], expires_in_s=2_592_000)
SHOWN_TOKEN = {
    "id": "9f86d081884c7d65",
    "name": "ann",
    "role": "operator",
    "domains": ["default"],
    "created_at_ms": 1_790_000_000_000,
    "created_by": "root",
    "expires_at_ms": None,
    "expired": False,
}
