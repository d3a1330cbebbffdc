"""docs/clients.md, gateways.md and migrating.md: their code runs as it stands, and their rules are right."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import subprocess
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from regional_limiter.rules import parse
from services.settings import AuthorizeSettings
from tests.clients.conftest import node_with

DOCS = Path(__file__).resolve().parents[2] / "docs"
PATIENT = ", timeout_s=10)"


@pytest.fixture(autouse=True)
def _an_application_closes_its_client_by_ending() -> Iterator[None]:
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / f"{page}.md").read_text()
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    return ["\n".join(line.removeprefix(indent) for line in code.split("\n")) for indent, code in found]


def ran(code: str, node: str) -> dict[str, Any]:
    """The names that are left by a block whose node is ``node``."""
    assert "127.0.0.1:8101" in code
    # The page waits for a node as production does; a machine that runs many tests needs more.
    code = code.replace(", timeout_s=0.05", "")
    code = re.sub(r'(Client\("http://127.0.0.1:8101"[^)]*)\)', r"\1" + PATIENT, code)
    code = code.replace("http://127.0.0.1:8101", node)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, "docs/clients.md", "exec"), names)
    return names


ASK, MANY, ASGI, ROUTES, WSGI, DJANGO, LEASES, PATIENCE = blocks("clients", "python")


def test_asking_one_by_one_and_many_at_a_time(node: str) -> None:
    assert ran(ASK, node)["answer"].remaining == 19
    allowed = ran(MANY, node)["allowed"]
    assert (len(allowed), sum(allowed)) == (50, 20)


async def test_in_front_of_an_asgi_application(node: str) -> None:
    app = await asyncio.to_thread(lambda: ran(ASGI, node)["app"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://app") as caller:
        statuses = [(await caller.get("/items", headers={"x-user": "a"})).status_code for _ in range(3)]
        other = await caller.get("/items", headers={"x-user": "b"})
        nobody = [(await caller.get("/items", headers={"x-user": ""})).status_code for _ in range(3)]
        health = [(await caller.get("/health")).status_code for _ in range(4)]
    assert statuses == nobody == [200, 200, 429]
    assert (other.status_code, set(health)) == (200, {404})


async def test_single_routes_of_fastapi() -> None:
    [rules] = blocks("clients", "yaml")
    with node_with(rules) as node:
        app = await asyncio.to_thread(lambda: ran(ROUTES, node)["app"])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://app") as caller:
            orders = [(await caller.post("/orders")).status_code for _ in range(11)]
            strange = [
                (await caller.get(f"/exports{query}")).status_code for query in ("", "?rows=abc", "?rows=-5")
            ]
            exports = [(await caller.get(f"/exports?rows={rows}")).status_code for rows in (6000, 6000, 4000)]
    assert orders == [200] * 10 + [429]
    assert strange == [422] * 3
    assert exports == [200, 429, 200]


def test_in_front_of_flask(node: str) -> None:
    caller = ran(WSGI, node)["app"].test_client()
    assert [caller.get("/items").status_code for _ in range(3)] == [200, 200, 429]


def test_the_settings_of_django_are_those_that_it_takes() -> None:
    names: dict[str, Any] = {}
    exec(compile(DJANGO, "docs/clients.md", "exec"), names)
    assert set(names["APPORTION"]) == {"url", "on_no_answer", "trusted_proxies"}


def test_a_hot_key_is_decided_in_the_application_within_the_limit(node: str) -> None:
    assert 500 < ran(LEASES, node)["allowed"] <= 1000


def test_patience(node: str) -> None:
    assert ran(PATIENCE, node)["response"].status_code == 200


def test_what_any_language_can_send(node: str) -> None:
    [script] = [code for code in blocks("clients", "sh") if "curl" in code]
    said = subprocess.run(
        ["bash", "-ec", script.replace("http://127.0.0.1:8101", node)], capture_output=True, text=True, check=True
    ).stdout
    documents, rest = [], said
    while rest:
        document, end = json.JSONDecoder().raw_decode(rest)
        documents.append(document)
        rest = rest[end:].lstrip()
    check, batch, peek, refund = documents
    assert (check["remaining"], len(batch["answers"]), peek["remaining"], refund) == (19, 2, 19, {"refunded": True})


@pytest.mark.parametrize("code", blocks("migrating", "yaml"))
def test_the_rules_that_others_become_are_right(code: str) -> None:
    parse(code.encode())


def test_comparing_two_limiters() -> None:
    [code] = blocks("migrating", "python")
    [rules] = [found for found in blocks("migrating", "yaml") if "domain: trial" in found]
    with node_with(rules) as node:
        names = ran(code, node)
        for _ in range(50):
            names["compare"]("user", True)
    agreed = names["agreed"]
    assert (agreed.total(), set(agreed)) == (50, {(True, True), (True, False)})


def test_the_settings_of_forward_auth_are_right() -> None:
    [code] = blocks("gateways", "toml")
    AuthorizeSettings.model_validate(tomllib.loads(code)["check_api"]["authorize"])


def test_every_example_of_a_gateway_is_named_by_its_page() -> None:
    page = (DOCS / "gateways.md").read_text()
    examples = {path.name for path in (DOCS.parent / "infra" / "gateways").iterdir() if path.is_dir()}
    assert {name for name in examples if f"infra/gateways/{name}" in page} == examples


def test_the_example_for_traefik_asks_where_a_node_answers() -> None:
    # No Traefik runs here, so at least what the file says is held to what a node takes.
    document = yaml.safe_load((DOCS.parent / "infra/gateways/traefik/dynamic.yaml").read_text())["http"]
    asked = document["middlewares"]["apportion"]["forwardAuth"]
    assert httpx.URL(asked["address"]).path == "/v1/authorize"
    assert asked["trustForwardHeader"] is False
    assert document["routers"]["application"]["middlewares"] == ["apportion"]
