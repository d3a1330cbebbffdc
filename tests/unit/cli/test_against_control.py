"""The command line against a control API that is really there, with a leader that decides."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
import yaml

from global_sync.transport.memory import MemoryHub
from services.control_api.app import create_app
from tests.unit.cli.test_main import BAD, GOOD, run
from tests.unit.control_api.conftest import hub_settings
from tests.unit.control_api.fake_leader import leading

TOKEN = "a-token-of-enough-length"


@pytest.fixture(scope="module")
def control() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server: list[uvicorn.Server] = []

    async def serve() -> None:
        hub = MemoryHub()
        app = create_app(hub.transport("control"), hub_settings(TOKEN))
        server.append(uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", loop="asyncio")))
        async with leading(hub):
            await server[0].serve()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    url = f"http://127.0.0.1:{port}"
    while not (server and server[0].started and httpx.get(f"{url}/readyz").is_success):
        assert time.monotonic() < deadline, "the control API did not become ready"
        time.sleep(0.02)
    yield url
    server[0].should_exit = True
    thread.join(10)


@pytest.fixture(autouse=True)
def _known(control: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPORTION_CONTROL_URL", control)
    monkeypatch.setenv("APPORTION_CONTROL_TOKEN", TOKEN)


def test_what_is_applied_is_listed_and_exported_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(GOOD)
    code, stdout, stderr = run("rules", "apply", str(file), "--reason", "launch")
    assert code == 0, stderr
    assert "accepted: domain shop, version" in stdout
    code, stdout, _ = run("rules", "list", "--domain", "shop")
    assert code == 0
    assert "20 at once, then 10/s" in stdout
    code, stdout, stderr = run("rules", "export", "--domain", "shop")
    assert code == 0
    assert yaml.safe_load(stdout) == yaml.safe_load(GOOD)
    assert "--if-version" in stderr


def test_a_set_made_from_an_old_version_is_refused_with_one(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(GOOD.replace("domain: shop", "domain: versions"))
    assert run("rules", "apply", str(file), "--if-version", "0")[0] == 0
    code, _, stderr = run("rules", "apply", str(file), "--if-version", "0")
    assert code == 1
    assert "is the newest" in stderr


def test_a_dry_run_sends_nothing(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(GOOD.replace("domain: shop", "domain: dry"))
    code, stdout, stderr = run("rules", "apply", str(file), "--dry-run")
    assert (code, stdout.splitlines()[0]) == (0, "+ orders: 20 at once, then 10/s")
    assert "nothing is changed yet" in stderr
    assert json.loads(run("rules", "list", "--domain", "dry", "--json")[1])["rules"] == []


def test_a_rule_can_be_removed_once(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(GOOD.replace("domain: shop", "domain: removal"))
    run("rules", "apply", str(file))
    code, stdout, _ = run("rules", "delete", "orders", "--domain", "removal", "--dry-run")
    assert (code, "- orders" in stdout) == (0, True), stdout
    assert run("rules", "delete", "orders", "--domain", "removal")[0] == 0
    code, _, stderr = run("rules", "delete", "orders", "--domain", "removal")
    assert code == 1
    assert "no rule orders" in stderr


def applied(tmp_path: Path, domain: str, text: str = GOOD) -> str:
    """The version after applying the good set, or another text, to a domain."""
    file = tmp_path / f"{domain}.yaml"
    file.write_text(text.replace("domain: shop", f"domain: {domain}"))
    code, stdout, stderr = run("rules", "apply", str(file), "--json")
    assert code == 0, stderr
    return str(json.loads(stdout)["version"])


def test_versions_are_listed_compared_and_gone_back_to(tmp_path: Path) -> None:
    first = applied(tmp_path, "turns")
    second = applied(tmp_path, "turns", GOOD.replace("capacity: 20", "capacity: 30"))
    code, stdout, _ = run("rules", "diff", first, "--domain", "turns")
    assert (code, "capacity: 20 -> 30" in stdout, "what was used stays used" in stdout) == (0, True, True)
    code, stdout, stderr = run("rules", "rollback", first, "--domain", "turns", "--dry-run")
    assert (code, "capacity: 30 -> 20" in stdout, "nothing is changed yet" in stderr) == (0, True, True)
    assert run("rules", "rollback", first, "--domain", "turns", "--reason", "worse")[0] == 0
    listed = run("rules", "versions", "--domain", "turns")[1].splitlines()
    assert [line.split()[0] for line in listed[2:]] == [second, first]
    assert f"(back to {first})" in listed[1]
    assert "worse" in listed[1]


def test_a_rule_goes_through_shadow_to_being_enforced(tmp_path: Path) -> None:
    applied(tmp_path, "promoted")
    assert run("rules", "mode", "orders", "shadow", "--domain", "promoted")[0] == 0
    code, stdout, _ = run("rules", "mode", "orders", "enforce", "--domain", "promoted", "--dry-run")
    assert (code, "mode: shadow -> enforce" in stdout, "what was used stays used" in stdout) == (0, True, True)
    code, stdout, _ = run("rules", "mode", "orders", "enforce", "--domain", "promoted")
    assert (code, "shadow -> enforce" in stdout) == (0, True)
    code, _, stderr = run("rules", "mode", "orders", "off", "--domain", "promoted")
    assert (code, "must be enforce, shadow or soft" in stderr) == (2, True)
    code, _, stderr = run("rules", "shadow", "--domain", "promoted")
    assert (code, "no rule in shadow" in stderr) == (0, True)


def test_a_key_is_given_more_until_friday_or_blocked_and_that_is_kept_and_ended(tmp_path: Path) -> None:
    applied(tmp_path, "keys")
    more = ("override", "put", "orders", "client_key=acme", "--multiply", "10", "--domain", "keys")
    code, stdout, _ = run(*more, "--for", "2d", "--reason", "launch")
    assert (code, "200 at once, then 100/s, until 2" in stdout) == (0, True)
    assert run("override", "block", "orders", "client_key=mallory", "--domain", "keys")[0] == 0
    applied(tmp_path, "keys", GOOD.replace("capacity: 20", "capacity: 30"))
    listed = json.loads(run("override", "list", "--domain", "keys", "--json")[1])["overrides"]
    assert [one["in_words"] for one in listed] == ["300 at once, then 100/s", "blocked"]
    assert "launch" in run("override", "list", "orders", "--domain", "keys")[1]
    assert run("override", "end", listed[1]["id"], "--domain", "keys")[0] == 0
    rows = run("history", "--text", "mallory", "--domain", "keys")[1].splitlines()[1:]
    assert [re.findall(r"(\w+_override orders client_key=mallory)", row) for row in rows] == [
        ["delete_override orders client_key=mallory"],
        ["put_override orders client_key=mallory"],
    ]
    code, stdout, _ = run("history", "--offset", rows[1].split()[0])
    assert (code, yaml.safe_load(stdout)["change"]["override"]["block"]) == (0, True)
    assert "mallory" not in run("history", "--kind", "put_set", "--domain", "keys")[1]
    assert run("history", "--since", "1d", "--domain", "keys")[1].splitlines()[1:] == []  # a leader of 2023
    assert run("history", "--since", "monday")[0] == 2
    code, _, stderr = run("override", "end", listed[1]["id"], "--domain", "keys")
    assert (code, "no override" in stderr) == (1, True)
    code, _, stderr = run(*more, "--for", "soon")
    assert (code, "such as 90min or 2d" in stderr) == (2, True)
    code, _, stderr = run("override", "put", "orders", "acme", "--unlimited", "--domain", "keys")
    assert (code, "NAME=VALUE" in stderr) == (2, True)


def test_an_override_that_does_nothing_is_warned_of_and_shadow_says_whom_it_lets_in(tmp_path: Path) -> None:
    applied(tmp_path, "idle", GOOD.replace('"POST /orders"', '"POST /orders", tier: free'))
    of = ("--domain", "idle")
    assert run("subject", "set", "acme", "tier=gold", *of)[0] == 0
    for options in (("--dry-run",), ()):
        code, _, stderr = run("override", "put", "orders", "client_key=acme", "--multiply", "2", *of, *options)
        assert (code, 'tier is "gold", and must be' in stderr) == (0, True)
    assert run("override", "block", "orders", "client_key=mallory", *of)[0] == 0
    code, stdout, _ = run("rules", "mode", "orders", "shadow", "--dry-run", *of)
    assert (code, "no longer denied: mallory" in stdout) == (0, True)


def test_what_is_known_of_clients_is_set_imported_and_listed(tmp_path: Path) -> None:
    applied(tmp_path, "clients")
    of = ("--domain", "clients")
    assert run("subject", "set", "a/cme", "tier=gold", *of)[0] == 0
    file = tmp_path / "tiers.csv"
    file.write_text("client_key,tier,country\nhooli,free,\ninitech,trial,DE\n")
    code, stdout, _ = run("subject", "import", str(file), *of, "--dry-run")
    assert (code, "subjects: 1 -> 3" in stdout) == (0, True)
    assert run("subject", "import", str(file), *of)[0] == 0
    listed = [re.split(" {2,}", line.strip()) for line in run("subject", "list", *of)[1].splitlines()[1:]]
    assert listed == [
        ["a/cme", "tier=gold", "the set"],
        ["hooli", "tier=free", "the set"],
        ["initech", "tier=trial, country=DE", "the set"],
    ]
    assert run("subject", "delete", "a/cme", *of)[0] == 0
    code, _, stderr = run("subject", "delete", "a/cme", *of)
    assert (code, "no subject client_key a/cme" in stderr) == (1, True)
    file.write_text("name\nacme\n")
    code, _, stderr = run("subject", "import", str(file), *of)
    assert (code, "one of them client_key" in stderr) == (1, True)
    assert run("subject", "import", str(tmp_path / "none.csv"), *of)[0] == 2


def test_more_clients_than_a_set_has_are_stored_and_shown(tmp_path: Path) -> None:
    of = ("--domain", "stored")
    rules = tmp_path / "rules.yaml"
    rules.write_text("{domain: stored, stored_subjects: true, rules: [{id: r, capacity: 5, refill: 1/s}]}")
    assert run("rules", "apply", str(rules))[0] == 0
    file = tmp_path / "tiers.csv"
    file.write_text("client_key,tier\n" + "".join(f"c{n:05},gold\n" for n in range(11_000)))
    code, stdout, _ = run("subject", "import", str(file), *of, "--dry-run")
    assert (code, "+ 11,000 clients" in stdout) == (0, True)
    code, stdout, _ = run("subject", "import", str(file), *of, "--reason", "contracts of May")
    assert (code, "11,000 clients" in stdout) == (0, True)
    code, stdout, stderr = run("subject", "list", "--limit", "3", *of)
    assert (code, [line.split() for line in stdout.splitlines()[1:]]) == (
        0,
        [[f"c{n:05}", "tier=gold", "stored"] for n in range(3)],
    )
    assert "11,000" in stderr
    assert run("subject", "show", "c10999", *of)[1].strip() == "c10999: tier=gold (stored)"
    assert run("subject", "delete", "c10999", *of)[0] == 0
    assert run("subject", "show", "c10999", *of)[0] == 1


def test_a_token_is_made_used_and_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, token, stderr = run("token", "create", "ann", "--role", "operator", "--domain", "tokens", "--for", "1h")
    assert code == 0, stderr
    token_id = stderr.split()[-1]
    with monkeypatch.context() as ann:
        ann.setenv("APPORTION_CONTROL_TOKEN", token.strip())
        applied(tmp_path, "tokens")
        code, _, stderr = run("token", "list")
        assert (code, "needs the role admin" in stderr) == (1, True)
    assert "ann" in run("token", "list")[1]
    listed = run("history", "--author", "ann", "--domain", "tokens")[1]
    assert "put_set" in listed
    assert run("token", "revoke", token_id)[0] == 0
    with monkeypatch.context() as ann:
        ann.setenv("APPORTION_CONTROL_TOKEN", token.strip())
        assert run("rules", "list", "--domain", "tokens")[0] == 1


def test_a_wrong_token_is_a_refusal_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APPORTION_CONTROL_TOKEN", "another-token-of-enough-length")
    code, _, stderr = run("rules", "list")
    assert code == 1
    assert "bearer token" in stderr


def test_status_without_a_leader_says_so_and_is_not_well() -> None:
    code, stdout, _ = run("status")
    assert code == 1
    assert "No leader has been heard of yet" in stdout
    assert "us-east" in stdout
    code, stdout, _ = run("status", "--json")
    assert code == 1
    document = json.loads(stdout)
    assert document["well"] is False
    assert set(document["regions"]) == {"us-east", "eu-west"}


def test_a_rule_that_is_none_has_no_shadow() -> None:
    code, stdout, stderr = run("rules", "shadow", "NONESUCH")
    assert (code, stdout, stderr) == (1, "", "NONESUCH: there is no rule NONESUCH in domain default\n")


def test_bad_rules_are_refused_with_every_fault(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(BAD)
    code, stdout, stderr = run("rules", "apply", str(file))
    assert (code, stdout) == (1, "")
    assert "4 faults" in stderr


PAGE = Path(__file__).resolve().parents[3] / "docs" / "control.md"
FIRST_RULES = Path(__file__).resolve().parents[3] / "infra" / "local" / "rules.yaml"


def test_the_commands_of_the_page_do_what_it_says_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, stdout, stderr = run("rules", "apply", str(FIRST_RULES), "--json")
    assert code == 0, stderr
    first = str(json.loads(stdout)["version"])
    commands = 0
    for kind, block in re.findall(r"```(sh|yaml)\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if block.startswith("- id:"):  # rules that the page adds to its file
            document = yaml.safe_load((tmp_path / "rules.yaml").read_text())
            document["rules"] += yaml.safe_load(block)
            (tmp_path / "rules.yaml").write_text(yaml.safe_dump(document))
        for line in block.splitlines() if kind == "sh" else []:
            if "$ID" not in line:
                _do(line, tmp_path, first)
                commands += 1
    assert commands > 15


def _do(line: str, place: Path, first: str) -> None:
    words, _, file = line.partition(" > ")
    name, *arguments = shlex.split(words)
    assert name == "apportion"
    # The page's system begins with version 1.
    code, stdout, stderr = run(*(first if word == "1" else word for word in arguments))
    assert code == 0, f"{line}: {stderr}"
    if file:
        (place / file).write_text(stdout)
