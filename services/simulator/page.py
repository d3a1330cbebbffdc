"""An outcome as one page that needs nothing else: figures as a table, rates and shares as drawings.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TypeVar

from regional_limiter.model.share import SHARE_UNITS
from services.simulator.report import Row
from services.simulator.run import Outcome

_COLOURS = ("#3b6fd4", "#d9822b", "#2f9e6e", "#a34fc0", "#c94a5a", "#6b7a8f", "#8a7a1f", "#1f8a9e")
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 920, 220, 64, 12, 24
_POINTS_MOST = 600

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #697386; --line: #d8dee8; --paper: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf2; --soft: #98a3b6; --line: #343d4d; --paper: #161b24; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem; }
p, figcaption { color: var(--soft); }
.wide { overflow-x: auto; } svg { width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .35rem .6rem; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; } thead th { color: var(--soft); font-weight: 600; }
.over { color: #c94a5a; font-weight: 600; }
.key { display: inline-block; margin-right: 1.2em; } .key i { display: inline-block; width: .8em; height: .8em;
  border-radius: 2px; margin-right: .4em; vertical-align: -1px; }
""".strip()


def page(title: str, about: str, regions: Sequence[str], rate: int, rows: Sequence[Row], outcome: Outcome) -> str:
    """The whole page.  ``about``: one sentence on what was asked for; ``rate``: tokens a second of the limit."""
    samples = thinned(outcome.samples)
    times = [sample.at_s for sample in samples]
    totals = {
        "asked for": [sum(sample.offered) for sample in samples],
        "admitted": [sum(sample.admitted) for sample in samples],
    }
    shares = {
        name: [100 * sample.shares[place] / SHARE_UNITS for sample in samples] for place, name in enumerate(regions)
    }
    admitted = {name: [sample.admitted[place] for sample in samples] for place, name in enumerate(regions)}
    return whole_page(
        title,
        [
            f"<p>{escape(about)}</p>",
            _table(rows),
            figure("Requests a second, all regions", times, totals, mark=rate),
            figure("Admitted a second, by region", times, admitted),
            figure("Share of the limit in force, in percent", times, shares),
        ],
    )


def whole_page(title: str, parts: Sequence[str]) -> str:
    """A page of these parts of HTML."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *parts,
            "</body></html>",
            "",
        ]
    )


_T = TypeVar("_T")


def thinned(samples: Sequence[_T]) -> list[_T]:
    """At most some hundred of them, so that a long run stays a small page."""
    step = -(-len(samples) // _POINTS_MOST) if samples else 1
    return list(samples[::step])


def _table(rows: Sequence[Row]) -> str:
    heads = ["", "utilisation", "false rejects", "over the limit", "messages a second"]
    return table(heads, [(row.name, row.utilisation, row.false_rejects, row.excess, row.messages) for row in rows])


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """``rows``: texts under ``heads``.  A cell that tells of tokens above a limit is marked."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(text: str) -> str:
    mark = ' class="over"' if text.endswith(" tokens") else ""
    return f"<td{mark}>{escape(text)}</td>"


def figure(title: str, times: Sequence[float], series: dict[str, list[float]], mark: float | None = None) -> str:
    if not times:
        return ""
    top = max([value for values in series.values() for value in values] + [mark or 0.0, 1.0]) * 1.05
    last = times[-1] or 1.0

    def point(at_s: float, value: float) -> str:
        across = _LEFT + (_WIDTH - _LEFT - 8) * at_s / last
        return f"{across:.1f},{_down(value, top):.1f}"

    lines = []
    for place, (name, values) in enumerate(series.items()):
        colour = _COLOURS[place % len(_COLOURS)]
        path = " ".join(point(at_s, value) for at_s, value in zip(times, values, strict=True))
        lines.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{path}">'
            f"<title>{escape(name)}</title></polyline>"
        )
    keys = "".join(
        f'<span class="key"><i style="background:{_COLOURS[place % len(_COLOURS)]}"></i>{escape(name)}</span>'
        for place, name in enumerate(series)
    )
    grid = "".join(_grid_line(top * part / 4, top) for part in range(5))
    limit = _limit_line(mark, top) if mark is not None else ""
    ticks = "".join(
        f'<text x="{_LEFT + (_WIDTH - _LEFT - 8) * part / 6:.0f}" y="{_HEIGHT - 6}" text-anchor="middle" '
        f'font-size="11" fill="var(--soft)">{last * part / 6:.0f} s</text>'
        for part in range(7)
    )
    return (
        f'<h2>{escape(title)}</h2><figure style="margin:0"><div class="wide">'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"{grid}{limit}{ticks}{''.join(lines)}</svg></div><figcaption>{keys}</figcaption></figure>"
    )


def _down(value: float, top: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - value / top)


def _grid_line(value: float, top: float) -> str:
    down = _down(value, top)
    return (
        f'<line x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{down:.1f}" y2="{down:.1f}" stroke="var(--line)"/>'
        f'<text x="{_LEFT - 8}" y="{down + 4:.1f}" text-anchor="end" font-size="11" fill="var(--soft)">'
        f"{value:.0f}</text>"
    )


def _limit_line(value: float, top: float) -> str:
    down = _down(value, top)
    return (
        f'<line x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{down:.1f}" y2="{down:.1f}" stroke="var(--ink)" '
        f'stroke-dasharray="5 4"/><text x="{_WIDTH - 10}" y="{down - 4:.1f}" text-anchor="end" font-size="11" '
        f'fill="var(--ink)">limit</text>'
    )
