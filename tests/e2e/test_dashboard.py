"""The dashboard's pages on a whole system: real Redis, real Kafka, a link that is cut, services that are killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.browser.conftest import CHROMIUM
from tests.e2e.system import REGIONS, LocalSystem, wait_for

pytestmark = pytest.mark.timeout(300)
PATIENCE_MS = 40_000
PAGES = ("overview", "quota", "region?name=eu-west", "sync", "rules", "rules?view=versions", "keys", "audit", "try")
HELD = ("connect", "Failed to load resource", "ERR_")
"""What a browser itself says while the other side is away."""


@contextmanager
def page_at(system: LocalSystem, name: str, *, away: bool = False) -> Iterator[Page]:
    """A page that must not log an error; ``away``: but that its server was away."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        errors: list[str] = []
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(f"page: {error}"))
        page.goto(f"{system.addresses['dashboard']}/#/{name}")
        expect(page.locator(".live.on")).to_be_visible(timeout=PATIENCE_MS)
        yield page
        browser.close()
        assert [one for one in errors if not (away and any(word in one for word in HELD))] == []


@contextmanager
def traffic(system: LocalSystem) -> Iterator[None]:
    """Some checks a second of one key in every region."""
    over = threading.Event()

    def run() -> None:
        checks = [{"client_key": "acme", "resource": "GET /shared"}] * 3
        with httpx.Client(timeout=10) as client:
            while not over.wait(0.1):
                for url in system.nodes(*REGIONS):
                    try:
                        client.post(f"{url}/v1/check:batch", json={"checks": checks})
                    except httpx.HTTPError:
                        continue

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join(30)


def test_every_page_shows_the_running_system_without_an_error(fast_system: LocalSystem) -> None:
    with traffic(fast_system), page_at(fast_system, "overview") as page:
        for name in PAGES:
            page.goto(f"{fast_system.addresses['dashboard']}/#/{name}")
            expect(page.get_by_role("heading", level=1)).to_be_visible(timeout=PATIENCE_MS)
            expect(page.locator("main")).not_to_contain_text("Waiting for the first data", timeout=PATIENCE_MS)
        page.goto(f"{fast_system.addresses['dashboard']}/#/overview")
        row = page.locator(".quota-table tr", has=page.get_by_role("link", name="shared"))
        expect(row).to_contain_text("acme", timeout=PATIENCE_MS)
        page.goto(f"{fast_system.addresses['dashboard']}/#/region?name=eu-west")
        shards = page.locator("[aria-label=Shards] tbody tr")
        expect(shards).to_have_count(3, timeout=PATIENCE_MS)
        expect(page.locator("[aria-label=Shards]")).to_contain_text("/s", timeout=PATIENCE_MS)
        expect(page.locator("[aria-label=Shards]")).to_contain_text(" ms", timeout=PATIENCE_MS)
        expect(page.locator("[aria-label=Nodes] tbody tr")).to_have_count(2)


def test_what_a_page_says_is_what_the_api_says(fast_system: LocalSystem) -> None:
    """Both are asked until they agree: what moves in between is told by the next look."""
    control = fast_system.addresses["control_api"]
    with page_at(fast_system, "overview") as page:
        wait_for(lambda: _shown(page) == _told(control), 40, "the same numbers on the page and from the API")


def _told(control: str) -> dict[str, tuple[str, str, str]]:
    status: dict[str, Any] = httpx.get(f"{control}/v1/status", timeout=10).json()
    return {
        name: (region["link"], f"{region['points_ok']} of {len(region['points'])}", _ready(region))
        for name, region in status["regions"].items()
    }


def _ready(region: dict[str, Any]) -> str:
    ready = [node["ready"] for node in region["node_urls"]]
    return f"{sum(map(bool, ready))} of {len(ready)}"


def _shown(page: Page) -> dict[str, tuple[str, str, str]]:
    page.wait_for_timeout(200)
    found = {}
    for card in page.locator(".card.region").all():
        values = card.locator("dd").all_inner_texts()
        link = card.locator(".link").inner_text().split()[1]
        found[card.get_by_role("link").inner_text()] = (link, values[0], values[1])
    return found


def test_a_cut_region_shows_as_cut_and_as_linked_when_it_is_healed(
    fast_system: LocalSystem, record_property: Any
) -> None:
    with traffic(fast_system), page_at(fast_system, "overview") as page:
        card = page.locator(".card.region", has=page.get_by_role("link", name="ap-south"))
        expect(card).to_contain_text("linked", timeout=PATIENCE_MS)
        try:
            began = time.monotonic()
            fast_system.cli("cut", "ap-south")
            expect(card).to_contain_text("cut off since", timeout=PATIENCE_MS)
            record_property("cut_shown_s", round(time.monotonic() - began, 2))
            expect(page.locator(".sentence.bad").first).to_contain_text("ap-south is cut off since")
            # Long enough that it was not merely silent for a moment: what it falls back to is told.
            expect(page.locator(".sentence.bad").first).to_contain_text("base", timeout=PATIENCE_MS)
        finally:
            began = time.monotonic()
            fast_system.cli("heal", "ap-south")
        expect(card).to_contain_text("linked", timeout=PATIENCE_MS)
        record_property("heal_shown_s", round(time.monotonic() - began, 2))
    fast_system.settle()


def test_a_page_outlives_restarts_of_dashboard_and_control_api_and_says_so(fast_system: LocalSystem) -> None:
    with page_at(fast_system, "audit", away=True) as page:
        expect(page.locator(".audit li").first).to_be_visible(timeout=PATIENCE_MS)
        page.evaluate("window.sameTab = true")
        pids = fast_system.status()["pids"]
        try:
            fast_system.kill(pids["control_api"])
            expect(page.locator(".away")).to_contain_text("The control API does not answer", timeout=PATIENCE_MS)
            expect(page.locator(".live.on")).to_be_visible()
            fast_system.kill(pids["dashboard"])
            expect(page.locator(".lost")).to_contain_text("has not been heard since", timeout=PATIENCE_MS)
        finally:
            fast_system.cli("up", "--detach", "--no-traffic", "--no-stand-in")
        expect(page.locator(".live.on")).to_be_visible(timeout=PATIENCE_MS)
        expect(page.locator(".lost, .away")).to_have_count(0, timeout=PATIENCE_MS)
        page.get_by_role("button", name="Read again").click()
        expect(page.locator(".audit li").first).to_be_visible(timeout=PATIENCE_MS)
        assert page.evaluate("window.sameTab")
    fast_system.settle()
