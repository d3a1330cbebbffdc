"""Nothing in clear: Redis Cluster, Kafka and the nodes' HTTP over TLS, each with the real thing."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import redis

from global_sync.transport.base import LOG, TransportUnavailable
from global_sync.transport.kafka import KafkaOptions
from infra.region.region import Region, answers_within
from regional_limiter.limiter import Limiter
from services.check_api.app import NodeOptions, create_app
from services.check_api.server import serve_node
from services.check_api.wiring import build_store
from services.listening import bind
from services.settings import KafkaSettings, ServerTls
from services.start import kafka_transport
from tests.certificates import make_certificates, sign
from tests.contract.kafka_broker import broker
from tests.unit.limiter_store import blob_of, check, rule, running

BASE_PORT = 21100

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("authority")
    make_certificates(directory)
    return directory


@pytest.fixture(scope="module")
def region(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    """A region whose own Redis speaks TLS alone, to callers who show a certificate."""
    directory = tmp_path_factory.mktemp("region")
    (directory / "secret").write_text("0123456789abcdef")
    file = directory / "region.toml"
    file.write_text(f"""
name = "us-east"
state_dir = "{directory}/state"
key_secret_file = "{directory}/secret"
[redis]
username = "apportion"
password = "of the nodes"
[redis.tls]
ca = "{made}/ca.pem"
certificate = "{made}/client.pem"
key = "{made}/client.key"
[redis.own]
base_port = {BASE_PORT}
certificate = "{made}/server.pem"
key = "{made}/server.key"
[kafka]
bootstrap = "127.0.0.1:{BASE_PORT + 39}"
[check_api]
ports = [{BASE_PORT + 30}]
store_deadline_ms = 1000
deadline_ms = 2000
[check_api.tls]
certificate = "{made}/server.pem"
key = "{made}/server.key"
[sync]
port = {BASE_PORT + 31}
[sync.tls]
certificate = "{made}/server.pem"
key = "{made}/server.key"
client_ca = "{made}/ca.pem"
""")
    region = Region(file)
    try:
        region.up()
        yield region
    finally:
        region.down()


async def test_a_limiter_works_on_a_cluster_that_speaks_tls_alone(region: Region, tmp_path: Path) -> None:
    store = build_store(region.settings)
    try:
        await store.cluster.known(5)
        async with running(store, tmp_path, blob_of(rule("a", capacity=2, refill="1/d"))) as limiter:
            assert [(await limiter.check(check("user:1"))).allowed for _ in range(3)] == [True, True, False]
    finally:
        await store.close()


def test_redis_answers_nobody_in_clear_and_nobody_without_a_certificate(region: Region, made: Path) -> None:
    with redis.Redis(port=BASE_PORT, socket_timeout=2) as client, pytest.raises(redis.exceptions.RedisError):
        client.ping()
    with (
        redis.Redis(port=BASE_PORT, socket_timeout=2, ssl=True, ssl_ca_certs=str(made / "ca.pem")) as client,
        pytest.raises(redis.exceptions.RedisError),
    ):
        client.ping()


def test_replicas_and_the_bus_speak_tls_too(region: Region) -> None:
    told = region.status()["redis"]
    assert [server["state"] for server in told] == ["ok"] * 6
    assert [server["role"] for server in told].count("replica") == 3


def test_the_nodes_answer_by_https_alone(region: Region, made: Path) -> None:
    url = region.url_of("node-1")
    assert url.startswith("https://")
    trusted = ssl.create_default_context(cafile=str(made / "ca.pem"))
    with httpx.Client(verify=trusted) as client:
        assert client.get(f"{url}/livez").status_code == 200
    with httpx.Client() as client, pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        client.get(f"{url}/livez")
    with httpx.Client() as client, pytest.raises(httpx.HTTPError):
        client.get(f"{url.replace('https', 'http')}/livez")


def test_the_sync_service_answers_only_who_shows_a_certificate(region: Region, made: Path) -> None:
    url = region.url_of("sync")
    trusted = ssl.create_default_context(cafile=str(made / "ca.pem"))
    with httpx.Client(verify=trusted) as client, pytest.raises(httpx.HTTPError):
        client.get(f"{url}/v1/region")
    trusted.load_cert_chain(made / "client.pem", made / "client.key")
    with httpx.Client(verify=trusted) as client:
        assert client.get(f"{url}/livez").status_code == 200


def test_the_regions_script_sees_both_alive(region: Region) -> None:
    assert answers_within(f"{region.url_of('node-1')}/livez", 1)
    assert answers_within(f"{region.url_of('sync')}/livez", 1)


# ---- a node's connections


@contextlib.asynccontextmanager
async def node(limiter: Limiter, tls: ServerTls) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """A node in this process; where it is called, and what ends it."""
    listener = bind("127.0.0.1", 0)
    stop = asyncio.Event()
    app = create_app(limiter, NodeOptions(region="us-east", node="us-east-1"))
    context = tls.context("http/1.1")
    serving = asyncio.create_task(serve_node(app, listener, stop, drain_ms=300, tls=context))
    try:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}", stop
    finally:
        stop.set()
        await serving
        listener.close()


async def test_checks_by_https_renewal_and_drain(region: Region, made: Path, tmp_path: Path) -> None:
    files = tmp_path / "tls"
    files.mkdir()
    for name in ("ca.pem", "ca.key", "server.pem", "server.key"):
        (files / name).write_bytes((made / name).read_bytes())
    tls = ServerTls(certificate=files / "server.pem", key=files / "server.key")
    trusted = ssl.create_default_context(cafile=str(files / "ca.pem"))
    store = build_store(region.settings)
    try:
        await store.cluster.known(5)
        rules = blob_of(rule("https", capacity=50, refill="1/d"))
        async with running(store, tmp_path, rules) as limiter, node(limiter, tls) as (url, stop):
            body = {"client_key": "user:2", "resource": "/"}
            async with httpx.AsyncClient(base_url=url, verify=trusted) as client:
                answers = await asyncio.gather(*(client.post("/v1/check", json=body) for _ in range(60)))
                assert sum(answer.json()["allowed"] for answer in answers) == 50
            before = await _serial(url, trusted)
            sign(files, "server")
            async with asyncio.timeout(5):
                while await _serial(url, trusted) == before:  # noqa: ASYNC110 - files set no event
                    await asyncio.sleep(0.2)
            async with httpx.AsyncClient(base_url=url, verify=trusted) as client:
                assert (await client.get("/readyz")).status_code == 200
                stop.set()
                await asyncio.sleep(0.05)
                assert (await client.get("/readyz")).status_code == 503
                answer = await client.post("/v1/check", json=body)
                assert (answer.status_code, answer.json()["allowed"]) == (200, False)
    finally:
        await store.close()


async def _serial(url: str, trusted: ssl.SSLContext) -> str:
    port = int(url.rsplit(":", 1)[1])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
    try:
        return str(writer.get_extra_info("ssl_object").getpeercert()["serialNumber"])
    finally:
        writer.close()


# ---- Kafka


@pytest.fixture(scope="module")
def kafka(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A broker with two more listeners: TLS with certificates of callers, and TLS with passwords."""
    directory = tmp_path_factory.mktemp("kafka")
    (directory / "server.pem").write_text((made / "server.key").read_text() + (made / "server.pem").read_text())
    shown, named = BASE_PORT + 50, BASE_PORT + 51
    stores = "\n".join(
        f"listener.name.{name}.ssl.{field}"
        for name in ("shown", "named")
        for field in (
            "keystore.type=PEM",
            f"keystore.location={directory}/server.pem",
            "truststore.type=PEM",
            f"truststore.location={made}/ca.pem",
            f"client.auth={'required' if name == 'shown' else 'none'}",
        )
    )
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    more = f"""
{stores}
listener.name.named.sasl.enabled.mechanisms=PLAIN
listener.name.named.plain.sasl.jaas.config={plain} user_apportion="a word, and spaced";
"""
    listeners = {"SHOWN": (shown, "SSL"), "NAMED": (named, "SASL_SSL")}
    with broker(directory, listeners=listeners, more=more) as address:
        yield {"clear": address, "shown": f"localhost:{shown}", "named": f"localhost:{named}"}


def settings(made: Path, bootstrap: str, *, shows: bool = False, password: str | None = None) -> KafkaSettings:
    tls: dict[str, object] = {"ca": made / "ca.pem"}
    if shows:
        tls |= {"certificate": made / "client.pem", "key": made / "client.key"}
    sasl = {"mechanism": "PLAIN", "username": "apportion", "password": password}
    return KafkaSettings.model_validate({"bootstrap": bootstrap, "tls": tls, "sasl": sasl if password else None})


@pytest.mark.parametrize("way", ["shown", "named"])
async def test_what_is_sent_to_kafka_by_tls_is_read_again(way: str, kafka: dict[str, str], made: Path) -> None:
    password = "a word, and spaced" if way == "named" else None
    transport = kafka_transport(settings(made, kafka[way], shows=way == "shown", password=password), "test")
    await transport.start()
    try:
        sent = await transport.send(LOG, [way.encode()])
        async with asyncio.timeout(10):
            reader = await transport.reader(LOG, "earliest")
            values: list[bytes] = []
            while way.encode() not in values:
                values += [message.value for message in await reader.read(200)]
        assert sent is not None
    finally:
        await transport.close()


@pytest.mark.parametrize(
    ("way", "shows", "password"),
    [("shown", False, None), ("named", False, "another word")],
    ids=["without a certificate", "with a wrong password"],
)
async def test_kafka_does_not_let_a_stranger_in(
    way: str, shows: bool, password: str | None, kafka: dict[str, str], made: Path
) -> None:
    transport = kafka_transport(settings(made, kafka[way], shows=shows, password=password), "test")
    await transport.start()
    try:
        with pytest.raises(TransportUnavailable):
            await transport.send(LOG, [b"of a stranger"])
    finally:
        await transport.close()


def test_a_password_is_not_sent_in_clear() -> None:
    sasl = {"mechanism": "PLAIN", "username": "a", "password": "b"}
    with pytest.raises(ValueError, match="would send the password in clear"):
        KafkaSettings.model_validate({"bootstrap": "hub-1:9092", "sasl": sasl})


def test_a_password_is_never_shown(region: Region) -> None:
    shown = repr(KafkaOptions("a:1", sasl=None)) + str(region.settings.redacted()) + repr(region.settings)
    assert "of the nodes" not in shown
