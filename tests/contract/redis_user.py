"""The user that stores log in as in these tests: allowed what nodes and sync service need, and nothing more."""

from __future__ import annotations

from dataclasses import replace

from infra.region.redis_cluster import commands_needed
from regional_limiter.store.redis_cluster import StoreOptions

NAME, PASSWORD = "apportion", "only-what-is-needed"

SERVER_ARGUMENTS = [
    "--user", NAME, "on", f">{PASSWORD}", "~rl:*", "resetchannels", "-@all", *commands_needed().split()
]  # fmt: skip
"""What a redis-server is started with so that it knows the user."""


def as_node(options: StoreOptions) -> StoreOptions:
    """``options`` for a store that logs in as this user."""
    login = replace(options.cluster.connection, username=NAME, password=PASSWORD)
    return replace(options, cluster=replace(options.cluster, connection=login))
