"""Logs are one JSON object a line, also those of libraries and of exceptions."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from services import logs
from services.logs import configure_logging


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


def test_every_line_is_json_and_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    logger = configure_logging("check_api", region="us-east", node=1)
    logger.info("started", port=8101)
    logging.getLogger("aiokafka").warning("gone %s", "away")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("broken")
    logger.debug("not at this level")
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.err.splitlines()]
    assert captured.out == ""
    assert [(line["event"], line["level"]) for line in lines] == [
        ("started", "info"),
        ("gone away", "warning"),
        ("broken", "error"),
    ]
    assert all((line["service"], line["region"], line["node"]) == ("check_api", "us-east", 1) for line in lines)
    assert "two\nlines" in lines[2]["exception"]


def test_a_log_file_does_not_grow_without_bound(tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    program = (
        "import services.logs as logs\n"
        "logs.LOG_BYTES_MOST = 20_000\n"
        "log = logs.configure_logging('test')\n"
        "for number in range(2_000): log.info('a line of some length', number=number)\n"
    )
    with log.open("ab") as file:
        environment = {**os.environ, logs.LOG_FILE: str(log)}
        subprocess.run([sys.executable, "-c", program], stderr=file, check=True, env=environment)
    assert log.stat().st_size < 100_000
    assert (tmp_path / "service.log.1").stat().st_size < 100_000
    assert b'"number": 1999' in log.read_bytes() + (tmp_path / "service.log.1").read_bytes()


def test_a_library_that_tries_again_for_ever_is_heard_seldom(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure_logging("sync_service")
    client, ours = logging.getLogger("aiokafka.client"), structlog.get_logger("sync_service")

    def heard() -> list[str]:
        return [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]

    for number in range(100):
        client.error("Unable to connect to node with id %s", number)
        client.error("another %s", "line")
        ours.info("ours")
    lines = heard()
    assert lines[:2] == ["Unable to connect to node with id 0", "another line"]
    assert lines.count("ours") == 100
    assert len(lines) == 102
    monkeypatch.setattr(logs, "SELDOM_S", 0.0)
    client.error("Unable to connect to node with id %s", "7")
    assert heard() == ["Unable to connect to node with id 7 (99 more like this)"]
