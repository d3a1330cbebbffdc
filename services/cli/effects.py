"""What a change would do, or did, as commands print it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import typer

from services.cli.output import print_json, say

_SIGNS = {"appear": "+", "change": "~", "vanish": "-"}
_UNREAD = {"level"}
"""Numbers of the machine, which follow from the others; ``--json`` has them."""


def show_dry_run(body: Mapping[str, Any], as_json: bool) -> None:
    """The answer of the control API to a change that was only tried."""
    if as_json:
        print_json(body)
        return
    show_effect(body["effect"])
    made_from = f", from version {body['made_from']}" if body["made_from"] else ""
    say(f"domain {body['domain']}{made_from}: nothing is changed yet")


def show_change(body: Mapping[str, Any], words: str, *, dry_run: bool, as_json: bool) -> None:
    """The answer to a change, in ``words`` if it was made."""
    if dry_run:
        show_dry_run(body, as_json)
    elif as_json:
        print_json(body)
    else:
        typer.echo(words)


def show_effect(effect: Mapping[str, Any]) -> None:
    """A line for each rule and override: + appears, ~ changes, - vanishes."""
    if effect["nothing"]:
        typer.echo("nothing would change")
    for rule in effect["rules"]:
        typer.echo(f"{_SIGNS[rule['effect']]} {rule['rule']}: {rule['in_words']}")
        for name, field in rule.get("fields", {}).items():
            if name not in _UNREAD:
                typer.echo(f"    {name}: {_in_words(field['before'])} -> {_in_words(field['after'])}")
        if rule.get("keeps_counts") is True:
            typer.echo("    what was used stays used")
        elif "why_not" in rule:
            typer.echo(f"    begins anew, with nothing used: {rule['why_not']}")
        if "note" in rule:
            typer.echo(f"    {rule['note']}")
    for one in effect["overrides"]:
        key = ", ".join(f"{name}={value}" for name, value in one["key"].items())
        typer.echo(f"{_SIGNS[one['effect']]} override of {one['rule']} for {key or 'all'}: {one['in_words']}")
    for what, count in effect.get("subjects", {}).items():
        if count:
            typer.echo(f"{_SIGNS[what]} {count:,} clients")
    for name, field in effect["set"].items():
        typer.echo(f"~ {name}: {_in_words(field['before'])} -> {_in_words(field['after'])}")


def _in_words(value: object) -> str:
    """A value of a rule, as it would be written in one."""
    if value is None or value == "":
        return "none"
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and "per_second" in value:
        return f"{value['per_second']:g}/s"
    return json.dumps(value, ensure_ascii=False).replace('"', "")
