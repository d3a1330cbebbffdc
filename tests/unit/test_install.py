"""What is installed, in which order, and what is said when it cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra import install
from infra.install import InstallFailed


def program(place: Path, name: str, body: str) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    path = place / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing in it, and an empty cache."""
    path = tmp_path / "bin"
    path.mkdir()
    os.symlink("/bin/sh", path / "sh")
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.setenv("APPORTION_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("APPORTION_KAFKA_BOOTSTRAP", raising=False)
    return path


def test_the_redis_in_path_is_taken_if_it_is_new_enough(bare_machine: Path) -> None:
    program(bare_machine, "redis-server", 'echo "Redis server v=7.0.15 sha=0"')
    assert install.redis_server() == bare_machine / "redis-server"


def test_an_old_redis_is_not_taken_and_a_person_is_told(bare_machine: Path) -> None:
    program(bare_machine, "redis-server", 'echo "Redis server v=6.2.7 sha=0"')
    with pytest.raises(InstallFailed, match="Redis 7 or newer"):
        install.redis_server()


def test_the_unpacked_redis_is_found_again(bare_machine: Path, tmp_path: Path) -> None:
    unpacked = program(tmp_path / "cache" / "redis", "redis-server", 'echo "Redis server v=8.0.1 sha=0"')
    assert install.redis_server() == unpacked


def test_brokers_that_run_already_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPORTION_KAFKA_BOOTSTRAP", "kafka.example:9092")
    choice = install.kafka()
    assert (choice.kind, choice.bootstrap) == ("given", "kafka.example:9092")


def test_cached_jars_need_no_maven(bare_machine: Path) -> None:
    java = program(bare_machine, "java", "echo 'openjdk version \"21.0.1\" 2023' >&2")
    install._jars_directory().mkdir(parents=True)
    choice = install.kafka()
    assert (choice.kind, choice.java, choice.libs) == ("apache", java, install._jars_directory())


def test_the_last_resort_is_refused_where_it_would_hide_faults(bare_machine: Path) -> None:
    program(bare_machine, "java", "echo 'openjdk version \"11.0.1\" 2018' >&2")
    install._jars_directory().mkdir(parents=True)
    with pytest.raises(InstallFailed, match="Java 17 or newer"):
        install.kafka(last_resort=False)


def test_the_last_resort_is_said(bare_machine: Path, tmp_path: Path) -> None:
    noida = program(tmp_path / "cache" / "noida" / "bin", "noida-db", "")
    said: list[str] = []
    choice = install.kafka(said.append)
    assert (choice.kind, choice.noida) == ("noida", noida)
    assert any("a kill loses data" in line for line in said)


def test_an_unknown_thing_to_install_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(["redsi"]) == 2
    assert "known: redis kafka" in capsys.readouterr().err


def test_help_says_what_can_be_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert install.main(["--help"]) == 0
    assert "redis kafka chromium" in capsys.readouterr().out
