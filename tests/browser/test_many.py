"""A hundred regions and a thousand rules: pages stay quick, small, and usable."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Served
from tests.browser.many import heap
from tests.browser.synthetic import MANY, hello, synthetic
from tests.browser.world import ACME

pytestmark = pytest.mark.timeout(180)
PATIENCE_MS = 40_000
FRAMES = 60


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with synthetic(every_s=0.1) as address:
        yield address


NAMED = {"points", "bases", "regions", "totals", "begin", "refused", "log_age_ms", "behind", "behind_here"}
"""Whose names are data: those of regions, rules or topics."""
NOW_AND_THEN = {"sentences", "address", "candidates"}


def shape(told: Any, names_are_data: bool = False) -> Any:
    """The names in it, all the way down; of lists and of mappings by name, of their first alone."""
    if isinstance(told, list):
        return [shape(told[0])] if told else []
    if not isinstance(told, dict):
        return None
    if names_are_data:
        return [shape(next(iter(told.values()), None))]
    return {name: shape(value, name in NAMED) for name, value in told.items() if name not in NOW_AND_THEN}


def test_the_frames_are_shaped_like_those_of_a_dashboard(browser: Browser, served: Served) -> None:
    """Or what follows would say nothing of it."""
    page = browser.new_page()
    page.goto(served.url)
    for _ in range(60):  # until the keys of the busiest rule are told
        text = page.evaluate(
            """() => new Promise(done => { const stream = new EventSource('events');
                stream.addEventListener('hello', event => { stream.close(); done(event.data); }); })"""
        )
        real, ours = json.loads(text), hello(MANY)
        real["points"] = {"-": real["points"].get("default/api-global", {})}
        if real["points"]["-"].get("keys"):
            break
        time.sleep(0.5)
    page.close()
    for frame in (real, ours):
        frame["bases"] = frame["bases"]["default"]
    assert shape(ours) == shape(real)


REMEMBERED = (
    f"series?domain=default&rule=api-global&key={ACME}",
    "keys?domain=default&rule=api-global",
    f"shares/steps?key={ACME}",
    f"shares/records?key={ACME}&limit=5",
    f"shares/at?time=9000000000000&key={ACME}&limit=1",
    "sync",
)


def test_what_is_remembered_is_shaped_like_a_dashboards(served: Served, url: str) -> None:
    for path in REMEMBERED:
        real = wait_for_some(f"{served.url}/v1/{path}")
        ours = httpx.get(f"{url}/v1/{path}", timeout=20).json()
        if path == "sync":  # of the stream's, and none there
            del real["regions"], ours["regions"]
        assert shape(ours) == shape(real), path


def wait_for_some(url: str) -> Any:
    """Until lists in the answer have something in them: it has just begun to be remembered."""
    for _ in range(200):
        told = httpx.get(url, timeout=20).json()
        if all(told.get(name) != [] for name in ("steps", "keys", "at_ms")):
            return told
        time.sleep(0.1)
    raise AssertionError(f"nothing was remembered: {told}")


def test_frames_do_not_pile_up_in_the_page(browser: Browser, url: str) -> None:
    """In frames, not in seconds: what each leaves behind would be seen after some hundred of them."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.goto(f"{url}/#/overview")
    expect(page.locator(".rows tbody tr")).to_have_count(MANY.regions)
    cdp = context.new_cdp_session(page)
    page.evaluate(COUNT)
    nodes = []
    for _ in range(3):
        page.wait_for_function(f"() => window.taken >= {FRAMES}", timeout=PATIENCE_MS)
        page.evaluate("window.taken = 0")
        heap(cdp)
        nodes.append(cdp.send("Memory.getDOMCounters")["nodes"])
    # What is thrown away and still held by somebody would be counted, twenty by each row that came and went.
    assert nodes[2] < nodes[0] * 1.05, nodes
    context.close()


COUNT = """() => { window.taken = 0; const live = document.querySelector('.rows tbody');
    const all = {subtree: true, characterData: true, childList: true};
    new MutationObserver(() => { window.taken += 1; }).observe(live, all); }"""


def test_of_a_thousand_rules_one_is_found(browser: Browser, url: str) -> None:
    page = browser.new_page()
    page.goto(f"{url}/#/rules")
    expect(page.get_by_role("heading", name="1,000 rules")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(50)
    page.get_by_role("searchbox").fill("limit-0777")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto(f"{url}/#/overview")
    expect(page.locator(".quota-table tbody tr")).to_have_count(10)
    page.close()


def test_a_region_in_trouble_stands_first_of_a_hundred(browser: Browser, url: str) -> None:
    page = browser.new_page()
    page.goto(f"{url}/#/overview")
    first = page.locator(".rows tbody tr").first
    expect(first).to_contain_text("region-007")
    expect(first).to_contain_text("cut off")
    page.close()
