"""``python -m tests.browser.many [SECONDS]``: pages that are told of a hundred regions and a thousand rules.

Told per page: the longest task of the browser's main thread, the processor time of a frame (the same on a busy
machine, where tasks only take longer), and how the heap grows.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Browser, sync_playwright

from tests.browser.conftest import CHROMIUM
from tests.browser.synthetic import synthetic

PAGES = ("overview", "rules", "region?name=region-007", "keys")
EVERY_S = 0.25
"""Four times as fast as in earnest: what is kept too long shows sooner."""
BEGUN_S = 20
"""Until then the page still fills what it keeps: a minute of each region's rates."""

_WATCH = """() => { window.longest = []; new PerformanceObserver(list => {
    for (const one of list.getEntries()) window.longest.push(Math.round(one.duration)); })
    .observe({type: 'longtask', buffered: false}); }"""


@dataclass(frozen=True)
class Figures:
    """``long_ms``: every task of more than 50 ms, the longest first; ``cpu_ms``: of all of the page's process, by
    frame; heaps in bytes."""

    long_ms: list[int]
    cpu_ms: float
    heap_begin: int
    heap_end: int


def measure(browser: Browser, url: str, name: str, seconds: float) -> Figures:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.goto(f"{url}/#/{name}")
    page.locator(".live.on").wait_for(timeout=60_000)
    page.wait_for_timeout(BEGUN_S * 1000)
    cdp = context.new_cdp_session(page)
    begin = heap(cdp)
    page.evaluate(_WATCH)
    used = _used_s(browser)
    page.wait_for_timeout(seconds * 1000)
    cpu_ms = (_used_s(browser) - used) * 1000 / (seconds / EVERY_S)
    long_ms = sorted(page.evaluate("window.longest"), reverse=True)
    assert page.locator(".live.on").is_visible(), "the page lost its stream"
    figures = Figures(long_ms, cpu_ms, begin, heap(cdp))
    context.close()
    return figures


def heap(cdp: Any) -> int:
    """What is still used when everything else has been thrown away."""
    for _ in range(2):
        cdp.send("HeapProfiler.collectGarbage")
    return int(cdp.send("Runtime.getHeapUsage")["usedSize"])


def _used_s(browser: Browser) -> float:
    """Processor time of the processes that draw pages."""
    told = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")
    return float(sum(one["cpuTime"] for one in told["processInfo"] if one["type"] == "renderer"))


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    with sync_playwright() as playwright, synthetic(EVERY_S) as url:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for name in PAGES:
            found = measure(browser, url, name, seconds / len(PAGES))
            growth = found.heap_end - found.heap_begin
            print(
                f"{name}: longest task {max(found.long_ms, default=0)} ms, "
                f"{sum(1 for one in found.long_ms if one > 100)} above 100 ms, "
                f"{found.cpu_ms:.0f} ms of processor a frame, "
                f"heap {found.heap_begin / 1e6:.1f} MB, grown by {growth / 1e6:+.2f} MB",
                flush=True,
            )
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
