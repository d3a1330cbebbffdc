"""Who a local system belongs to, what is refused before anything starts, and what is said of it."""

from __future__ import annotations

import errno
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from infra.install import KafkaChoice
from infra.local import local
from infra.local.cli import app
from infra.local.first_rules import RULES, load_rules
from infra.local.hints import CHANGED_RULE, command_line, things_to_try
from infra.local.layout import PORTS, Layout
from infra.local.owner import Owner, read_owner
from infra.processes import Process, ProcessDirectory, refuse_starts, stop, wait_gone
from infra.words import OutputLost, Steps, Words
from services.listening import bind

ROOT = Path(__file__).resolve().parents[2]
SLEEPS = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]

Started = list[dict[str, Any]]


def free_block() -> int:
    """A base port of a block that is free now, below those that the system gives to clients."""
    first = 12_000 + os.getpid() % 40 * PORTS  # test runs side by side do not meet
    for base in range(first, first + 40 * PORTS, PORTS):
        try:
            for port in range(base, base + PORTS):
                bind("127.0.0.1", port).close()
        except OSError:
            continue
        return base
    raise AssertionError("no free block of ports")


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place for a system whose only process sleeps; its Kafka is said to run elsewhere."""

    def start_all(layout: Layout, _kafka: KafkaChoice, processes: ProcessDirectory, *_: Any) -> None:
        processes.start("control_api", SLEEPS)

    monkeypatch.delenv("APPORTION_LOCAL_DIR", raising=False)
    monkeypatch.setattr(local.install, "redis_server", lambda *_: Path("redis-server"))
    monkeypatch.setattr(local.install, "kafka", lambda _say, **_: KafkaChoice("given", bootstrap="kafka:9092"))
    monkeypatch.setattr(local, "_start_all", start_all)
    monkeypatch.setattr(local, "load_rules", lambda *_, **__: 1)
    monkeypatch.setattr(local, "wait_for_rules", lambda *_: [])
    directory = tmp_path / "sys"
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield directory
    for number, handler in handlers.items():
        signal.signal(number, handler)
    refuse_starts(False)
    stop(ProcessDirectory(directory).running().values(), patience_s=0)


def up(directory: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["up", "--no-traffic", "--dir", str(directory), *options])
    return result.exit_code, result.stderr


def someone_else(directory: Path, *, detached: bool) -> Owner:
    """The system in ``directory`` is now another process's, which lives (unless detached)."""
    other = ProcessDirectory(directory.parent / "other").start("up", SLEEPS)
    owner = Owner(other, since_s=1_700_000_000, detached=detached)
    owner.save(directory)
    return owner


def free_system(directory: Path) -> Path:
    local.up(directory, base_port=free_block(), traffic=False)
    return directory


def test_a_second_up_says_that_it_runs_and_does_not_own_it(system: Path) -> None:
    free_system(system)
    owner = someone_else(system, detached=False)
    try:
        code, stderr = up(system)
        assert code == 0
        assert "It runs already, since 2023-11-1" in stderr
        assert f"pid {owner.process.pid}" in stderr
        assert "control API" in stderr
        assert command_line("down", system) in stderr
        assert read_owner(system) == owner
        assert local.runs(system)
    finally:
        stop([owner.process])


def test_a_detached_system_stays_detached(system: Path) -> None:
    code, stderr = up(system, "--detach", "--base-port", str(free_block()))
    assert code == 0
    assert f"End it with: {command_line('down', system)}" in stderr
    owner = read_owner(system)
    assert owner is not None
    assert owner.detached
    code, stderr = up(system)
    assert code == 0
    assert "It runs already" in stderr
    assert read_owner(system) == owner
    assert local.runs(system)


def test_rules_that_are_named_are_loaded_into_a_system_that_runs(
    system: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free_system(system)
    owner = someone_else(system, detached=True)
    loaded: list[tuple[Path, bool]] = []
    monkeypatch.setattr(
        local, "load_rules", lambda _layout, rules, *, replace: loaded.append((rules, replace)) or 2
    )
    assert local.up(system).ran
    assert loaded == []
    assert local.up(system, rules=RULES).ran
    assert loaded == [(RULES, True)]
    stop([owner.process])


def test_what_a_killed_up_has_left_belongs_to_the_next(system: Path) -> None:
    free_system(system)
    owner = someone_else(system, detached=False)
    stop([owner.process])
    assert not local.up(system, traffic=False).ran
    assert local.is_ours(system)


def test_dead_parts_of_somebody_elses_system_are_started_but_it_stays_theirs(system: Path) -> None:
    free_system(system)
    owner = someone_else(system, detached=True)
    processes = ProcessDirectory(system)
    processes.start("dashboard", SLEEPS)
    stop([process for process in [processes.find("control_api")] if process])
    found = local.up(system, traffic=False)
    assert not found.ran
    assert found.owner == owner
    assert processes.find("control_api") is not None
    stop([owner.process])


def test_a_detached_system_that_a_reboot_has_ended_is_started_by_its_new_owner(system: Path) -> None:
    free_system(system)
    owner = someone_else(system, detached=True)
    stop([owner.process, *ProcessDirectory(system).running().values()])
    assert not local.up(system, traffic=False).ran
    assert local.is_ours(system)


def test_an_owner_that_waits_ends_when_the_system_is_anothers(system: Path) -> None:
    free_system(system)
    told: list[str] = []
    local.down(system)
    local.wait_while_running(system, told.append, every_s=0)
    assert told == ["ended by another command"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"pid": "x", "started": 1, "since_s": 1, "detached": true}'])
def test_a_broken_owner_file_names_nobody(tmp_path: Path, content: str) -> None:
    (tmp_path / "owner.json").write_text(content)
    assert read_owner(tmp_path) is None


def test_an_owner_whose_pid_is_anothers_by_now_is_gone() -> None:
    assert not Owner(Process("up", os.getpid(), "an earlier boot:17"), 0).in_charge()


# ---- what is refused before anything starts


def test_an_occupied_port_is_named_and_nothing_is_left(system: Path) -> None:
    base = free_block()
    with socket.create_server(("127.0.0.1", base + 12)):
        code, stderr = up(system, "--base-port", str(base))
    assert code == 1
    assert len(stderr.splitlines()) == 1
    assert f"failed: port {base + 12} (eu-west/node-2) cannot be used" in stderr
    assert "--base-port" in stderr
    assert not system.exists()


def test_ports_of_our_own_running_processes_are_not_occupied(system: Path) -> None:
    free_system(system)
    owner = someone_else(system, detached=False)
    stop([owner.process])
    layout = local.load_layout(system)
    assert layout is not None
    with socket.create_server(("127.0.0.1", layout.control_api_port)):
        assert not local.up(system, traffic=False).ran


@pytest.mark.parametrize(("option", "value"), [("--base-port", "80"), ("--base-port", "65500"), ("--scale", "0")])
def test_an_impossible_option_is_named_and_nothing_is_left(system: Path, option: str, value: str) -> None:
    code, stderr = up(system, option, value)
    assert code == 2
    assert len(stderr.splitlines()) == 1
    assert f"{option} {value}: " in stderr
    assert not system.exists()


def test_a_refused_up_ends_nothing_of_a_running_system(system: Path) -> None:
    free_system(system)
    owner = someone_else(system, detached=True)
    code, stderr = up(system, "--base-port", str(free_block() + PORTS))
    assert code == 1
    assert command_line("down", system) in stderr
    assert local.runs(system)
    stop([owner.process])


def test_down_where_nothing_runs_is_one_line_and_makes_no_files(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["down", "--dir", str(tmp_path / "none")])
    assert result.exit_code == 0
    assert "nothing runs in" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_down_twice_says_so(system: Path) -> None:
    free_system(system)
    local.down(system)
    told: list[str] = []
    local.down(system, told.append)
    assert told == [f"nothing runs in {system}"]
    assert read_owner(system) is None


def test_status_says_of_each_part_whether_it_runs(system: Path) -> None:
    layout = Layout(system, free_block())
    layout.save()
    traffic = ProcessDirectory(system).start("traffic", SLEEPS)
    result = CliRunner().invoke(app, ["status", "--dir", str(system)])
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert lines["kafka"].endswith("apache does not run")
    assert lines["traffic"].endswith(f"pid {traffic.pid}")
    assert lines["dashboard"].endswith("does not run")


# ---- ends that are not asked for


UP_WITH_ONE_PROCESS = """
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
from infra.install import KafkaChoice
from infra.local import local
from infra.local.cli import app

def start_all(layout, kafka, processes, services, say):
    processes.start("control_api", [sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    while sys.argv[-1] == "--tell-on":
        say("a step")
        time.sleep(0.01)

local.install.redis_server = lambda say: Path("redis-server")
local.install.kafka = lambda say, **_: KafkaChoice("given", bootstrap="kafka:9092")
local._start_all = start_all
local.load_rules = lambda *_, **__: 1
local.wait_for_rules = lambda *_: []
app([argument for argument in sys.argv[1:] if argument != "--tell-on"])
"""


def open_up(directory: Path, *options: str, stderr: int) -> subprocess.Popen[bytes]:
    arguments = ["up", "--no-traffic", "--dir", str(directory), "--base-port", str(free_block()), *options]
    return subprocess.Popen(
        [sys.executable, "-c", UP_WITH_ONE_PROCESS, *arguments],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        start_new_session=True,
    )


def left_of(directory: Path) -> list[Process]:
    return list(ProcessDirectory(directory).running().values())


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_closed_terminal_or_a_signal_to_all_ends_everything(tmp_path: Path, number: int) -> None:
    process = open_up(tmp_path / "sys", stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if b"Ctrl-C ends it" in line:
                break
        assert left_of(tmp_path / "sys") != []
        for _ in range(3):  # the kernel, the shell and make may each send one
            os.killpg(process.pid, number)
        assert process.wait(20) == 0
        assert left_of(tmp_path / "sys") == []
    finally:
        process.kill()
        process.wait(20)
        process.stderr.close()


@pytest.mark.parametrize("options", [(), ("--detach",)])
def test_nothing_is_left_when_nobody_reads_the_output_any_more(tmp_path: Path, options: tuple[str, ...]) -> None:
    process = open_up(tmp_path / "sys", *options, "--tell-on", stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        process.stderr.readline()
        process.stderr.close()
        assert process.wait(20) == 1
        assert left_of(tmp_path / "sys") == []
    finally:
        process.kill()
        process.wait(20)


def test_a_terminal_that_is_gone_does_not_stop_the_end(tmp_path: Path) -> None:
    process = open_up(tmp_path / "sys", stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if b"Ctrl-C ends it" in line:
                break
        running = left_of(tmp_path / "sys")
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        assert process.wait(20) == 0
        assert wait_gone(running, 0) == []
    finally:
        process.kill()
        process.wait(20)


def test_words_that_cannot_be_written_are_noted_and_never_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        """A terminal that is gone."""

        def write(self, _text: str) -> int:
            raise OSError(errno.EIO, "Input/output error")

        def flush(self) -> None: ...

    monkeypatch.setattr(sys, "stderr", Gone())
    words = Words()
    words.say("one")
    assert words.lost
    Steps(words)("two")
    with pytest.raises(OutputLost):
        Steps(words, must_be_heard=True)("three")


# ---- what is said


def test_printed_commands_name_the_directory_unless_it_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "--dir" not in command_line("down", Path(".local/default"))
    assert command_line("down", Path(".local/a b")).endswith(" local down --dir '.local/a b'")
    layout = Layout(tmp_path / "x")
    commands = [line for line in things_to_try(layout, example_rules=True) if " local " in line]
    assert len(commands) == 2
    assert all(line.endswith(" --dir x") for line in commands)


def rule_of_curl(command: str) -> dict[str, Any]:
    """What a ``curl -X PUT … -d`` sends."""
    words = shlex.split(command.replace("\\\n", " "))
    body: dict[str, Any] = json.loads(words[words.index("-d") + 1])
    return body


def after(text: str, mark: str) -> str:
    start = text.index(mark)
    return text[start : text.index("```", start)]


@pytest.mark.parametrize(
    "shown",
    [
        lambda: rule_of_curl(after((ROOT / "README.md").read_text(), "curl -s -X PUT")),
        lambda: rule_of_curl(after((ROOT / "docs" / "rules.md").read_text(), "curl -s -X PUT")),
        lambda: rule_of_curl(
            next(line for line in things_to_try(Layout(Path("x")), example_rules=True) if "PUT" in line)
        ),
    ],
    ids=["README", "docs/rules", "up"],
)
def test_the_shown_change_replaces_the_whole_rule_with_other_numbers(shown: Callable[[], dict[str, Any]]) -> None:
    rules = yaml.safe_load(RULES.read_text())["rules"]
    before = next(rule for rule in rules if rule["id"] == "orders-free")
    changed = shown()
    assert changed == CHANGED_RULE
    numbers = {"capacity", "refill_per_second"}
    assert {name: changed[name] for name in changed if name not in numbers} == {
        name: before[name] for name in before if name not in numbers | {"id", "description"}
    }
    assert all(changed[name] < before[name] for name in numbers)


def test_a_set_of_ones_own_is_not_offered_a_change_of_the_examples() -> None:
    assert not any("orders-free" in line for line in things_to_try(Layout(Path("x")), example_rules=False))


# ---- the first rules


def serve(answers: list[tuple[str, int, dict[str, Any]]], asked: list[str]) -> HTTPServer:
    """A control API that gives these answers (to a method), in order, and the last of them again and again."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            asked.append(self.command)
            method, status, document = answers.pop(0) if len(answers) > 1 else answers[0]
            assert method == self.command
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = answer

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    return server


@pytest.mark.parametrize(
    ("outcome", "version"),
    [
        ({"accepted": True, "conflict": False, "version": 7}, 7),
        ({"accepted": False, "conflict": True, "version": 3}, 1),
    ],
)
def test_rules_that_nobody_has_decided_yet_are_not_proposed_again(
    tmp_path: Path, outcome: dict[str, Any], version: int
) -> None:
    asked: list[str] = []
    mine, other = {"id": "mine", **outcome}, {"id": "other", "accepted": True, "conflict": False, "version": 1}
    answers: list[tuple[str, int, dict[str, Any]]] = [
        ("PUT", 504, {"detail": "no leader has decided it in time", "proposal": "mine"}),
        ("GET", 200, {"changes": [other]}),
        ("GET", 200, {"changes": [mine, other]}),
    ]
    server = serve(answers, asked)
    try:
        layout = Layout(tmp_path, server.server_port - 90)
        assert load_rules(layout, RULES, replace=False) == version
        assert asked == ["PUT", "GET", "GET"]
    finally:
        server.shutdown()
        server.server_close()
