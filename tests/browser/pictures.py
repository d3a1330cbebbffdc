"""``python -m tests.browser.pictures [DIRECTORY]``: pictures of every page, from a system that it runs.

Every page at 1440 and 390 pixels, light and dark; those that the documentation shows go to ``docs/pictures``.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from infra.local import local
from infra.local.layout import load_layout
from tests.browser.conftest import CHROMIUM

BASE_PORT = 22_400
WARM_S = 150
"""Until charts have something to show."""
PATIENCE_MS = 60_000
DOCS = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SHOWN = (
    *("overview-light-1440", "overview-light-390", "cut-light-1440", "quota-dark-1440"),
    *("region-dark-1440", "sync-light-1440", "rule-light-1440", "keys-light-1440"),
)
"""Those that the documentation shows."""

PAGES = {
    "overview": "overview",
    "quota": "quota?rule=default/api-global",
    "region": "region?name=us-east",
    "sync": "sync",
    "rules": "rules",
    "versions": "rules?view=versions",
    "shadow": "rules?view=shadow",
    "keys": "keys?client_key=acme&resource=GET+/items",
    "audit": "audit",
    "try": "try?client_key=acme&resource=GET+/items",
}


def shoot(page: Page, to: Path, *, whole: bool = True) -> None:
    page.locator(".live.on").wait_for(timeout=PATIENCE_MS)
    page.wait_for_timeout(3_000)
    page.screenshot(path=to, full_page=whole)
    print(to, flush=True)


def everything(browser: Browser, url: str, to: Path) -> None:
    for scheme in ("light", "dark"):
        for width in (1440, 390):
            context = browser.new_context(
                viewport={"width": width, "height": 900},
                color_scheme=scheme,  # type: ignore[arg-type]
            )
            page = context.new_page()
            for name, address in PAGES.items():
                page.goto(f"{url}/#/{address}")
                if name == "try":
                    page.get_by_role("button", name="Send the check").click(timeout=PATIENCE_MS)
                shoot(page, to / f"{name}-{scheme}-{width}.png")
            page.goto(f"{url}/#/rules?rule=default/orders-free")
            text = page.locator("textarea")
            text.wait_for(timeout=PATIENCE_MS)
            text.fill(text.input_value().replace('"capacity": 20', '"capacity": 40'))
            text.evaluate("editor => { editor.setSelectionRange(0, 0); editor.scrollTop = 0; }")
            page.get_by_role("button", name="See what it will do").first.click()
            shoot(page, to / f"rule-{scheme}-{width}.png")
            context.close()


def cut(browser: Browser, url: str, to: Path, directory: Path) -> None:
    local.cut(directory, "eu-west")
    try:
        context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light")
        page = context.new_page()
        page.goto(f"{url}/#/overview")
        page.locator(".region.cut").wait_for(timeout=PATIENCE_MS)
        page.wait_for_timeout(15_000)
        shoot(page, to / "cut-light-1440.png")
        context.close()
    finally:
        local.heal(directory, "eu-west")


def main() -> int:
    to = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="apportion-pictures-"))
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="apportion-pictured-") as place:
        directory = Path(place)
        try:
            local.up(directory, base_port=BASE_PORT, say=print)
            layout = load_layout(directory.resolve())
            assert layout is not None
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                page = browser.new_page()
                page.wait_for_timeout(WARM_S * 1000)
                everything(browser, layout.dashboard, to)
                cut(browser, layout.dashboard, to, directory)
                browser.close()
        finally:
            local.down(directory)
    DOCS.mkdir(exist_ok=True)
    for name in SHOWN:
        shutil.copy(to / f"{name}.png", DOCS / f"{name.removesuffix('-1440')}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
