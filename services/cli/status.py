"""``apportion status``: the whole on one screen."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import typer

from services.cli.control import HELP, Control, NoAnswer, Refused, end_refused, open_control
from services.cli.output import print_json, stdout

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

app = typer.Typer(add_completion=False, rich_markup_mode=None)

KEYS_SHOWN = 12
WATCH_S = 1.0
LINKS = {"linked": "[green]linked[/]", "silent": "[yellow]silent[/]", "cut": "[red]cut off[/]"}


@app.command()
def status(
    control: str | None = typer.Option(None, "--control", help=HELP),
    as_json: bool = typer.Option(False, "--json", help="Print the control API's document."),
    watch: bool = typer.Option(False, "--watch", "-w", help="Show it again every second until Ctrl-C."),
) -> None:
    """How regions, leader and shares are doing.  Exit code 1 when something is wrong."""
    api = open_control(control)
    if not watch:
        document = _get(api)
        if as_json:
            print_json(document)
        else:
            stdout().print(screen(document))
        raise typer.Exit(0 if document["well"] else 1)
    try:
        _watch(api, as_json)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _watch(api: Control, as_json: bool) -> None:
    """Until interrupted, over times without an answer too."""
    if as_json:
        while True:
            print_json(_get(api))
            time.sleep(WATCH_S)
    from rich.live import Live

    with Live(_screen_or_why(api), console=stdout(), auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_S)
            live.update(_screen_or_why(api), refresh=True)


def _screen_or_why(api: Control) -> RenderableType:
    from rich.text import Text

    try:
        return screen(_ask(api))
    except (Refused, NoAnswer) as error:
        return Text(str(error), style="red")


def _ask(api: Control) -> dict[str, Any]:
    document: dict[str, Any] = api.call("GET", "/v1/status").json()
    return document


def _get(api: Control) -> dict[str, Any]:
    try:
        return _ask(api)
    except (Refused, NoAnswer) as error:
        end_refused(api.url, error)


# ---- the screen


def screen(document: dict[str, Any]) -> RenderableType:
    """The status document as tables."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    if document["well"]:
        parts.append(Text("✓ well: all regions are linked and every store answers", style="green"))
    for sentence in document["sentences"]:
        mark, style = ("✕", "red") if sentence["level"] == "bad" else ("!", "yellow")
        parts.append(Text(f"{mark} {sentence['text']}", style=style))
    parts += [Text(leader_words(document)), Text(""), _regions(document), Text(""), _shares(document)]
    return Group(*parts)


def leader_words(document: dict[str, Any]) -> str:
    leader = document["leader"]
    if leader["beat_age_ms"] is None:
        return "leader: none heard of yet"
    where = f"{leader['region']}, " if leader["region"] else ""
    beat = f"last beat {milliseconds(leader['beat_age_ms'])} ago, read {milliseconds(leader['lag_ms'])} after it"
    return f"leader: {where}epoch {leader['epoch']}, {beat}; rules version {document['rules_version']}"


def _regions(document: dict[str, Any]) -> Table:
    table = _table("region", "link", "Redis", "nodes", "session left", "consent left", "rules", "agent epoch")
    for name, region in document["regions"].items():
        ready = [node["ready"] for node in region["node_urls"]]
        nodes = (
            counted(sum(1 for one in ready if one), len(ready))
            if ready
            else counted(region["nodes_alive"], len(region["nodes"]))
        )
        table.add_row(
            name,
            LINKS.get(region["link"], region["link"]),
            counted(region["points_ok"], len(region["points"])),
            nodes,
            milliseconds(region["session_left_ms"]),
            milliseconds(region["consent_left_ms"]),
            _or_dash(region["rules_version"]),
            _or_dash(region["epoch"]),
        )
    return table


def _shares(document: dict[str, Any]) -> RenderableType:
    from rich.markup import escape
    from rich.text import Text

    names = list(document["regions"])
    keys = sorted(document["keys"].items(), key=lambda item: -sum(want or 0 for want in item[1]["wants"].values()))
    if not keys:
        return Text("no key of a global rule is in use: every region has its base", style="dim")
    table = _table("key", "rule", *names, "together")
    for key, entry in keys[:KEYS_SHOWN]:
        shares = [_share(entry["shares"].get(name), entry["wants"].get(name)) for name in names]
        table.add_row(escape(key_name(key)), entry["rule"], *shares, f"{entry['total'] / 100:.1f} %")
    if len(keys) > KEYS_SHOWN:
        table.caption = f"and {len(keys) - KEYS_SHOWN} more keys: --json shows all"
    return table


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", caption_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < 2 else "right", no_wrap=True)
    return table


def _share(share: int | None, want: int | None) -> str:
    if share is None:
        return "–"
    return f"{share / 100:.1f} %" + (f" [dim]of {want / 100:.1f}[/]" if want else "")


def counted(part: int | None, whole: int) -> str:
    if part is None:
        return f"–/{whole}"
    text = f"{part}/{whole}"
    return f"[red]{text}[/]" if part < whole else text


def milliseconds(value: int | None) -> str:
    if value is None:
        return "–"
    return f"{value} ms" if value < 1000 else f"{value / 1000:.1f} s"


def key_name(key: str) -> str:
    """``rl:{tag}:domain/rule:identity`` -> the identity, readable."""
    from urllib.parse import unquote

    identity = key.partition("}:")[2].partition(":")[2]
    return " · ".join("(none)" if part == "!" else unquote(part) for part in identity.split(",")) or "all requests"


def _or_dash(value: int | None) -> str:
    return "–" if value is None else str(value)
