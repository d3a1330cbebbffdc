"""The page in a real browser, fed with real messages."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import Served

pytestmark = pytest.mark.timeout(90)


@contextmanager
def page_of(
    browser: Browser, served: Served, name: str = "overview", *, width: int = 1280, scheme: Any = "light"
) -> Iterator[Page]:
    """A page that must not log an error, nor ask another host for anything."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: errors.append(request.url) if served.url not in request.url else None)
    page.goto(f"{served.url}/#/{name}")
    expect(page.locator(".live.on")).to_be_visible()
    expect(page.locator("h1")).to_have_count(1)
    yield page
    context.close()
    assert errors == []


def test_shares_of_all_regions_are_shown_as_numbers_and_as_a_chart(browser: Browser, served: Served) -> None:
    with page_of(browser, served, "quota") as page:
        expect(page.locator(".rule canvas")).to_have_count(3)
        shares = page.get_by_role("region", name="Shares").locator("table")
        for region in ("us-east", "eu-west", "ap-south"):
            expect(shares.get_by_role("rowheader", name=region)).to_be_visible()
        # What they sum to at the moment: a share that is on its way is in none of them.
        expect(shares.locator("tfoot")).to_contain_text(re.compile(r"(100|[1-9]\d)\.\d\s%"))
        page.wait_for_function(PAINTED, arg=["0,114,178", "230,159,0", "0,158,115"])


PAINTED = """wanted => {
    const canvas = document.querySelector('.rule canvas');
    if (canvas === null) return false;  // drawn anew just now
    const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const colours = new Set();
    for (let at = 0; at < data.length; at += 4)
        if (data[at + 3] === 255) colours.add(data.slice(at, at + 3).join());
    return wanted.every(one => colours.has(one));
}"""
"""One area of its own colour for each region."""


def test_rates_come_from_what_the_regions_counted(browser: Browser, served: Served) -> None:
    with page_of(browser, served, "quota?range=5m") as page:
        page.wait_for_function("() => !['–', '0/s', undefined].includes(" + OFFERED + ")")
        assert 100 < int(page.evaluate(OFFERED).removesuffix("/s")) < 200


def test_a_region_is_shown_with_its_parts(browser: Browser, served: Served) -> None:
    with page_of(browser, served) as page:
        expect(page.locator(".region")).to_have_count(3)
        region = page.locator(".region", has_text="us-east")
        expect(region).to_contain_text("3 of 3")
        expect(region).to_contain_text("linked")


OFFERED = "document.querySelectorAll('.figures dd:not(.note)')[1]?.textContent"


def test_another_key_can_be_picked_with_the_keyboard(browser: Browser, served: Served) -> None:
    with page_of(browser, served, "quota?range=5m") as page:
        picker = page.get_by_role("combobox", name=re.compile("^Key"))
        expect(picker.locator("option")).to_have_count(4)
        picker.focus()
        picker.select_option(label="user:42")
        expect(picker).to_have_value("rl:{01}:default/api-global:user%3A42")
        assert "key=rl%3A%7B01%7D" in page.url
        chart = page.locator(".chart").first
        expect(chart).to_be_visible()
        page.wait_for_function(PAINTED, arg=["0,114,178"])  # the key's past has come
        chart.focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".rule table thead th").first).to_contain_text(":")
        page.keyboard.press("Escape")
        expect(page.locator(".rule table thead th").first).to_have_text("last")


def test_a_region_that_is_cut_off_is_said_in_a_plain_sentence(browser: Browser, served: Served) -> None:
    with page_of(browser, served) as page:
        expect(page.locator(".sentence.good")).to_be_visible()
        served.do(lambda: served.world.cut.add("ap-south"))
        sentence = page.locator(".sentence.bad")
        expect(sentence).to_contain_text("ap-south is cut off since")
        expect(sentence).to_contain_text("it goes on with its leases until")
        expect(page.locator(".region.cut")).to_contain_text("cut off since")
        served.do(lambda: served.world.cut.clear())
        expect(page.locator(".sentence.good")).to_be_visible()


def test_a_redis_point_that_does_not_answer_is_named(browser: Browser, served: Served) -> None:
    served.do(lambda: served.world.broken.add(("eu-west", "127.0.0.1:7002")))
    with page_of(browser, served) as page:
        expect(page.locator(".sentence.bad")).to_contain_text(
            "eu-west: 1 of 3 Redis points not reached (127.0.0.1:7002)"
        )


def test_what_redis_decides_at_the_floor_is_not_said_to_be_decided_without_it(
    browser: Browser, served: Served
) -> None:
    served.do(lambda: served.world.at_floor.add("eu-west"))
    with page_of(browser, served) as page:
        region = page.locator(".region", has_text="eu-west")
        expect(region).to_contain_text("decided at the floor")
        expect(page.locator(".regions")).not_to_contain_text("without Redis")


def test_a_hashed_key_is_shown_short_and_known_as_such(browser: Browser, served: Served) -> None:
    with page_of(browser, served) as page:
        said = page.evaluate(
            "keys => import('/static/format.js').then(m => keys.map(k => [m.keyName(k), m.isHashed(k)]))",
            ["rl:{a}:default/login:#336dd0a1b2c3d4e5f60718293a4b5c6d", "rl:{a}:default/login:u%3A42"],
        )
        assert said == [["#336dd0a1…", True], ["u:42", False]]


SHOWN = {"overview": ".region", "quota": ".rule canvas", "region": ".card dl", "sync": ".card table"}
"""By page: what stands there when it is drawn."""


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_nothing_is_wider_than_the_screen(
    browser: Browser, served: Served, name: str, scheme: str, width: int
) -> None:
    with page_of(browser, served, name, width=width, scheme=scheme) as page:
        expect(page.locator(SHOWN[name]).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(244, 246, 249)" if scheme == "light" else "rgb(14, 18, 22)"
        )


def test_embedded_mode_says_so(browser: Browser, served_embedded: Served) -> None:
    with page_of(browser, served_embedded) as page:
        expect(page.locator(".banner")).to_contain_text("Embedded mode")


def test_a_closed_tab_frees_its_stream(browser: Browser, served: Served) -> None:
    for _ in range(3):
        with page_of(browser, served):
            pass
    with page_of(browser, served) as page:
        deadline = time.monotonic() + 10
        while len(served.streams) > 1:
            assert time.monotonic() < deadline, "streams of closed tabs pile up"
            page.wait_for_timeout(200)
