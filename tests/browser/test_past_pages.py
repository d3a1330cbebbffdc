"""Quota and Sync: numbers on the page equal those of the API, and those of what the world has told itself."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import Served, serve
from tests.browser.test_dashboard_page import page_of
from tests.browser.world import ACME, OTHER, REGIONS

pytestmark = pytest.mark.timeout(120)
RECORDS_A_SECOND = 6
SECONDS = 8


def get(served: Served, path: str, **query: Any) -> dict[str, Any]:
    answer = httpx.get(f"{served.url}{path}", params=query, timeout=10)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def until(served: Served, is_so: Any, path: str, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(200):
        found = get(served, path, **query)
        if is_so(found):
            return found
        time.sleep(0.1)
    raise AssertionError(f"not so after 20 s: {found}")


def number(text: str) -> float:
    return float(re.sub(r"[^0-9.]", "", text))


@dataclass(frozen=True)
class Told:
    """A dashboard whose world has told for some seconds, and nothing after ``end_ms``."""

    served: Served
    end_ms: int


@pytest.fixture(scope="module")
def told() -> Iterator[Told]:
    for served in serve("kafka"):
        yield _silent_by_now(served)


def _silent_by_now(served: Served) -> Told:
    world = served.world
    for _ in range(600):
        if world.n >= 100 + SECONDS * RECORDS_A_SECOND:
            break
        time.sleep(0.1)
    served.do(lambda: setattr(world, "silent", True))
    time.sleep(1.5)
    last_n = world.n - len(REGIONS)  # the last records are of the other key
    until(served, lambda one: any(step["n"] >= last_n for step in one["steps"]), "/v1/shares/records", key=ACME)
    return Told(served, int(time.time() * 1000))


def counted(served: Served, key: str) -> dict[str, tuple[int, int]]:
    """Allowed and denied by region, by the world's own book.  What its first messages told was there before."""
    found = {}
    for region in REGIONS:
        now, first = served.world.totals[region, key], served.world.first[region, key]
        found[region] = now[0] - first[0], now[1] - first[1]
    return found


def test_numbers_of_a_key_are_those_of_the_api_and_of_the_worlds_own_book(browser: Browser, told: Told) -> None:
    served, end_ms = told.served, told.end_ms
    query = {"domain": "default", "rule": "api-global", "key": ACME, "from": end_ms - 300_000, "to": end_ms}
    expected = counted(served, ACME)
    series = until(served, lambda one: sum(t["allowed"] for t in one["totals"].values())
                   == sum(allowed for allowed, _ in expected.values()), "/v1/series", **query)  # fmt: skip
    assert {name: (one["allowed"], one["denied"]) for name, one in series["totals"].items()} == expected
    with page_of(browser, served, f"quota?rule=default/api-global&range=5m&to={end_ms}&key={ACME}") as page:
        rates = page.get_by_role("region", name="Rates")
        expect(rates.locator("tbody tr")).to_have_count(3)
        for region, (allowed, denied) in expected.items():
            cell = rates.locator("tbody tr", has=page.get_by_role("rowheader", name=region)).locator("td").nth(2)
            assert [int(number(text)) for text in cell.inner_text().split("\n")] == [allowed, denied]
        held = get(served, "/v1/shares/at", time=end_ms, key=ACME)["keys"][0]["regions"]
        shares = page.get_by_role("region", name="Shares")
        for region in REGIONS:
            text = shares.locator("tbody tr", has=page.get_by_role("rowheader", name=region)).locator("td").first
            assert number(text.inner_text()) == pytest.approx(held[region]["units"] / 100, abs=0.051)
        assert number(shares.locator("tfoot td").first.inner_text()) <= 100.0


def test_a_link_reproduces_the_view(browser: Browser, told: Told) -> None:
    served = told.served
    with page_of(browser, served, "quota?rule=default/api-global&range=5m") as page:
        expect(page.get_by_role("region", name="Rates")).to_be_visible()
        page.get_by_role("combobox", name=re.compile("^Key")).select_option(OTHER)
        page.get_by_role("button", name="15 min").click()  # of an hour the seconds go meanwhile
        page.get_by_role("button", name="hold").click()
        expect(page.get_by_role("button", name=re.compile("until"))).to_be_visible()
        page.wait_for_function("() => !document.querySelector('main').textContent.includes('Reading')")
        link, seen = page.url, page.locator(".rule table").all_inner_texts()
    assert all(part in link for part in ("rule=", "key=", "range=15m", "to="))
    with page_of(browser, served, link.partition("#/")[2]) as page:
        expect(page.get_by_role("region", name="Shares")).to_be_visible()
        expect(page.locator(".rule table").first).to_contain_text(seen[0].split("\n")[-1].split("\t")[-1])
        assert page.locator(".rule table").all_inner_texts() == seen


def test_each_hand_over_is_listed_as_the_log_has_it(browser: Browser, told: Told) -> None:
    served, end_ms = told.served, told.end_ms
    query = {"key": ACME, "from": end_ms - 300_000, "to": end_ms}
    steps = get(served, "/v1/shares/steps", **query)["steps"]
    with page_of(browser, served, f"quota?rule=default/api-global&range=5m&to={end_ms}&key={ACME}") as page:
        rows = page.locator(".handovers tbody tr")
        expect(rows).to_have_count(12)
        for place, step in enumerate(reversed(steps[-3:])):
            text = rows.nth(place).inner_text()
            assert step["region"] in text
            held = re.search(r"→ ([\d.]+)", text)  # to a tenth: which way a half goes is the browser's own
            assert held
            assert abs(float(held[1]) - step["units"] / 100) <= 0.0501
            assert f"{step['epoch']}·{step['n']}" in text


def test_the_timeline_moves_back_to_who_held_what(browser: Browser, told: Told) -> None:
    served, end_ms = told.served, told.end_ms
    moments = sorted({one["at_ms"] for one in get(served, "/v1/shares/records", key=ACME)["steps"]})
    middle = moments[len(moments) // 2]
    held = get(served, "/v1/shares/at", time=middle, key=ACME)["keys"][0]
    now = get(served, "/v1/shares/at", time=end_ms, key=ACME)["keys"][0]
    assert held["regions"] != now["regions"]
    with page_of(browser, served, f"sync?at={middle}&key={ACME}") as page:
        table = page.locator(".held")
        expect(table.locator("tbody tr")).to_have_count(1)
        cells = table.locator("tbody td").all_inner_texts()
        for region, cell in zip(REGIONS, cells, strict=False):
            assert number(cell.split("\n")[0]) == pytest.approx(held["regions"][region]["units"] / 100, abs=0.051)
        page.get_by_role("button", name="live").click()
        expect(page.locator("output")).to_contain_text("live")
        page.get_by_role("button", name="last move").click()
        page.wait_for_function("() => location.hash.includes('at=')")


def test_sync_tells_of_the_leader_and_of_what_is_remembered(browser: Browser, told: Told) -> None:
    with page_of(browser, told.served, "sync") as page:
        expect(page.locator(".figures")).to_contain_text("epoch 7")
        expect(page.locator(".figures")).to_contain_text("/")
        for region in REGIONS:
            expect(page.get_by_role("link", name=region).first).to_be_visible()
        expect(page.get_by_text("What is remembered")).to_be_visible()
        expect(page.locator(".card", has_text="Records of the log").locator("canvas")).to_have_count(1)


def test_a_base_that_changes_is_lent_and_borrowed_by_what_it_is_then(browser: Browser, told: Told) -> None:
    region = {"units": 5_000, "base": 5_000, "is_base": True, "session": "alive"}
    history = {
        "from_ms": 1_000, "to_ms": 9_000, "since_ms": 1_000, "in_windows": False,
        "begin": {"eu": region, "us": region},
        "steps": [
            {"at_ms": 2_000, "key": "k", "region": "us", "units": 4_000, "kind": "keep",
             "held": {"us": 4_000}},
            {"at_ms": 3_000, "key": "", "region": "us", "units": None, "kind": "bases", "base": 2_500, "held": {}},
            {"at_ms": 3_000, "key": "", "region": "eu", "units": None, "kind": "bases", "base": 7_500,
             "held": {"eu": 7_500}},
        ],
    }  # fmt: skip
    groups = [{"name": name, "index": 0, "regions": [name]} for name in ("eu", "us")]
    with page_of(browser, told.served) as page:
        columns = page.evaluate(STEP_COLUMNS, [history, groups])
    assert columns["t"] == [1, 2, 3, 9]
    assert columns["base"] == [[50, 50, 75, 75], [50, 50, 25, 25]]
    assert columns["own"] == [[50, 50, 75, 75], [50, 40, 25, 25]], "who rests at its base follows it"
    assert columns["loan"] == [[0, 0, 0, 0], [0, 0, 15, 15]], "of a lease the rest is on loan"


def test_shares_together_stay_within_the_whole_where_a_region_lowered_itself_without_a_record(
    browser: Browser, told: Told
) -> None:
    begin = {
        "eu": {"units": 4_500, "base": 5_000, "is_base": False, "session": "alive", "given_back": 1_500},
        "us": {"units": 5_500, "base": 5_000, "is_base": False, "session": "alive", "given_back": 0},
    }
    steps = [
        {"at_ms": 2_000, "key": "", "region": "eu", "units": None, "kind": "renewed", "held": {}},
        {
            "at_ms": 3_000,
            "key": "k",
            "region": "us",
            "units": 6_000,
            "kind": "grow",
            "held": {"us": 6_000, "eu": 4_000},
        },
    ]
    history = {"from_ms": 1_000, "to_ms": 9_000, "since_ms": 1_000, "begin": begin, "steps": steps}
    groups = [{"name": name, "index": 0, "regions": [name]} for name in ("eu", "us")]
    with page_of(browser, told.served) as page:
        columns = page.evaluate(STEP_COLUMNS, [history, groups])
    assert columns["own"] == [[45, 45, 40, 40], [50, 50, 50, 50]]
    assert columns["loan"] == [[0, 0, 0, 0], [5, 5, 10, 10]]


def test_more_steps_than_can_be_told_apart_are_drawn_on_average_and_end_with_what_holds(
    browser: Browser, told: Told
) -> None:
    times = [0, 1, 2, 3, 4, 5, 6, 7, 8]
    columns = {"t": times, "own": [[40, 60] * 4 + [50]], "loan": [[0, 10] * 4 + [10]], "base": [[50] * 9],
               "sessions": [["over"] + ["alive"] * 8]}  # fmt: skip
    with page_of(browser, told.served) as page:
        found = page.evaluate(THINNED, [columns, 4])
        assert page.evaluate(THINNED, [columns, 9]) == columns, "few are drawn as they are"
    assert found == {
        "t": [0, 2, 4, 6, 8], "own": [[50, 50, 50, 50, 50]], "loan": [[5, 5, 5, 5, 10]], "base": [[50] * 5],
        "sessions": [["over", "alive", "alive", "alive", "alive"]],
    }  # fmt: skip


def test_nothing_is_drawn_of_what_was_never_denied(browser: Browser, told: Told) -> None:
    columns = {"t": [1, 2], "denied": [[0, 0], [0, 3]]}
    with page_of(browser, told.served) as page:
        data = page.evaluate(
            "one => import('/static/past_charts.js').then(charts => charts.deniedData(one))", columns
        )
    assert data == [[1, 2], [0, 3], [None, None]]


THINNED = "given => import('/static/past_charts.js').then(charts => charts.thinned(...given))"
STEP_COLUMNS = "given => import('/static/past_charts.js').then(charts => charts.stepColumns(...given))"


@pytest.mark.parametrize("name", ["quota", "sync"])
@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_of_the_past_is_wider_than_the_screen(browser: Browser, told: Told, name: str, width: int) -> None:
    with page_of(browser, told.served, name, width=width) as page:
        expect(page.locator("canvas").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
