"""``apportion region list|join|leave|reweight|rename|restore|destroyed``: the life of a region, by its weights."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from services.cli.control import Control, NoAnswer, Refused, end_refused, open_control, reason_header
from services.cli.output import fail, print_json, say, stdout
from services.cli.region_changes import (
    Change,
    Edit,
    Weights,
    changes_of,
    make_changes,
    read_regions,
    try_changes,
    wait_until_done,
    waiting_for,
)
from services.cli.rule_versions import ControlOption, DryRunOption, JsonOption, ReasonOption

WEIGHT_MOST = 1_000_000
AGAIN_S = 1.0
_WEIGHT_KINDS = ("put_regions", "put_set")
_NO_DOMAINS: list[str] = []
NameArgument = typer.Argument(..., metavar="NAME", help="The region's name, as its file says.")
DomainsOption = typer.Option(_NO_DOMAINS, "--domain", help="Only this domain; again for several.  Default: all.")
WeightsArgument = typer.Argument(..., metavar="NAME=WEIGHT...", help="0: only what is lent to it.")
WeightOption = typer.Option(1, "--weight", min=0, max=WEIGHT_MOST, help="Its part beside the others' weights.")
WaitOption = typer.Option(
    60.0, "--wait", min=0, max=3600, help="Seconds to wait until it is in force; 0: do not wait."
)
UnheardOption = typer.Option(False, "--unheard", help="Even if nothing is heard of it yet.")


def register_regions(app: typer.Typer) -> None:
    app.command("list", epilog="Example: apportion region list")(list_regions)
    for command in (join, leave, reweight, rename, restore, destroyed):
        app.command()(command)


def list_regions(control: str | None = ControlOption, as_json: bool = JsonOption) -> None:
    """Every region with its weight and base in each domain, and what a change of bases waits for."""
    document = read_regions(open_control(control))
    if as_json:
        print_json(document)
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("region", "link", "domain", "weight", "base"):
        table.add_column(column, justify="right" if column in ("weight", "base") else "left")
    for name, region in document["regions"].items():
        for domain in region["weights"] or [""]:
            base = region["bases"].get(domain)
            table.add_row(
                name,
                "destroyed" if region["gone"] else region["link"],
                domain,
                str(region["weights"].get(domain, "")),
                "none" if base is None else f"{base / 100:.2f} %",
            )
    stdout().print(table)
    for words in waiting_for(document, document["config_version"]):
        say(f"waiting: {words}")


def join(
    name: str = NameArgument,
    weight: int = WeightOption,
    domain: list[str] = DomainsOption,
    unheard: bool = UnheardOption,
    dry_run: bool = DryRunOption,
    wait: float = WaitOption,
    reason: str = ReasonOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Give a region that runs its part of every global limit.

    Example: apportion region join ap-south --weight 2 --dry-run
    """
    api = open_control(control)
    _must_be_heard(read_regions(api), name, unheard)
    _carry_out(api, _Order(lambda _, now: {**now, name: weight}, domain, dry_run, wait, reason, as_json))


def leave(
    name: str = NameArgument,
    domain: list[str] = DomainsOption,
    dry_run: bool = DryRunOption,
    wait: float = WaitOption,
    reason: str = ReasonOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Take a region out of every global limit; when this ends with 0, its parts may be stopped.

    Example: apportion region leave ap-south --reason "moves to Madras"
    """
    api = open_control(control)
    _must_be_known(read_regions(api), name)
    _carry_out(api, _Order(_without(name), domain, dry_run, wait, reason, as_json))


def reweight(
    weights: list[str] = WeightsArgument,
    domain: list[str] = DomainsOption,
    dry_run: bool = DryRunOption,
    wait: float = WaitOption,
    reason: str = ReasonOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Change the weights of regions, in the domains in which they are.

    Example: apportion region reweight us-east=3 eu-west=1 --dry-run
    """
    wanted = _read_weights(weights)
    api = open_control(control)
    document = read_regions(api)
    for name in wanted:
        _must_be_known(document, name)

    def edit(_: str, now: Weights) -> Weights:
        return {region: wanted.get(region, weight) for region, weight in now.items()}

    _carry_out(api, _Order(edit, domain, dry_run, wait, reason, as_json))


def rename(
    old: str = typer.Argument(..., metavar="OLD", help="It is to leave."),
    new: str = typer.Argument(..., metavar="NEW", help="It runs already, beside the old one."),
    domain: list[str] = DomainsOption,
    unheard: bool = UnheardOption,
    dry_run: bool = DryRunOption,
    wait: float = WaitOption,
    reason: str = ReasonOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Hand a region's weights to another name, in one change: its successor, with a Redis of its own, runs already.

    Example: apportion region rename ap-south ap-south-2
    """
    api = open_control(control)
    document = read_regions(api)
    _must_be_heard(document, new, unheard)
    _must_be_known(document, old)

    def edit(of: str, now: Weights) -> Weights:
        if old in now and new in now:
            fail(f"{new} has a weight in {of} already: let {old} leave, or give {new} another weight (reweight)", 1)
        return {new if region == old else region: weight for region, weight in now.items()}

    _carry_out(api, _Order(edit, domain, dry_run, wait, reason, as_json))


def restore(
    name: str = NameArgument,
    as_name: str | None = typer.Option(None, "--as", help="The new name of a region that was destroyed."),
    domain: list[str] = DomainsOption,
    unheard: bool = UnheardOption,
    dry_run: bool = DryRunOption,
    wait: float = WaitOption,
    reason: str = ReasonOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Give a region that left, or was destroyed, the weights that it had.

    Example: apportion region restore eu-west --as eu-west-2
    """
    api = open_control(control)
    document, new = read_regions(api), as_name or name
    _must_be_heard(document, new, unheard)
    had = {one: _weight_before(api, one, name) for one in domain or document["domains"]}
    if not any(weight is not None for weight in had.values()):
        fail(f"{name} has never had a weight in {', '.join(had)}", 1)

    def edit(of: str, now: Weights) -> Weights:
        weight = had.get(of)
        return now if weight is None or new in now else {**now, new: weight}

    _carry_out(api, _Order(edit, domain, dry_run, wait, reason, as_json))


def destroyed(
    name: str = NameArgument,
    yes: bool = typer.Option(False, "--yes", help="It is true: nothing of the region runs, or ever will."),
    dry_run: bool = DryRunOption,
    wait: float = WaitOption,
    reason: str = ReasonOption,
    control: str | None = ControlOption,
    as_json: bool = JsonOption,
) -> None:
    """Say that a region is lost for good, and give its part to the others.  Cannot be taken back.

    Example: apportion region destroyed eu-west --yes --reason "the site burnt down"
    """
    api = open_control(control)
    document = read_regions(api)
    _must_be_known(document, name)
    bases = document["regions"][name]["bases"]
    if not (dry_run or yes):
        for words in _risk(name, bases):
            say(words)
        fail("nothing is said yet: --yes says it, --dry-run shows what that would do")
    order = _Order(_without(name), [], dry_run, wait, reason, as_json)
    if dry_run:
        if not as_json:
            for words in _risk(name, bases):
                say(words)
        _carry_out(api, order)
        return
    if not reason:
        fail("--reason: say why; it is kept in the history")
    _end(api, name, wait, reason)
    say(f"{name} is gone: what it held counts no more")
    _carry_out(api, order)


# ---- how


class _Order:
    """What is wanted of :func:`_carry_out`."""

    def __init__(
        self, edit: Edit, domains: Sequence[str], dry_run: bool, wait_s: float, reason: str, as_json: bool
    ) -> None:
        self.edit, self.domains, self.dry_run = edit, domains, dry_run
        self.wait_s, self.reason, self.as_json = wait_s, reason, as_json


def _carry_out(api: Control, order: _Order) -> None:
    if order.dry_run:
        document = read_regions(api)
        try_changes(api, changes_of(document, order.edit, order.domains))
        _tell_plan(document, order)
        return
    made, version = make_changes(api, order.edit, order.domains, order.reason)
    if not order.as_json:
        _show(made)
        if not made:
            say("nothing to change")
    began = time.monotonic()
    waits: list[str] = []
    if order.wait_s:
        _, waits = wait_until_done(api, version, order.wait_s)
    took_s = time.monotonic() - began
    if order.as_json:
        print_json(
            {
                "dry_run": False,
                "changes": [change.shown() for change in made],
                "version": version,
                "in_force": not waits if order.wait_s else None,
                "waits": waits,
                "waited_ms": round(took_s * 1000),
            }
        )
    if waits:
        fail(f"accepted, and not in force after {order.wait_s:g} s; the same command goes on waiting", 1)
    if order.wait_s and made and not order.as_json:
        say(f"in force in every region after {took_s:.1f} s")


def _tell_plan(document: Mapping[str, Any], order: _Order) -> None:
    changes = changes_of(document, order.edit, order.domains)
    falls = sorted({region for change in changes for region in _falling(change)})
    silent = [name for name in falls if _link(document, name) != "linked" and not _gone(document, name)]
    at_most_ms = document["consent_ms"] + document["session_ms"]
    if order.as_json:
        print_json(
            {
                "dry_run": True,
                "changes": [change.shown() for change in changes],
                "waits_for": falls,
                "not_heard_of": silent,
                "at_most_ms": at_most_ms if not silent else None,
            }
        )
        return
    _show(changes)
    if not changes:
        say("nothing to change")
        return
    if falls:
        say(f"bases rise when {', '.join(falls)} has said that the lower base is in force there")
    if silent:
        say(f"{', '.join(silent)} is not heard of: this waits until it is back, or is said to be destroyed")
    else:
        say(
            f"that takes some seconds; {at_most_ms / 1000:.0f} s at most while every region is heard of, "
            "which is what an agent needs that has only just begun"
        )
    say("nothing is changed yet")


def _falling(change: Change) -> list[str]:
    bases = change.shown()["bases"]
    return [region for region, base in bases["before"].items() if bases["after"].get(region, 0) < base]


def _show(changes: Sequence[Change]) -> None:
    if not changes:
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("domain", "region", "weight", "base before", "base after"):
        table.add_column(column, justify="left" if column in ("domain", "region") else "right")
    for change in changes:
        before, after = change.shown()["bases"]["before"], change.shown()["bases"]["after"]
        for region in {**before, **after}:
            weight = change.after.get(region)
            table.add_row(
                change.domain,
                region,
                "-" if weight is None else str(weight),
                f"{before.get(region, 0) / 100:.2f} %",
                f"{after.get(region, 0) / 100:.2f} %",
            )
    stdout().print(table)


def _without(name: str) -> Edit:
    return lambda _, now: {region: weight for region, weight in now.items() if region != name}


def _end(api: Control, name: str, patience_s: float, reason: str) -> None:
    """Say that it is destroyed, again while it may still have a session."""
    end, told = time.monotonic() + patience_s, ""
    while True:
        try:
            api.call("POST", f"/v1/regions/{name}:destroyed", headers=reason_header(reason))
            return
        except NoAnswer as error:
            end_refused(name, error)
        except Refused as error:
            problem = "; ".join(text for _, text in error.faults()) or str(error)
            if error.status not in (409, 422, 503, 504) or time.monotonic() >= end:
                end_refused(name, error)
            if problem.split(":")[0] != told.split(":")[0]:
                told = problem
                say(f"not yet: {problem}")
        time.sleep(AGAIN_S)


def _risk(name: str, bases: Mapping[str, int]) -> list[str]:
    held = ", ".join(f"{base / 100:.1f} % of every global limit of {domain}" for domain, base in bases.items())
    return [
        f"{name} has {held or 'no base'}; the others get that.",
        f"If anything of {name} still runs and is only cut off, it goes on to use its base: that much more than "
        "each limit is then allowed, until its agent reads the log again and brings it down to nothing.",
        f"It cannot be taken back: {name} is not used again as a name (restore {name} --as ANOTHER).",
    ]


def _weight_before(api: Control, domain: str, name: str) -> int | None:
    """What the region weighed in the domain when it was last there; None: it never was."""

    def asked(path: str, **options: Any) -> dict[str, Any]:
        try:
            body: dict[str, Any] = api.call("GET", path, **options).json()
        except (Refused, NoAnswer) as error:
            end_refused(domain, error)
        return body

    before: int | None = None
    looked_at = True
    while True:
        params = {"limit": 100, **({"before": before} if before is not None else {})}
        page = asked(f"/rulesets/{domain}/versions", params=params)
        for one in page["versions"]:
            if looked_at:
                document = asked(f"/rulesets/{domain}/versions/{one['version']}")["document"]
                regions = document.get("regions", {})
                weights = dict.fromkeys(regions, 1) if isinstance(regions, list) else regions
                if name in weights:
                    return int(weights[name])
            looked_at = one["kind"] in _WEIGHT_KINDS  # what was before it may have been another
        before = page["next"]
        if before is None:
            return None


def _must_be_known(document: Mapping[str, Any], name: str) -> None:
    if name not in document["regions"]:
        fail(f"no region is called {name}; there are {', '.join(document['regions'])}", 1)


def _must_be_heard(document: Mapping[str, Any], name: str, unheard: bool) -> None:
    """Its part would be nobody's while it does not run."""
    if _gone(document, name):
        fail(f"{name} was destroyed: its name is not used again", 1)
    if not unheard and _link(document, name) != "linked":
        fail(f"nothing is heard of {name}: start it first (apportion region up), or say --unheard", 1)


def _link(document: Mapping[str, Any], name: str) -> str:
    region = document["regions"].get(name)
    return str(region["link"]) if region else "unknown"


def _gone(document: Mapping[str, Any], name: str) -> bool:
    region = document["regions"].get(name)
    return bool(region and region["gone"])


def _read_weights(given: Sequence[str]) -> Weights:
    weights: Weights = {}
    for text in given:
        name, _, weight = text.partition("=")
        if not name or not weight.isdecimal() or int(weight) > WEIGHT_MOST:
            fail(f"{text}: must be NAME=WEIGHT, a whole number from 0 to {WEIGHT_MOST:,}")
        weights[name] = int(weight)
    return weights
