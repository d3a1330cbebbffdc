"""The image and the compose files: no engine runs here, so what they say is checked as far as that goes."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from infra.containers import alive
from infra.deploy_tools import compose_parser
from infra.install import ROOT
from services.settings import load_hub, load_region

CONTAINERS = ROOT / "infra" / "containers"
DOCKERFILE = CONTAINERS / "Dockerfile"
SECRETS = ("token", "key_secret", "redis_password", "redis_admin_password")


def compose(file: str) -> dict[str, Any]:
    """A compose file as docker compose reads it: anchors, variables and defaults resolved."""
    command = [str(compose_parser()), "-format", "json", str(CONTAINERS / file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=CONTAINERS)
    assert done.returncode == 0, done.stderr
    read: dict[str, Any] = json.loads(done.stdout)
    return read


@pytest.mark.parametrize("file", ["compose.region.yaml", "compose.hub.yaml"])
def test_a_compose_file_is_consistent_and_its_files_are_there(file: str) -> None:
    whole = compose(file)
    for config in whole["configs"].values():
        assert Path(config["file"]).is_file()
    for name, service in whole["services"].items():
        assert service["logging"]["options"]["max-size"], f"{name}: a log without bound"
        assert {found["source"] for found in service.get("configs", [])} <= set(whole["configs"]), name
        assert {found["source"] for found in service.get("secrets", [])} <= set(whole["secrets"]), name
        for port in service.get("ports", []):
            assert port["host_ip"] == "127.0.0.1", f"{name} is open to other machines"
        if "apportion" in service["image"]:
            assert service["cap_drop"] == ["ALL"], name
            assert service["read_only"] is True, name
        else:
            assert re.search(r":\d+\.\d+\.\d+", service["image"]), f"{name}: a version that stays"


def test_every_service_of_a_region_gets_the_secrets_that_its_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = compose("compose.region.yaml")
    for node in ("node-1", "node-2"):
        environment = whole["services"][node]["environment"]
        settings = _load(load_region, "region.toml", whole["services"][node], tmp_path, monkeypatch, environment)
        assert settings.check_api.address_of(1) == f"http://{node}:8080"
        assert settings.check_api.port(1) == alive.PORT
    settings = _load(load_region, "region.toml", whole["services"]["sync"], tmp_path, monkeypatch, {})
    assert settings.sync.port == alive.PORT
    servers = whole["services"]["redis-cluster"]["environment"]["REDIS_SERVERS"].split()
    assert set(settings.redis.servers) <= set(servers)
    assert {server.split(":")[0] for server in servers} <= set(whole["services"])


def test_every_service_of_the_hub_gets_the_secrets_that_its_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = compose("compose.hub.yaml")
    for name in ("control-api", "dashboard"):
        settings = _load(load_hub, "hub.toml", whole["services"][name], tmp_path, monkeypatch, {})
        assert settings.control_api.port == settings.dashboard.port == alive.PORT


def _load(
    load: Any, file: str, service: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: Any
) -> Any:
    """What the service's file says when only its own secrets are there."""
    secrets = tmp_path / "secrets"
    shutil.rmtree(secrets, ignore_errors=True)
    secrets.mkdir()
    for secret in service["secrets"]:
        (secrets / secret["source"]).write_text("a secret of 23 letters\n")
    text = (CONTAINERS / "config" / file).read_text().replace("/run/secrets", str(secrets))
    (tmp_path / file).write_text(text)
    with monkeypatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        settings = load(tmp_path / file)
        if load is load_region:
            assert settings.key_secret()
        return settings


def test_the_image_is_built_from_what_the_builder_is_given() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    given = [line[1:] for line in ignored if line.startswith("!")]
    copied = [
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE.read_text(), re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in given), f"{source} is not sent to the builder"


def test_the_image_runs_nothing_as_root_and_is_of_versions_that_stay() -> None:
    text = DOCKERFILE.read_text()
    assert re.search(r"^ARG BASE=python:3\.11\.\d+-slim-bookworm$", text, re.MULTILINE)
    assert re.search(r"^ARG UV_VERSION=\d+\.\d+\.\d+$", text, re.MULTILINE)
    last = text.split("\nFROM ")[-1]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)


@pytest.mark.timeout(400)
def test_what_the_image_installs_runs_without_the_source_tree(tmp_path: Path) -> None:
    """The Dockerfile's own steps: the lock without the tools of development, the project itself not editable."""
    source, place = tmp_path / "source", tmp_path / "opt"
    source.mkdir()
    for name in ("pyproject.toml", "uv.lock", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("regional_limiter", "global_sync", "services", "infra", "clients/python"):
        # Links stay links, as they do for the builder: what is met by two paths is packed once.
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (step,) = re.findall(r"^RUN (uv sync .*--no-editable)$", DOCKERFILE.read_text(), re.MULTILINE)
    uv = shutil.which("uv") or str(ROOT / ".cache" / "uv" / "bin" / "uv")
    environment = {"UV_PROJECT_ENVIRONMENT": str(place), "UV_PYTHON_DOWNLOADS": "never", "UV_SYSTEM_CERTS": "1"}
    _run([uv, *step.split()[1:], "--python", sys.executable], source, environment)
    shutil.rmtree(source)
    for service in ("check_api", "sync_service", "control_api", "dashboard"):
        assert "--config" in _run([f"{place}/bin/python", "-m", f"services.{service}", "--help"], tmp_path)
    assert "Usage" in _run([f"{place}/bin/apportion", "--help"], tmp_path)
    loads = (
        "from importlib.resources import files; from regional_limiter.store.library import build_library;"
        " from regional_limiter.model.share import ProtocolTimes; build_library(ProtocolTimes());"
        " from infra.region.redis_cluster import commands_needed; assert commands_needed();"
        " print(files('services.dashboard').joinpath('static/index.html').is_file())"
    )
    assert _run([f"{place}/bin/python", "-c", loads], tmp_path).strip() == "True"


def _run(command: list[str], directory: Path, environment: dict[str, str] | None = None) -> str:
    whole = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | (environment or {})
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, cwd=directory, env=whole
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/livez" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_container_lives_while_its_service_answers() -> None:
    with HTTPServer(("127.0.0.1", 0), _Answer) as service:
        threading.Thread(target=service.handle_request, daemon=True).start()
        assert alive.main([str(service.server_port)]) == 0
    assert alive.main([str(service.server_port)]) == 1
