"""What a process is told at its start: one TOML file, and the environment on top of it.

``APPORTION_CHECK_API__HOST=0.0.0.0`` overrides ``host`` of ``[check_api]``.  A secret may be given as the path of
a file instead, by the same name with ``_file`` (``token_file = "/run/secrets/check"`` in the file,
``APPORTION_CHECK_API__TOKEN_FILE`` in the environment).  Unknown fields are faults.  A listener that other
machines can reach needs a token, or the word that it needs none (``insecure = true``).
"""

from __future__ import annotations

import difflib
import ipaddress
import re
import ssl
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from apportion.addresses import LOOPBACK, networks_of
from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from regional_limiter.model.errors import ApportionError
from regional_limiter.model.share import ProtocolTimes
from regional_limiter.plan import DOMAIN_EXPECTED, is_domain
from services.tls import client_contexts, server_context

SECRET_BYTES_LEAST = 16
"""The key secret keys a hash (BLAKE2b): 128 bits or more."""

Port = Annotated[int, Field(ge=1, le=65535)]
Host = Annotated[str, StringConstraints(min_length=1, max_length=253)]
Address = Annotated[str, StringConstraints(pattern=r"^(\[[0-9a-fA-F:.]+\]|[^\s:,/\[\]]+):[0-9]{1,5}$")]
Bootstrap = Annotated[str, StringConstraints(pattern=r"^[^\s:,/]+:[0-9]{1,5}(,[^\s:,/]+:[0-9]{1,5})*$")]
Url = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+$")]
OtlpUrl = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")]
RegionName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$")]
TimeScale = Annotated[float, Field(gt=0, le=10)]


_HEADER_PAIR = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}=[\x21-\x7e\t ]+")
_SOURCE = re.compile(r"address|full_address|method|path|host|header:[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
"""Where a value of a request can be taken from."""


class InvalidSettings(ApportionError):
    """The settings are refused whole.  ``faults``: (field, what would be right), all of them."""

    def __init__(self, source: str, faults: list[tuple[str, str]]) -> None:
        super().__init__(f"{source}: " + "; ".join(f"{field}: {problem}" for field, problem in faults))
        self.faults = faults


def _secrets_from_files(model: type[BaseModel], data: Any) -> Any:
    """Replace ``NAME_file`` by the content of that file, for every secret field NAME of ``model``."""
    if not isinstance(data, Mapping):
        return data
    given = dict(data)
    for name, field in model.model_fields.items():
        if "SecretStr" not in str(field.annotation) or f"{name}_file" not in given:
            continue
        if given.get(name) is not None:
            raise ValueError(f"give {name} or {name}_file, not both")
        path = Path(str(given.pop(f"{name}_file")))
        try:
            given[name] = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{name}_file: cannot read {path}: {error}") from None
    return given


class Section(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _read_secret_files(cls, data: Any) -> Any:
        return _secrets_from_files(cls, data)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener on ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class ServerTls(Section):
    """PEM files of a listener.  ``client_ca``: whose certificates callers must show."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @model_validator(mode="after")
    def _usable(self) -> Self:
        _try_tls(lambda: self.context("http/1.1"))
        return self

    def context(self, *alpn: str) -> ssl.SSLContext:
        """Shows what is in the files when a connection is made."""
        return server_context(self.certificate, self.key, self.client_ca, alpn)


class ClientTls(Section):
    """How a server that we call is known, and how it knows us.  Without ``ca``, the system's authorities count.

    ``certificate`` and ``key``: what we show, PEM files.  ``check_name``: whether the server's certificate must be
    of the name or address by which we call it.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    check_name: bool = True

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("give certificate and key, or neither")
        _try_tls(self.contexts)
        return self

    def contexts(self) -> Callable[[], ssl.SSLContext]:
        """Each connection asks for its context, so that files may be renewed."""
        return client_contexts(self.ca, self.certificate, self.key, check_name=self.check_name)


def _try_tls(make: Callable[[], object]) -> None:
    try:
        make()
    except OSError as error:
        raise ValueError(f"the files must be readable, and a certificate with its own key: {error}") from None


class Listener(Section):
    """Something that listens.  Callers send ``token`` as a bearer token when there is one."""

    host: Host = "127.0.0.1"
    token: SecretStr | None = None
    insecure: bool = False
    tls: ServerTls | None = None

    @model_validator(mode="after")
    def _guard(self) -> Self:
        if self.token is not None and len(self.token.get_secret_value()) < 16:
            raise ValueError("token must have at least 16 characters")
        shown = self.tls is not None and self.tls.client_ca is not None
        if not (is_loopback(self.host) or self.token or shown or self.insecure):
            raise ValueError(
                f"host {self.host} can be reached from other machines: set token (or token_file), or tls.client_ca,"
                " or insecure = true, or a loopback host such as 127.0.0.1"
            )
        return self

    def url_at(self, port: int) -> str:
        """How a process on this machine calls it on ``port``."""
        url = url_of(self.host, port)
        return url if self.tls is None else url.replace("http:", "https:", 1)


def url_of(host: str, port: int) -> str:
    """How a process on this machine calls a listener (one on every address is called by loopback)."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return (
        f"http://[{reachable}]:{port}"
        if reachable.count(":") > 1 and "[" not in reachable
        else f"http://{reachable}:{port}"
    )


class OwnRedis(Section):
    """A Redis Cluster that the region script runs itself: ports from ``base_port`` on, primaries first.

    ``admin_password``: of the user ``admin``, who replicates and forms the cluster, where ``[redis]`` names a
    ``username``, who may call only what nodes and sync service need; by default the password there.
    Server i listens on ``base_port + i``; its cluster bus ``bus_offset`` ports above, by default as many as there
    are servers.  A larger one leaves room to grow in place (``apportion region reshape-redis``).
    """

    host: Host = "127.0.0.1"
    base_port: Port
    primaries: int = Field(default=3, ge=3, le=32)
    replicas_each: int = Field(default=1, ge=0, le=4)
    bus_offset: int | None = Field(default=None, ge=1, le=10_000)
    node_timeout_ms: int = Field(default=2000, ge=500, le=60_000)
    maxmemory: str = Field(default="0", pattern=r"^[0-9]+(kb|mb|gb)?$")
    admin_password: SecretStr | None = None
    certificate: Path | None = None
    key: Path | None = None

    @property
    def count(self) -> int:
        return self.primaries * (1 + self.replicas_each)

    def ports(self) -> list[int]:
        return [self.base_port + index for index in range(self.count)]

    def bus_port(self, port: int) -> int:
        return port + self._offset

    @property
    def _offset(self) -> int:
        return self.count if self.bus_offset is None else self.bus_offset

    @model_validator(mode="after")
    def _ports_exist(self) -> Self:
        if self._offset < self.count:
            raise ValueError(f"bus_offset must be at least {self.count}: so many servers listen below their buses")
        if self.base_port + self._offset + self.count > 65536:
            raise ValueError(f"base_port must leave room for {self._offset + self.count} ports below 65536")
        return self


class RedisSettings(Section):
    """The region's Redis Cluster.  ``servers``: some of its servers, the rest is asked of them."""

    servers: list[Address] = Field(default_factory=list, max_length=100)
    username: str | None = None
    password: SecretStr | None = None
    tls: ClientTls | None = None
    own: OwnRedis | None = None

    @model_validator(mode="before")
    @classmethod
    def _own_servers(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("servers") and isinstance(data.get("own"), dict):
            try:
                own = OwnRedis.model_validate(data["own"])
            except ValidationError:
                return data  # told under redis.own
            data = {**data, "servers": [f"{own.host}:{port}" for port in own.ports()]}
        return data

    @model_validator(mode="after")
    def _servers_show(self) -> Self:
        if self.own is None:
            return self
        shown = self.own.certificate is not None and self.own.key is not None
        if (self.tls is not None) != shown or (self.own.certificate is None) != (self.own.key is None):
            raise ValueError("tls, own.certificate and own.key belong together: give all three or none")
        if self.tls is not None and self.tls.ca is None:
            raise ValueError("tls.ca is needed: the servers know each other by it")
        return self

    @model_validator(mode="after")
    def _two_users(self) -> Self:
        if self.own is not None and self.own.admin_password is not None:
            if self.username is None or self.password is None:
                raise ValueError("own.admin_password needs a username and a password beside it, for the nodes")
            if self.username == "admin":
                raise ValueError("username must not be admin, who is the user of own.admin_password")
        return self

    @model_validator(mode="after")
    def _guard_own(self) -> Self:
        if self.own is not None and not is_loopback(self.own.host) and self.password is None:
            raise ValueError(
                f"own.host {self.own.host} can be reached from other machines: set password (or password_file)"
            )
        return self

    @model_validator(mode="after")
    def _somewhere(self) -> Self:
        if not self.servers and self.own is None:
            raise ValueError('servers must name at least one "host:port", or [redis.own] must be given')
        return self


class SaslSettings(Section):
    """Who we are to Kafka."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    username: Annotated[str, StringConstraints(min_length=1)]
    password: SecretStr


class KafkaSettings(Section):
    """The hub's Kafka: ``host:port``, several separated by commas.

    ``replication`` and ``min_insync`` are those of the topics that we make.  One broker can do 1 and 1; in
    production, with three brokers or more, they should be 3 and 2, or the loss of a broker loses the log.
    """

    bootstrap: Bootstrap
    replication: int = Field(default=1, ge=1, le=32)
    min_insync: int = Field(default=1, ge=1, le=32)
    tls: ClientTls | None = None
    sasl: SaslSettings | None = None

    @model_validator(mode="after")
    def _password_in_private(self) -> Self:
        hosts = [address.rsplit(":", 1)[0] for address in self.bootstrap.split(",")]
        plain = self.sasl is not None and self.sasl.mechanism == "PLAIN" and self.tls is None
        if plain and not all(map(is_loopback, hosts)):
            raise ValueError("sasl.mechanism PLAIN would send the password in clear: set tls, or use SCRAM-SHA-512")
        return self

    @model_validator(mode="after")
    def _writable(self) -> Self:
        if self.min_insync > self.replication:
            raise ValueError("min_insync must not exceed replication: nothing could be written")
        return self


def _check_networks(texts: list[str]) -> None:
    try:
        networks_of(texts)
    except ValueError as error:
        raise ValueError(f"trusted_proxies: {error}") from None


class AuthorizeSettings(Section):
    """What ``/v1/authorize`` takes of a request that a gateway was asked.

    ``trusted_proxies``: the gateways, and the proxies before them: addresses or networks whose ``address_header``
    is believed.  ``client_key``: sources, the first one that a request has: address (IPv6: its /64), full_address,
    method, path, host, header:NAME; of several, the value says which it was, as in ``address:192.0.2.7``.
    ``attributes``: further ones by name, each from a source; there are ip, full_ip, method, path and host.
    """

    trusted_proxies: list[str] = Field(default_factory=lambda: list(LOOPBACK), max_length=256)
    address_header: HeaderName = "x-forwarded-for"
    domain: str = "default"
    client_key: list[str] = Field(default_factory=lambda: ["address"], min_length=1, max_length=8)
    attributes: dict[str, str] = Field(default_factory=dict, max_length=32)

    @model_validator(mode="after")
    def _guard(self) -> Self:
        _check_networks(self.trusted_proxies)
        if not is_domain(self.domain):
            raise ValueError(f"domain must be {DOMAIN_EXPECTED}")
        for place, source in [("client_key", text) for text in self.client_key] + [
            (f"attributes.{name}", text) for name, text in self.attributes.items()
        ]:
            if not _SOURCE.fullmatch(source):
                raise ValueError(
                    f"{place}: {source!r} must be address, full_address, method, path, host or header:NAME"
                )
        for name in self.attributes:
            if name in ("client_key", "resource") or not 0 < len(name) <= 64:
                raise ValueError(f"attributes.{name}: must be a name of its own, at most 64 long")
        return self


class HomesSettings(Section):
    """How a node asks other regions for buckets of ``distribution: home`` that are there.

    ``deadline_ms``: the most that such a check waits.  ``tls``: how the others' addresses are known that are https.
    """

    deadline_ms: int = Field(default=1000, ge=1, le=10_000)
    tls: ClientTls | None = None


class CheckApiSettings(Listener):
    """The region's nodes: node N listens on ``ports[N-1]``.

    ``headers``: which rate limit headers answers carry; ``legacy_reset``: what X-RateLimit-Reset counts.
    ``drain_ms``: how long a node that was told to stop says that it is not ready before it stops listening.
    ``name`` and ``address``: what the one node of this file is called and where others reach it, for machines whose
    file is the same for many nodes, as pods are; by default the region's name with the node's number, and ``host``
    with its port.
    ``store_deadline_ms``: the most that one sending to Redis may take; ``deadline_ms``: the most that a check waits
    for Redis, redirections and several slots included.  What does not answer by then is decided by the rule's
    ``on_store_failure``; callers such as gateways give up after 20 ms.
    """

    ports: list[Port] = Field(min_length=1, max_length=256)
    name: RegionName | None = None
    address: Url | None = None
    headers: Literal["both", "draft-11", "legacy", "off"] = "both"
    legacy_reset: Literal["seconds", "epoch"] = "seconds"
    drain_ms: int = Field(default=500, ge=0, le=60_000)
    store_deadline_ms: int = Field(default=8, ge=1, le=10_000)
    deadline_ms: int = Field(default=15, ge=1, le=10_000)
    authorize: AuthorizeSettings = Field(default_factory=AuthorizeSettings)
    homes: HomesSettings = Field(default_factory=HomesSettings)

    @model_validator(mode="after")
    def _named_alone(self) -> Self:
        given = [field for field in ("name", "address") if getattr(self, field) is not None]
        if given and len(self.ports) > 1:
            raise ValueError(
                f"{given[0]} is one node's: leave it out, or give one port instead of {len(self.ports)}"
            )
        return self

    def port(self, node: int) -> int:
        """The port of node ``node``, counted from 1.  Raises InvalidSettings for a node that is not there."""
        if not 1 <= node <= len(self.ports):
            raise InvalidSettings(
                "--node", [("check_api.ports", f"has {len(self.ports)} ports, so no node {node}")]
            )
        return self.ports[node - 1]

    def urls(self) -> list[str]:
        return [self.url_at(port) for port in self.ports]

    def address_of(self, node: int) -> str:
        """Where others reach node ``node``, counted from 1."""
        return self.address or self.url_at(self.port(node))


class GrpcListener(Listener):
    """A gRPC service of nodes: node N listens on ``ports[N-1]``; without ports nobody does."""

    ports: list[Port] = Field(default_factory=list, max_length=256)

    def port(self, node: int) -> int | None:
        """The port of node ``node``, counted from 1; None: it does not listen."""
        return self.ports[node - 1] if 1 <= node <= len(self.ports) else None


class GrpcSettings(GrpcListener):
    """Envoy's rate limit service.

    ``server``: which one stands there.  ``headers``: which rate limit headers the gateway is asked to add;
    ``dynamic_metadata``: whether answers carry reason, rule and numbers for the gateway's logs.

    ``envoy_config``: a file of envoyproxy/ratelimit, or a directory of such files, that is served as it lies there,
    in this region and for its own domains; ``like_envoy``: requests that it denies are charged, as they are there.
    """

    server: Literal["own", "grpcio"] = "own"
    headers: Literal["both", "draft-11", "legacy", "off"] = "draft-11"
    dynamic_metadata: bool = False
    envoy_config: Path | None = None
    like_envoy: bool = False


class QuotaSettings(GrpcListener):
    """Envoy's rate limit quota service, which pushes quotas into gateways.

    ``ttl_s``: how long a gateway keeps what it was told when it hears nothing more.  ``gateways``: how many share a
    node at least; a limit is divided into so many parts from the start, so that none waits for its part.
    """

    ttl_s: int = Field(default=15, ge=15, le=300)
    gateways: int = Field(default=1, ge=1, le=1000)


class SyncSettings(Listener):
    """The region's sync service.  ``rank``: the candidate's place in a takeover, 0 first."""

    port: Port
    rank: int = Field(default=0, ge=0, le=1000)

    @property
    def url(self) -> str:
        return self.url_at(self.port)


class TelemetrySettings(Section):
    """What a process tells a collector, and how it writes its log; ``/metrics`` answers in any case.

    ``endpoint``: takes OTLP over HTTP, at /v1/metrics and /v1/traces below it; without one nothing is sent.
    ``headers``: sent along, ``name=value`` with commas between; they may be secret (``headers_file``).  ``ca``: who
    signed the collector's certificate, unless the system knows.  ``interval_s``: between two sendings.

    ``trace_ratio``: the part of requests that is traced where the caller does not say; one whose ``traceparent``
    says that it is sampled is traced, and one that says that it is not is not.  ``traces_per_second``: however they
    began; beyond it none is.

    ``log_format``: auto is readable on a terminal, and JSON elsewhere.  ``log_keys``: callers' keys in clear in the
    log and in traces, instead of the beginning of a hash.
    """

    endpoint: OtlpUrl | None = None
    headers: SecretStr | None = None
    ca: Path | None = None
    interval_s: float = Field(default=10.0, ge=0.1, le=300)
    trace_ratio: float = Field(default=0.0, ge=0, le=1)
    traces_per_second: int = Field(default=100, ge=1, le=10_000)
    log_format: Literal["auto", "json", "text"] = "auto"
    log_keys: bool = False

    @model_validator(mode="after")
    def _sendable(self) -> Self:
        if self.headers is not None:
            for pair in self.headers.get_secret_value().split(","):
                if not _HEADER_PAIR.fullmatch(pair.strip()):
                    raise ValueError("headers must be name=value, several separated by commas")
            host = urlsplit(self.endpoint or "").hostname or ""
            if (self.endpoint or "").startswith("http:") and not is_loopback(host):
                raise ValueError(f"headers would be sent to {host} in clear: use https in endpoint")
        if self.ca is not None and not self.ca.is_file():
            raise ValueError(f"ca: cannot read {self.ca}")
        return self

    def header_pairs(self) -> dict[str, str]:
        """``headers`` by name."""
        text = self.headers.get_secret_value() if self.headers else ""
        pairs = (pair.strip().partition("=") for pair in text.split(",") if pair)
        return {name.lower(): value for name, _, value in pairs}


class ControlLimits(Section):
    """What one caller may ask of the control API; ten seconds' worth of reads, twenty of changes, at once."""

    reads_per_second: int = Field(default=100, ge=1, le=100_000)
    changes_per_second: int = Field(default=20, ge=1, le=10_000)
    failed_logins_per_minute: int = Field(default=20, ge=1, le=10_000)


class ControlApiSettings(Listener):
    """``token``: an admin's, which makes the others; without one, nobody needs a token.  ``trusted_proxies``: the
    dashboards, and the proxies before them and before this: addresses or networks whose ``X-Forwarded-For`` is
    believed, in the audit and where failed logins are counted; none unless given."""

    port: Port
    state_dir: Path
    limits: ControlLimits = ControlLimits()
    trusted_proxies: list[str] = Field(default_factory=list, max_length=256)

    @model_validator(mode="after")
    def _networks(self) -> Self:
        _check_networks(self.trusted_proxies)
        return self

    @property
    def url(self) -> str:
        return self.url_at(self.port)


class DashboardSettings(Listener):
    """``control_api``: where the control API is asked, with the token of whoever looks; unless given, on this
    machine at the port in ``[control_api]``.  ``control_without_token``: whether it is asked, too, for whoever
    looks from this machine without a token; not where a proxy is in front, whose callers all look so.
    ``history``: the file of what is remembered, one for each dashboard; without one it ends with the process.
    ``history_mb_most``: what that file may grow to."""

    port: Port
    control_api: Url | None = None
    control_without_token: bool = False
    history: Path | None = None
    history_mb_most: int = Field(default=1000, ge=10, le=100_000)

    @property
    def url(self) -> str:
        return self.url_at(self.port)


class HubRegion(Section):
    """Where the hub finds a region.  Only for displays: no limit depends on it.

    ``token``: the sync service's, if it asks for one; ``node_token``: its nodes'.
    """

    nodes: list[Url] = Field(default_factory=list, max_length=256)
    sync: Url | None = None
    token: SecretStr | None = None
    node_token: SecretStr | None = None


class _Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="APPORTION_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
    )

    time_scale: TimeScale = 1.0
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings  # the first wins; init_settings is what the file says

    def times(self) -> ProtocolTimes:
        """The share protocol's durations for this deployment: the same in all its regions."""
        return ProtocolTimes.scaled(self.time_scale)

    def redacted(self) -> dict[str, Any]:
        """Everything in force, with stars for secrets."""
        return self.model_dump(mode="json")


class RegionSettings(_Settings):
    """One region.  ``state_dir``: what its node and agent remember over a restart, its logs and pid files."""

    name: RegionName
    state_dir: Path
    key_secret_file: Path
    redis: RedisSettings
    kafka: KafkaSettings
    check_api: CheckApiSettings
    grpc: GrpcSettings = Field(default_factory=GrpcSettings)
    quota: QuotaSettings = Field(default_factory=QuotaSettings)
    sync: SyncSettings

    def key_secret(self) -> bytes:
        """The secret of the keyed hashes, the same in every region.  Raises InvalidSettings."""
        try:
            secret = self.key_secret_file.read_bytes().strip()
        except OSError as error:
            problem = f"cannot read {self.key_secret_file}: {error.strerror}"
            raise InvalidSettings(self.name, [("key_secret_file", problem)]) from None
        if len(secret) < SECRET_BYTES_LEAST:
            problem = f"{self.key_secret_file} must hold at least {SECRET_BYTES_LEAST} bytes"
            raise InvalidSettings(self.name, [("key_secret_file", problem)])
        return secret


class HubSettings(_Settings):
    """What serves all regions: control API and dashboard.  ``calls``: how regions' services are known by https."""

    kafka: KafkaSettings
    calls: ClientTls | None = None
    control_api: ControlApiSettings
    dashboard: DashboardSettings
    regions: dict[RegionName, HubRegion] = Field(min_length=1, max_length=100)


_Loaded = TypeVar("_Loaded", bound=_Settings)


def load_region(path: str | Path) -> RegionSettings:
    """The settings of a region from ``path`` and the environment.  Raises InvalidSettings."""
    return _load(RegionSettings, Path(path))


def load_hub(path: str | Path) -> HubSettings:
    """The settings of the hub's services from ``path`` and the environment.  Raises InvalidSettings."""
    return _load(HubSettings, Path(path))


def _load(model: type[_Loaded], path: Path) -> _Loaded:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSettings(str(path), [("(file)", f"cannot be read: {error.strerror}")]) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(str(path), [("(file)", f"must be TOML: {error}")]) from None
    try:
        return model(**document)
    except ValidationError as error:
        faults = [_fault(model, dict(fault)) for fault in error.errors(include_input=False, include_url=False)]
        raise InvalidSettings(str(path), faults) from None


def _fault(model: type[BaseModel], error: dict[str, Any]) -> tuple[str, str]:
    """A fault of pydantic's in our words: the field's path, and what would be right."""
    place: tuple[str | int, ...] = error["loc"]
    field = ".".join(str(part) for part in place) or "(file)"
    if error["type"] == "extra_forbidden":
        known = _fields_at(model, place[:-1])
        near = difflib.get_close_matches(str(place[-1]), known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        return field, f"unknown field; {hint}"
    if error["type"] == "missing":
        env = "APPORTION_" + "__".join(str(part).upper() for part in place)
        return field, f"is needed (in the file, or as {env})"
    if error["type"] == "string_pattern_mismatch":
        return field, _PATTERN_WORDS.get(error["ctx"]["pattern"], f"must match {error['ctx']['pattern']}")
    message = str(error["msg"]).removeprefix("Value error, ")
    return field, message.replace("Input should be", "must be")


def _pattern_of(annotated: Any) -> str:
    return str(annotated.__metadata__[0].pattern)


_PATTERN_WORDS = {
    _pattern_of(Address): 'must be "host:port"',
    _pattern_of(Bootstrap): 'must be "host:port", several separated by commas without spaces',
    _pattern_of(Url): "must be http://host:port or https://host:port, without a path",
    _pattern_of(OtlpUrl): "must be http://host:port or https://host:port, with or without a path",
    _pattern_of(HeaderName): "must be the name of a header",
    _pattern_of(RegionName): "must be a name of lower-case letters, digits, '.', '_' and '-', at most 63 long",
}


def _fields_at(model: type[BaseModel], place: tuple[str | int, ...]) -> list[str]:
    """The names that a table of the file may use."""
    for part in place:
        field = model.model_fields.get(str(part))
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())] if field else []
        models = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if models:
            model = models[0]
    return sorted(model.model_fields)
