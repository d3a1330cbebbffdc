"""What a process is told at its start, and how it refuses what cannot be right."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.check_api.wiring import node_name
from services.settings import HubSettings, InvalidSettings, RegionSettings, load_hub, load_region

REGION = """
name = "us-east"
time_scale = 0.5
state_dir = "/var/lib/apportion/us-east"
key_secret_file = "{secret}"
[redis.own]
base_port = 7001
[kafka]
bootstrap = "127.0.0.1:9201"
[check_api]
ports = [8101, 8102]
[sync]
port = 8103
rank = 1
"""

HUB = """
[kafka]
bootstrap = "127.0.0.1:9092"
[control_api]
port = 8090
state_dir = "/var/lib/apportion/control"
[dashboard]
port = 8091
[regions.us-east]
nodes = ["http://127.0.0.1:8101"]
sync = "http://127.0.0.1:8103"
"""


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("APPORTION_")]:
        monkeypatch.delenv(name)


def region(tmp_path: Path, text: str = REGION) -> RegionSettings:
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef\n")
    file = tmp_path / "region.toml"
    file.write_text(text.replace("{secret}", str(secret)))
    return load_region(file)


def hub(tmp_path: Path, text: str = HUB) -> HubSettings:
    file = tmp_path / "hub.toml"
    file.write_text(text)
    return load_hub(file)


def faults(error: pytest.ExceptionInfo[InvalidSettings]) -> dict[str, str]:
    return dict(error.value.faults)


def test_a_region_file_says_everything(tmp_path: Path) -> None:
    settings = region(tmp_path)
    assert settings.redis.servers == [f"127.0.0.1:{port}" for port in range(7001, 7007)]
    assert settings.check_api.urls() == ["http://127.0.0.1:8101", "http://127.0.0.1:8102"]
    assert settings.check_api.port(2) == 8102
    assert settings.sync.url == "http://127.0.0.1:8103"
    assert settings.key_secret() == b"0123456789abcdef"
    assert settings.times().session_us == 10_000_000


def test_the_environment_wins_over_the_file_one_field_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPORTION_TIME_SCALE", "2")
    monkeypatch.setenv("APPORTION_SYNC__RANK", "7")
    monkeypatch.setenv("APPORTION_CHECK_API__PORTS", "[9, 10]")
    settings = region(tmp_path)
    assert (settings.time_scale, settings.sync.rank, settings.sync.port) == (2.0, 7, 8103)
    assert settings.check_api.ports == [9, 10]


def test_other_words_with_our_prefix_are_not_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPORTION_KAFKA_BOOTSTRAP", "elsewhere:1")
    assert region(tmp_path).kafka.bootstrap == "127.0.0.1:9201"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "limiter.example"])
def test_nobody_else_reaches_a_listener_without_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("APPORTION_CHECK_API__HOST", host)
    with pytest.raises(InvalidSettings) as error:
        region(tmp_path)
    assert "insecure = true" in faults(error)["check_api"]
    monkeypatch.setenv("APPORTION_CHECK_API__INSECURE", "true")
    assert region(tmp_path).check_api.host == host
    monkeypatch.setenv("APPORTION_CHECK_API__INSECURE", "false")
    monkeypatch.setenv("APPORTION_CHECK_API__TOKEN", "0123456789abcdef")
    assert region(tmp_path).check_api.token is not None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("APPORTION_CHECK_API__HOST", host)
    assert region(tmp_path).check_api.host == host


def test_a_secret_comes_from_a_file_and_is_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text("a-token-from-a-file\n")
    monkeypatch.setenv("APPORTION_CHECK_API__TOKEN_FILE", str(tmp_path / "token"))
    settings = region(tmp_path)
    assert settings.check_api.token is not None
    assert settings.check_api.token.get_secret_value() == "a-token-from-a-file"
    assert "a-token-from" not in str(settings.redacted()) + repr(settings)
    monkeypatch.setenv("APPORTION_CHECK_API__TOKEN", "another-token-here")
    with pytest.raises(InvalidSettings, match="not both") as error:
        region(tmp_path)
    assert "another-token" not in str(error.value)


def test_a_missing_secret_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPORTION_REDIS__PASSWORD_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(InvalidSettings, match=r"password_file: cannot read .*nowhere"):
        region(tmp_path)


def test_every_fault_is_told_with_its_field(tmp_path: Path) -> None:
    text = (
        REGION.replace("rank = 1", "rnak = 1")
        .replace("port = 8103", "port = 99999")
        .replace('"127.0.0.1:9201"', '"kafka"')
        .replace('name = "us-east"', "")
    )
    with pytest.raises(InvalidSettings) as error:
        region(tmp_path, text)
    said = faults(error)
    assert said["sync.rnak"] == "unknown field; did you mean rank?"
    assert said["sync.port"] == "must be less than or equal to 65535"
    assert said["kafka.bootstrap"].startswith('must be "host:port"')
    assert said["name"] == "is needed (in the file, or as APPORTION_NAME)"


def test_a_node_that_is_not_configured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="so no node 3"):
        region(tmp_path).check_api.port(3)


def test_a_short_key_secret_is_refused(tmp_path: Path) -> None:
    settings = region(tmp_path)
    (tmp_path / "secret").write_bytes(b"short")
    with pytest.raises(InvalidSettings, match="at least 16 bytes"):
        settings.key_secret()
    (tmp_path / "secret").unlink()
    with pytest.raises(InvalidSettings, match="cannot read"):
        settings.key_secret()


def test_no_redis_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"redis: servers must name"):
        region(tmp_path, REGION.replace("[redis.own]\nbase_port = 7001", "[redis]"))


def test_nobody_else_reaches_our_own_redis_without_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPORTION_REDIS__OWN__HOST", "10.1.2.3")
    with pytest.raises(InvalidSettings, match="set password"):
        region(tmp_path)
    monkeypatch.setenv("APPORTION_REDIS__PASSWORD", "a word")
    assert region(tmp_path).redis.servers[0] == "10.1.2.3:7001"


def test_forward_auth_believes_this_machine_alone_unless_told_otherwise(tmp_path: Path) -> None:
    authorize = region(tmp_path).check_api.authorize
    assert authorize.trusted_proxies == ["127.0.0.0/8", "::1/128"]
    section = '[check_api.authorize]\nclient_key = ["header:X-Api-Key"]\n[sync]'
    told = region(tmp_path, REGION.replace("[sync]", section))
    assert told.check_api.authorize.client_key == ["header:X-Api-Key"]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('trusted_proxies = ["10.0.0.0/33"]', "10.0.0.0/33"),
        ('address_header = "x forwarded"', "the name of a header"),
        ('client_key = ["addres"]', "client_key: 'addres'"),
        ("client_key = []", "client_key"),
        ('attributes = {tier = "header:"}', "attributes.tier"),
        ('attributes = {resource = "path"}', "attributes.resource"),
        ('domain = "a/b"', "domain"),
    ],
)
def test_what_forward_auth_cannot_go_by_is_named(tmp_path: Path, line: str, named: str) -> None:
    with pytest.raises(InvalidSettings, match=r"check_api\.authorize") as refused:
        region(tmp_path, REGION.replace("[sync]", f"[check_api.authorize]\n{line}\n[sync]"))
    assert named in str(refused.value)


def test_a_machine_whose_file_is_the_same_for_many_names_its_own_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPORTION_CHECK_API__PORTS", "[8080]")
    assert region(tmp_path).check_api.address_of(1) == "http://127.0.0.1:8080"
    monkeypatch.setenv("APPORTION_CHECK_API__NAME", "us-east-7d9f-x2x9z")
    monkeypatch.setenv("APPORTION_CHECK_API__ADDRESS", "http://10.1.2.3:8080")
    settings = region(tmp_path)
    assert node_name(settings, 1) == "us-east-7d9f-x2x9z"
    assert settings.check_api.address_of(1) == "http://10.1.2.3:8080"
    assert settings.check_api.urls() == ["http://127.0.0.1:8080"]


@pytest.mark.parametrize(("field", "value"), [("name", "a"), ("address", "http://10.1.2.3:80")])
def test_two_nodes_have_no_name_or_address_in_common(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, value: str
) -> None:
    monkeypatch.setenv(f"APPORTION_CHECK_API__{field.upper()}", value)
    with pytest.raises(InvalidSettings, match=f"check_api: {field} is one node's"):
        region(tmp_path)


def test_the_user_of_the_nodes_is_not_the_one_who_forms_the_cluster(tmp_path: Path) -> None:
    own = '[redis.own]\nadmin_password = "a word of 16 letters"'
    with pytest.raises(InvalidSettings, match=r"redis: own\.admin_password needs a username and a password"):
        region(tmp_path, REGION.replace("[redis.own]", own))
    users = f'[redis]\nusername = "admin"\npassword = "x"\n{own}'
    with pytest.raises(InvalidSettings, match="redis: username must not be admin"):
        region(tmp_path, REGION.replace("[redis.own]", users))


def test_a_file_that_is_not_toml_or_not_there_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="must be TOML"):
        region(tmp_path, "name = [")
    with pytest.raises(InvalidSettings, match="cannot be read"):
        load_region(tmp_path / "none.toml")


def test_a_hub_file_names_the_regions(tmp_path: Path) -> None:
    settings = hub(tmp_path)
    assert settings.regions["us-east"].nodes == ["http://127.0.0.1:8101"]
    assert (settings.control_api.url, settings.dashboard.url) == ("http://127.0.0.1:8090", "http://127.0.0.1:8091")
    with pytest.raises(InvalidSettings, match="without a path"):
        hub(tmp_path, HUB.replace("8103", "8103/path"))
