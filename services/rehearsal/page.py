"""The report of a rehearsal as one page: plots as SVG, nothing fetched, no script.  Pure.

Everything that came from a log is escaped: a log holds what strangers sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from services.rehearsal.table import key_in_words

WIDTH, HEIGHT = 900, 150
RULES_PLOTTED = 12
"""Those that deny most."""
LEFT, RIGHT, TOP, BOTTOM = 60, 10, 10, 22

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2530; --soft: #5d6b7a; --line: #d8dee5; --back: #fff;
  --all: #8aa4bf; --denied: #c2412d; --other: #2f6f9f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6ebf0; --soft: #9aa7b4; --line: #37424e; --back: #141a20;
  --all: #4d6680; --denied: #ef7d68; --other: #7db4dc; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 2rem auto;
  max-width: 60rem; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
.soft, caption { color: var(--soft); } .big { font-size: 2rem; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; width: 100%; } td, th { padding: .25rem .6rem; text-align: left;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
figure { margin: 1rem 0; } figcaption { color: var(--soft); } svg { width: 100%; height: auto; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; } .axis { stroke: var(--line); }
.all { fill: var(--all); } .denied { fill: var(--denied); } .other { fill: var(--other); }
"""


def page(report: Mapping[str, Any]) -> str:
    """A whole HTML document; the report itself is in it as JSON."""
    title = f"Rehearsal of {report['domain']}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        _summary(report),
        *_plots(report),
        _rules(report),
        *_difference(report),
        *_suggested(report),
        *_keys("Keys denied most", report["by_key"], ("checks", "denied", "denied_percent")),
        *_lines(report["lines"]),
        *_notes(report["notes"]),
    ]
    # "<" would end the element early, or begin another.
    data = json.dumps(report, ensure_ascii=True).replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + f'\n<script type="application/json" id="report">{data}</script>\n</body></html>\n'
    )


def _summary(report: Mapping[str, Any]) -> str:
    lines = report["lines"]
    return (
        f'<p class="big">{report["denied"]:,} of {report["checks"]:,} checks denied'
        f' <span class="soft">({report["denied_percent"]:g} %)</span></p>'
        f'<p class="soft">{escape(str(report["from"]))} to {escape(str(report["until"]))}.'
        f" {lines['read']:,} lines read as {escape(report['format'])}, {lines['unreadable']:,} unreadable,"
        f" {lines['refused']:,} that a node would refuse. {report['no_rule']:,} checks met no rule.</p>"
    )


# ---- plots


def _plots(report: Mapping[str, Any]) -> Iterable[str]:
    steps = report["over_time"]["steps"]
    if not steps:
        return
    span_s = report["over_time"]["step_ms"] / 1000
    labels = [str(step["at"]) for step in steps]
    yield _bars(f"Checks, each bar {span_s:,g} s", labels, [step["checks"] for step in steps], "all")
    yield _bars(f"Denied, each bar {span_s:,g} s", labels, [step["denied"] for step in steps], "denied")
    if "current" in report:
        now = {step["at"]: step["denied"] for step in report["current"]["over_time"]["steps"]}
        yield _bars("Denied by the current set", labels, [now.get(label, 0) for label in labels], "other")
    denying = sorted((row for row in report["by_rule"] if row["denied"]), key=lambda row: -row["denied"])
    for row in denying[:RULES_PLOTTED] if len(report["by_rule"]) > 1 else ():
        counts = [step["by_rule"].get(row["rule"], 0) for step in steps]
        yield _bars(f"Denied by {row['rule']}", labels, counts, "denied")


def _bars(caption: str, labels: Sequence[str], counts: Sequence[int], name: str) -> str:
    most = max(counts) or 1
    wide, high = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    step = wide / len(counts)
    floor = TOP + high
    marks = []
    for place, (label, count) in enumerate(zip(labels, counts, strict=True)):
        if count:
            tall = high * count / most
            marks.append(
                f'<rect class="{name}" x="{LEFT + place * step:.2f}" y="{floor - tall:.2f}"'
                f' width="{max(step - 0.5, 0.5):.2f}" height="{tall:.2f}">'
                f"<title>{escape(label)}: {count:,}</title></rect>"
            )
    return (
        f"<figure><figcaption>{escape(caption)}</figcaption>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(caption)}, at most {most:,}">'
        f'<line class="axis" x1="{LEFT}" y1="{floor}" x2="{WIDTH - RIGHT}" y2="{floor}"/>'
        f'<text x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{max(counts):,}</text>'
        f'<text x="{LEFT - 6}" y="{floor}" text-anchor="end">0</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{escape(_short(labels[0]))}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(_short(labels[-1]))}</text>'
        + "".join(marks)
        + "</svg></figure>"
    )


def _short(label: str) -> str:
    return label[:19].replace("T", " ")


# ---- tables


def _rules(report: Mapping[str, Any]) -> str:
    rows = [
        (
            row["rule"],
            row["limit"]
            + (f" ({row['mode']})" if row["mode"] != "enforce" else "")
            + (f" (not rehearsed: {row['not_rehearsed']})" if row["not_rehearsed"] else ""),
            *(row[name] for name in ("checks", "denied", "denied_percent", "denied_alone", "keys_denied")),
        )
        for row in report["by_rule"]
    ]
    return _table("By rule", ("rule", "limit"), ("checks", "denied", "%", "alone", "keys denied"), rows)


def _difference(report: Mapping[str, Any]) -> Iterable[str]:
    found = report.get("difference")
    if found is None:
        return
    yield (
        "<h2>Beside the current set</h2>"
        f"<p>{found['newly_denied']:,} checks newly denied ({found['newly_denied_percent']:g} %),"
        f" {found['newly_allowed']:,} newly allowed ({found['newly_allowed_percent']:g} %),"
        f" {found['denied_by_both']:,} denied by both.</p>"
    )
    rows = [
        (
            row["rule"],
            *(row[name] or "(none)" for name in ("current", "proposed")),
            *(row[name] for name in ("denied_current", "denied_proposed")),
        )
        for row in found["by_rule"]
    ]
    yield _table("Limits", ("rule", "current", "proposed"), ("denied by current", "by proposed"), rows)
    yield from _keys("Keys newly denied", found["keys_newly_denied"], ("checks",))
    yield from _keys("Keys newly allowed", found["keys_newly_allowed"], ("checks",))


def _suggested(report: Mapping[str, Any]) -> Iterable[str]:
    suggested = report.get("suggested")
    if suggested is None:
        return
    rows = [
        (
            row["rule"],
            row["limit"],
            row["suggested_in_words"] or row["problem"],
            *(row[name] for name in ("checks", "denied", "denied_percent")),
        )
        for row in suggested["rules"]
    ]
    title = f"Limits that deny at most {suggested['percent']:g} % of their checks"
    yield _table(title, ("rule", "limit", "suggested"), ("checks", "denied", "%"), rows)


def _keys(title: str, rows: Sequence[Mapping[str, Any]], numbers: Sequence[str]) -> Iterable[str]:
    if rows:
        shown = [(row["rule"], key_in_words(row["key"]), *(row[name] for name in numbers)) for row in rows]
        heads = tuple("%" if name == "denied_percent" else name for name in numbers)
        yield _table(title, ("rule", "key"), heads, shown)


def _lines(lines: Mapping[str, Any]) -> Iterable[str]:
    if lines["unreadable"] or lines["refused"]:
        rows = [*lines["unreadable_because"].items(), *lines["refused_because"].items()]
        yield _table("Lines that are no checks", ("why",), ("lines",), rows)
    if lines["unreadable_examples"]:
        rows = [
            (f"{one['file']}:{one['line']}", one["problem"], one["text"]) for one in lines["unreadable_examples"]
        ]
        yield _table("Such as", ("where", "why", "text"), (), rows)


def _notes(notes: Sequence[str]) -> Iterable[str]:
    if notes:
        yield "<h2>To be known</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>"


def _table(title: str, texts: Sequence[str], numbers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    heads = "".join(f"<th>{escape(name)}</th>" for name in texts)
    heads += "".join(f'<th class="n">{escape(name)}</th>' for name in numbers)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f"<h2>{escape(title)}</h2><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f'<td class="n">{value:,}</td>'
    if isinstance(value, float):
        return f'<td class="n">{value:,.4g}</td>'
    return f"<td>{escape(str(value if value is not None else ''))}</td>"
