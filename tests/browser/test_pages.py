"""Every page on a running system, by hand and keyboard as people use them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from infra.install import axe
from tests.browser.dev_system import DevSystem, dev_system

pytestmark = pytest.mark.timeout(120)
SHOWN = {
    "overview": ".quota-table tbody tr",
    "quota": ".rule canvas",
    "region?name=eu-west": ".card table tbody tr",
    "sync": ".held",
    "rules": ".card tbody tr",
    "rules?view=versions": ".card tbody tr",
    "rules?view=shadow": ".card tbody tr",
    "rules?rule=default/orders-free": "textarea",
    "keys": ".card form",
    "keys?client_key=acme&resource=POST+/orders": ".card tbody tr",
    "audit": ".audit li",
    "try?client_key=acme&resource=POST+/orders": ".card form",
}
"""By page: what stands there when it has been drawn with data."""


class Traffic:
    """Checks of a few clients in every region, until it is ended."""

    def __init__(self, system: DevSystem) -> None:
        self._system = system
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(20)

    def _run(self) -> None:
        checks = [{"client_key": "user:42", "resource": "GET /items"}] * 4
        checks += [{"client_key": "acme", "resource": "POST /orders"}] * 6
        with httpx.Client(timeout=10) as client:
            while not self._over.wait(0.2):
                for region in ("us-east", "eu-west", "ap-south"):
                    client.post(f"{self._system.node(region)}/v1/check:batch", json={"checks": checks})


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevSystem]:
    with dev_system(tmp_path_factory.mktemp("dev") / "log") as one, Traffic(one):
        yield one


@contextmanager
def page_of(browser: Browser, system: DevSystem, name: str, scheme: Any = "light") -> Iterator[Page]:
    """A page that must not log an error, but for an answer that a busy dashboard puts off: pages ask again."""
    size: Any = {"width": 1280, "height": 900}
    context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if _is_error(message) else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{system.dashboard}/#/{name}")
    expect(page.locator(SHOWN[name]).first).to_be_visible()
    yield page
    context.close()
    assert errors == []


def _is_error(message: Any) -> bool:
    return message.type == "error" and "status of 503" not in message.text


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", SHOWN)
def test_no_page_has_a_serious_fault_of_accessibility(browser: Browser, system: DevSystem, name: str) -> None:
    with page_of(browser, system, name) as page:
        page.evaluate(axe().read_text())
        for theme in ("light", "dark"):
            page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
            found = page.evaluate(AXE)
            assert found == [], theme


AXE = """async () => (await axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']}))
    .violations.filter(one => ['serious', 'critical'].includes(one.impact))
    .map(one => [one.id, one.nodes.slice(0, 3).map(node => node.html + ' ' + node.failureSummary)])"""


def rule_of(system: DevSystem, rule: str) -> dict[str, Any]:
    shown: dict[str, Any] = httpx.get(f"{system.control}/rules/{rule}").json()
    return shown


def test_a_rule_is_changed_in_two_presses_and_only_as_it_was_tried(browser: Browser, system: DevSystem) -> None:
    with page_of(browser, system, "rules?rule=default/orders-free") as page:
        text, put = page.locator("textarea"), page.get_by_role("button", name="Put it into force")
        before = rule_of(system, "orders-free")
        text.fill(text.input_value().replace('"capacity": 20', '"capacity": 30'))
        page.get_by_role("button", name="See what it will do").first.click()
        row = page.locator(".before-after tr", has_text="capacity")
        expect(row).to_contain_text("20")
        expect(row.locator(".after")).to_have_text("30")
        assert rule_of(system, "orders-free") == before
        text.fill(text.input_value().replace('"capacity": 30', '"capacity": 31'))
        expect(put).to_have_count(0)
        page.get_by_role("button", name="See what it will do").first.click()
        page.get_by_label("Why").fill("a longer launch")
        put.click()
        expect(page.locator(".sentence.good")).to_contain_text("Accepted as version")
        assert rule_of(system, "orders-free")["loaded"]["capacity"] == 31
        page.goto(f"{system.dashboard}/#/audit")
        entry = page.locator(".audit li", has_text="orders-free").first
        expect(entry).to_contain_text("a longer launch")
        page.goto(f"{system.dashboard}/#/rules?view=versions")
        expect(page.locator(".before-after tr", has_text="capacity")).to_contain_text("31")


def test_a_change_that_is_refused_says_which_field_and_changes_nothing(browser: Browser, system: DevSystem) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{system.dashboard}/#/rules?rule=default/orders-gold")
    text = page.locator("textarea")
    expect(text).to_be_visible()
    before = rule_of(system, "orders-gold")
    text.fill(text.input_value().replace('"capacity": 300', '"capacity": -1'))
    page.get_by_role("button", name="See what it will do").first.click()
    expect(page.locator(".problem")).to_contain_text("capacity")
    text.fill("{")
    expect(page.get_by_role("button", name="See what it will do").first).to_be_disabled()
    assert rule_of(system, "orders-gold") == before
    context.close()


def test_a_client_is_explained_with_the_numbers_of_the_api_and_blocked_and_let_in_again(
    browser: Browser, system: DevSystem
) -> None:
    with page_of(browser, system, "keys?client_key=acme&resource=POST+/orders") as page:
        told = httpx.get(
            f"{system.control}/v1/explain", params={"client_key": "acme", "resource": "POST /orders"}
        ).json()
        card = page.locator(".card", has=page.get_by_role("heading", name="Rule orders-gold"))
        (shared,) = told["keys"].values()
        buckets = card.get_by_role("region", name="Buckets of orders-gold").locator("tbody tr")
        for _ in range(20):  # a region that was too busy to answer has no row until it is asked again
            buckets.first.wait_for()
            if buckets.count() == len(shared["bases"]):
                break
            page.get_by_role("button", name="Ask again").click()
            page.wait_for_timeout(1_000)
        for region, base in shared["bases"].items():
            expect(buckets.filter(has_text=region)).to_contain_text(f"{base / 100:.1f}")
        card.get_by_text("Override or block this key").click()
        card.get_by_label("What").select_option("block")
        card.get_by_role("button", name="See what it will do").click()
        card.get_by_role("button", name="Block it").click()
        overrides = page.locator(".override", has_text="client_key=acme")
        expect(overrides).to_contain_text("blocked")
        page.get_by_role("button", name="Ask again").click()
        expect(page.locator(".badge.bad", has_text="denied").first).to_be_visible()
        overrides.locator("summary").click()
        overrides.get_by_role("button", name="See what it will do").click()
        overrides.get_by_role("button", name="End it now").click()
        expect(page.locator(".override")).to_have_count(0)


def test_a_check_by_hand_shows_its_answer_and_headers(browser: Browser, system: DevSystem) -> None:
    with page_of(browser, system, "try?client_key=acme&resource=POST+/orders") as page:
        page.get_by_label("Client key").fill("somebody new")
        page.get_by_label("Times").fill("3")
        page.get_by_role("button", name="Send 3 checks").click()
        expect(page.locator(".audit li")).to_have_count(3)
        expect(page.get_by_text("3 allowed, 0 denied")).to_be_visible()
        headers = page.locator(".audit li").first.locator("table")
        expect(headers).to_contain_text("ratelimit-policy")
        expect(headers).to_contain_text("orders-free")
        expect(page.locator(".audit li").first.locator("pre")).to_contain_text('"allowed": true')


def test_a_region_is_shown_in_all_its_parts(browser: Browser, system: DevSystem) -> None:
    with page_of(browser, system, "region?name=eu-west") as page:
        told = httpx.get(f"{system.dashboard}/v1/region", params={"name": "eu-west"}).json()
        shards, nodes = page.locator("[aria-label=Shards]"), page.locator("[aria-label=Nodes]")
        for point in told["agent"]["points"]:
            row = shards.locator("tr", has_text=point["point"].split("/")[0]).first
            expect(row).to_contain_text("closed")
        expect(nodes).to_contain_text("eu-west-1")
        expect(nodes).to_contain_text("±")
        expect(page.locator("[aria-label='Busiest keys']")).to_contain_text("user:42")


def test_shadow_stands_beside_what_is_in_force(browser: Browser, system: DevSystem) -> None:
    with page_of(browser, system, "rules?view=shadow") as page:
        row = page.locator("tr", has=page.get_by_role("link", name="orders-next"))
        expect(row).to_contain_text("shadow")
        expect(row.locator("td").nth(4)).not_to_have_text("0")
        expect(page.locator("tr", has=page.get_by_role("link", name="orders-gold"))).to_contain_text("enforce")


def test_pages_are_reached_by_keyboard_alone(browser: Browser, system: DevSystem) -> None:
    with page_of(browser, system, "overview") as page:
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("go to Rules")
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)
        for keys, heading in (("gu", "Rules"), ("ga", "Audit"), ("go", "Overview")):
            for key in keys:
                page.keyboard.press(key)
            expect(page.get_by_role("heading", level=1)).to_have_text(heading)
        page.keyboard.press("g")
        page.keyboard.press("u")
        search = page.get_by_role("searchbox")
        expect(search).to_be_visible()
        page.keyboard.press("/")
        expect(search).to_be_focused()
        page.keyboard.type("gold")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.keyboard.press("Tab")
        focused(page.locator("[role=region]"))
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="orders-gold")).to_be_visible()


def focused(one: Locator) -> None:
    expect(one).to_be_focused()


def test_a_link_gives_the_same_view_again(browser: Browser, system: DevSystem) -> None:
    with page_of(browser, system, "rules") as page:
        page.get_by_role("searchbox").fill("gold")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.reload()
        expect(page.get_by_role("searchbox")).to_have_value("gold")
        expect(page.locator("tbody tr")).to_have_count(1)
