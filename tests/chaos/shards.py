"""On which shard of its region's Redis Cluster a key's bucket lies: all regions deal their slots alike.  Pure."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from regional_limiter.model.keys import bucket_key, tag_of
from regional_limiter.model.rule import Rule
from regional_limiter.rules import parse_document
from regional_limiter.rules.text import read_document
from regional_limiter.store.topology import SLOTS, hash_slot_of

SHARDS = 3
SECRET = "the same sixteen bytes, or more, in every region"
RULES = Path(__file__).with_name("rules.yaml")


@cache
def shard_of(rule: str, client_key: str) -> int:
    """From 0, in the order of the slots."""
    found = next(one for one in _rules() if one.id == rule)
    key = bucket_key(found, {"client_key": client_key}, SECRET.encode())
    return shard_with(hash_slot_of(tag_of(key)))


def shard_with(slot: int) -> int:
    """Shard i has the slots from ``SLOTS * i // SHARDS`` on (infra.region.redis_cluster deals them)."""
    return max(shard for shard in range(SHARDS) if SLOTS * shard // SHARDS <= slot)


@cache
def _rules() -> tuple[Rule, ...]:
    return tuple(parse_document(read_document(RULES.read_bytes(), "yaml")).rules)
