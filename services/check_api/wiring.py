"""From a region's settings to a limiter on the region's Redis Cluster.  [W]"""

from __future__ import annotations

from typing import Literal

from regional_limiter.limiter import Limiter
from regional_limiter.store.cluster import ClusterOptions
from regional_limiter.store.connection import ConnectionOptions
from regional_limiter.store.redis_cluster import RedisClusterStore, StoreOptions
from services.check_api.app import NodeOptions
from services.check_api.authorize import AuthorizeOptions
from services.check_api.headers import HeaderMode, LegacyReset
from services.check_api.home_wire import token_of
from services.check_api.homes import HomeClient
from services.rls.served_config import ServedConfig
from services.rls.serving import FrontOptions, Tls
from services.settings import GrpcListener, RegionSettings


def node_name(settings: RegionSettings, node: int) -> str:
    """The name of node ``node`` (from 1) of a region, the same after a restart."""
    return settings.check_api.name or f"{settings.name}-{node}"


def build_store(settings: RegionSettings) -> RedisClusterStore:
    """The region's store.  Connects with its first call; whoever made it closes it."""
    redis = settings.redis
    connection = ConnectionOptions(
        username=redis.username,
        password=redis.password.get_secret_value() if redis.password else None,
        tls=redis.tls.contexts() if redis.tls else None,
    )
    options = StoreOptions(
        deadline_ms=settings.check_api.store_deadline_ms,
        whole_deadline_ms=settings.check_api.deadline_ms,
        cluster=ClusterOptions(connection=connection),
    )
    return RedisClusterStore(redis.servers, settings.times(), options)


def build_homes(settings: RegionSettings) -> HomeClient:
    """Who asks other regions for buckets that are there.  Raises InvalidSettings."""
    homes = settings.check_api.homes
    return HomeClient(settings.key_secret(), homes.deadline_ms / 1000, homes.tls.contexts() if homes.tls else None)


def build_limiter(
    settings: RegionSettings, node: int, store: RedisClusterStore, homes: HomeClient | None = None
) -> Limiter:
    """The limiter of node ``node``.  Raises InvalidSettings."""
    check_api = settings.check_api
    return Limiter(
        settings.name,
        store,
        settings.key_secret(),
        settings.state_dir,
        settings.times(),
        node=node_name(settings, node),
        address=check_api.address_of(node),
        deadline_s=check_api.deadline_ms / 1000,
        homes=homes,
        home_deadline_s=check_api.homes.deadline_ms / 1000,
    )


def node_options(settings: RegionSettings, node: int) -> NodeOptions:
    """How node ``node`` presents itself."""
    check_api = settings.check_api
    return NodeOptions(
        region=settings.name,
        node=node_name(settings, node),
        token=check_api.token.get_secret_value() if check_api.token else None,
        headers=HeaderMode(check_api.headers),
        legacy_reset=LegacyReset(check_api.legacy_reset),
        authorize=AuthorizeOptions(**check_api.authorize.model_dump()),
        rls_headers=HeaderMode(settings.grpc.headers),
        rls_metadata=settings.grpc.dynamic_metadata,
        tells_keys=settings.telemetry.log_keys,
        home_token=token_of(settings.key_secret()),
    )


def envoy_config(settings: RegionSettings, limiter: Limiter) -> ServedConfig | None:
    """What gives ``limiter`` the configuration of envoyproxy/ratelimit that ``settings`` name; not loaded yet."""
    grpc = settings.grpc
    if grpc.envoy_config is None:
        return None
    return ServedConfig(grpc.envoy_config, limiter.give_rules, like_envoy=grpc.like_envoy)


def front_options(settings: RegionSettings, node: int) -> FrontOptions | None:
    """Where node ``node`` answers gRPC; None: nowhere."""
    return _front(settings.grpc, node, settings.grpc.server)


def quota_options(settings: RegionSettings, node: int) -> FrontOptions | None:
    """Where node ``node`` pushes quotas into gateways; None: nowhere."""
    return _front(settings.quota, node, "grpcio")


def _front(grpc: GrpcListener, node: int, server: Literal["own", "grpcio"]) -> FrontOptions | None:
    port = grpc.port(node)
    if port is None:
        return None
    tls = Tls(grpc.tls.certificate, grpc.tls.key, grpc.tls.client_ca) if grpc.tls else None
    return FrontOptions(
        host=grpc.host,
        port=port,
        server=server,
        token=grpc.token.get_secret_value() if grpc.token else None,
        tls=tls,
    )
