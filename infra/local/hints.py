"""What a person can do with a local system, as lines that can be copied into a shell here.  [P] but for paths."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path

from infra.local.layout import DEFAULT_DIRECTORY, Layout

CHANGED_RULE = {
    "match": {"resource": ["POST /orders", "POST /orders/*"], "tier": "free"},
    "key": ["client_key"],
    "algorithm": "token_bucket",
    "capacity": 5,
    "refill_per_second": 1,
    "scope": "region",
}
"""The example rule ``orders-free``, whole but for its description, with less than its 20 and 10/s."""


def command_line(words: str, directory: Path) -> str:
    """``apportion local WORDS``, with the system's directory unless that is the default here."""
    option = (
        "" if directory.resolve() == DEFAULT_DIRECTORY.resolve() else f" --dir {shlex.quote(_from_here(directory))}"
    )
    return f"{program()} local {words}{option}"


def program() -> str:
    """How a person here calls us: by the path where we are not in PATH."""
    beside = Path(sys.executable).with_name("apportion")
    if not beside.exists() or shutil.which("apportion") == str(beside):
        return "apportion"
    return shlex.quote(_from_here(beside))


def addresses(layout: Layout) -> list[str]:
    """Where everything is, a line each."""
    rows = [
        (region, f"{'  '.join(layout.node_urls(region))}  sync {layout.sync_url(region)}")
        for region in layout.regions
    ]
    rows += [("control API", f"{layout.control_api}  (docs: /docs)"), ("dashboard", layout.dashboard)]
    rows += [("Kafka", f"{layout.hub_bootstrap}  ({layout.kafka})")]
    return [f"  {name:<12} {where}" for name, where in rows]


def things_to_try(layout: Layout, *, example_rules: bool) -> list[str]:
    """Commands, each with what it is for.  ``example_rules``: the system has the rules that come with us."""
    first, last = layout.regions[0], layout.regions[-1]
    lines = [
        "# ask a region",
        _check(layout, first, "GET /items"),
        "# regions and shares",
        f"{program()} status --control {layout.control_api} --watch",
    ]
    if example_rules:
        lines += [
            "# replace a rule everywhere, and see its new limit in another region",
            f"curl -s -X PUT {layout.control_api}/rules/orders-free -H 'content-type: application/json'"
            f" -d '{json.dumps(CHANGED_RULE)}'",
            _check(layout, last, "POST /orders"),
        ]
    if layout.has_links:
        cut, heal = (command_line(f"{word} {last}", layout.directory) for word in ("cut", "heal"))
        lines += ["# cut a region off, and link it again", cut, heal]
    return [f"  {line}" for line in lines]


def _check(layout: Layout, region: str, resource: str) -> str:
    body = json.dumps({"client_key": "user:42", "resource": resource})
    return f"curl -s {layout.node_urls(region)[0]}/v1/check -d '{body}'"


def _from_here(path: Path) -> str:
    here, path = Path.cwd(), path.absolute()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
