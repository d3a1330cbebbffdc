"""The limiter as a library: in the caller's own process, without a node, an agent or Kafka beside it.  [W]

Two ways in, both asynchronous context managers that give a running :class:`~regional_limiter.limiter.Limiter`:
:func:`in_memory` for one process, :func:`on_redis` for as many as share a Redis Cluster.  The rules are the
caller's: nobody publishes others, and a change of rules is a new limiter.
"""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import time_ns

from regional_limiter.limiter import Limiter
from regional_limiter.model.errors import Fault, InvalidRules
from regional_limiter.model.rule import RuleSet, Scope
from regional_limiter.model.share import ProtocolTimes, floor_name
from regional_limiter.node_files import NodeFiles
from regional_limiter.rules import Source, encode_blob, parse, parse_document
from regional_limiter.store.base import CheckStore
from regional_limiter.store.memory import MemoryStore
from regional_limiter.store.redis_cluster import RedisClusterStore, StoreOptions

Rules = str | Mapping[str, object]
"""A rule set: YAML or JSON text, or the document that such a text writes."""

SECRET_BYTES_LEAST = 16
_VERSION = 1
_CONNECT_WAIT_S = 1.0


@asynccontextmanager
async def in_memory(rules: Rules, *, region: str = "here", buckets_most: int = 100_000) -> AsyncIterator[Limiter]:
    """A limiter whose buckets live in this process, and end with it.

    ``buckets_most``: how many are kept; beyond, buckets of one rule share (``store/bucket_table.py``).
    ``region``: which of the set's regions this is; only a global rule asks.  Raises InvalidRules with every fault.
    """
    rule_set = _read(rules, region)
    times = ProtocolTimes()
    store = MemoryStore(lambda: time_ns() // 1000, times, buckets_most=buckets_most)
    async with _running(rule_set, region, store, secrets.token_bytes(SECRET_BYTES_LEAST), times) as limiter:
        yield limiter


@asynccontextmanager
async def on_redis(
    servers: Sequence[str],
    rules: Rules,
    *,
    secret: bytes,
    region: str = "here",
    options: StoreOptions | None = None,
) -> AsyncIterator[Limiter]:
    """A limiter whose buckets every process shares that names the same Redis Cluster, secret and rules.

    ``servers``: ``host:port`` of some servers of the cluster (Redis 7 or newer, ``maxmemory-policy noeviction``;
    one server that owns every slot is a cluster too).  ``secret``: at least 16 bytes; it keeps strangers from
    choosing the shard of a key.  ``options``: deadlines in milliseconds, login and TLS; a check is answered within
    its ``whole_deadline_ms``, by the rule's ``on_store_failure`` if Redis does not.

    Waits up to a second for Redis, and begins without it otherwise.  Raises InvalidRules with every fault, and
    ValueError for a short secret or no server.
    """
    if len(secret) < SECRET_BYTES_LEAST:
        raise ValueError(f"secret: at least {SECRET_BYTES_LEAST} bytes")
    rule_set = _read(rules, region)
    times = ProtocolTimes()
    store = RedisClusterStore(servers, times, options)
    try:
        async with _running(rule_set, region, store, secret, times) as limiter:
            await store.cluster.ready(_CONNECT_WAIT_S)
            yield limiter
    finally:
        await store.close()


def _read(rules: Rules, region: str) -> RuleSet:
    rule_set = parse(rules) if isinstance(rules, str) else parse_document(dict(rules))
    if region not in rule_set.regions and any(rule.scope is Scope.GLOBAL for rule in rule_set.rules):
        names = ", ".join(rule_set.regions)
        raise InvalidRules(
            [Fault("regions", f"a global rule needs this process's region, {region}, among {names}")]
        )
    return rule_set


@asynccontextmanager
async def _running(
    rule_set: RuleSet, region: str, store: CheckStore, secret: bytes, times: ProtocolTimes
) -> AsyncIterator[Limiter]:
    """A limiter that finds the rules where a node would: on its disk, which is a directory of this process."""
    node = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory(prefix="apportion-") as directory:
        files = NodeFiles(Limiter.directory_of(Path(directory), node))
        files.write_rules(encode_blob(_VERSION, {rule_set.domain: Source(_VERSION, rule_set.source)}))
        domain = rule_set.domain
        own = {domain: rule_set.bases.get(region, 0), floor_name(domain): rule_set.floors.get(region, 0)}
        files.write_bases(0, own)
        limiter = Limiter(region, store, secret, Path(directory), times, node=node)
        await limiter.start()
        try:
            yield limiter
        finally:
            await limiter.stop()
