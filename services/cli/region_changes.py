"""What a change of regions would do to every domain, and how it is made and waited for.  [IO]"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regional_limiter.model.share import bases_by_weight
from services.cli.control import Control, NoAnswer, Refused, end_refused, reason_header
from services.cli.output import fail, say

TRIES = 5
POLL_S = 0.5
OVERTAKEN = (409, 412)

Weights = dict[str, int]
Edit = Callable[[str, Weights], Weights]
"""(domain, its weights) -> the weights that it is to have."""


@dataclass(frozen=True, slots=True)
class Change:
    """One domain's weights before and after; the change is made from ``version``."""

    domain: str
    version: int
    before: Weights
    after: Weights

    def shown(self) -> dict[str, Any]:
        return {
            "domain": self.domain,
            "made_from": self.version,
            "weights": {"before": self.before, "after": self.after},
            "bases": {"before": bases_by_weight(self.before), "after": bases_by_weight(self.after)},
        }


def read_regions(control: Control) -> dict[str, Any]:
    try:
        document: dict[str, Any] = control.call("GET", "/v1/regions").json()
    except (Refused, NoAnswer) as error:
        end_refused("regions", error)
    return document


def weights_of(document: Mapping[str, Any], domain: str) -> Weights:
    """In the order of the set, which decides who gets what rounding leaves over."""
    return dict(document["domains"][domain]["weights"])


def changes_of(document: Mapping[str, Any], edit: Edit, domains: Sequence[str]) -> list[Change]:
    """What ``edit`` does to the domains named, or to all; those that it leaves alone are not among it."""
    unknown = [domain for domain in domains if domain not in document["domains"]]
    if unknown:
        fail(f"no rules of domain {', '.join(unknown)}", 1)
    found = []
    for domain in domains or sorted(document["domains"]):
        before = weights_of(document, domain)
        after = edit(domain, dict(before))
        if after != before:
            if not any(after.values()):
                fail(f"domain {domain} would be left without a region that has a weight", 1)
            found.append(Change(domain, document["domains"][domain]["version"], before, after))
    return found


def make_changes(control: Control, edit: Edit, domains: Sequence[str], reason: str) -> tuple[list[Change], int]:
    """Make them, each from the newest version; what was made, and the newest version of any (0: none)."""
    made: dict[str, Change] = {}
    newest = 0
    try_changes(control, changes_of(read_regions(control), edit, domains))
    for _ in range(TRIES):
        changes = changes_of(read_regions(control), edit, domains)
        if not changes:
            return list(made.values()), newest
        for change in changes:
            version = _put(control, change, reason)
            if version is not None:
                made[change.domain] = change
                newest = max(newest, version)
    left = changes_of(read_regions(control), edit, domains)
    if left:
        fail(f"others change {left[0].domain} all the time: try again", 1)
    return list(made.values()), newest


def try_changes(control: Control, changes: Sequence[Change]) -> None:
    """Ends the process when one of them would be refused: a limit too small for so many regions, say."""
    for change in changes:
        try:
            control.call("PUT", f"/rulesets/{change.domain}/regions", params={"dry_run": True}, json=change.after)
        except (Refused, NoAnswer) as error:
            end_refused(change.domain, error)


def _put(control: Control, change: Change, reason: str) -> int | None:
    """The version that it led to; None when somebody was first."""
    headers = {"If-Match": f'"{change.version}"', **reason_header(reason)}
    path = f"/rulesets/{change.domain}/regions"
    try:
        version: int = control.call("PUT", path, headers=headers, json=change.after).json()["version"]
    except Refused as error:
        if error.status in OVERTAKEN:
            return None
        end_refused(change.domain, error)
    except NoAnswer as error:
        end_refused(change.domain, error)
    return version


def waiting_for(document: Mapping[str, Any], version: int) -> list[str]:
    """What a change waits for, in words; nothing: it is in force everywhere."""
    told = [
        f"{name} still has its old {part} in {domain} ({units / 100:.1f} %)" + _why(region)
        for name, region in document["regions"].items()
        for part, late in (("base", region["old_bases"]), ("floor", region.get("old_floors", {})))
        for domain, units in late.items()
    ]
    if document["config_version"] < version:
        return [*told, "the leader has not begun yet"]
    if document["done_version"] < version:
        return told or ["the leader has not said yet that the new bases may be used"]
    return told


def _why(region: Mapping[str, Any]) -> str:
    if region["link"] == "linked":
        return ""
    return ", and is not heard of: this waits until it is back, or is said to be destroyed"


def wait_until_done(control: Control, version: int, patience_s: float) -> tuple[dict[str, Any], list[str]]:
    """The regions once a change is in force, or after ``patience_s``, and what it still waits for."""
    end, told = time.monotonic() + patience_s, [""]
    while True:
        document = read_regions(control)
        waits = waiting_for(document, version or document["config_version"])
        if not waits or time.monotonic() >= end:
            return document, waits
        if waits != told:
            told = waits
            for words in waits:
                say(f"waiting: {words}")
        time.sleep(POLL_S)
