"""A hundred regions and a thousand rules: pages stay quick, small, and usable."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.conftest import Served
from tests.browser.many import FILLED, PAGES, TOO_LONG_MS, TaskTrace, heap
from tests.browser.synthetic import MANY, hello, synthetic
from tests.browser.world import ACME

pytestmark = pytest.mark.timeout(180)
PATIENCE_MS = 40_000
FRAMES = 60


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with synthetic(every_s=0.1) as address:
        yield address


NAMED = {"points", "bases", "regions", "totals", "begin", "held", "refused", "log_age_ms", "behind", "behind_here"}
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


@pytest.mark.parametrize("name", PAGES)
def test_no_task_of_a_page_takes_a_tenth_of_a_second(browser: Browser, url: str, name: str) -> None:
    """Of processor time, from opening it on.  What other processes push out of the processor's caches is not the
    page's: it may be opened three times."""
    found = []
    while len(found) < 3 and min(found, default=TOO_LONG_MS) >= TOO_LONG_MS:
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        tasks = TaskTrace(browser, page)
        page.goto(f"{url}/#/{name}")
        expect(page.locator("main table, main form, main canvas").first).to_be_visible()
        page.evaluate(COUNT_FRAMES)
        taken(page, 25)
        found.append(tasks.longest_ms())
        page.close()
    assert 0 < min(found) < TOO_LONG_MS, found


COUNT_FRAMES = """async () => { window.taken = 0; const events = new EventSource('events');
    events.addEventListener('tick', () => { window.taken += 1; }); }"""


def taken(page: Page, frames: int) -> None:
    """Until so many more have come."""
    page.evaluate("window.taken = 0")
    page.wait_for_function(f"() => window.taken >= {frames}", timeout=PATIENCE_MS)


FIRST_REQUESTS_MOST = 40
FIRST_BYTES_MOST = 400_000
FIRST_CPU_S_MOST = 1.0
FIRST_PAINT = """() => { const [paint] = performance.getEntriesByName('first-contentful-paint');
    const before = performance.getEntriesByType('resource').filter(one => one.startTime < paint.startTime);
    return {requests: before.length, bytes: before.reduce((sum, one) => sum + one.encodedBodySize, 0)}; }"""


def test_a_page_is_painted_before_any_data_is_there_and_filled_with_little_work(browser: Browser, url: str) -> None:
    """What makes the first paint come within a second, told on a machine that may be too busy for it: it waits for
    no data, for few small files of one place, and all until it is filled takes less of the processor."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    held, asked = True, list[Route]()
    for pattern in ("**/events", "**/v1/**"):
        page.route(pattern, lambda route: asked.append(route) if held else route.continue_())
    cdp = context.new_cdp_session(page)
    cdp.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(f"{url}/#/overview", wait_until="commit")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.wait_for_function(
        "() => performance.getEntriesByName('first-contentful-paint').length > 0", timeout=PATIENCE_MS
    )
    first = page.evaluate(FIRST_PAINT)
    assert 0 < first["requests"] <= FIRST_REQUESTS_MOST
    assert 0 < first["bytes"] <= FIRST_BYTES_MOST
    held = False
    for route in asked:
        route.continue_()
    expect(page.locator(FILLED)).to_be_visible(timeout=PATIENCE_MS)
    used = {one["name"]: one["value"] for one in cdp.send("Performance.getMetrics")["metrics"]}
    context.close()
    assert 0 < used["TaskDuration"] < FIRST_CPU_S_MOST


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
