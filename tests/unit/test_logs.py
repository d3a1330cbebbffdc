"""Logs are one JSON object a line, also those of libraries and of exceptions."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from services import log_repeats, logs
from services.hiding import Hiding
from services.logs import configure_logging
from services.tracing import Tracer


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


@pytest.mark.parametrize("on_terminal", [False, True])
def test_a_traceback_shows_no_values_of_variables(
    on_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: on_terminal)
    logger = configure_logging("check_api")

    def call(token: str) -> None:
        raise ValueError("two\nlines")

    try:
        call("".join(["not to ", "be shown"]))
    except ValueError:
        logger.exception("broken")
    said = capsys.readouterr().err
    assert "lines" in said
    assert "not to be shown" not in said


def test_a_log_file_does_not_grow_without_bound(tmp_path: Path) -> None:
    log = tmp_path / "service.log"
    program = (
        "import services.logs as logs\n"
        "logs.LOG_BYTES_MOST = 20_000\n"
        "log = logs.configure_logging('test')\n"
        "for number in range(2_000): log.info(f'a line of some length {number}', number=number)\n"
    )
    with log.open("ab") as file:
        environment = {**os.environ, logs.LOG_FILE: str(log)}
        subprocess.run([sys.executable, "-c", program], stderr=file, check=True, env=environment)
    assert log.stat().st_size < 100_000
    assert (tmp_path / "service.log.1").stat().st_size < 100_000
    assert b'"number": 1999' in log.read_bytes() + (tmp_path / "service.log.1").read_bytes()


def test_logs_beside_ours_of_programs_that_do_not_bound_them_are_bounded(tmp_path: Path) -> None:
    """What is appended after a log was emptied begins at its beginning: no holes, nothing of the newest is lost."""
    service = (
        "import sys, time, services.logs as logs\n"
        "logs.LOG_BYTES_MOST, logs.LOOK_EVERY_S = 20_000, 0.01\n"
        "logs.bound_neighbours('redis-*.log')\n"
        "sys.stdin.read()\n"
    )
    environment = {**os.environ, logs.LOG_FILE: str(tmp_path / "sync.log")}
    server, other = tmp_path / "redis-7001.log", tmp_path / "other.log"
    other.write_bytes(b"x" * 30_000)
    with server.open("ab") as writer:
        writer.write(b"old\n" * 10_000)
        writer.flush()
        with subprocess.Popen([sys.executable, "-c", service], stdin=subprocess.PIPE, env=environment) as running:
            end = time.monotonic() + 20
            while server.stat().st_size:
                assert time.monotonic() < end
                time.sleep(0.01)
            running.communicate()
        writer.write(b"new\n")
    assert (tmp_path / "redis-7001.log.1").read_bytes() == b"old\n" * 10_000
    assert server.read_bytes() == b"new\n"
    assert other.stat().st_size == 30_000


class _Lines:
    """A logger behind a filter whose clock stands still, and whose timer is the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_repeats.Repeats, "_count_later", lambda *_: None)
        self.now_s = 100.0
        self.said: list[str] = []
        self.repeats = log_repeats.Repeats(self.write, lambda: self.now_s)

    def write(self, record: logging.LogRecord) -> None:
        self.said.append(record.msg["event"] if isinstance(record.msg, dict) else record.getMessage())

    def say(self, message: object, *arguments: object, logger: str = "node") -> None:
        record = logging.LogRecord(logger, logging.INFO, "", 0, message, arguments, None)
        if self.repeats.filter(record):
            self.write(record)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.repeats._when_due()


def test_a_line_that_is_said_again_is_said_once_with_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _Lines(monkeypatch)
    for _ in range(50):
        lines.say({"event": "no Kafka", "at": "h"})
        lines.say({"event": "started"})
    assert lines.said == ["no Kafka", "started"]
    lines.wait(1.0)
    assert lines.said[2:] == ["no Kafka (49 more like this)", "started (49 more like this)"]
    lines.say({"event": "no Kafka", "at": "h"})
    lines.say({"event": "no Kafka", "at": "h"})
    lines.wait(1.0)
    assert lines.said[4:] == ["no Kafka (2 more like this)"], "what goes on is one line a second"
    lines.wait(1.0)
    lines.say({"event": "no Kafka", "at": "h"})
    lines.wait(1.0)
    assert lines.said[5:] == ["no Kafka"], "what came once is not counted"


def test_lines_that_differ_in_a_field_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _Lines(monkeypatch)
    for number in range(100):
        lines.say({"event": "refused", "key": f"user-{number}"})
    assert len(lines.said) == log_repeats.LINES_MOST
    lines.say({"event": "something else"})
    lines.repeats.flush()
    assert lines.said[-2:] == ["something else", f"refused ({100 - log_repeats.LINES_MOST} more like this)"]


def test_a_line_of_the_next_second_says_the_count_of_the_last_one_first(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _Lines(monkeypatch)
    for _ in range(3):
        lines.say({"event": "a"})
    lines.now_s += 1.0
    lines.say({"event": "a"})
    assert lines.said == ["a", "a (2 more like this)", "a"]


def test_a_library_that_tries_again_for_ever_is_heard_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _Lines(monkeypatch)
    for number in range(100):
        lines.say("Unable to connect to node with id %s", number, logger="aiokafka.client")
        lines.say("another %s", "line", logger="aiokafka.client")
    assert lines.said == ["Unable to connect to node with id 0", "another line"]
    lines.wait(9.0)
    assert len(lines.said) == 2
    lines.wait(1.0)
    assert lines.said[2] == "Unable to connect to node with id 99 (99 more like this)"


def test_the_table_of_kinds_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _Lines(monkeypatch)
    lines.say({"event": "first"})
    lines.say({"event": "first"})
    for number in range(log_repeats.KINDS_MOST + 1):
        lines.say({"event": f"kind {number}"})
    assert len(lines.repeats._windows) <= log_repeats.KINDS_MOST
    assert "first (1 more like this)" in lines.said, "what was counted is said before it is forgotten"


def test_a_count_is_said_without_another_line(capsys: pytest.CaptureFixture[str]) -> None:
    """By the timer's own thread, or at the end of the process: whichever is first."""
    program = (
        "from services.logs import configure_logging\n"
        "log = configure_logging('test')\n"
        "for _ in range(5): log.info('again')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, check=True)
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["again", "again (4 more like this)"]


def test_keys_are_hashed_and_secrets_are_stars(capsys: pytest.CaptureFixture[str]) -> None:
    hiding = Hiding(b"a deployment's secret")
    logger = configure_logging("check_api", hiding=hiding)
    logger.warning(
        "refused rl:{q1w2}:shop/orders:user:42, by redis",
        key="rl:{q1w2}:shop/orders:user:42",
        client_key="10.0.0.7",
        keys=["a", "b"],
        token="abcdefgh",
        redis_password="hunter2",
        header="Authorization: Bearer abcdefgh",
        url="redis://me:hunter2@10.0.0.1:6379/0",
        nested={"api_key": "abcdefgh", "place": "shop/orders"},
        lease_tokens_lost=3,
    )
    try:
        raise ValueError("no rl:{q1w2}:shop/orders:user:42 here")
    except ValueError:
        logging.getLogger("apportion.store").exception("failed")
    said = capsys.readouterr().err
    first, second = (json.loads(line) for line in said.splitlines())
    for secret in ("user:42", "10.0.0.7", "hunter2", "abcdefgh", '"a"'):
        assert secret not in said
    assert first["event"] == f"refused rl:{{q1w2}}:shop/orders:{hiding.hidden('user:42')}, by redis"
    assert first["client_key"] == hiding.hidden("10.0.0.7")
    assert first["keys"] == [hiding.hidden("a"), hiding.hidden("b")]
    assert (first["token"], first["redis_password"], first["nested"]["api_key"]) == ("***", "***", "***")
    assert (first["lease_tokens_lost"], first["nested"]["place"]) == (3, "shop/orders")
    assert first["url"] == "redis://***@10.0.0.1:6379/0"
    assert f"rl:{{q1w2}}:shop/orders:{hiding.hidden('user:42')}" in second["exception"]


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("rl:{q1}:d/r:acme,10.0.0.1", "rl:{q1}:d/r:<acme,10.0.0.1>"),
        ("rl:{q1}:d/r:acme,10.0.0.1,x, by redis", "rl:{q1}:d/r:<acme,10.0.0.1,x>, by redis"),
        ("['rl:{q1}:d/r:a,b', 'rl:{q1}:d/r:c']", "['rl:{q1}:d/r:<a,b>', 'rl:{q1}:d/r:<c>']"),
    ],
)
def test_of_a_key_of_several_parts_none_is_in_clear(said: str, written: str) -> None:
    hiding = Hiding(b"a deployment's secret")
    assert hiding.text(said) == re.sub("<(.*?)>", lambda found: hiding.hidden(found[1]), written)


@pytest.mark.parametrize("name", ["api-key", "proxy-authorization", "X-Api-Key", "set-cookie"])
def test_secrets_are_known_by_the_names_of_headers(name: str) -> None:
    assert Hiding(b"x").line({"headers": {name: "abcdefgh"}}) == {"headers": {name: "***"}}


def test_keys_are_told_where_a_setting_says_so_and_secrets_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("check_api", hiding=Hiding(b"x", tells_keys=True)).info("a", key="user:42", token="abcdefgh")
    (line,) = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert (line["key"], line["token"]) == ("user:42", "***")


def test_a_line_names_the_trace_that_it_belongs_to(capsys: pytest.CaptureFixture[str]) -> None:
    logger = configure_logging("check_api")
    with Tracer(1.0).span("check") as span:
        logger.info("ours")
        logging.getLogger("apportion.store").warning("a library's")
    logger.info("outside")
    ours, theirs, outside = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert ours["trace_id"] == theirs["trace_id"] == f"{span.context.trace_id:032x}"
    assert ours["span_id"] == f"{span.context.span_id:016x}"
    assert "trace_id" not in outside


@pytest.mark.parametrize(("form", "is_json"), [("json", True), ("auto", True), ("text", False)])
def test_the_form_is_a_setting(form: Any, is_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("check_api", form=form).info("started")
    assert capsys.readouterr().err.startswith("{") == is_json
