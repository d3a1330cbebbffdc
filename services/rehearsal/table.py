"""The report of a rehearsal on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

BARS = " ▁▂▃▄▅▆▇█"
BAR_WIDTH = 60


def tables(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The parts of the report, in the order of their weight."""
    yield Text(_summary(report))
    yield _rules(report)
    if "difference" in report:
        yield from _difference(report["difference"])
    if report["by_key"]:
        yield _keys("most denied keys", report["by_key"], ("checks", "denied", "denied_percent"))
    if report["denied"]:
        yield Text(_over_time(report["over_time"]))
    yield from _suggested(report)
    for note in report["notes"]:
        yield Text(f"note: {note}")


def _summary(report: Mapping[str, Any]) -> str:
    lines = report["lines"]
    words = [
        f"{lines['read']:,} lines read as {report['format']}, {lines['unreadable']:,} unreadable",
        f"{report['from']} to {report['until']}" if report["from"] else "no request",
        f"{report['denied']:,} of {report['checks']:,} checks denied ({report['denied_percent']:g} %),"
        f" {report['no_rule']:,} met no rule",
    ]
    if lines["refused"]:
        words[0] += f", {lines['refused']:,} that a node would refuse"
    for example in lines["unreadable_examples"]:
        words.insert(1, f"  {example['file']}:{example['line']}: {example['problem']}: {example['text'][:80]!r}")
    return "\n".join(words)


def _rules(report: Mapping[str, Any]) -> Table:
    table = _table("by rule", ("rule", "limit"), ("checks", "denied", "%", "alone", "keys"))
    for row in report["by_rule"]:
        if row["not_rehearsed"]:
            table.add_row(row["rule"], row["limit"], f"{row['checks']:,}", "not rehearsed", "", "", "")
            continue
        limit = row["limit"] if row["mode"] == "enforce" else f"{row['limit']} ({row['mode']})"
        numbers = (row["checks"], row["denied"], row["denied_percent"], row["denied_alone"], row["keys_denied"])
        table.add_row(row["rule"], limit, *map(_number, numbers))
    return table


def _difference(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield Text(
        f"beside the current set: {found['newly_denied']:,} newly denied ({found['newly_denied_percent']:g} %),"
        f" {found['newly_allowed']:,} newly allowed ({found['newly_allowed_percent']:g} %),"
        f" {found['denied_by_both']:,} denied by both"
    )
    table = _table("limits that change", ("rule", "current", "proposed"), ("denied now", "then"))
    for row in found["by_rule"]:
        if row["current"] != row["proposed"] or row["denied_current"] != row["denied_proposed"]:
            limits = (row["current"] or "(none)", row["proposed"] or "(none)")
            table.add_row(row["rule"], *limits, _number(row["denied_current"]), _number(row["denied_proposed"]))
    if table.row_count:
        yield table
    for name, title in (("keys_newly_denied", "keys newly denied"), ("keys_newly_allowed", "keys newly allowed")):
        if found[name]:
            yield _keys(title, found[name], ("checks",))


def _keys(title: str, rows: list[Mapping[str, Any]], numbers: tuple[str, ...]) -> Table:
    table = _table(title, ("rule", "key"), tuple("%" if name == "denied_percent" else name for name in numbers))
    for row in rows:
        table.add_row(row["rule"], key_in_words(row["key"]), *(_number(row[name]) for name in numbers))
    return table


def key_in_words(key: Mapping[str, str | None]) -> str:
    """``client_key=42, ip=(absent)``; of a rule with one bucket for all: ``(all)``."""
    return ", ".join(f"{name}={'(absent)' if text is None else text}" for name, text in key.items()) or "(all)"


def _over_time(over_time: Mapping[str, Any]) -> str:
    steps = over_time["steps"]
    width = -(-len(steps) // BAR_WIDTH)
    sums = [sum(step["denied"] for step in steps[at : at + width]) for at in range(0, len(steps), width)]
    most = max(sums)
    bars = "".join(BARS[-(-count * (len(BARS) - 1) // most)] for count in sums)
    span_s = width * over_time["step_ms"] / 1000
    return f"denied over time, each step {span_s:,g} s, at most {most:,}\n{bars}"


def _suggested(report: Mapping[str, Any]) -> Iterator[RenderableType]:
    if "suggested" not in report:
        return
    aim = report["suggested"]["percent"]
    table = _table(
        f"limits that deny at most {aim:g} % of their checks",
        ("rule", "limit", "suggested"),
        ("checks", "denied", "%"),
    )
    for row in report["suggested"]["rules"]:
        words = row["suggested_in_words"] or row["problem"]
        table.add_row(
            row["rule"], row["limit"], words, *map(_number, (row["checks"], row["denied"], row["denied_percent"]))
        )
    yield table


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _table(title: str, texts: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in texts:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right")
    return table
