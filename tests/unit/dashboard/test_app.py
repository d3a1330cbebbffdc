"""What surrounds the page: who may see it, what a browser may do with it, and bounds."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from pydantic import SecretStr

from global_sync.transport.base import RULES
from global_sync.transport.memory import MemoryHub
from services.dashboard.app import STATIC, create_app
from services.dashboard.stream import SUBSCRIBERS_MOST
from services.settings import DashboardSettings, HubSettings
from tests.unit.control_api.conftest import hub_settings

TOKEN = "a-token-of-enough-length"


def settings(token: str | None = None) -> HubSettings:
    secret = SecretStr(token) if token else None
    return hub_settings().model_copy(update={"dashboard": DashboardSettings(port=25091, token=secret)})


@asynccontextmanager
async def dashboard(token: str | None = None) -> AsyncIterator[tuple[httpx.AsyncClient, httpx.ASGITransport]]:
    app = create_app(MemoryHub().transport("dashboard"), settings(token))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:25091") as client,
    ):
        yield client, transport


async def test_the_page_and_its_parts_come_from_here_alone() -> None:
    async with dashboard() as (client, _):
        page = await client.get("/")
        assert page.status_code == 200
        assert "https://" not in page.text
        assert page.headers["content-security-policy"].startswith("default-src 'self'")
        for part in ("app.js", "shell.js", "pages/overview.js", "feed.js", "theme.js", "style.css", "icon.svg"):
            answer = await client.get(f"/static/{part}")
            assert answer.status_code == 200
            assert answer.headers["x-content-type-options"] == "nosniff"
        for licence in ("htm.LICENSE", "preact.LICENSE", "uPlot.LICENSE"):
            assert (await client.get(f"/static/vendor/{licence}")).status_code == 200


def test_pages_use_nothing_that_browsers_keep_from_plain_http() -> None:
    only_secure = re.compile(
        r"\b(randomUUID|crypto\.subtle|navigator\.(clipboard|serviceWorker|locks|storage)|caches\.)"
    )
    ours = [path for path in STATIC.rglob("*.js") if "vendor" not in path.parts]
    assert len(ours) > 10
    assert [path.name for path in ours if only_secure.search(path.read_text())] == []


async def test_nothing_outside_of_the_static_files_is_served() -> None:
    async with dashboard() as (client, _):
        assert (await client.get("/static/../app.py")).status_code == 404
        assert (await client.get("/static/%2e%2e/app.py")).status_code == 404


async def test_it_is_ready_when_it_knows_the_rules_and_reads_kafka() -> None:
    async with dashboard(TOKEN) as (client, transport):
        board = transport.app.state.board  # type: ignore[attr-defined]
        assert await board.feed.caught_up(RULES, timeout_s=5)
        assert (await client.get("/readyz")).json() == {"status": "ok"}
        board.feed.silent_ms = lambda topic: 60_000
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["detail"]) == (503, "Kafka does not answer")
        board.feed.topics[RULES].caught_up.clear()
        answer = await client.get("/readyz")
        assert answer.json()["detail"] == "the accepted rules have not been read yet"


async def test_with_a_token_a_page_is_opened_once_with_it_and_then_by_its_cookie() -> None:
    async with dashboard(TOKEN) as (client, _):
        assert (await client.get("/")).status_code == 401
        assert (await client.get("/history", params={"rule": "r", "key": "k"})).status_code == 401
        assert (await client.get("/?token=wrong")).status_code == 401
        assert (await client.get("/livez")).status_code == 200
        opened = await client.get("/", params={"token": TOKEN})
        assert opened.status_code == 303
        assert "HttpOnly" in opened.headers["set-cookie"]
        assert "SameSite=strict" in opened.headers["set-cookie"]
        assert (await client.get("/")).status_code == 200


async def test_one_tab_too_many_is_a_problem_and_not_a_silent_page() -> None:
    async with dashboard() as (client, transport):
        streams = transport.app.state.broadcaster  # type: ignore[attr-defined]
        for _ in range(SUBSCRIBERS_MOST):
            streams.subscribe()
        answer = await client.get("/events")
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        assert len(streams) == SUBSCRIBERS_MOST


async def test_a_dashboard_for_its_own_machine_answers_to_no_other_name_and_no_other_site() -> None:
    elsewhere = {"Host": "evil.example:25091"}
    async with dashboard() as (client, _):
        for path in ("/", "/events", "/v1/region?name=us-east", "/static/app.js", "/metrics"):
            assert (await client.get(path, headers=elsewhere)).status_code == 403
        page = await client.get("/v1/region?name=us-east", headers={"Sec-Fetch-Site": "cross-site"})
        assert page.status_code == 403
        assert "another site" in page.json()["detail"]
        followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert (await client.get("/", headers=followed)).status_code == 200
        assert (await client.get("/", headers={"Host": "localhost:25091"})).status_code == 200
        assert (await client.get("/livez", headers=elsewhere)).status_code == 200
    async with dashboard(TOKEN) as (client, _):
        headers = {**elsewhere, "Authorization": f"Bearer {TOKEN}"}
        assert (await client.get("/", headers=headers)).status_code == 200
