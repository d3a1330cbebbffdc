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
    from rich.text import Text

app = typer.Typer(add_completion=False, rich_markup_mode=None)

KEYS_SHOWN = 12
WATCH_S = 1.0
GAP = 2
CELL_LEAST = 12
"""Holds 100.0 (150.0): what is usual, so that columns do not jump about from second to second."""
NAMES_LEAST = 20
HASH_SHOWN = 9
EMBEDDED = "EMBEDDED: all regions in one process, in memory; for trying things out, not for production"
LINKS = {
    "linked": "[green]linked[/]",
    "silent": "[yellow]silent[/]",
    "cut": "[red]cut off[/]",
    "gone": "[dim]destroyed[/]",
}


@app.command(epilog="Example: apportion status --watch")
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
            console = stdout()
            console.print(screen(document, console.width))
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
    console = stdout()
    if not console.is_terminal:
        # Nothing to draw over: one screen after another, each handed on at once.
        while True:
            console.print(_screen_or_why(api, console.width), "")
            time.sleep(WATCH_S)
    from rich.live import Live

    with Live(_screen_or_why(api, console.width), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(WATCH_S)
            live.update(_screen_or_why(api, console.width), refresh=True)


def _screen_or_why(api: Control, width: int) -> RenderableType:
    from rich.text import Text

    try:
        return screen(_ask(api), width)
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


def screen(document: dict[str, Any], width: int) -> RenderableType:
    """The status document as tables of at most ``width`` columns of text."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    if document.get("mode") == "embedded":
        parts.append(Text(EMBEDDED, style="yellow"))
    if document["well"]:
        parts.append(Text("✓ well: all regions are linked and every store answers", style="green"))
    for sentence in document["sentences"]:
        mark, style = ("✕", "red") if sentence["level"] == "bad" else ("!", "yellow")
        parts.append(Text(f"{mark} {sentence['text']}", style=style))
    parts += [Text(leader_words(document)), Text(""), _regions(document), Text(""), _shares(document, width)]
    return Group(*parts)


def leader_words(document: dict[str, Any]) -> str:
    leader = document["leader"]
    if leader["beat_age_ms"] is None:
        return "leader: none heard of yet"
    where = f"{leader['region']}, " if leader["region"] else ""
    beat = f"last beat {milliseconds(leader['beat_age_ms'])} ago, read {milliseconds(leader['lag_ms'])} after it"
    return f"leader: {where}epoch {leader['epoch']}, {beat}; rules version {document['rules_version']}"


def _regions(document: dict[str, Any]) -> Table:
    table = _table("region", "link", "Redis", "nodes", "session", "consent", "rules", "epoch")
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
            _left(region["session_left_ms"]),
            _left(region["consent_left_ms"]),
            _or_dash(region["rules_version"]),
            _or_dash(region["epoch"]),
        )
    return table


def _shares(document: dict[str, Any], width: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    names = list(document["regions"])
    keys = sorted(document["keys"].items(), key=lambda item: -sum(want or 0 for want in item[1]["wants"].values()))
    if not keys:
        return Text("no key of a global rule is in use: every region has its base", style="dim")
    shown = [(key_name(key), entry) for key, entry in keys[:KEYS_SHOWN]]
    left = width - sum(_cell_width(name, shown) + GAP for name in names) - len("together") - 2 * GAP
    table = _by_key(names, shown, left) if left >= NAMES_LEAST else _by_region(names, shown, width)
    notes = ["Shares in % of the whole limit: what a region may use; behind it, in brackets, what it wants."]
    if any(name.startswith("#") for name, _ in shown):
        notes.append("#… is a hashed key: so the rule wants it (hash_key), or it is too long to be kept as it is.")
    if len(keys) > KEYS_SHOWN:
        notes.append(f"and {len(keys) - KEYS_SHOWN} more keys: --json shows all")
    return Group(table, *(Text(note, style="dim") for note in notes))


def _by_key(names: list[str], shown: list[tuple[str, dict[str, Any]]], left: int) -> Table:
    """A row a key.  ``left``: the width of key and rule together, the longer of which is cut."""
    rule_most = min(max(len(entry["rule"]) for _, entry in shown), left // 2)
    table = _table("key", "rule", *names, "together")
    for key, entry in shown:
        cells = [_share(entry, name) for name in names]
        together = f"{entry['total'] / 100:.1f}"
        table.add_row(_cut(key, left - rule_most), _cut(entry["rule"], rule_most), *cells, together)
    return table


def _by_region(names: list[str], shown: list[tuple[str, dict[str, Any]]], width: int) -> Table:
    """A row a key and region, where a row a key would be too wide."""
    widest = max(len(name) for name in (*names, "together"))
    left = max(2 * CELL_LEAST, width - widest - max(_cell_width(name, shown) for name in names) - 3 * GAP)
    rule_most = min(max(len(entry["rule"]) for _, entry in shown), left // 2)
    table = _table("key", "rule", "region", "share")
    for key, entry in shown:
        words = [_cut(key, left - rule_most), _cut(entry["rule"], rule_most)]
        for name in names:
            table.add_row(*words, name, _share(entry, name))
            words = [_cut("", 0), _cut("", 0)]
        table.add_row("", "", "together", f"{entry['total'] / 100:.1f}")
    return table


def _cut(text: str, most: int) -> Text:
    """As plain text: a key is no markup."""
    from rich.text import Text

    return Text(text if len(text) <= most else text[: most - 1] + "…")


def _cell_width(name: str, shown: list[tuple[str, dict[str, Any]]]) -> int:
    return max(len(name), CELL_LEAST, *(len(_share(entry, name)) for _, entry in shown))


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < 2 else "right", no_wrap=True)
    return table


def _share(entry: dict[str, Any], region: str) -> str:
    share, want = entry["shares"].get(region), entry["wants"].get(region)
    if share is None:
        return "–"
    return f"{share / 100:.1f}" + (f" ({want / 100:.1f})" if want else "")


def counted(part: int | None, whole: int) -> str:
    if part is None:
        return f"–/{whole}"
    text = f"{part}/{whole}"
    return f"[red]{text}[/]" if part < whole else text


def _left(value_ms: int | None) -> str:
    return "ended" if value_ms == 0 else milliseconds(value_ms)


def milliseconds(value: int | None) -> str:
    if value is None:
        return "–"
    return f"{value} ms" if value < 1000 else f"{value / 1000:.1f} s"


def key_name(key: str) -> str:
    """``rl:{tag}:domain/rule:identity`` -> the identity, readable; of a hashed one the beginning."""
    from urllib.parse import unquote

    identity = key.partition("}:")[2].partition(":")[2]
    if identity.startswith("#"):
        return f"{identity[:HASH_SHOWN]}…"
    return " · ".join("(none)" if part == "!" else unquote(part) for part in identity.split(",")) or "all requests"


def _or_dash(value: int | None) -> str:
    return "–" if value is None else str(value)
