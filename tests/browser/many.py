"""``python -m tests.browser.many [SECONDS]``: pages that are told of a hundred regions and a thousand rules.

Before that, for a tenth of the time, of five regions and 200 rules.

One tab goes around all pages, several times, and is told of everything four times as fast as in earnest. Told
by page: the longest task of the browser's main thread, by the clock (on a busy machine tasks only take longer)
and in processor time, opening the page included, the processor time of a frame, and the heap and the nodes
after each round.

It fails if a task takes more than a tenth of a second of processor time in every round, or if the heap grows by
more than a fifth from the third round on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.conftest import CHROMIUM
from tests.browser.synthetic import MANY, USUAL, Size, key_of, synthetic

PAGES = (
    "overview",
    "quota?rule=default/limit-0000",
    "quota?rule=default/limit-0000&range=1h",
    "region?name=region-007",
    "sync",
    f"sync?key={key_of(0, 0)}",
    "rules",
    "keys",
)
EVERY_S = 0.25
"""What is kept too long shows sooner."""
ROUNDS = 5
BEGUN_S = 5.0
"""Until then a page that has just been opened still asks for what it shows."""
TOO_LONG_MS = 100
SETTLED_ROUND = 3
"""Until then caches fill."""
HEAP_GROWTH_MOST = 1.2
FILLED = ".quota-table tbody tr:first-child"

_WATCH = """() => { window.longest = []; new PerformanceObserver(list => {
    for (const one of list.getEntries()) window.longest.push(Math.round(one.duration)); })
    .observe({type: 'longtask', buffered: false}); }"""


@dataclass
class Figures:
    """``long_ms``: every task of more than 50 ms; ``opened_ms``: those of opening the page; ``task_ms``: processor
    time of the longest task of each round; ``frame_ms``: of all of the page's process, by frame; ``heaps``
    and ``nodes``: bytes, and nodes of the document and of what is held outside of it, after each round."""

    long_ms: list[int] = field(default_factory=list)
    opened_ms: list[int] = field(default_factory=list)
    task_ms: list[float] = field(default_factory=list)
    frame_ms: list[float] = field(default_factory=list)
    heaps: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)

    def faults(self, name: str) -> list[str]:
        """What is wrong.  A task that only one round saw may have been slowed by what else the machine did."""
        found = []
        if min(self.task_ms) > TOO_LONG_MS:
            found.append(f"{name}: a task takes {min(self.task_ms):.0f} ms of processor, {TOO_LONG_MS} at most")
        settled = self.heaps[SETTLED_ROUND - 1 :]
        if settled and max(settled) > settled[0] * HEAP_GROWTH_MOST:
            found.append(f"{name}: the heap grows from {settled[0]:,} to {max(settled):,} bytes")
        return found

    def line(self, name: str) -> str:
        above = sum(one > TOO_LONG_MS for one in self.long_ms)
        longest = max(self.long_ms, default=0)
        heaps = ", ".join(f"{one / 1e6:.1f}" for one in self.heaps)
        return (
            f"{name:<28} longest task {longest:>4} ms ({max(self.task_ms):.0f} ms of processor),"
            f" {above} above {TOO_LONG_MS} ms; to open it {max(self.opened_ms, default=0):>4} ms; "
            f"a frame {sum(self.frame_ms) / len(self.frame_ms):.0f} ms of processor; heap by round {heaps} MB;"
            f" nodes {', '.join(map(str, self.nodes))}"
        )


class Tour:
    """A tab that goes around the pages of ``url``."""

    def __init__(self, browser: Browser, url: str) -> None:
        self._browser = browser
        self._url = url
        self._context = browser.new_context(viewport={"width": 1440, "height": 900})
        self._page = self._context.new_page()
        self._cdp = self._context.new_cdp_session(self._page)
        self.found = {name: Figures() for name in PAGES}
        self._page.goto(f"{url}/#/{PAGES[0]}")
        self._page.locator(".live.on").wait_for(timeout=60_000)
        self._page.locator(FILLED).wait_for(timeout=60_000)
        self._filled_ms = float(self._page.evaluate("performance.now()"))
        self._page.evaluate(_WATCH)

    def first_ms(self) -> tuple[float, float]:
        """From asking for the page until something was painted, and until it had data."""
        paint = self._page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        return float(paint), self._filled_ms

    def visit(self, name: str, seconds: float) -> None:
        page, figures = self._page, self.found[name]
        tasks = TaskTrace(self._browser, page)
        page.evaluate("address => { window.longest = []; location.hash = address; }", f"#/{name}")
        page.wait_for_timeout(min(BEGUN_S, seconds / 2) * 1000)
        figures.opened_ms += page.evaluate("window.longest.splice(0)")
        used = _used_s(self._browser)
        page.wait_for_timeout(seconds * 1000)
        figures.frame_ms.append((_used_s(self._browser) - used) * 1000 / (seconds / EVERY_S))
        figures.long_ms += page.evaluate("window.longest.splice(0)")
        figures.task_ms.append(tasks.longest_ms())
        assert page.locator(".live.on").is_visible(), f"{name}: the page lost its stream"
        figures.heaps.append(heap(self._cdp))
        figures.nodes.append(self._cdp.send("Memory.getDOMCounters")["nodes"])

    def close(self) -> None:
        self._context.close()


class TaskTrace:
    """The tasks of a page's main thread, in processor time."""

    def __init__(self, browser: Browser, page: Page) -> None:
        self._browser = browser
        browser.start_tracing(page=page, categories=["toplevel", "disabled-by-default-devtools.timeline"])

    def longest_ms(self) -> float:
        events = json.loads(self._browser.stop_tracing())["traceEvents"]
        return max(_task_ms(events), default=0.0)


def _task_ms(events: list[dict[str, Any]]) -> Iterator[float]:
    renderers = {(one["pid"], one["tid"]) for one in events if one.get("args", {}).get("name") == "CrRendererMain"}
    for one in events:
        if one.get("name", "").endswith("RunTask") and (one["pid"], one["tid"]) in renderers and "tdur" in one:
            yield one["tdur"] / 1000


def heap(cdp: Any) -> int:
    """What is still used when everything else has been thrown away."""
    for _ in range(2):
        cdp.send("HeapProfiler.collectGarbage")
    return int(cdp.send("Runtime.getHeapUsage")["usedSize"])


def _used_s(browser: Browser) -> float:
    """Processor time of the processes that draw pages."""
    told = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")
    return float(sum(one["cpuTime"] for one in told["processInfo"] if one["type"] == "renderer"))


def tell(browser: Browser, size: Size, seconds: float) -> list[str]:
    """What is wrong with pages of that size."""
    each_s = max(1.0, seconds / ROUNDS / len(PAGES) - BEGUN_S)
    with synthetic(EVERY_S, size) as url:
        tour = Tour(browser, url)
        first = tour.first_ms()
        for number in range(ROUNDS):
            for name in PAGES:
                tour.visit(name, each_s)
            print(f"{size.regions} regions, {size.rules} rules: round {number + 1} of {ROUNDS}", flush=True)
        print(f"first paint after {first[0]:.0f} ms, with data after {first[1]:.0f} ms")
        for name, found in tour.found.items():
            print(found.line(name.replace("rule=default/", "").partition("rl:")[0]), flush=True)
        tour.close()
    return [
        fault for name, found in tour.found.items() for fault in found.faults(f"{size.regions} regions, {name}")
    ]


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 660.0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        faults = [*tell(browser, USUAL, seconds / 11), *tell(browser, MANY, seconds * 10 / 11)]
        browser.close()
    for fault in faults:
        print(f"FAULT {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
