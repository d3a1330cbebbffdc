"""The TypeScript client is built and tested by Node and in a browser, with a real node of ours behind it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Route, sync_playwright

from infra import install
from tests.browser.conftest import CHROMIUM

SOURCE = Path(__file__).resolve().parents[2] / "clients" / "typescript"
DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's folder, with the pages' code beside its own, built; it passes the tests that need no node."""
    work = tmp_path_factory.mktemp("client") / "typescript"
    shutil.copytree(SOURCE, work, ignore=shutil.ignore_patterns("node_modules", "dist"))
    for name in ("clients", "migrating"):
        [code] = re.findall(r"```ts\n(.*?)```", (DOCS / f"{name}.md").read_text(), re.DOTALL)
        (work / "src" / f"page_{name}.ts").write_text(code.replace('from "apportion"', 'from "./index.js"'))
    npm(work, "ci", "--no-fund", "--no-audit")
    npm(work, "test")
    assert (work / "dist" / "index.d.ts").exists()
    return work


def npm(work: Path, *command: str, **environment: str) -> None:
    path = f"{install.node().parent}{os.pathsep}{os.environ.get('PATH', '')}"
    done = subprocess.run(
        ["npm", *command],
        cwd=work,
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_it_works_with_a_node(built: Path, node: str) -> None:
    npm(built, "run", "test:node", APPORTION_NODE=node)


# ---- in a browser

TESTS = """<!doctype html><link rel="icon" href="data:,">
<script type="importmap">
{"imports": {"node:test": "/shim/test.js", "node:assert/strict": "/shim/assert.js", "apportion": "/dist/index.js"}}
</script>"""
SHIMS = {
    "test": "export const tests = []; export const test = (name, run) => tests.push([name, run]);",
    "assert": """
        const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
        const ok = (value, message) => { if (!value) throw new Error(message ?? `not true: ${value}`); };
        const equal = (a, b) => ok(Object.is(a, b), `${a} is not ${b}`);
        const deepEqual = (a, b) => ok(same(a, b), `${JSON.stringify(a)} is not ${JSON.stringify(b)}`);
        const match = (text, form) => ok(form.test(text), `${text} is not like ${form}`);
        export default { ok, equal, deepEqual, match };
    """,
}
RUN = """async () => {
    globalThis.process = { env: { APPORTION_NODE: location.origin } };
    await import("/test/node.test.mjs");
    const { tests } = await import("node:test");
    const passed = [];
    for (const [name, run] of tests) {
        try { await run(); } catch (error) { throw new Error(`${name}: ${error.stack}`); }
        passed.push(name);
    }
    return passed;
}"""
ASK = """async ([url, onNoAnswer, timeoutMs]) => {
    const { Client } = await import("apportion");
    try {
        return await new Client({ url, onNoAnswer, timeoutMs }).check("browser", "few");
    } catch (error) {
        return { name: error.name, message: error.message };
    }
}"""


@contextmanager
def page_at(origin: str, built: Path) -> Iterator[Page]:
    """A page of ``origin`` that can load the client, as a site serves it beside its own files."""

    def serve(route: Route) -> None:
        _, folder, name = route.request.url.removeprefix(origin).split("/")
        text = SHIMS[name.removesuffix(".js")] if folder == "shim" else (built / folder / name).read_text()
        route.fulfill(body=text, content_type="text/javascript")

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = browser.new_page()
            page.route(f"{origin}/page", lambda route: route.fulfill(body=TESTS, content_type="text/html"))
            page.route(re.compile(f"^{re.escape(origin)}/(dist|test|shim)/"), serve)
            page.route(f"{origin}/silent/**", lambda route: None)
            page.goto(f"{origin}/page")
            yield page
        finally:
            browser.close()


def test_what_node_tests_holds_in_a_browser_too(built: Path, node: str) -> None:
    with page_at(node, built) as page:
        passed = page.evaluate(RUN)
        silent: dict[str, Any] = page.evaluate(ASK, [f"{node}/silent", "deny", 50])
        raised: dict[str, Any] = page.evaluate(ASK, [f"{node}/silent", "raise", 50])
    assert len(passed) == (SOURCE / "test" / "node.test.mjs").read_text().count("\ntest(")
    assert (silent["allowed"], silent["decided"], silent["reason"]) == (False, False, "no_answer")
    assert raised == {"name": "NoAnswer", "message": "no answer within 50 ms"}


def test_a_page_of_another_origin_gets_no_answer_and_charges_nothing(built: Path, node: str) -> None:
    """A node answers no preflight: callers in browsers would name whom they like."""
    with page_at("http://shop.test", built) as page:
        told: dict[str, Any] = page.evaluate(ASK, [node, "deny", 10_000])
    assert (told["allowed"], told["decided"]) == (False, False)
    left = httpx.get(f"{node}/v1/peek", params={"client_key": "browser", "resource": "few"}).json()["remaining"]
    assert left == 5
